"""`clearhead train vectors` and `clearhead vectors`, as a person uses them."""

import subprocess
import sys

import numpy as np
import pytest

import clearhead as ch


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
    where = tmp_path_factory.mktemp("vectors")
    (where / "text.txt").write_text("the king saw the queen\nthe man saw the woman\n" * 20)
    done = clearhead(
        "train",
        "vectors",
        "--data.train",
        "text.txt",
        "--train.width=8",
        "--output",
        "made",
        cwd=where,
    )
    assert done.returncode == 0, done.stderr
    assert "200 words, 6 different ones" in done.stdout
    return where


def test_what_was_trained_answers_and_saves(folder):
    done = clearhead("vectors", "made", "king - man + woman", "--top", 2, cwd=folder)
    assert done.returncode == 0
    assert "cosine with king - man + woman" in done.stdout
    done = clearhead(
        "vectors", "made", "--words", "king queen", "--output", "alike.npy", cwd=folder
    )
    alike = np.load(folder / "alike.npy")
    assert alike.shape == (2, 2)
    assert alike.diagonal() == pytest.approx(1)
    shown = clearhead("vectors", "made", "--words", "king queen", cwd=folder).stdout.splitlines()
    assert shown[2].split() == [
        "king",
        "1.00█",
        *shown[2].split()[2:],
    ]  # a number, not only a shade
    assert float(shown[2].split()[2].rstrip("░▒▓█")) == pytest.approx(float(alike[0, 1]), abs=0.006)
    done = clearhead(
        "vectors", "made", "--direction", "king:queen", "--words", "man woman", cwd=folder
    )
    assert "woman" in done.stdout


def test_vectors_are_written_for_others_where_the_name_says_so(folder):
    options = ("--data.train", "text.txt", "--train.width=8", "--output", "made.bin")
    assert clearhead("train", "vectors", *options, cwd=folder).returncode == 0
    assert (folder / "made.bin").read_bytes().startswith(b"6 8\n")
    assert (
        ch.vectors(folder / "made.bin").vector("king") == ch.vectors(folder / "made").vector("king")
    ).all()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["vectors", "made", "qeen"], "did you mean 'queen'?"),
        (["vectors", "made"], "give a sum"),
        (["vectors", "made", "king", "--words", "queen"], "give a sum"),
        (["vectors", "made", "--direction", "king:queen"], "give a sum"),
        (["vectors", "made", "--direction", "king", "--words", "queen"], "'king' is no pair"),
        (["vectors", "made", "king", "--layer", "1"], "has no layers"),
        (["vectors", "made", "king", "--output", "x.pdf"], "must end in"),
        (["vectors", "made", "--benchmark", "none.txt"], "none.txt cannot be read"),
        (
            ["train", "vectors", "--data.train", "text.txt", "--train.widht=3", "--output", "x"],
            "did you mean 'width'?",
        ),
        (
            [
                "train",
                "vectors",
                "--data.train",
                "text.txt",
                "--record-activations",
                "--output",
                "x",
            ],
            "--record-activations is for models",
        ),
        (["train", "vectors", "--output", "x"], "nothing to learn from"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(folder, words, sentence):
    done = clearhead(*words, cwd=folder)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
