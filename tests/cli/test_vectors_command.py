"""`clearhead train vectors` and `clearhead vectors`."""

import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app


def clearhead(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "clearhead", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "text.txt").write_text("the king saw the queen\nthe man saw the woman\n" * 20)
    options = ("--data.train", "text.txt", SIZE, "--output", "vectors")
    done = clearhead("train", "vectors", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "200 words" in done.stdout
    return folder


SIZE = "--train.vector_size=8"


@pytest.mark.slow
def test_train_solve_and_save(folder):
    done = clearhead("vectors", "vectors", "king - man + woman", "--top-k", 2, cwd=folder)
    assert done.returncode == 0
    assert "king - man + woman" in done.stdout
    words = ("vectors", "vectors", "--words", "king queen")
    clearhead(*words, "--output", "similarity.npy", cwd=folder)
    similarity = np.load(folder / "similarity.npy")
    assert similarity.shape == (2, 2)
    assert similarity.diagonal() == pytest.approx(1)
    row = clearhead(*words, cwd=folder).stdout.splitlines()[2].split()
    assert row[:2] == ["king", "1.00█"]
    assert float(row[2].rstrip("░▒▓█")) == pytest.approx(float(similarity[0, 1]), abs=0.006)
    options = ("--direction", "king:queen", "--words", "man woman")
    assert "woman" in clearhead("vectors", "vectors", *options, cwd=folder).stdout


def test_differences_are_compared(folder, monkeypatch):
    monkeypatch.chdir(folder)
    shown = CliRunner().invoke(app, ["vectors", "vectors", "queen - king = woman - man"]).stdout
    comparison = ch.vectors(folder / "vectors").compare("queen - king = woman - man", 10)
    views = [comparison, *comparison.neighbors]
    assert shown == "".join(f"{view.terminal()}" for view in views)
    options = ["vectors", "vectors", "king = queen", "--output", "cosine.csv"]
    assert "saved" in CliRunner().invoke(app, options).stdout
    assert (folder / "cosine.csv").read_text().startswith("right side,cosine\nas given,")


def test_unknown_words_are_named_on_stderr(folder):
    done = clearhead("vectors", "vectors", "--words", "king qeen man", cwd=folder)
    assert done.returncode == 0
    assert "qeen" in done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout.splitlines()[1].split() == ["word\\other", "king", "man"]
    assert clearhead("vectors", "vectors", "--words", "qeen mna", cwd=folder).returncode == 2


def test_output_format_follows_the_file_name(folder):
    options = ("--data.train", "text.txt", SIZE, "--output", "vectors.bin")
    assert clearhead("train", "vectors", *options, cwd=folder).returncode == 0
    assert (folder / "vectors.bin").read_bytes().startswith(b"6 8\n")
    binary = ch.vectors(folder / "vectors.bin")
    native = ch.vectors(folder / "vectors")
    assert (binary["king"] == native["king"]).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vectors", "vectors", "qeen"], "did you mean 'queen'?"),
        (["vectors", "vectors"], "an expression such as"),
        (["vectors", "vectors", "king", "--words", "queen"], "an expression such as"),
        (["vectors", "vectors", "--direction", "king:queen"], "an expression such as"),
        (["vectors", "vectors", "--direction", "king", "--words", "queen"], "must be pairs"),
        (["vectors", "vectors", "king", "--layer", "1"], "layer"),
        (["vectors", "vectors", "king", "--output", "x.pdf"], "must end in"),
        (["vectors", "vectors", "--benchmark", "none.txt"], "none.txt cannot be read"),
        (
            ["train", "vectors", "--data.train", "text.txt", "--train.vector_sise=3"],
            "did you mean 'vector_size'?",
        ),
        (
            ["train", "vectors", "--data.train", "text.txt", "--record-activations"],
            "--record-activations does not apply",
        ),
        (["train", "vectors", "--output", "x"], "--data.train"),
    ],
)
def test_invalid_arguments_are_refused(folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ch.ClearheadError)
    assert message in str(result.exception)
