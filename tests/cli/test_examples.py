"""Every command's help ends with examples, and what they name is there."""

import io
import shlex
from contextlib import redirect_stdout

import pytest
from typer.main import get_command

from clearhead.cli.common import parse_config_flags
from clearhead.cli.help_texts import EXAMPLES
from clearhead.cli.main import app
from clearhead.cli.see import VIEW_OPTIONS
from clearhead.config.parse import apply_overrides, dataclass_from_dict, dataclass_to_dict
from clearhead.lab.experiment import expand_grid
from clearhead.train.train import load_config
from clearhead.weights.model_cards import bundled_models
from clearhead.word_vectors.skip_gram import Word2VecConfig


def below(path, command):
    for name, inner in getattr(command, "commands", {}).items():
        yield f"{path} {name}".strip(), inner
        yield from below(f"{path} {name}".strip(), inner)


COMMANDS = dict(below("", get_command(app)))


def help_of(command, name):
    with command.make_context(name, [], resilient_parsing=True) as context:
        return command.get_help(context)


def shown(name):
    """The commands below the word Example, as words."""
    _, _, end = help_of(COMMANDS[name], name).partition("Example")
    return [shlex.split(line.partition(" > ")[0]) for line in end.splitlines()[1:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_examples_of_its_own(name):
    lines = shown(name)
    assert lines
    assert all(words[: len(name.split()) + 1] == ["clearhead", *name.split()] for words in lines)


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if not hasattr(COMMANDS[name], "commands")]
)
def test_every_option_of_an_example_is_known(name):
    for _, *words in shown(name):
        given = words[len(name.split()) :]
        with COMMANDS[name].make_context(
            name, list(given)
        ) as context:  # which refuses options that are unknown
            assert not context.args or context.allow_extra_args
            changes = parse_config_flags(context.args)
            chosen = context.params
        if changes and chosen.get("what") == "vectors":
            dataclass_from_dict(
                Word2VecConfig, apply_overrides(dataclass_to_dict(Word2VecConfig()), changes)
            )
        elif changes:
            base = load_config(chosen.get("what") or chosen.get("model") or chosen["name"], changes)
            assert expand_grid(base, chosen.get("vary") or ())
        assert chosen.get("model", "story") in (*bundled_models(), "run/best") or name in (
            "chat", "fill", "embed", "verify",
        )  # fmt: skip
        if name == "see":
            assert chosen["what"] in ("", *VIEW_OPTIONS)


def test_there_are_examples_of_nothing_else():
    assert set(EXAMPLES) == set(COMMANDS)


def test_the_list_of_commands_cuts_no_sentence():
    listed = help_of(get_command(app), "clearhead")
    assert "..." not in listed.partition("Commands:")[2]
    assert all(f"  {name}  " in listed for name in COMMANDS if " " not in name)


READY = [
    line for name in ("generate", "score", "see", "vectors", "models", "tokenizer", "tokenizer show", "presets")
    for line in EXAMPLES[name] if "--input" not in line
]  # fmt: skip


@pytest.mark.skipif("story" not in bundled_models(), reason="the bundled models are not here")
@pytest.mark.parametrize("line", READY)
def test_examples_of_what_is_here_work_as_they_stand(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = io.StringIO()
    with redirect_stdout(told):
        app(shlex.split(line.partition(" > ")[0])[1:], standalone_mode=False)
    assert told.getvalue()
