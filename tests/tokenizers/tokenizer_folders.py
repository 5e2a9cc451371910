"""Small tokenizer folders in every published format, loaded by clearhead and transformers."""

import io
import json
import re
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers as tk
from hypothesis import strategies as st
from tokenizers import models, trainers

from clearhead.config.model import Encoder, ModelConfig, NoHead
from clearhead.tokenizers.huggingface import PretrainedTokenizer, read_hf_tokenizer
from clearhead.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", minversion="5")
sentencepiece = pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()

LINES = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps.",
    "Über den Fluß lief ein schneller Fuchs: 12345 Füße! Où est l'élève?",
    "she sells sea shells\nby the sea shore; I'll see 3 of them, they've said",
    "Tôi thấy những cánh đồng bất tận. 東京と京都 한국어 문장 שלום עולם مرحبا",
] * 4
END = "<|endoftext|>"
CONFIG_FILE = "tokenizer_config.json"
CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"

SCRIPTS = [
    "the",
    " dog",
    "##ing",
    "123",
    "don't",
    " they'VE",
    "Füße",
    "東京",
    "שָׁלוֹם",
    "عـربي",
    "한",
    "Ǆ",
    "ﬁ",
    "½",
    "▁",
    "<0x41>",
]
ODD = [
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "\x7f",
    "e\u0302\u0301",
    "👩\u200d👩\u200d👧",
    "\u200b",
    "\u3000",
    "\ufeff",
]
plain_texts = st.lists(
    st.one_of(st.sampled_from(SCRIPTS + ODD), st.text(max_size=6)), max_size=6
).map("".join)


def model_config_for(inference, context_length):
    """A model that fits an inference config: a mask token needs an encoder."""
    encoder = {"architecture": Encoder(), "head": NoHead()} if inference.mask_token else {}
    return ModelConfig(context_length=context_length, **encoder)


def spm(lines: list[str] = LINES, **options: Any) -> bytes:
    file = io.BytesIO()
    train = sentencepiece.SentencePieceTrainer.train
    options |= {"minloglevel": 2, "hard_vocab_limit": False, "vocab_size": 400}
    train(sentence_iterator=iter(lines), model_writer=file, **options)
    return file.getvalue()


T5_SPM = spm(model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
AS_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
LLAMA_SPM = spm(model_type="bpe", byte_fallback=True, split_digits=True, **AS_IS)


def bpe() -> tuple[dict[str, int], str]:
    model = json.loads(Tokenizer.train_bpe(LINES, 400, ()).backend.to_str())["model"]
    return model["vocab"], "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"])


VOCAB, MERGES = bpe()


def wordpiece_vocab() -> str:
    inner = tk.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.train_from_iterator(
        [*LINES, *map(str.lower, LINES)],
        trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False),
    )
    vocab = inner.get_vocab()
    return "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__))


WORD_PIECES = wordpiece_vocab()


QWEN = [END, "<|im_start|>", "<|im_end|>"]
WHISPER = [
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|notimestamps|>",
]
N = len(VOCAB)
BPE = {"merges.txt": MERGES}
LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
LEGACY_FORMATS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # families in the write_folders that they were first published in
    "gpt2": ("gpt2", BPE | {"vocab.json": VOCAB | {END: N}}),
    "gpt2-begins": (
        "gpt2",
        BPE
        | {
            "vocab.json": VOCAB | {END: N},
            "tokenizer_config.json": {
                "tokenizer_class": "GPT2Tokenizer",
                "add_bos_token": True,
                "add_prefix_space": True,
            },
            "special_tokens_map.json": {
                "bos_token": {"content": END},
                "eos_token": END,
                "pad_token": "[PAD]",
            },
            "added_tokens.json": {"[PAD]": N + 1, "two words": N + 2},
        },
    ),
    "qwen2": (
        "qwen2",
        BPE
        | {
            "vocab.json": VOCAB,
            "tokenizer_config.json": {
                "tokenizer_class": "Qwen2Tokenizer",
                "added_tokens_decoder": {
                    str(N + i): {"content": name, "special": True} for i, name in enumerate(QWEN)
                },
                "additional_special_tokens": QWEN[1:],
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": END,
                "chat_template": [
                    {"name": "other", "template": ""},
                    {"name": "default", "template": CHAT},
                ],
            },
        },
    ),
    "whisper": (
        "whisper",
        BPE
        | {
            "vocab.json": VOCAB | {"": N, END: N + 1},  # the empty token is Whisper's own
            "added_tokens.json": {name: N + 2 + i for i, name in enumerate(WHISPER)},
            "special_tokens_map.json": {"eos_token": END, "additional_special_tokens": WHISPER},
            "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer"},
        },
    ),
    "bert": ("bert", {"vocab.txt": WORD_PIECES}),
    "bert-cased": (
        "bert",
        {
            "vocab.txt": WORD_PIECES,
            "tokenizer_config.json": {"do_lower_case": False, "tokenize_chinese_chars": False},
        },
    ),
    "bert-accents": (
        "bert",
        {"vocab.txt": WORD_PIECES, "tokenizer_config.json": {"strip_accents": False}},
    ),
    "t5": (
        "t5",
        {
            "spiece.model": T5_SPM,
            "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 7},
        },
    ),
    "llama": (
        "llama",
        {"tokenizer.model": LLAMA_SPM, "tokenizer_config.json": LLAMA | {"legacy": True}},
    ),
    "llama-first": (
        "llama",
        {"tokenizer.model": LLAMA_SPM, "tokenizer_config.json": LLAMA | {"legacy": False}},
    ),
}
FOLDERS = [f"{name}{new}" for name in LEGACY_FORMATS for new in ("", "-new")]
# transformers saves and loads the prefix space of these inconsistently.
PREFIX_SPACE_DIFFERS = {"llama-new", "llama-first"}


def write_files(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        raw = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return folder


def load_with_transformers(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def write_folders(root: Path, names: Iterable[str] = ()) -> dict[str, Path]:
    """Folders in the legacy format, and as transformers writes them today."""
    folders = {}
    for name in names or LEGACY_FORMATS:
        family, files = LEGACY_FORMATS[name]
        old = write_files(root / name, {**files, "config.json": {"model_type": family}})
        new = root / f"{name}-new"
        load_with_transformers(old).save_pretrained(new)
        shutil.copy(old / "config.json", new)
        assert (new / "tokenizer.json").exists()
        folders |= {name: old, f"{name}-new": new}
    return folders


def load_with_clearhead(folder: Path) -> PretrainedTokenizer:
    return read_hf_tokenizer(folder, json.loads((folder / "config.json").read_text())["model_type"])


def tokenizer(words: PretrainedTokenizer) -> Tokenizer:
    assert words.tokenizer is not None, words.missing_reason
    return words.tokenizer


def encode_with_special_tokens(words: PretrainedTokenizer, text: str) -> list[int]:
    return [
        *words.bos_tokens,
        *tokenizer(words).encode(text, allow_special=True),
        *words.sep_tokens,
    ]


def draw_text_with_special_tokens(data: st.DataObject, names: Any) -> str:
    """A text that contains names of special tokens."""
    return "".join(
        data.draw(st.lists(st.one_of(plain_texts, st.sampled_from([*names])), max_size=4))
    )


def comparable_text(name: str, text: str) -> str:
    """A text without the cases in which transformers differs from SentencePiece.

    Its T5 drops a line end that the model file keeps (U+0085), and marks of letters that are not
    composed; its Llama leaves out the prefix space before a text that starts with one.
    """
    if name.startswith("t5"):
        return unicodedata.normalize("NFC", text.replace("\x85", ""))
    if name.startswith("llama"):
        return re.sub(r"(^|<s>|</s>|<unk>)[ ▁]+", r"\1", text)
    return text


OWN = Tokenizer.train_bpe(LINES, 300, ("<|end|>", "<|a:b|>"))


def assert_equal_encoding(pretrained: PretrainedTokenizer, reference: Any, text: str) -> None:
    ids = encode_with_special_tokens(pretrained, text)
    assert reference(text)["input_ids"] == ids
    assert reference.decode(ids) == tokenizer(pretrained).decode(ids)


def marian(kind: str) -> tuple[dict[str, Any], list[set[str]]]:
    files = [spm(model_type=kind, lines=LINES[i::2]) for i in (0, 1)]
    known = []
    for file in files:
        cutter = sentencepiece.SentencePieceProcessor(model_proto=file)
        known.append({cutter.id_to_piece(i) for i in range(3, cutter.get_piece_size())})
    names = ["</s>", "<unk>", *sorted(known[0] | known[1]), ">>de<<", ">>fr<<", "<pad>"]
    return {
        "source.spm": files[0],
        "target.spm": files[1],
        "vocab.json": {name: i for i, name in enumerate(names)},
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": "en",
            "target_lang": "de",
        },
        "config.json": {"model_type": "marian"},
    }, known
