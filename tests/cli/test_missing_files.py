"""A file that is not there is told in the same words by every command."""

import re

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.errors import reason, unreadable

MODELS = {"writer": "tiny-decoder", "translator": "tiny-encoder-decoder", "eye": "tiny-pictures", "ear": "tiny-sound"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    for name, preset in MODELS.items():
        words = {"tokenizer": ch.Tokenizer.bytes(), "vocabulary": 256} if name in ("writer", "translator") else {}
        ch.save(ch.new(preset, **words), folder / name)
    (folder / "a.txt").write_text("the cat\n" * 20)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "translator", "--input", "none.x"],
        ["score", "writer", "--input", "none.x"],
        ["embed", "writer", "--input", "none.x"],
        ["classify", "eye", "none.x"],
        ["classify", "ear", "none.x"],
        ["classify", "eye", "--input", "none.x"],
        ["evaluate", "eye", "--data", "none.x"],
        ["evaluate", "translator", "--data", "none.x", "a.txt"],
        ["evaluate", "writer", "--data", "none.x"],
        ["train", "lm-small", "--data.train", "none.x"],
        ["compare", "lm-small", "--data.train", "none.x"],
        ["tokenizer", "train", "none.x"],
    ],
    ids=" ".join,
)
def test_a_missing_file_is_told_in_the_same_words(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ch.ClearheadError)
    assert re.fullmatch(r"none\.x(: it)? cannot be read: there is no such file\.", str(done.exception))


def test_other_reasons_are_those_of_the_system():
    assert str(unreadable("a", IsADirectoryError(21, "Is a directory"))) == "a cannot be read: Is a directory."
    assert reason(EOFError("It ended.")) == "It ended"
