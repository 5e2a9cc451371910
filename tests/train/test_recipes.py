"""Every recipe, end to end on a little data: from files to a model that does what it is for, and a report."""

import json

import numpy as np
import pytest
import samples
import torch
from samples import NARROW, QUICK

import clearhead as ch
from clearhead.config.model import Config
from clearhead.config.presets import RECIPE_DATA
from clearhead.tokenizers.media import read_image
from clearhead.tokenizers.tokenizer import Tokenizer

STEPS = 4
LINES = {**NARROW, "model.context_length": 16}
WORDS = {**LINES, "data.vocab_size": 300}
PAIRS = {
    **WORDS,
    "model.architecture.encoder_layers": 1,
    "model.context_length": 32,
    "model.architecture.source_context_length": 32,
    "train.seq_len": 32,
}


def writes(model, folder):
    first, again = (model.generate("the cat", 6, seed=3) for _ in range(2))
    assert first.tokens
    assert first.text == again.text


def translates(model, folder):
    (best,) = model.translate(["the cat sat"], beam=2, max_tokens=8)
    assert isinstance(best.text, str)
    assert model.config.inference.decoder_start_tokens[0] in model.config.inference.suppress_tokens


def fills_in(model, folder):
    (mask,) = model.config.inference.mask_token
    ids = [*model.tokenizer.encode("the cat"), mask]
    assert model.logits(ids).shape == (len(ids), len(model.tokenizer))


def judges_texts(model, folder):
    assert model.config.inference.labels == ("bad", "good")
    assert model.logits(["the cat sat", "a dog"]).shape == (2, 2)


def judges_pictures(model, folder):
    assert model.config.inference.labels == ("0", "1")
    images = np.load(samples.pictures(folder)[0])["images"][:3]
    read = torch.stack([read_image(image, model.config.model.input) for image in images])
    assert model.logits(pictures=read).shape == (3, 2)


def judges_sounds(model, folder):
    assert model.config.inference.labels == ("high", "low")
    assert model.logits(sound=f"{samples.sounds(folder)[0]}/low/1.wav").shape == (2,)


RECIPES = {
    "shakespeare-char": (samples.texts, LINES, writes),
    "shakespeare-char-cpu": (samples.texts, LINES, writes),
    "lm-small": (samples.texts, WORDS, writes),
    "gpt2-124m": (samples.texts, {**WORDS, "train.grad_accum": 2}, writes),
    "mt-small": (samples.sentence_pairs, PAIRS, translates),
    "vaswani-base": (samples.sentence_pairs, PAIRS, translates),
    "mlm-small": (samples.texts, WORDS, fills_in),
    "roformer-small": (samples.texts, WORDS, fills_in),
    "finetune-classify": (samples.labelled, {}, judges_texts),
    "picture-patches": (
        samples.pictures,
        {**NARROW, "model.input.image_size": 8, "model.context_length": 5},
        judges_pictures,
    ),
    "sound-patches": (
        samples.sounds,
        {**NARROW, "model.input.n_mels": 16, "model.input.n_frames": 8, "model.context_length": 2},
        judges_sounds,
    ),
}


def learned(name, data, out, changes):
    return ch.train(
        name,
        out,
        quiet=True,
        device="cpu",
        **{"data.train": data, "train.max_steps": STEPS, **changes},
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What there is to fine-tune: a reader that the recipe for masked words has made."""
    folder = tmp_path_factory.mktemp("start")
    learned("mlm-small", samples.texts(folder), folder / "run", {**QUICK, **WORDS})
    return str(folder / "run" / "best")


def test_every_recipe_is_tried_and_says_what_data_it_expects():
    assert set(RECIPES) == set(RECIPE_DATA) <= set(ch.presets)
    for sentence in RECIPE_DATA.values():
        assert len(sentence.split()) > 3


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prints_and_reads_back(name, tmp_path):
    config = ch.presets[name]
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert Config.read(tmp_path / "run.toml") == config


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_goes_from_files_to_a_model_that_does_what_it_is_for(name, tmp_path, start):
    make, changes, use = RECIPES[name]
    begun = {"train.init_from": start} if name == "finetune-classify" else {}
    out = tmp_path / "run"
    model = learned(name, make(tmp_path), out, {**QUICK, **changes, **begun})
    assert model.config.train.max_steps == STEPS
    assert model.config.train.optimizer == ch.presets[name].train.optimizer
    use(model, tmp_path)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == STEPS
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert np.isfinite(lines[-1]["valid"])
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert name in (out / "report.html").read_text()
    assert ch.load(out / "steps" / f"{STEPS:08d}", device="cpu").config == model.config
    assert (out / "average" / "model.safetensors").exists() == bool(
        model.config.train.average_checkpoints
    )


def test_a_recipe_in_a_file_is_trained_like_its_name(tmp_path):
    changes = {**QUICK, **WORDS, "train.max_steps": STEPS}
    data = samples.texts(tmp_path)
    (tmp_path / "mine.toml").write_text(
        ch.presets["lm-small"].replace(**changes, **{"data.train": data}).to_toml()
    )
    by_file = ch.train(tmp_path / "mine.toml", tmp_path / "file", quiet=True, device="cpu")
    by_name = learned("lm-small", data, tmp_path / "name", changes)
    assert by_file.config == by_name.config
    for one, other in zip(by_file.net.parameters(), by_name.net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_that_never_began_leaves_no_words_to_the_next(tmp_path):
    data = samples.texts(tmp_path)
    out = tmp_path / "run"
    with pytest.raises(ch.ClearheadError, match="a row needs 50000 tokens"):
        learned("shakespeare-char", data, out, {**QUICK, **LINES, "model.context_length": 50000})
    assert len(learned("lm-small", data, out, {**QUICK, **WORDS}).tokenizer) == 300


def test_other_data_do_not_touch_what_a_run_has_read(tmp_path):
    data = samples.texts(tmp_path)
    out = tmp_path / "run"
    learned("lm-small", data, out, {**QUICK, **WORDS})
    before = (out / "tokens" / "train" / "tokens.bin").read_bytes()
    with pytest.raises(ch.ClearheadError, match=r"data.train = .*, not "):
        learned("lm-small", samples.sentence_pairs(tmp_path), out, {**QUICK, **WORDS})
    assert (out / "tokens" / "train" / "tokens.bin").read_bytes() == before


@pytest.mark.parametrize(
    ("special", "hides"),
    [(("[SEP]", "[MASK]"), "[MASK]"), (("<|endoftext|>",), "<|mask|>"), ((), "<|mask|>")],
)
def test_a_published_tokenizer_keeps_its_special_tokens_and_is_given_those_it_lacks(
    special, hides, tmp_path
):
    Tokenizer.train_bpe(samples.sentences(50), 290, special_tokens=special).save(
        tmp_path / "tokenizer.json"
    )
    changes = {**QUICK, **WORDS, "data.tokenizer": str(tmp_path / "tokenizer.json")}
    model = learned("mlm-small", samples.texts(tmp_path), tmp_path / "run", changes)
    assert model.config.inference.mask_token == (model.tokenizer.special_tokens[hides],)
    assert set(special) <= set(model.tokenizer.special_tokens)
    assert model.config.model.vocab_size == len(model.tokenizer)


FILE = "text.txt"
PAIR = ["a.en", "a.de"]
MISTAKES = [
    ("lm-small", {"data.train": []}, "there is nothing to learn from"),
    ("lm-small", {"data.train": "no.txt"}, "no.txt: it cannot be read: there is no such file"),
    ("lm-small", {"data.train": "empty.txt"}, "empty.txt: there is no text in it"),
    ("lm-small", {"data.train": "no.txt"}, r"there is no such file\.$"),
    ("lm-small", {"data.train": "empty.txt"}, r"no text in it\.$"),
    (
        "lm-small",
        {"data.train": [FILE, "empty.txt"]},
        "no text in it; --data.on_error skip would leave it out",
    ),
    (
        "lm-small",
        {"data.train": "empty"},
        r"empty: the folder holds no texts: no name ends in .txt, .text, .md, .jsonl\.$",
    ),
    (
        "lm-small",
        {"data.train": "zeros.txt"},
        r"zeros.txt: it is no text \(byte 3 is not UTF-8\)\.$",
    ),
    (
        "lm-small",
        {"data.train": "sounds", "out": "sounds"},
        "--out sounds is the folder of the data",
    ),
    (
        "lm-small",
        {"model.d_model": 32, "model.attention.n_heads": 6},
        "heads among its divisors, such as [48], or give model",
    ),
    (
        "lm-small",
        {"data.train": "short.txt"},
        "a row needs 16 tokens and one more; there are 1 to train on",
    ),
    (
        "lm-small",
        {"train.seed": 2**63},
        "train.seed is too large a whole number; it must be less than 2.63",
    ),
    (
        "lm-small",
        {"train.seq_len": 17},
        "choose --train.seq_len=16 or less, or a larger --model.context_length",
    ),
    ("lm-small", {"data.tokenizer": "wordz"}, "wordz is no clearhead model"),
    ("lm-small", {"data.tokenizer": FILE}, "text.txt is no tokenizer"),
    (
        "lm-small",
        {"train.expected_loss": [1, 2]},
        r"train.expected_loss = \[1.0, 2.0\] must be threes",
    ),
    ("lm-small", {"train.expected_loss": [1, 3, 2]}, "must be threes of step, lowest, highest"),
    (
        "lm-small",
        {"train.expected_loss": [2, 1, 2, 1, 1, 2]},
        r"the steps \[2.0, 1.0\], which must rise",
    ),
    (
        "lm-small",
        {"train.average_checkpoints": 3},
        "train.average_checkpoints = 3 is more than train.keep_checkpoints = 2",
    ),
    ("lm-small", {"out": FILE}, "text.txt is a file; choose another --out"),
    (
        "lm-smal",
        {},
        r"'lm-smal' is no preset of those that clearhead presets lists; did you mean 'lm-small'\?",
    ),
    (
        "lm-smal.toml",
        {},
        r"there is no file lm-smal.toml, and no preset of that name; did you mean 'lm-small'\?",
    ),
    ("typo.toml", {}, r"train.stpes is not an option; did you mean 'steps'\?"),
    ("mt-small", {"data.train": FILE}, "text.txt holds no pairs; give two texts"),
    (
        "mt-small",
        {"data.train": [*PAIR, FILE]},
        "two texts are wanted, .* not 3: a.en a.de text.txt",
    ),
    ("mt-small", {"data.train": ["a.en", FILE]}, "a.en has 120 lines and text.txt has 300"),
    (
        "mt-small",
        {"data.train": PAIR, "data.max_tokens": 1},
        "there is no pair to train on; 120 were read",
    ),
    ("mt-small", {"data.train": PAIR, "data.sides": "en"}, "must name two columns"),
    (
        "mt-small",
        {"data.train": "rows.tsv"},
        r"has 4 columns: 'text', 'other', 'label', 'score'; .* --data.sides 0 1",
    ),
    (
        "mt-small",
        {"data.train": "pair.csv", "train.patience": 1},
        "only 1 row, so none can be held out; give data.valid",
    ),
    (
        "finetune-classify",
        {"data.train": "two.csv", "train.patience": 1},
        "only 2 rows, so none can be held out",
    ),
    (
        "finetune-classify",
        {"data.train": "all.csv", "train.patience": 1},
        "9 different labels for 9 rows; for numbers",
    ),
    ("finetune-classify", {"data.train": FILE}, "text.txt must be a .csv, .tsv or .jsonl file"),
    (
        "finetune-classify",
        {"data.train": "rows.tsv", "data.label_column": "lable"},
        "there is no column 'lable'",
    ),
    (
        "finetune-classify",
        {"data.train": "rows.tsv", "model.head": "none"},
        "a model without a head learns nothing",
    ),
    (
        "finetune-classify",
        {"data.train": "rows.tsv", "use.labels": ["a", "b"]},
        "the data, which has bad, good",
    ),
    ("picture-patches", {"data.train": "one.npz"}, "there are no two classes to tell apart"),
    ("picture-patches", {"data.train": FILE}, "text.txt must be a folder, an .npz"),
    (
        "picture-patches",
        {"data.train": "pictures.npz", "data.label_column": "stm"},
        "data.label_column = 'stm' is no choice",
    ),
    (
        "sound-patches",
        {"data.train": "sounds/low"},
        "data.label_column = stem takes the class from names .* the folder above",
    ),
    (
        "sound-patches",
        {"data.train": "sounds", "data.random_shift": 2},
        "only pictures can be shifted",
    ),
    ("whisper-tiny", {}, "speech with its words cannot be learned from files yet"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(name, changes, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        samples.texts,
        samples.sentence_pairs,
        samples.labelled,
        samples.pictures,
        samples.sounds,
    ):
        make(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "zeros.txt").write_bytes(b"PK\0\xff\n" * 9)
    (tmp_path / "pair.csv").write_text("one,eins\n")
    for name_, count in (("two.csv", 2), ("all.csv", 9)):
        (tmp_path / name_).write_text(
            "text,label\n" + "".join(f"text {n},{n}.5\n" for n in range(count))
        )
    (tmp_path / "short.txt").write_text("ab")
    (tmp_path / "typo.toml").write_text("[train]\nstpes = 5\n")
    np.savez(
        tmp_path / "one.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.zeros(4, np.int64)
    )
    small = RECIPES.get(name, (None, {}, None))[1] or ({} if name == "whisper-tiny" else WORDS)
    small = {} if name.endswith(".toml") else {**QUICK, **small}
    with pytest.raises(ch.ClearheadError, match=sentence) as told:
        learned(name, FILE, changes.pop("out", "run"), {**small, **changes})
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["2020-01-01", "7 # of nine", "5\nz = 3", "1, 2", "a.txt"])
def test_a_flag_that_is_no_value_is_the_text_it_was(text):
    assert ch.presets["lm-small"].replace(**{"data.train": [text]}).data.train == (text,)


def test_the_folder_of_a_run_stands_for_its_best_model(tmp_path):
    learned("lm-small", samples.texts(tmp_path), tmp_path / "run", {**QUICK, **WORDS})
    best, run = (ch.load(tmp_path / name, device="cpu") for name in ("run/best", "run"))
    assert all(
        torch.equal(a, b) for a, b in zip(best.net.parameters(), run.net.parameters(), strict=True)
    )
    (tmp_path / "run" / "best").unlink()
    assert ch.load(tmp_path / "run", device="cpu").tokenizer.encode("cat") == best.tokenizer.encode(
        "cat"
    )
