"""The layouts of tokenizers before `tokenizer.json`: the files that each tokenizer class of `transformers` reads."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead import reader
from clearhead.errors import ClearheadError, unreadable
from clearhead.tokens import pieces

DIGIT = r"\p{N}"


def words(numbers: str) -> pre_tokenizers.Split:
    """The words of Llama 3 and Qwen: contractions, letters, numbers as given, the rest; line ends apart."""
    contractions, letters = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Split(tk.Regex(f"{contractions}|{letters}|{numbers}|{rest}"), "isolated")


def text_of(path: Path) -> str:
    """What stands in a file, its line ends as they are."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise ClearheadError(f"{path} is not text in UTF-8: {error}.") from None


@dataclass(frozen=True)
class Asked:
    """A folder, what its `tokenizer_config.json` says, its special tokens by their roles, and all that were added."""

    folder: Path
    config: reader.Tree
    roles: dict[str, str]
    added: Collection[str]

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ClearheadError(f"{self.folder}/tokenizer_config.json: {name} = {value!r} must be true or false.")
        return default if value is None else value

    def lines(self, name: str) -> list[str]:
        lines = text_of(self.folder / name).removesuffix("\n").split("\n")
        return [line.removesuffix("\r") for line in lines]

    def ids(self, name: str) -> dict[str, int]:
        ids = reader.load(self.folder / name)
        if not ids or not all(type(i) is int for i in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
            raise ClearheadError(
                f"{self.folder / name} must number its tokens from 0 on, each number once and none left out."
            )
        return ids


def _gpt2(asked: Asked) -> list[tk.Tokenizer]:
    prefix = asked.flag("add_prefix_space", False)
    return [_byte_level(asked, pre_tokenizers.ByteLevel(add_prefix_space=prefix))]


def _qwen(asked: Asked) -> list[tk.Tokenizer]:
    letters = pre_tokenizers.ByteLevel(add_prefix_space=asked.flag("add_prefix_space", False), use_regex=False)
    inner = _byte_level(asked, pre_tokenizers.Sequence([words(DIGIT), letters]))
    inner.normalizer = normalizers.NFC()
    return [inner]


def _byte_level(asked: Asked, cut: pre_tokenizers.PreTokenizer) -> tk.Tokenizer:
    merges = []
    for line in asked.lines("merges.txt"):
        if line and not line.startswith("#version"):
            left, between, right = line.partition(" ")
            if not between or " " in right:
                raise ClearheadError(f"{asked.folder}/merges.txt: {line!r} must be two tokens with a space between.")
            merges.append((left, right))
    inner = tk.Tokenizer(models.BPE(asked.ids("vocab.json"), merges))
    inner.pre_tokenizer, inner.decoder = cut, decoders.ByteLevel()
    return inner


def _bert(asked: Asked) -> list[tk.Tokenizer]:
    tokens = asked.lines("vocab.txt")
    if len(ids := {token: i for i, token in enumerate(tokens)}) < len(tokens):
        raise ClearheadError(f"{asked.folder}/vocab.txt must hold each token once; {len(tokens) - len(ids)} repeat.")
    inner = tk.Tokenizer(models.WordPiece(ids, unk_token=asked.roles["unk"]))
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=asked.flag("tokenize_chinese_chars", True),
        strip_accents=asked.flag("strip_accents", lower := asked.flag("do_lower_case", True)),
        lowercase=lower,
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return [inner]


def _t5(asked: Asked) -> list[tk.Tokenizer]:
    inner = pieces.read(asked.folder / "spiece.model")
    extra = asked.config.get("extra_ids", 100)
    if type(extra) is not int or not 0 <= extra <= 10_000:
        raise ClearheadError(
            f"{asked.folder}/tokenizer_config.json: extra_ids = {extra!r} must be a small whole number."
        )
    inner.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(extra))])  # the last of them comes first
    return [inner]


def _llama(asked: Asked) -> list[tk.Tokenizer]:
    return [pieces.read(asked.folder / "tokenizer.model", prefix=asked.flag("add_prefix_space", True))]


def _marian(asked: Asked) -> list[tk.Tokenizer]:
    """The target's tokenizer and the source's: two ways of cutting, one numbering unless the vocabularies are two."""
    ids = asked.ids("vocab.json")
    both = asked.flag("separate_vocabs", False)
    languages = [name for name in ids if name.startswith(">>") and name.endswith("<<")]
    target = pieces.read(asked.folder / "target.spm", asked.ids("target_vocab.json") if both else ids, asked.added)
    source = pieces.read(asked.folder / "source.spm", ids, {*asked.added, *languages})
    source.add_tokens([tk.AddedToken(name, normalized=False) for name in languages])
    return [target, source]


@dataclass(frozen=True)
class Rule:
    """What a tokenizer class takes for granted: its files, its special tokens, and what stands around a text."""

    files: tuple[str, ...]
    build: Callable[[Asked], list[tk.Tokenizer]]
    roles: dict[str, str] = field(default_factory=dict)
    begin: tuple[str, ...] = ()  # roles, or tokens that have none
    end: tuple[str, ...] = ()
    asks: bool = False  # whether `add_bos_token` and `add_eos_token` are heard


_TEXT = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_QWEN = dict.fromkeys(("eos", "pad", "unk"), "<|endoftext|>")
_SOT = ("<|startoftranscript|>", "<|notimestamps|>")
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_MARIAN = ("source.spm", "target.spm", "vocab.json")

RULES = {
    "GPT2Tokenizer": Rule(("vocab.json", "merges.txt"), _gpt2, _TEXT, asks=True),
    "Qwen2Tokenizer": Rule(("vocab.json", "merges.txt"), _qwen, _QWEN, asks=True),
    "WhisperTokenizer": Rule(("vocab.json", "merges.txt"), _gpt2, _TEXT, _SOT, ("eos",)),
    "BertTokenizer": Rule(("vocab.txt",), _bert, _BERT, ("cls",), ("sep",)),
    "T5Tokenizer": Rule(("spiece.model",), _t5, _T5, (), ("eos",)),
    "LlamaTokenizer": Rule(("tokenizer.model",), _llama, _LLAMA, ("bos",), asks=True),
    "MarianTokenizer": Rule(_MARIAN, _marian, _T5, (), ("eos",)),
}
FAMILIES = {  # which of them a `model_type` has, where its files do not say
    "gpt2": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "bert": "BertTokenizer",
    "roformer": "RoFormerTokenizer",
    "marian": "MarianTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
}
