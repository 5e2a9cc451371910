"""Every command reports missing files with the same message and suggestion."""

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
        options = (
            {"tokenizer": ch.Tokenizer.bytes(), "vocab_size": 256}
            if name in ("writer", "translator")
            else {}
        )
        ch.save(ch.new(preset, **options), folder / name)
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
def test_missing_file_is_an_error(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ch.ClearheadError)
    assert re.fullmatch(r"none\.x:? cannot be read: no such file\.", str(result.exception))


def test_other_read_errors_have_the_reason_of_the_system():
    assert (
        str(cannot_read("a", IsADirectoryError(21, "Is a directory")))
        == "a cannot be read: Is a directory."
    )
    assert os_error_reason(EOFError("It ended."), "a") == "It ended"


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("pairs.txt", "pairs.tsv"),
        ("pair.tsv", "pairs.tsv"),
        ("pairs", "pairs.tsv"),
        ("paris.tsv", "pairs.tsv"),
        ("valid.tsv", ""),
        ("none/pairs.tsv", ""),
        ("", ""),
        ("\0", ""),
    ],
)
def test_similar_file_is_suggested(tmp_path, name, similar):
    for file in ("pairs.tsv", "a.txt"):
        (tmp_path / file).touch()
    hint = f" (did you mean {str(tmp_path / similar)!r}?)" if similar else ""
    path = f"{tmp_path}/{name}"
    assert (
        str(cannot_read(path, FileNotFoundError())) == f"{path} cannot be read: no such file{hint}."
    )


def test_no_suggestion_in_a_huge_folder(tmp_path, monkeypatch):
    for number in range(6):
        (tmp_path / f"file-{number}").touch()
    assert suggest_file(tmp_path / "fil-1") == f" (did you mean {str(tmp_path / 'file-1')!r}?)"
    monkeypatch.setattr(errors, "MAX_COMPARED_FILES", 5)
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
def test_every_command_suggests_a_similar_file(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    (folder / "run.toml").touch()
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ch.ClearheadError)
    assert re.search(r"\(did you mean '(a\.txt|writer|run\.toml)'\?\)", str(result.exception))
