"""`clearhead see`: every view, in the terminal and in files."""

import re

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.cli.see import VIEW_OPTIONS

WORDS = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder and an encoder-decoder."""
    found = []
    for name in ("tiny-decoder", "tiny-encoder-decoder"):
        found.append(str(tmp_path_factory.mktemp("models") / name))
        ch.save(ch.new(name, seed=3, **WORDS), found[-1])
    return found


REQUIRED = {
    "cross": ["--source", "hello"],
    "encoder": ["--source", "hello"],
    "find-head": ["--find-head", "abcab:abcab"],
    "patching": ["--patch-from", "bcabc"],
    "phrase-shift": ["--shifted", "xxabcab"],
    "context": ["--sentence", "an abcab", "--sentence", "the old abcab"],
}


def see(*words):
    return CliRunner().invoke(app, ["see", *words], catch_exceptions=False).stdout


@pytest.mark.parametrize("what", VIEW_OPTIONS)
def test_every_view_prints_and_saves(folders, what, tmp_path):
    needed = REQUIRED.get(what, [])
    folder = folders["--source" in needed]
    text = [] if what == "positions" else ["abcab"]
    assert len(see(folder, *text, "--what", what, *needed).splitlines()) > 2
    for ending in ("png", "csv"):
        assert "saved" in see(
            folder, *text, "--what", what, *needed, "--output", str(tmp_path / f"x.{ending}")
        )


def test_positions_need_no_text(folders):
    assert see(folders[0], "--what", "positions")
    with pytest.raises(ch.ClearheadError, match="needs no text"):
        see(folders[0], "abc", "--what", "positions")


def test_file_contains_all_heads_and_terminal_one(folders, tmp_path):
    see(folders[0], "abc", "--output", str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "layer,head,query,key,pattern"
    assert see(folders[0], "abc").startswith("layer 0, head 0\n")
    assert see(folders[0], "abc", "--layer", "1", "--head", "2").startswith("layer 1, head 2\n")


@pytest.mark.parametrize(
    ("what", "option", "last"), [("attention", "--layer", "1"), ("value-weighted", "--head", "3")]
)
def test_negative_layers_and_heads_count_from_the_end(folders, what, option, last):
    words = [folders[0], "abc", "--what", what, option]
    assert see(*words, "-1") == see(*words, last)
    with pytest.raises(
        ch.ClearheadError,
        match=f"{option[2:]}.* -9",
    ):
        see(*words, "-9")


def test_find_head_equals_the_library(folders):
    shown = see(folders[0], "an old cat", "--find-head", "cat:old").splitlines()
    found = ch.lens.word_attention(ch.load(folders[0]), "cat", "an old cat").find_heads("old")
    assert "'cat'" in shown[0]
    assert "'old'" in shown[0]
    assert shown[2].split()[:3] == [
        found.axes[0].labels[0],
        "old:",
        f"{float(found.values[0, 0]):.2f}",
    ]
    with pytest.raises(ch.ClearheadError, match="needs --find-head"):
        see(folders[0], "an old cat", "--what", "find-head")


def test_values_do_not_rely_on_color(folders):
    shown = see(folders[0], "abc").splitlines()
    assert shown[1].split() == ["query\\key", "a", "b", "c"]
    assert shown[2].split() == ["a", "1.00█", "0", "0"]
    model = ch.load(folders[0])
    word, probability = ch.lens.logit_lens(model, "abc").top_predictions(0)[-1][0]
    assert f"{word} {probability:.2f}" in see(folders[0], "abc", "--what", "lens").splitlines()[4]


def test_positions_fit_the_terminal(folders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = see(folders[0], "--what", "positions").splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 100


def test_missing_output_folder_is_an_error(folders, tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"cannot save x\.png"):
        see(folders[0], "abc", "--output", str(tmp_path / "nowhere" / "x.png"))


def test_attribution_of_a_logit_difference(folders):
    shown = see(folders[0], "abc", "--what", "attribution", "--token", "d", "--against", "e")
    assert shown.startswith("logit of 'd' (id 100) minus 'e' (id 101) after 'c'\n")
    assert re.search("1 feed-forward", shown)


def test_views_that_do_not_apply_are_errors(folders):
    with pytest.raises(ch.ClearheadError, match="--what must be one of"):
        see(folders[0], "abc", "--what", "atention")
    with pytest.raises(ch.ClearheadError, match=r"Did you mean lens\?"):
        see(folders[0], "abc", "--what", "logit-lens")
    with pytest.raises(
        ch.ClearheadError,
        match="--what cross needs an encoder-decoder",
    ):
        see(folders[0], "abc", "--what", "cross")


VALUES = {
    "layer": "1",
    "head": "1",
    "source": "x",
    "token": "a",
    "against": "b",
    "find-head": "a:b",
    "patch-from": "bcabc",
    "ablate-head": "0.0",
    "at": "3",
    "offset": "3",
    "shifted": "xabcab",
    "sentence": "abcab",
}
OPTIONS = {name: [f"--{name}", *values.split()] for name, values in VALUES.items()}


@pytest.mark.parametrize("what", VIEW_OPTIONS)
def test_options_that_do_not_apply_are_errors(what):
    for option in OPTIONS.keys() - {*VIEW_OPTIONS[what]}:
        with pytest.raises(
            ch.ClearheadError, match=f"--{option} does not apply to --what {what}, only to "
        ):
            see("nowhere", "abc", "--what", what, *OPTIONS[option])


@pytest.mark.parametrize("what", [what for what in VIEW_OPTIONS if what != "find-head"])
def test_options_change_the_view(folders, what):
    options = ["--source", "hello"] if "source" in VIEW_OPTIONS[what] else []
    folder = folders[bool(options)]
    options += {"patching": ["--patch-from", "cabca"]}.get(what, REQUIRED.get(what, []))
    for option in VIEW_OPTIONS[what]:
        if option in ("source", "against"):  # `source` is given already, `against` needs a token
            continue
        text = [] if what == "positions" else ["abcab"]
        words = [folder, *text, "--what", what, *options]
        if option == "ablate-head" and "layer" in VIEW_OPTIONS[what]:
            words += ["--layer", "1"]  # ablation in layer 0 changes only later layers
        assert see(*words, *OPTIONS[option]) != see(*words)


def test_models_that_read_more_than_a_text(folders, tmp_path):
    with pytest.raises(ch.ClearheadError, match="--source"):
        see(folders[1], "abc")
    ch.save(ch.new("tiny-images"), tmp_path / "eye")
    (tmp_path / "mine.png").touch()
    done = CliRunner().invoke(app, ["see", str(tmp_path / "eye"), str(tmp_path / "mine.png")])
    assert re.search(r"reads images; .* ch\.lens\.rollout\(model, images=…\)", str(done.exception))
    assert done.stderr == ""


def test_negative_scores_have_no_shade(folders):
    shown = see(folders[0], "abcd", "--what", "scores")
    assert re.search("[░▒▓█]", shown)
    assert not re.search("-[0-9.]+[░▒▓█]", shown)
