"""The examples in the help of every command."""

import io
import shlex
from contextlib import redirect_stdout

import pytest
from typer.main import get_command

from clearhead.cli.common import parse_config_flags
from clearhead.cli.examples import EXAMPLES
from clearhead.cli.main import app
from clearhead.cli.see import VIEW_OPTIONS
from clearhead.config.parse import apply_overrides, dataclass_from_dict
from clearhead.config.serialize import dataclass_to_dict
from clearhead.lab.experiment import expand_grid
from clearhead.train.train import load_config
from clearhead.weights.bundled import bundled_models
from clearhead.word_vectors.skip_gram import Word2VecConfig


def subcommands(path, command):
    for name, inner in getattr(command, "commands", {}).items():
        yield f"{path} {name}".strip(), inner
        yield from subcommands(f"{path} {name}".strip(), inner)


COMMANDS = dict(subcommands("", get_command(app)))


def help_text(command, name):
    with command.make_context(name, [], resilient_parsing=True) as context:
        return command.get_help(context)


def examples_of(name):
    """The example commands in the help, split into words."""
    _, _, end = help_text(COMMANDS[name], name).partition("Example")
    return [shlex.split(line.partition(" > ")[0]) for line in end.splitlines()[1:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples(name):
    lines = examples_of(name)
    assert lines
    assert all(words[: len(name.split()) + 1] == ["clearhead", *name.split()] for words in lines)


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if not hasattr(COMMANDS[name], "commands")]
)
def test_options_of_examples_exist(name):
    for _, *words in examples_of(name):
        with COMMANDS[name].make_context(name, words[len(name.split()) :]) as context:
            assert not context.args or context.allow_extra_args
            changes = parse_config_flags(context.args)
            params = context.params
        if changes and params.get("recipe") == "vectors":
            dataclass_from_dict(
                Word2VecConfig, apply_overrides(dataclass_to_dict(Word2VecConfig()), changes)
            )
        elif changes:
            base = load_config(
                params.get("recipe") or params.get("model") or params["name"], changes
            )
            assert expand_grid(base, params.get("vary") or ())
        assert params.get("model", "story") in (*bundled_models(), "run/best") or name in (
            "chat", "fill", "embed", "verify",
        )  # fmt: skip
        if name == "see":
            assert params["what"] in ("", *VIEW_OPTIONS)


def test_examples_belong_to_commands():
    assert set(EXAMPLES) == set(COMMANDS)


def test_list_of_commands_is_not_truncated():
    listed = help_text(get_command(app), "clearhead")
    assert "..." not in listed.partition("Commands:")[2]
    assert all(f"  {name}  " in listed for name in COMMANDS if " " not in name)


RUNNABLE_COMMANDS = (
    "generate",
    "score",
    "see",
    "vectors",
    "models",
    "tokenizer",
    "tokenizer show",
    "presets",
)
RUNNABLE_EXAMPLES = [
    line for name in RUNNABLE_COMMANDS for line in EXAMPLES[name] if "--input" not in line
]


@pytest.mark.slow
@pytest.mark.skipif("story" not in bundled_models(), reason="models are not bundled")
@pytest.mark.parametrize("line", RUNNABLE_EXAMPLES)
def test_examples_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stdout = io.StringIO()
    with redirect_stdout(stdout):
        app(shlex.split(line.partition(" > ")[0])[1:], standalone_mode=False)
    assert stdout.getvalue()
