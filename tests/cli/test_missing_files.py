"""A file that is not there is told in the same words by every command."""

import re

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead import errors
from clearhead.cli.main import app
from clearhead.errors import cannot_read, os_error_reason, suggest_file

MODELS = {
    "writer": "tiny-decoder",
    "translator": "tiny-encoder-decoder",
    "eye": "tiny-images",
    "ear": "tiny-audio",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    for name, preset in MODELS.items():
        words = (
            {"tokenizer": ch.Tokenizer.bytes(), "vocabulary": 256}
            if name in ("writer", "translator")
            else {}
        )
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
    assert re.fullmatch(
        r"none\.x(: it)? cannot be read: no such file\.", str(done.exception)
    )


def test_other_reasons_are_those_of_the_system():
    assert (
        str(cannot_read("a", IsADirectoryError(21, "Is a directory")))
        == "a cannot be read: Is a directory."
    )
    assert os_error_reason(EOFError("It ended."), "a") == "It ended"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("pairs.txt", "pairs.tsv"), ("pair.tsv", "pairs.tsv"), ("pairs", "pairs.tsv"), ("paris.tsv", "pairs.tsv"),
     ("valid.tsv", ""), ("none/pairs.tsv", ""), ("", ""), ("\0", "")],
)  # fmt: skip
def test_a_file_with_a_similar_name_is_offered(tmp_path, name, meant):
    for file in ("pairs.tsv", "a.txt"):
        (tmp_path / file).touch()
    offer = f" (did you mean {str(tmp_path / meant)!r}?)" if meant else ""
    wanted = f"{tmp_path}/{name}"
    assert (
        str(cannot_read(wanted, FileNotFoundError()))
        == f"{wanted} cannot be read: no such file{offer}."
    )


def test_none_is_looked_for_in_a_folder_of_very_many(tmp_path, monkeypatch):
    for number in range(6):
        (tmp_path / f"file-{number}").touch()
    assert suggest_file(tmp_path / "fil-1") == f" (did you mean {str(tmp_path / 'file-1')!r}?)"
    monkeypatch.setattr(errors, "CROWD", 5)
    assert suggest_file(tmp_path / "fil-1") == ""


@pytest.mark.parametrize(
    "words",
    [
        ["score", "writer", "--input", "aa.txt"],
        ["evaluate", "writer", "--data", "aa.txt"],
        ["train", "lm-small", "--data.train", "aa.txt"],
        ["compare", "lm-small", "--data.train", "aa.txt"],
        ["evaluate", "./writr", "--data", "a.txt"],
        ["train", "runn.toml"],
    ],
    ids=" ".join,
)
def test_every_command_offers_it(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    (folder / "run.toml").touch()
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ch.ClearheadError)
    assert re.search(r"\(did you mean '(a\.txt|writer|run\.toml)'\?\)", str(done.exception))
