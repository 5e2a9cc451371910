"""Control characters of models, data and file names do not reach a terminal."""

import sys
import unicodedata

import pytest
import torch

import clearhead as ch
from clearhead.cli.common import format_table
from clearhead.cli.main import app, main
from clearhead.errors import escape_controls
from clearhead.lens.view import View, label_axes

TITLE = "\x1b]0;hacked\x07"  # sets the title of a terminal
CLEAR = "\x9b2J"  # clears the screen
ATTACK = f"a{TITLE}b{CLEAR}c\x7f"


def use_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def assert_harmless(text):
    assert "hacked" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\x7f"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "classifier"
    head = {"model.head": {"kind": "classification", "num_labels": 2}}
    labels = {"inference.labels": [ATTACK, f"other {ATTACK}"], "vocab_size": 256}
    model = ch.new("tiny-encoder", tokenizer=ch.Tokenizer.bytes(), **head, **labels)
    ch.save(model, folder)
    return folder


def test_visible_characters_replace_controls_one_by_one():
    assert escape_controls("a\tb\n\x1b[1m\r\x7f\x9b é🐔") == "a\tb\n␛[1m␍␡\ufffd é🐔"


@pytest.mark.parametrize("code", [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2066, 0x2069])
def test_controls_of_the_direction_are_replaced(code):
    assert unicodedata.category(chr(code)) == "Cf"
    assert escape_controls(f"safe{chr(code)}exe") == "safe\ufffdexe"


def test_class_labels(classifier, monkeypatch, capsys):
    use_terminal(monkeypatch)
    app(["classify", str(classifier), "words"], standalone_mode=False)
    assert_harmless(capsys.readouterr().out)


def test_labels_in_a_pipe_are_exact(classifier, capsys):
    app(["classify", str(classifier), "words"], standalone_mode=False)
    assert ATTACK in capsys.readouterr().out


def test_texts(tmp_path, monkeypatch, capsys):
    use_terminal(monkeypatch)
    ch.save(ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=256), tmp_path / "m")
    for words in ((), ("--stream",)):
        words = ["generate", str(tmp_path / "m"), ATTACK, "--max-tokens", "2", *words]
        app(words, standalone_mode=False)
        assert_harmless(capsys.readouterr().out)


def test_errors(monkeypatch, capsys):
    use_terminal(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["clearhead", "classify", f"no/{ATTACK}", "words"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert_harmless(capsys.readouterr().err)


def test_views_and_tables():
    labels = [ATTACK, "other"]
    for values in (torch.rand(2), torch.rand(2, 2)):
        axes = label_axes(
            {"row": labels, "column": labels} if values.dim() == 2 else {"row": labels}
        )
        assert_harmless(View(values, axes, ATTACK, "value").terminal().plain)
    assert_harmless(format_table(("name",), [(ATTACK,)]))
