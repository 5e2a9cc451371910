"""Every command's help ends with examples, and what they name is there."""

import io
import shlex
from contextlib import redirect_stdout

import pytest
from typer.main import get_command

from clearhead import reader
from clearhead.cli.examples import EXAMPLES
from clearhead.cli.flags import dotted
from clearhead.cli.main import app
from clearhead.cli.see import TAKES
from clearhead.lab.grid import variants
from clearhead.train.begin import read_config
from clearhead.weights import bundled
from clearhead.words.learn import Lesson


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


@pytest.mark.parametrize("name", [name for name in COMMANDS if not hasattr(COMMANDS[name], "commands")])
def test_every_option_of_an_example_is_known(name):
    for _, *words in shown(name):
        given = words[len(name.split()) :]
        with COMMANDS[name].make_context(name, list(given)) as context:  # which refuses options that are unknown
            assert not context.args or context.allow_extra_args
            changes, chosen = dotted(context.args), context.params
        if changes and chosen.get("what") == "vectors":
            reader.read(Lesson, reader.override(reader.tree(Lesson()), changes))
        elif changes:
            base = read_config(chosen.get("what") or chosen.get("model") or chosen["name"], changes)
            assert variants(base, chosen.get("vary") or ())
        assert chosen.get("model", "story") in (*bundled.names(), "run/best") or name in (
            "chat", "fill", "embed", "verify",
        )  # fmt: skip
        if name == "see":
            assert chosen["what"] in ("", *TAKES)


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


@pytest.mark.skipif("story" not in bundled.names(), reason="the bundled models are not here")
@pytest.mark.parametrize("line", READY)
def test_examples_of_what_is_here_work_as_they_stand(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = io.StringIO()
    with redirect_stdout(told):
        app(shlex.split(line.partition(" > ")[0])[1:], standalone_mode=False)
    assert told.getvalue()
