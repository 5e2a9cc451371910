"""Every recipe end to end: from little data to a model that does its task, and a report."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import sample_data
import torch
from sample_data import SHORT_RUN, TINY_MODEL

import clearhead as ch
from clearhead.config.model import Config
from clearhead.config.presets import RECIPE_DATA
from clearhead.tokenizers import media
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.train import load_config

MAX_STEPS = 4
BUNDLED_RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
CHARACTERS = {**TINY_MODEL, "model.context_length": 16}
TEXT = {**CHARACTERS, "data.vocab_size": 300}
PAIRS = {
    **TEXT,
    "model.architecture.encoder_layers": 1,
    "model.context_length": 32,
    "model.architecture.source_context_length": 32,
    "train.seq_len": 32,
}
IMAGES = {**TINY_MODEL, "model.input.image_size": 8, "model.context_length": 5}
AUDIO = {
    **TINY_MODEL,
    "model.input.n_mels": 16,
    "model.input.n_frames": 8,
    "model.context_length": 2,
}


def check_generation(model, folder):
    first, second = (model.generate("the cat", 6, seed=3) for _ in range(2))
    assert first.tokens
    assert first.text == second.text


def check_translation(model, folder):
    (translation,) = model.translate(["the cat sat"], num_beams=2, max_tokens=8)
    assert isinstance(translation.text, str)
    inference = model.config.inference
    assert inference.decoder_start_tokens[0] in inference.suppress_tokens


def check_masked_lm(model, folder):
    (mask_token,) = model.config.inference.mask_token
    ids = [*model.tokenizer.encode("the cat"), mask_token]
    assert model.logits(ids).shape == (len(ids), len(model.tokenizer))


def check_text_classification(model, folder):
    assert model.config.inference.labels == ("bad", "good")
    assert model.logits(["the cat sat", "a dog"]).shape == (2, 2)


def check_image_classification(model, folder):
    assert model.config.inference.labels == ("0", "1")
    images = np.load(sample_data.write_images(folder)[0])["images"][:3]
    batch = torch.stack([media.read_image(image, model.config.model.input) for image in images])
    assert model.logits(images=batch).shape == (3, 2)


def check_audio_classification(model, folder):
    assert model.config.inference.labels == ("high", "low")
    file = f"{sample_data.write_audio(folder)[0]}/low/1.wav"
    assert model.logits(audio=file).shape == (2,)


RECIPES = {
    "shakespeare-char": (sample_data.write_text, CHARACTERS, check_generation),
    "shakespeare-char-cpu": (sample_data.write_text, CHARACTERS, check_generation),
    "lm-small": (sample_data.write_text, TEXT, check_generation),
    "gpt2-124m": (sample_data.write_text, {**TEXT, "train.grad_accum": 2}, check_generation),
    "mt-small": (sample_data.write_pairs, PAIRS, check_translation),
    "vaswani-base": (sample_data.write_pairs, PAIRS, check_translation),
    "mlm-small": (sample_data.write_text, TEXT, check_masked_lm),
    "roformer-small": (sample_data.write_text, TEXT, check_masked_lm),
    "finetune-classify": (sample_data.write_labeled, {}, check_text_classification),
    "image-patches": (sample_data.write_images, IMAGES, check_image_classification),
    "audio-patches": (sample_data.write_audio, AUDIO, check_audio_classification),
}


def train(recipe, data, output, changes):
    options = {"data.train": data, "train.max_steps": MAX_STEPS, **changes}
    return sample_data.train(recipe, output, options)


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    """A model to fine-tune."""
    folder = tmp_path_factory.mktemp("masked_lm")
    data = sample_data.write_text(folder)
    train("mlm-small", data, folder / "run", {**SHORT_RUN, **TEXT})
    return str(folder / "run" / "best")


def test_every_recipe_is_tested_and_describes_its_data():
    assert set(RECIPES) == set(RECIPE_DATA) <= set(ch.presets)
    assert all(len(description.split()) > 3 for description in RECIPE_DATA.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_survives_a_round_trip_through_toml(recipe, tmp_path):
    config = ch.presets[recipe]
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert Config.read(tmp_path / "run.toml") == config


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_recipe_trains_a_model_that_does_its_task(recipe, tmp_path, masked_lm):
    write, changes, check = RECIPES[recipe]
    if recipe == "finetune-classify":
        changes = {"train.init_from": masked_lm}
    output = tmp_path / "run"
    model = train(recipe, write(tmp_path), output, {**SHORT_RUN, **changes})
    assert model.config.train.max_steps == MAX_STEPS
    assert model.config.train.optimizer == ch.presets[recipe].train.optimizer
    check(model, tmp_path)
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == MAX_STEPS
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert np.isfinite(lines[-1]["valid_loss"])
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert recipe in (output / "report.html").read_text()
    checkpoint = ch.load(output / "checkpoints" / f"{MAX_STEPS:08d}", device="cpu")
    assert checkpoint.config == model.config
    has_average = (output / "average" / "model.safetensors").exists()
    assert has_average == bool(model.config.train.average_checkpoints)


def test_recipe_file_trains_like_the_recipe(tmp_path):
    data = sample_data.write_text(tmp_path)
    changes = {**SHORT_RUN, **TEXT, "train.max_steps": MAX_STEPS, "data.train": data}
    config = ch.presets["lm-small"].replace(**changes)
    (tmp_path / "mine.toml").write_text(config.to_toml())
    by_file = ch.train(tmp_path / "mine.toml", tmp_path / "file", quiet=True, device="cpu")
    by_name = sample_data.train("lm-small", tmp_path / "name", changes)
    assert by_file.config == by_name.config
    for p, q in zip(by_file.net.parameters(), by_name.net.parameters(), strict=True):
        assert torch.equal(p, q)


def test_tokenizer_of_a_run_that_never_began_is_not_reused(tmp_path):
    data = sample_data.write_text(tmp_path)
    output = tmp_path / "run"
    changes = {**SHORT_RUN, **CHARACTERS, "model.context_length": 50000}
    with pytest.raises(ch.ClearheadError, match="50001"):
        train("shakespeare-char", data, output, changes)
    assert len(train("lm-small", data, output, {**SHORT_RUN, **TEXT}).tokenizer) == 300


def test_other_data_do_not_overwrite_tokens_of_a_run(tmp_path):
    output = tmp_path / "run"
    train("lm-small", sample_data.write_text(tmp_path), output, {**SHORT_RUN, **TEXT})
    tokens = output / "tokens" / "train" / "tokens.bin"
    before = tokens.read_bytes()
    with pytest.raises(ch.ClearheadError, match=r"data.train = "):
        train("lm-small", sample_data.write_pairs(tmp_path), output, {**SHORT_RUN, **TEXT})
    assert tokens.read_bytes() == before


@pytest.mark.parametrize(
    ("special_tokens", "mask_token"),
    [(("[SEP]", "[MASK]"), "[MASK]"), (("<|endoftext|>",), "<|mask|>"), ((), "<|mask|>")],
)
@pytest.mark.slow
def test_pretrained_tokenizer_gets_missing_special_tokens(special_tokens, mask_token, tmp_path):
    file = tmp_path / "tokenizer.json"
    Tokenizer.train_bpe(sample_data.sentences(50), 290, special_tokens).save(file)
    changes = {**SHORT_RUN, **TEXT, "data.tokenizer": str(file)}
    model = train("mlm-small", sample_data.write_text(tmp_path), tmp_path / "run", changes)
    tokenizer = model.tokenizer
    assert model.config.inference.mask_token == (tokenizer.special_tokens[mask_token],)
    assert set(special_tokens) <= set(tokenizer.special_tokens)
    assert model.config.model.vocab_size == len(tokenizer)


FILE = "text.txt"
PAIR = ["a.en", "a.de"]
PATIENCE = {"train.patience": 1}
MISTAKES = [
    ("lm-small", {"data.train": []}, "no training data"),
    ("lm-small", {"data.train": "no.txt"}, "no.txt.*no such file"),
    ("lm-small", {"data.train": "empty.txt"}, "empty.txt"),
    ("lm-small", {"data.train": [FILE, "empty.txt"]}, "empty.txt"),
    ("lm-small", {"data.train": "empty"}, "empty"),
    ("lm-small", {"data.train": "zeros.txt"}, "zeros.txt.*UTF-8"),
    ("lm-small", {"data.train": "audio", "output": "audio"}, "--output audio is the folder"),
    ("lm-small", {"model.d_model": 32, "model.attention.n_heads": 6}, "n_heads"),
    ("lm-small", {"data.train": "short.txt"}, "17 tokens"),
    ("lm-small", {"train.seed": 2**63}, "train.seed"),
    ("lm-small", {"train.seq_len": 17}, "--train.seq_len=16 or less"),
    ("lm-small", {"data.tokenizer": "wordz"}, "data.tokenizer = 'wordz'"),
    ("lm-small", {"data.tokenizer": FILE}, "data.tokenizer = 'text.txt'"),
    ("lm-small", {"train.expected_loss": [1, 2]}, "train.expected_loss"),
    ("lm-small", {"train.expected_loss": [1, 3, 2]}, "train.expected_loss"),
    ("lm-small", {"train.expected_loss": [2, 1, 2, 1, 1, 2]}, "train.expected_loss"),
    ("lm-small", {"train.average_checkpoints": 3}, "train.keep_checkpoints = 2"),
    ("lm-small", {"output": FILE}, "text.txt is a file"),
    ("lm-smal", {}, "did you mean 'lm-small'"),
    ("lm-smal.toml", {}, "lm-smal.toml.*did you mean 'lm-small'"),
    ("typo.toml", {}, "train.max_stpes.*did you mean 'max_steps'"),
    ("mt-small", {"data.train": FILE}, "text.txt"),
    ("mt-small", {"data.train": [*PAIR, FILE]}, "a.en a.de text.txt|3"),
    ("mt-small", {"data.train": ["a.en", FILE]}, "120.*300"),
    ("mt-small", {"data.train": PAIR, "data.max_tokens": 1}, "no sentence pairs.*120"),
    ("mt-small", {"data.train": PAIR, "data.source_column": "en"}, "data.target_column"),
    ("mt-small", {"data.train": "rows.tsv"}, "rows.tsv.*data.source_column"),
    ("mt-small", {"data.train": "pair.csv", **PATIENCE}, "train.patience.*1 rows"),
    ("finetune-classify", {"data.train": "two.csv", **PATIENCE}, "train.patience.*2 rows"),
    ("finetune-classify", {"data.train": "all.csv", **PATIENCE}, "9 different labels"),
    ("finetune-classify", {"data.train": FILE}, "text.txt.*csv"),
    ("finetune-classify", {"data.train": "rows.tsv", "data.label_column": "lable"}, "'lable'"),
    ("finetune-classify", {"data.train": "rows.tsv", "model.head": "none"}, "without a head"),
    (
        "finetune-classify",
        {"data.train": "rows.tsv", "inference.labels": ["a", "b"]},
        "inference.labels.*bad, good",
    ),
    ("image-patches", {"data.train": "one.npz"}, "class"),
    ("image-patches", {"data.train": FILE}, "text.txt.*npz"),
    ("image-patches", {"data.train": "images.npz", "data.label_column": "stm"}, "label_column"),
    ("audio-patches", {"data.train": "audio/low"}, "label_column"),
    ("audio-patches", {"data.train": "audio", "data.random_shift": 2}, "images|random_shift"),
    ("whisper-tiny", {}, "speech with transcripts"),
]


@pytest.mark.parametrize(("recipe", "changes", "keyword"), MISTAKES)
def test_invalid_training_is_refused_in_one_line(recipe, changes, keyword, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample_data.write_text(tmp_path)
    sample_data.write_pairs(tmp_path)
    sample_data.write_labeled(tmp_path)
    sample_data.write_images(tmp_path)
    sample_data.write_audio(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "zeros.txt").write_bytes(b"PK\0\xff\n" * 9)
    (tmp_path / "pair.csv").write_text("one,eins\n")
    for name, count in (("two.csv", 2), ("all.csv", 9)):
        rows = "".join(f"text {n},{n}.5\n" for n in range(count))
        (tmp_path / name).write_text(f"text,label\n{rows}")
    (tmp_path / "short.txt").write_text("ab")
    (tmp_path / "typo.toml").write_text("[train]\nmax_stpes = 5\n")
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "one.npz", images=images, labels=np.zeros(4, np.int64))
    changes = dict(changes)
    output = changes.pop("output", "run")
    if not recipe.endswith(".toml"):
        small = {} if recipe == "whisper-tiny" else RECIPES.get(recipe, (None, TEXT))[1]
        changes = {**SHORT_RUN, **small, **changes}
    with pytest.raises(ch.ClearheadError, match=keyword) as error:
        train(recipe, FILE, output, changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["2020-01-01", "7 # of nine", "5\nz = 3", "1, 2", "a.txt"])
def test_path_that_looks_like_a_value_stays_text(text):
    assert ch.presets["lm-small"].replace(**{"data.train": [text]}).data.train == (text,)


def test_folder_of_a_run_loads_its_best_model(tmp_path):
    output = tmp_path / "run"
    train("lm-small", sample_data.write_text(tmp_path), output, {**SHORT_RUN, **TEXT})
    best = ch.load(output / "best", device="cpu")
    model = ch.load(output, device="cpu")
    parameters = zip(best.net.parameters(), model.net.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in parameters)
    (output / "best").unlink()
    last = ch.load(output, device="cpu")
    assert last.tokenizer.encode("cat") == best.tokenizer.encode("cat")


@pytest.mark.parametrize("path", BUNDLED_RECIPES, ids=lambda path: path.stem)
def test_command_of_a_bundled_recipe_has_known_options(path):
    (command,) = re.findall(
        r"^# (clearhead train .*(?:\n#     .*)*)", path.read_text("utf-8"), re.M
    )
    _, _, recipe, *words = shlex.split(command.replace("\n#", ""))
    assert recipe == f"recipes/{path.name}"
    options = [word.removeprefix("--") for word in words if word.startswith("--")]
    load_config(path, {name: "file" for name in options if name != "output"})
