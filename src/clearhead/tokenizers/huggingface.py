"""The layouts of tokenizers before `tokenizer.json`: the files that each tokenizer class of `transformers` reads."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead.config.model import Encoder, InferenceConfig, ModelConfig, Tokens
from clearhead.config.parse import ConfigDict, read_config_file
from clearhead.errors import ClearheadError, cannot_read, reraise_as
from clearhead.tokenizers.sentencepiece import read_sentencepiece
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- layouts: The layouts of tokenizers before `tokenizer.json`: the files that each tokenizer class of `transformers` reads.

DIGIT = r"\p{N}"


def split_words(number_pattern: str) -> pre_tokenizers.Split:
    """The words of Llama 3 and Qwen: contractions, letters, numbers as given, the rest; line ends apart."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Split(
        tk.Regex(f"{contractions}|{letters}|{number_pattern}|{rest}"), "isolated"
    )


def read_text(path: Path) -> str:
    """What stands in a file, its line ends as they are."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError as error:
        raise ClearheadError(f"{path} is not text in UTF-8: {error}.") from None


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder, what its `tokenizer_config.json` says, its special tokens by their roles, and all that were added."""

    folder: Path
    config: ConfigDict
    roles: dict[str, str]
    added: Collection[str]

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ClearheadError(
                f"{self.folder}/tokenizer_config.json: {name} = {value!r} must be true or false."
            )
        return default if value is None else value

    def read_lines(self, name: str) -> list[str]:
        lines = read_text(self.folder / name).removesuffix("\n").split("\n")
        return [line.removesuffix("\r") for line in lines]

    def read_vocab(self, name: str) -> dict[str, int]:
        ids = read_config_file(self.folder / name)
        if (
            not ids
            or not all(type(i) is int for i in ids.values())
            or sorted(ids.values()) != list(range(len(ids)))
        ):
            raise ClearheadError(
                f"{self.folder / name} must number its tokens from 0 on, each number once and none left out."
            )
        return ids


def _gpt2(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    prefix = folder.flag("add_prefix_space", False)
    return [_byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=prefix))]


def _qwen(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    letters = pre_tokenizers.ByteLevel(
        add_prefix_space=folder.flag("add_prefix_space", False), use_regex=False
    )
    inner = _byte_level(folder, pre_tokenizers.Sequence([split_words(DIGIT), letters]))
    inner.normalizer = normalizers.NFC()
    return [inner]


def _byte_level(
    folder: TokenizerFolder, pre_tokenizer: pre_tokenizers.PreTokenizer
) -> tk.Tokenizer:
    merges = []
    for line in folder.read_lines("merges.txt"):
        if line and not line.startswith("#version"):
            left, between, right = line.partition(" ")
            if not between or " " in right:
                raise ClearheadError(
                    f"{folder.folder}/merges.txt: {line!r} must be two tokens with a space between."
                )
            merges.append((left, right))
    inner = tk.Tokenizer(models.BPE(folder.read_vocab("vocab.json"), merges))
    inner.pre_tokenizer = pre_tokenizer
    inner.decoder = decoders.ByteLevel()
    return inner


def _bert(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    tokens = folder.read_lines("vocab.txt")
    if len(ids := {token: i for i, token in enumerate(tokens)}) < len(tokens):
        raise ClearheadError(
            f"{folder.folder}/vocab.txt must hold each token once; {len(tokens) - len(ids)} repeat."
        )
    inner = tk.Tokenizer(models.WordPiece(ids, unk_token=folder.roles["unk"]))
    inner.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
        strip_accents=folder.flag("strip_accents", lower := folder.flag("do_lower_case", True)),
        lowercase=lower,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    return [inner]


def _t5(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    inner = read_sentencepiece(folder.folder / "spiece.model")
    extra = folder.config.get("extra_ids", 100)
    if type(extra) is not int or not 0 <= extra <= 10_000:
        raise ClearheadError(
            f"{folder.folder}/tokenizer_config.json: extra_ids = {extra!r} must be a small whole number."
        )
    inner.add_special_tokens(
        [f"<extra_id_{i}>" for i in reversed(range(extra))]
    )  # the last of them comes first
    return [inner]


def _llama(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    return [
        read_sentencepiece(
            folder.folder / "tokenizer.model",
            add_prefix_space=folder.flag("add_prefix_space", True),
        )
    ]


def _marian(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    """The target's tokenizer and the source's: two ways of cutting, one numbering unless the vocabularies are two."""
    ids = folder.read_vocab("vocab.json")
    both = folder.flag("separate_vocabs", False)
    languages = [name for name in ids if name.startswith(">>") and name.endswith("<<")]
    target = read_sentencepiece(
        folder.folder / "target.spm",
        folder.read_vocab("target_vocab.json") if both else ids,
        folder.added,
    )
    source = read_sentencepiece(folder.folder / "source.spm", ids, {*folder.added, *languages})
    source.add_tokens([tk.AddedToken(name, normalized=False) for name in languages])
    return [target, source]


@dataclass(frozen=True)
class TokenizerFormat:
    """What a tokenizer class takes for granted: its files, its special tokens, and what stands around a text."""

    files: tuple[str, ...]
    build: Callable[[TokenizerFolder], list[tk.Tokenizer]]
    roles: dict[str, str] = field(default_factory=dict)
    bos: tuple[str, ...] = ()  # roles, or tokens that have none
    eos: tuple[str, ...] = ()
    honors_add_bos_eos: bool = False  # whether `add_bos_token` and `add_eos_token` are heard


_GPT2_ROLES = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_QWEN_ROLES = dict.fromkeys(("eos", "pad", "unk"), "<|endoftext|>")
_WHISPER_PREFIX = ("<|startoftranscript|>", "<|notimestamps|>")
_BERT_ROLES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_T5_ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_LLAMA_ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

TOKENIZER_FORMATS = {
    "GPT2Tokenizer": TokenizerFormat(
        ("vocab.json", "merges.txt"), _gpt2, _GPT2_ROLES, honors_add_bos_eos=True
    ),
    "Qwen2Tokenizer": TokenizerFormat(
        ("vocab.json", "merges.txt"), _qwen, _QWEN_ROLES, honors_add_bos_eos=True
    ),
    "WhisperTokenizer": TokenizerFormat(
        ("vocab.json", "merges.txt"), _gpt2, _GPT2_ROLES, _WHISPER_PREFIX, ("eos",)
    ),
    "BertTokenizer": TokenizerFormat(("vocab.txt",), _bert, _BERT_ROLES, ("cls",), ("sep",)),
    "T5Tokenizer": TokenizerFormat(("spiece.model",), _t5, _T5_ROLES, (), ("eos",)),
    "LlamaTokenizer": TokenizerFormat(
        ("tokenizer.model",), _llama, _LLAMA_ROLES, ("bos",), honors_add_bos_eos=True
    ),
    "MarianTokenizer": TokenizerFormat(_MARIAN_FILES, _marian, _T5_ROLES, (), ("eos",)),
}
TOKENIZER_CLASSES = {  # which of them a `model_type` has, where its files do not say
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


# ---- published: Tokenizers as published models carry them: found in a folder of any layout, and written for other engines.

SPECIAL_TOKEN_ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"
ADDITIONAL_TOKENS_KEYS = ("additional_special_tokens", "extra_special_tokens")
CHAT_TEMPLATE = "chat_template"
TARGET_TOKENIZER_FILE = (
    "target_tokenizer.json"  # a name of our own, for models whose source is cut by another rule
)
AddedTokens = list[tuple[tk.AddedToken, int | None]]


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A model's tokenizer, what stands around a text that it reads, its chat template, and each role's token."""

    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None = None  # where the source is cut by another rule
    bos_tokens: tuple[int, ...] = ()
    sep_tokens: tuple[int, ...] = ()
    chat_template: str = ""
    special_token_ids: dict[str, int] = field(default_factory=dict)
    missing_reason: str = ""  # the model cannot read text, where there is no tokenizer


def read_hf_tokenizer(
    folder: Path, model_type: str, tokenizer_class: str = ""
) -> PretrainedTokenizer:
    """What `folder` holds for a model of this family, which is its `model_type`; `named` is a class it may tell of."""
    config = _read_json_if_exists(folder / TOKENIZER_CONFIG_FILE)
    tokenizer_class = str(config.get("tokenizer_class") or tokenizer_class).removesuffix("Fast")
    own = config.get("word_tokenizer_type") not in (
        None,
        "basic",
    )  # words are cut by another program first
    rule = (
        None
        if own
        else TOKENIZER_FORMATS.get(tokenizer_class or TOKENIZER_CLASSES.get(model_type, ""))
    )
    new = (
        folder / TOKENIZER_FILE
    ).is_file() and tokenizer_class != "RoFormerTokenizer"  # whose tokenizer.json leaves jieba out
    with reraise_as(f"{folder} holds a tokenizer that cannot be used"):
        chat = _read_chat_template(folder, config)
        if not new and not (rule and all((folder / name).is_file() for name in rule.files)):
            return PretrainedTokenizer(
                None,
                chat_template=chat,
                missing_reason=_missing_reason(
                    folder, config, tokenizer_class or TOKENIZER_CLASSES.get(model_type, ""), rule
                ),
            )
        told = (
            config
            if "added_tokens_decoder" in config
            else config | _read_json_if_exists(folder / SPECIAL_TOKENS_MAP_FILE)
        )
        given = {
            role: told.get(f"{role}_token", rule.roles.get(role) if rule else None)
            for role in SPECIAL_TOKEN_ROLES
        }
        roles = {
            role: _parse_added_token(value, special=True)
            for role, value in given.items()
            if value is not None
        }
        added = _read_added_tokens(folder, told, list(roles.values()))
        asked = TokenizerFolder(
            folder,
            config,
            {role: t.content for role, t in roles.items()},
            [t.content for t, _ in added],
        )
        if new or rule is None:
            inners = [
                Tokenizer.load(path).backend
                for path in (folder / TARGET_TOKENIZER_FILE, folder / TOKENIZER_FILE)
                if path.is_file()
            ]
        else:
            inners = rule.build(asked)
        for inner in inners:
            _add_tokens(inner, added)
        text = inners[0]
        reading = inners[-1]
        begin, end = (
            _surrounding_tokens(reading)
            if new or rule is None
            else _surrounding_tokens_by_format(rule, asked, reading)
        )
        special = {
            role: i
            for role, name in asked.roles.items()
            if (i := text.token_to_id(name)) is not None
        }
        source = Tokenizer(reading) if len(inners) > 1 else None
        return PretrainedTokenizer(Tokenizer(text), source, begin, end, chat, special)


def read_tokenizer_json(path: Path) -> PretrainedTokenizer:
    """A tokenizer.json by itself."""
    tokenizer = Tokenizer.load(path)
    return PretrainedTokenizer(tokenizer, None, *_surrounding_tokens(tokenizer.backend))


def _missing_reason(
    folder: Path, config: ConfigDict, kind: str, rule: TokenizerFormat | None
) -> str:
    if kind == "RoFormerTokenizer":
        return f"{folder} cuts words with jieba, which clearhead does not have, so the model cannot read text."
    if "auto_map" in config:
        return f"{folder} has no tokenizer but code of its own, which is never run, so the model cannot read text."
    files = (
        f"neither {TOKENIZER_FILE} nor {' with '.join(rule.files)}"
        if rule
        else f"no {TOKENIZER_FILE}"
    )
    return f"{folder} holds {files}, so the model cannot read text."


def _read_json_if_exists(path: Path) -> ConfigDict:
    return read_config_file(path) if path.is_file() else {}


def _read_chat_template(folder: Path, config: ConfigDict) -> str:
    """The chat template; of several, the one called default."""
    if (folder / f"{CHAT_TEMPLATE}.jinja").is_file():
        return read_text(folder / f"{CHAT_TEMPLATE}.jinja")
    given = (
        config.get(CHAT_TEMPLATE)
        or _read_json_if_exists(folder / f"{CHAT_TEMPLATE}.json").get(CHAT_TEMPLATE)
        or ""
    )
    several = given if isinstance(given, list) else [{"name": "default", "template": given}]
    if not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in several):
        raise ClearheadError(
            f"{folder}: {CHAT_TEMPLATE} must be a text, or a list of texts with names."
        )
    template = next((one["template"] for one in several if one.get("name") == "default"), "")
    if any("\ud800" <= character <= "\udfff" for character in template):
        raise ClearheadError(f"{folder}: {CHAT_TEMPLATE} holds half a character.")
    return template


def _parse_added_token(value: object, special: bool) -> tk.AddedToken:
    """A token as the files write it: its text, or a table with its text and how it is found."""
    table = value if isinstance(value, dict) else {"content": value}
    names = ("single_word", "lstrip", "rstrip", "normalized")
    flags = {name: table[name] for name in names if name in table}
    if not isinstance(content := table.get("content"), str) or not all(
        isinstance(f, bool) for f in flags.values()
    ):
        raise ClearheadError(
            f"a special token must be a text, or a table with its content, not {value!r:.99}."
        )
    return tk.AddedToken(content, special=special or table.get("special") is True, **flags)


def _read_added_tokens(folder: Path, told: ConfigDict, roles: list[tk.AddedToken]) -> AddedTokens:
    """The tokens that were added to a vocabulary, those with ids of their own first."""
    numbers, more, extra = (
        told.get(name) or {} for name in ("added_tokens_decoder", *ADDITIONAL_TOKENS_KEYS)
    )
    if (
        not isinstance(numbers, dict)
        or not isinstance(more, dict | list)
        or not isinstance(extra, dict | list)
    ):
        raise ClearheadError(
            f"{folder}/{TOKENIZER_CONFIG_FILE}: added_tokens_decoder must be a table, and {' and '.join(ADDITIONAL_TOKENS_KEYS)} lists."
        )
    listed = [
        value
        for some in (more, extra)
        for value in (some.values() if isinstance(some, dict) else some)
    ]
    special = [*roles, *(_parse_added_token(value, special=True) for value in listed)]
    names = {token.content for token in special}
    pairs = [(_parse_added_token(value, special=False), int(i)) for i, value in numbers.items()]
    if "added_tokens_decoder" not in told:
        pairs = [
            (_parse_added_token(name, special=False), i)
            for name, i in _read_json_if_exists(folder / "added_tokens.json").items()
        ]
    for token, i in pairs:
        if type(i) is not int:
            raise ClearheadError(
                f"{folder}/added_tokens.json: the id of {token.content!r} is {i!r}, no whole number."
            )
        token.special = token.special or token.content in names
    return [*sorted(pairs, key=lambda pair: pair[1]), *((token, None) for token in special)]


def _add_tokens(inner: tk.Tokenizer, added: AddedTokens) -> None:
    """Makes tokens whole. One that the vocabulary lacks gets the id that was asked for, or stays out."""
    there = {token.content for token in inner.get_added_tokens_decoder().values()}
    known = {token.content for token, _ in added if inner.token_to_id(token.content) is not None}
    inner.add_tokens(
        [t for t, i in added if t.content not in there and (i is not None or t.content in known)]
    )
    for token, i in added:
        if i is not None and token.content not in known and inner.token_to_id(token.content) != i:
            raise ClearheadError(
                f"the token {token.content!r} cannot have the id {i}; ids must follow one another."
            )


def _surrounding_tokens(inner: tk.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a tokenizer puts before and after a text."""
    for i in range(inner.get_vocab_size()):
        try:
            whole = inner.encode(inner.decode([i]))
        except Exception:  # a token that is no text
            continue
        if 0 in (mask := whole.special_tokens_mask):
            return tuple(whole.ids[: mask.index(0)]), tuple(
                whole.ids[len(mask) - mask[::-1].index(0) :]
            )
    return (), ()


def _surrounding_tokens_by_format(
    tokenizer_format: TokenizerFormat, asked: TokenizerFolder, inner: tk.Tokenizer
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    begin = tokenizer_format.bos
    end = tokenizer_format.eos
    if tokenizer_format.honors_add_bos_eos:
        begin = ("bos",) if asked.flag("add_bos_token", bool(begin)) else ()
        end = ("eos",) if asked.flag("add_eos_token", False) else ()
    ids = [
        [inner.token_to_id(asked.roles.get(name, name)) for name in names] for names in (begin, end)
    ]
    return tuple(i for i in ids[0] if i is not None), tuple(i for i in ids[1] if i is not None)


def write_hf_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None,
    inference: InferenceConfig,
    model_config: ModelConfig,
) -> None:
    """For `AutoTokenizer`, which then encodes and decodes as ours do. Of two it knows the one that reads sources."""
    reading = source_tokenizer or tokenizer
    tree = json.loads(reading.backend.to_str())
    roles = _special_token_names(
        tokenizer, reading, inference, tree["model"], isinstance(model_config.architecture, Encoder)
    )
    with_post_processor(reading, inference).save(folder / TOKENIZER_FILE)
    if source_tokenizer is not None:
        tokenizer.save(folder / TARGET_TOKENIZER_FILE)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model_config.context_length,
        **roles,
    }
    if (
        isinstance(model_config.input, Tokens) and model_config.input.token_types > 1
    ):  # which of two texts a token is of
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    config |= {"clean_up_tokenization_spaces": False}  # older versions would take spaces away
    config |= {CHAT_TEMPLATE: inference.chat_template} if inference.chat_template else {}
    for name, table in ((TOKENIZER_CONFIG_FILE, config), (SPECIAL_TOKENS_MAP_FILE, roles)):
        (folder / name).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if inference.chat_template:
        (folder / f"{CHAT_TEMPLATE}.jinja").write_text(inference.chat_template, encoding="utf-8")


def _special_token_names(
    tokenizer: Tokenizer,
    reading: Tokenizer,
    inference: InferenceConfig,
    model: ConfigDict,
    encoder: bool,
) -> dict[str, str]:
    begin, end = ("cls", "sep") if encoder else ("bos", "eos")
    ids = {
        begin: (reading, inference.bos_tokens),
        end: (reading, inference.sep_tokens),
        "pad": (tokenizer, inference.pad_token),
    }
    ids |= {"mask": (tokenizer, inference.mask_token)} | (
        {"eos": (tokenizer, inference.eos_tokens)} if inference.eos_tokens else {}
    )
    names = {role: owner.id_to_token(some[0]) for role, (owner, some) in ids.items() if some}
    unknown = model.get("unk_token") or (
        model["vocab"][i][0] if (i := model.get("unk_id")) is not None else None
    )
    # A token that plain text may become is left out: a role would make it special.
    return {
        f"{role}_token": name
        for role, name in {**names, "unk": unknown}.items()
        if name in reading.special_tokens
    }


def with_post_processor(tokenizer: Tokenizer, inference: InferenceConfig) -> Tokenizer:
    """The tokenizer for others, who have it put around a text what the model reads there."""
    if _surrounding_tokens(tokenizer.backend) == (inference.bos_tokens, inference.sep_tokens):
        return tokenizer
    tree = json.loads(tokenizer.backend.to_str())
    return Tokenizer(
        tk.Tokenizer.from_str(
            json.dumps(tree | {"post_processor": _post_processor(tokenizer, inference)})
        )
    )


def _post_processor(tokenizer: Tokenizer, inference: InferenceConfig) -> ConfigDict:
    """The post-processor that puts `begin` and `end` around a text; a second text has its own end."""

    def special(ids: Sequence[int], place: int) -> list[ConfigDict]:
        return [{"SpecialToken": {"id": tokenizer.id_to_token(i), "type_id": place}} for i in ids]

    first, second = (
        {"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB")
    )
    single = [*special(inference.bos_tokens, 0), first, *special(inference.sep_tokens, 0)]
    names = {tokenizer.id_to_token(i): i for i in (*inference.bos_tokens, *inference.sep_tokens)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *special(inference.sep_tokens, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in names.items()
        },
    }
