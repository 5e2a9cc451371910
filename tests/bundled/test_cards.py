"""What a card says of a bundled model is so: its files, its figures, its licences, its commands."""

import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

import clearhead as ch
from clearhead.cli.common import parse_config_flags
from clearhead.cli.main import app
from clearhead.weights.checkpoint import SafetensorsReader
from clearhead.weights.model_cards import (
    BUNDLED_DIR,
    BUNDLED_NAMES,
    CARD_FILE,
    bundled_card,
    bundled_models,
    bundled_path,
    read_card,
    update_card,
)

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
    (found,) = bundled_path(name).glob("*.safetensors")
    return found


def check(command):
    """A command that exists, with options that it takes; or a file of the repository."""
    program, *words = shlex.split(command)
    if program == "python":
        assert (ROOT / words[0]).is_file()
        return
    assert program == "clearhead"
    context = COMMANDS[words[0]].make_context(
        words[0], words[1:]
    )  # raises what a person would be told
    parse_config_flags(context.args)
    if words[0] == "train" and words[1] != "vectors":
        assert words[1] in ch.presets or (ROOT / words[1]).is_file()


@pytest.mark.parametrize("name", BUNDLED_NAMES)
def test_it_is_here(name):
    if name not in bundled_models():
        pytest.skip(f"the bundled model {name} is not here, so nothing is checked of it")
    assert ch.vectors(name) if bundled_card(name).architecture == "vectors" else ch.load(name)


def test_the_weights_are_those_of_the_card(card, weights):
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == card.sha256


def test_sizes_are_as_told(name, card, weights):
    assert card.bytes == sum(
        p.stat().st_size for p in weights.parent.iterdir() if p.name != CARD_FILE
    )
    if card.kind != "vectors":
        model = ch.load(name)
        assert (card.kind, card.parameters) == (
            model.config.model.architecture.kind,
            model.num_parameters(),
        )


def test_weights_take_two_bytes_each(card, weights):
    tensors = SafetensorsReader([weights])
    assert {tensors.get_tensor(each).element_size() for each in tensors.shapes} == {2}


def test_all_together_are_small():
    assert sum(path.stat().st_size for path in BUNDLED_DIR.rglob("*") if path.is_file()) <= 60e6


def test_figures_come_with_their_interval_and_their_command(card):
    assert card.figures
    for figure in card.figures:
        assert figure.interval[0] <= figure.value <= figure.interval[1]
        assert figure.on
        check(figure.command)


def test_data_have_a_licence_and_those_who_want_it_their_name(card):
    assert card.data
    for data in card.data:
        assert data.name
        assert data.licence
        assert data.source
        assert data.attribution or "CC BY" not in data.licence


def test_its_commands_can_be_typed(name, card):
    assert card.tries[0].split()[0] == "clearhead"
    assert name in card.tries[0].split()
    for command in (*card.tries, *card.recipe):
        check(command)


def test_a_card_is_written_for_readers(card):
    assert re.fullmatch(r"[A-Z].*\.", card.says)
    assert card.limits
    assert card.samples or card.kind in ("encoder", "vectors")  # who writes shows what
    assert card.seeds
    assert card.made_on
    assert card.made_with
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card.date)


def test_no_path_of_the_machine_it_was_made_on_is_in_it(name):
    for path in bundled_path(name).glob("*.json"):
        if path.name in ("card.json", "clearhead.json"):
            assert not re.search(r'"(/|~)\w', path.read_text(encoding="utf-8"))


WHOLE = {
    "title": "A model",
    "says": "It does something.",
    "tries": ["clearhead generate {here} a"],
    "data": [{"name": "texts", "licence": "free", "source": "somewhere"}],
    "recipe": [],
    "limits": ["It is small."],
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "a model"
    ch.save(ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()), path)
    (path / "card.json").write_text(json.dumps(WHOLE))
    return path


def test_sealing_counts_and_keeps_what_was_written(folder):
    figure = {
        "name": "loss",
        "value": 1.5,
        "interval": [1, 2],
        "on": "texts",
        "command": "clearhead models",
    }
    card = update_card(folder, figures=[figure], date="2026-01-31")
    assert card.num_parameters == ch.load(folder).num_parameters()
    assert card.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (card.architecture, card.metrics[0].value, card.date, card.title) == (
        "decoder",
        1.5,
        "2026-01-31",
        "A model",
    )
    assert update_card(folder) == card
    assert shlex.split(card.usage[0])[2] == str(folder)
    assert "{here}" in (folder / "card.json").read_text()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"titel": "x"}, "titel is not an option; did you mean 'title'?"),
        ({"title": 3.5}, "title must be a text, not 3.5"),
        ({"data": [{"name": "texts"}]}, "missing 2 required"),
        (
            {"figures": [{"name": "a", "value": 3, "interval": [1, 2], "on": "", "command": ""}]},
            "not within its interval",
        ),
        (
            {"figures": [{"name": "a", "value": 3, "interval": [], "on": "", "command": ""}]},
            "not within its interval",
        ),
    ],
)
def test_a_wrong_card_is_refused_with_a_sentence_and_stays_as_it_was(folder, change, sentence):
    before = (folder / "card.json").read_text()
    with pytest.raises(ch.ClearheadError, match=re.escape(sentence)):
        update_card(folder, **change)
    assert (folder / "card.json").read_text() == before
    (folder / "card.json").write_text(json.dumps(WHOLE | change))
    with pytest.raises(ch.ClearheadError, match=r"card\.json is no card: .*" + re.escape(sentence)):
        read_card(folder)


def test_a_folder_without_a_card_gets_one_if_all_is_told(folder):
    card = update_card(folder)
    (folder / "card.json").unlink()
    with pytest.raises(ch.ClearheadError, match=r"card\.json is no card: .* missing .* 'title'"):
        update_card(folder)
    assert update_card(folder, **WHOLE) == card
