"""Cards of bundled models agree with the models: sizes, metrics, licenses, commands."""

import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.common import parse_config_flags
from clearhead.cli.main import app
from clearhead.weights.bundled import (
    BUNDLED_DIR,
    BUNDLED_NAMES,
    bundled_card,
    bundled_models,
    bundled_path,
)
from clearhead.weights.model_cards import CARD_FILE, read_card, update_card, weights_match_card
from clearhead.weights.tensors import SafetensorsReader

ROOT = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(app).commands


@pytest.fixture(params=bundled_models())
def name(request):
    return request.param


@pytest.fixture
def card(name):
    return bundled_card(name)


@pytest.fixture
def weights(name):
    (path,) = bundled_path(name).glob("*.safetensors")
    return path


def check_command(command):
    """The command exists and accepts its options, or its file is in the repository."""
    program, *words = shlex.split(command)
    if program == "python":
        script = (ROOT / words[0]).read_text(encoding="utf-8")
        assert all(f'"{word}"' in script for word in words if word.startswith("--"))
        return
    assert program == "clearhead"
    context = COMMANDS[words[0]].make_context(words[0], words[1:])  # raises usage errors
    parse_config_flags(context.args)
    if words[0] == "train" and words[1] != "vectors":
        assert words[1] in ch.presets or (ROOT / words[1]).is_file()


@pytest.mark.parametrize("name", BUNDLED_NAMES)
def test_bundled_model_loads(name):
    if name not in bundled_models():
        pytest.skip(f"the bundled model {name} is not here")
    assert ch.vectors(name) if bundled_card(name).architecture == "vectors" else ch.load(name)


def test_card_has_the_sha256_of_the_weights(card, weights):
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == card.sha256


def test_card_has_the_sizes_of_the_model(name, card, weights):
    files = [path for path in weights.parent.iterdir() if path.name != CARD_FILE]
    assert card.size_bytes == sum(path.stat().st_size for path in files)
    if card.architecture != "vectors":
        model = ch.load(name)
        assert card.architecture == model.architecture
        assert card.num_parameters == model.num_parameters()


def test_weights_are_16_bit(weights):
    tensors = SafetensorsReader([weights])
    assert {tensors.get_tensor(name).element_size() for name in tensors.shapes} == {2}


def test_total_size_is_limited():
    assert sum(path.stat().st_size for path in BUNDLED_DIR.rglob("*") if path.is_file()) <= 80e6


def test_metrics_have_a_dataset_and_a_command(card):
    assert card.metrics
    for metric in card.metrics:
        low, high = metric.confidence_interval
        assert low <= metric.value <= high
        assert metric.dataset
        check_command(metric.command)


def test_datasets_have_a_license_and_attribution(card):
    assert card.datasets
    for dataset in card.datasets:
        assert dataset.name
        assert dataset.license
        assert dataset.url
        assert dataset.attribution or "CC BY" not in dataset.license


def test_commands_are_valid(name, card):
    program, *words = shlex.split(card.usage[0])
    assert program == "clearhead"
    assert name in words
    for command in (*card.usage, *card.training_commands):
        check_command(command)


def test_card_is_complete(card):
    assert re.fullmatch(r"[A-Z].*\.", card.description)
    assert card.limitations
    assert card.examples or card.architecture in ("encoder", "vectors")
    assert card.seeds
    assert card.compute
    assert card.versions
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card.date)


def test_files_contain_no_local_paths(name):
    for path in bundled_path(name).glob("*.json"):
        if path.name in ("card.json", "clearhead.json"):
            assert not re.search(r'"(/|~)\w', path.read_text(encoding="utf-8"))


FIELDS = {
    "title": "A model",
    "description": "It does something.",
    "usage": ["clearhead generate {model_dir} a"],
    "datasets": [{"name": "texts", "license": "free", "url": "somewhere"}],
    "training_commands": [],
    "limitations": ["It is small."],
}
METRIC = {
    "name": "loss",
    "value": 1.5,
    "confidence_interval": [1, 2],
    "dataset": "texts",
    "command": "clearhead models",
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "a model"
    ch.save(ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()), path)
    (path / "card.json").write_text(json.dumps(FIELDS))
    return path


def test_update_card_computes_sizes_and_keeps_other_fields(folder):
    card = update_card(folder, {"metrics": [METRIC], "date": "2026-01-31"})
    assert card.num_parameters == ch.load(folder).num_parameters()
    assert card.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert card.architecture == "decoder"
    assert card.metrics[0].value == 1.5
    assert card.date == "2026-01-31"
    assert card.title == "A model"
    assert update_card(folder) == card
    assert shlex.split(card.usage[0])[2] == str(folder)
    assert "{model_dir}" in (folder / "card.json").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": "x"}, "did you mean 'title'?"),
        ({"title": 3.5}, "title"),
        ({"datasets": [{"name": "texts"}]}, "missing 2 required"),
        ({"metrics": [METRIC | {"value": 3}]}, "confidence interval"),
        ({"metrics": [METRIC | {"confidence_interval": []}]}, "confidence interval"),
    ],
)
def test_invalid_card_is_refused_and_not_written(folder, change, message):
    before = (folder / "card.json").read_text()
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        update_card(folder, change)
    assert (folder / "card.json").read_text() == before
    (folder / "card.json").write_text(json.dumps(FIELDS | change))
    with pytest.raises(ch.ClearheadError, match=r"card\.json.*" + re.escape(message)):
        read_card(folder)


def test_update_card_creates_a_card_from_all_fields(folder):
    card = update_card(folder)
    (folder / "card.json").unlink()
    with pytest.raises(ch.ClearheadError, match=r"card\.json.* missing .* 'title'"):
        update_card(folder)
    assert update_card(folder, FIELDS) == card


def test_verify_compares_the_weights_with_the_card(folder):
    def verify():
        return CliRunner().invoke(app, ["verify", str(folder)])

    assert weights_match_card(folder) is None  # the card has no sha256 yet
    update_card(folder)
    done = verify()
    assert done.exit_code == 0, done.output
    assert "pass  weights have the sha256 of the card" in done.output
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # a bit of the last weight
    weights.write_bytes(content)
    done = verify()
    assert done.exit_code == 1
    assert "FAIL  weights have the sha256 of the card" in done.output
