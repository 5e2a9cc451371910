"""Edited tokenizer folders give the tokens of transformers, or are refused."""

import json
import random

import pytest
import tokenizers as tk

from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError, InputTextError
from clearhead.evaluate.against_transformers import draw_texts
from clearhead.tokenizers.huggingface import read_hf_tokenizer

transformers = pytest.importorskip("transformers")
from fuzz_cases import SEED, check_cases  # noqa: E402 - needs transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BPE_TOKENS = ["<s>", "</s>", "<pad>", "<|endoftext|>"]
CORPUS = draw_texts(random.Random(0), 300)


def train_wordpiece(rng):
    backend = tk.Tokenizer(tk.models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = tk.normalizers.BertNormalizer(
        lowercase=rng.random() < 0.5, strip_accents=rng.choice([None, True, False])
    )
    backend.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tk.decoders.WordPiece()
    backend.train_from_iterator(
        CORPUS, tk.trainers.WordPieceTrainer(vocab_size=200, special_tokens=BERT_TOKENS)
    )
    backend.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return backend


def train_bpe(rng):
    backend = tk.Tokenizer(tk.models.BPE())
    prefix = rng.random() < 0.3
    byte_level = tk.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.pre_tokenizer = byte_level
    if rng.random() < 0.3:
        digits = tk.pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = tk.pre_tokenizers.Sequence([digits, byte_level])
    if rng.random() < 0.3:
        backend.normalizer = tk.normalizers.NFC()
    backend.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS,
        tk.trainers.BpeTrainer(
            vocab_size=320, special_tokens=BPE_TOKENS, initial_alphabet=alphabet
        ),
    )
    if rng.random() < 0.5:
        backend.post_processor = tk.processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    return backend


CLASSES = {
    "bert": ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", None],
    "gpt2": ["GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", None],
    "llama": ["PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "LlamaTokenizer"],
    "qwen2": ["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", None],
}
OPTIONS = [
    ("do_lower_case", [True, False]),
    ("strip_accents", [True, False, None]),
    ("tokenize_chinese_chars", [True, False]),
    ("add_prefix_space", [True, False, None]),
    ("add_bos_token", [True, False, None]),
    ("add_eos_token", [True, False]),
    ("do_basic_tokenize", [True, False]),
    ("never_split", [None, ["the"]]),
    ("clean_up_tokenization_spaces", [True, False]),
    ("split_special_tokens", [False]),
    ("model_max_length", [8, 512]),
    ("truncation_side", ["left"]),
    ("padding_side", ["left"]),
    ("legacy", [True, False]),
    ("additional_special_tokens", [["<extra>"], []]),
    ("use_default_system_prompt", [False]),
    ("unk_token", ["[UNK]", "<unk>"]),
    ("errors", ["replace"]),
]


def save_random_tokenizer(rng, model_type, folder):
    """Write a folder as old and new versions do, with random options; return the options."""
    folder.mkdir()
    is_bert = model_type == "bert"
    backend = train_wordpiece(rng) if is_bert else train_bpe(rng)
    roles = {"unk": 1, "cls": 2, "sep": 3, "mask": 4, "pad": 0} if is_bert else {"bos": 0, "eos": 1}
    config = {f"{role}_token": backend.id_to_token(i) for role, i in roles.items()}
    if name := rng.choice(CLASSES[model_type]):
        config["tokenizer_class"] = name
    options = {}
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        option, values = rng.choice(OPTIONS)
        options[option] = rng.choice(values)
    config |= options
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if rng.random() < 0.85:
        backend.save(str(folder / "tokenizer.json"))
    else:
        backend.model.save(str(folder))
        options["layout"] = "vocabulary"
    return {**options, "tokenizer_class": name, "backend": json.loads(backend.to_str())}


def rules(backend):
    """How a tokenizer splits text before its model does."""
    tree = json.loads(backend.to_str())
    return tree["normalizer"], tree["pre_tokenizer"]


def describe(options):
    backend = options["backend"]
    options = {name: value for name, value in options.items() if name != "backend"}
    return f"{options}, {backend['normalizer']}, {backend['pre_tokenizer']}, " + (
        f"{(backend['post_processor'] or {}).get('single')}"
    )


def run_case(number, folder):
    rng = random.Random(f"tokenizer-{SEED}-{number}")
    model_type = list(CLASSES)[number % len(CLASSES)]
    options = save_random_tokenizer(rng, model_type, folder)
    tokenizer_class = str(read_config_file(folder / "config.json").get("tokenizer_class") or "")
    try:
        ours = read_hf_tokenizer(folder, model_type, tokenizer_class)
    except ClearheadError:
        return "refused"
    if ours.tokenizer is None:
        return "refused"
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception:  # whatever it is, there is nothing to compare
        return "refused by transformers only"
    for text in draw_texts(rng, 20):
        try:
            ids = [*ours.bos_tokens, *ours.tokenizer.encode(text), *ours.sep_tokens]
        except InputTextError:
            continue
        try:
            expected = theirs(text)["input_ids"]
        except Exception:  # such as a missing unknown token
            return "refused by transformers only"
        name = f"seed {SEED}, case {number}: {model_type} {describe(options)}"
        if ids != expected and rules(ours.tokenizer.backend) != rules(theirs.backend_tokenizer):
            # transformers 5 replaces the rules of tokenizer.json by those of some classes
            assert not name.count("vocabulary"), name
            return "rebuilt by transformers"
        assert ids == expected, f"{name}: {text!r} {ids} {expected}"
    return "equal"


def test_edited_tokenizers_equal_transformers_or_are_refused(tmp_path, capsys):
    check_cases(run_case, 150, tmp_path, capsys)
