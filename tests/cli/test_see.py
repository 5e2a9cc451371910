"""`clearhead see`: every view, in the terminal and in files."""

import re

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.cli.see import VIEW_OPTIONS

WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder and an encoder-decoder."""
    found = []
    for name in ("tiny-decoder", "tiny-encoder-decoder"):
        found.append(str(tmp_path_factory.mktemp("models") / name))
        ch.save(ch.new(name, seed=3, **WORDS), found[-1])
    return found


NEEDED = {"cross": ["--source", "hello"], "encoder": ["--source", "hello"], "looks": ["--find", "abcab", "abcab"],
          "patching": ["--other", "bcabc"]}  # fmt: skip


def see(*words):
    return CliRunner().invoke(app, ["see", *words], catch_exceptions=False).stdout


@pytest.mark.parametrize("what", VIEW_OPTIONS)
def test_every_view_is_drawn_and_saved(folders, what, tmp_path):
    needed = NEEDED.get(what, [])
    folder = folders["--source" in needed]
    assert len(see(folder, "abcab", "--what", what, *needed).splitlines()) > 2
    for ending in ("png", "csv"):
        assert "saved" in see(
            folder, "abcab", "--what", what, *needed, "--out", str(tmp_path / f"x.{ending}")
        )


def test_a_file_holds_all_heads_and_the_terminal_one(folders, tmp_path):
    see(folders[0], "abc", "--out", str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "layer,head,query,key,pattern"
    assert see(folders[0], "abc").startswith("layer 0, head 0\n")
    assert see(folders[0], "abc", "--layer", "1", "--head", "2").startswith("layer 1, head 2\n")


@pytest.mark.parametrize(
    ("what", "option", "last"), [("attention", "--layer", "1"), ("contribution", "--head", "3")]
)
def test_below_0_layers_and_heads_count_from_the_end(folders, what, option, last):
    words = [folders[0], "abc", "--what", what, option]
    assert see(*words, "-1") == see(*words, last)
    with pytest.raises(
        ch.ClearheadError,
        match=f"there is no {option[2:]} -9; this .* has {option[2:]}s 0 to {last}",
    ):
        see(*words, "-9")


def test_the_heads_are_found_in_which_a_word_looks_at_another(folders):
    shown = see(folders[0], "an old cat", "--find", "cat", "old").splitlines()
    found = ch.lens.word_attention(ch.load(folders[0]), "cat", "an old cat").find_heads("old")
    assert shown[0] == "where 'cat' looks: the heads, layer.head, in which it looks most at 'old'"
    assert shown[2].split()[:3] == [
        found.axes[0].labels[0],
        "old:",
        f"{float(found.values[0, 0]):.2f}",
    ]
    with pytest.raises(ch.ClearheadError, match="name them: --find creature fluffy"):
        see(folders[0], "an old cat", "--what", "looks")


def test_nothing_is_told_by_colour_alone(folders):
    shown = see(folders[0], "abc").splitlines()
    assert shown[1].split() == ["query\\key", "a", "b", "c"]
    assert shown[2].split() == ["a", "1.00█", "0", "0"]
    model = ch.load(folders[0])
    word, share = ch.lens.logit_lens(model, "abc").top_predictions(0)[-1][0]
    assert f"{word} {share:.2f}" in see(folders[0], "abc", "--what", "lens").splitlines()[4]


def test_positions_fit_a_screen(folders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = see(folders[0], "abc", "--what", "positions").splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 100


def test_a_folder_that_is_not_there_is_told(folders, tmp_path):
    with pytest.raises(ch.ClearheadError, match="nowhere to save x"):
        see(folders[0], "abc", "--out", str(tmp_path / "nowhere" / "x.png"))


def test_answers_are_compared(folders):
    shown = see(folders[0], "abc", "--what", "attribution", "--token", "d", "--against", "e")
    assert shown.startswith("logit of 'd' less that of 'e' after 'c'\n")
    assert re.search("1 feed-forward", shown)


def test_what_cannot_be_seen_is_told(folders):
    with pytest.raises(
        ch.ClearheadError, match="there is no 'atention' to see; did you mean 'attention'"
    ):
        see(folders[0], "abc", "--what", "atention")
    with pytest.raises(
        ch.ClearheadError,
        match="--what cross is of an encoder-decoder; this model is of shape decoder",
    ):
        see(folders[0], "abc", "--what", "cross")


VALUES = {"layer": "1", "head": "1", "source": "x", "token": "a", "against": "b", "find": "a b",
          "other": "bcabc", "without": "0.0"}  # fmt: skip
OPTIONS = {name: [f"--{name}", *values.split()] for name, values in VALUES.items()}


@pytest.mark.parametrize("what", VIEW_OPTIONS)
def test_options_without_a_part_in_what_is_seen_are_refused(what):
    for option in OPTIONS.keys() - {*VIEW_OPTIONS[what]}:
        with pytest.raises(
            ch.ClearheadError, match=f"--{option} has no part in --what {what}; it has one in "
        ):
            see("nowhere", "abc", "--what", what, *OPTIONS[option])


@pytest.mark.parametrize("what", [what for what in VIEW_OPTIONS if what != "looks"])
def test_options_with_a_part_in_what_is_seen_change_it(folders, what):
    given = ["--source", "hello"] if "source" in VIEW_OPTIONS[what] else []
    folder = folders[bool(given)]
    given += ["--other", "cabca"] if what == "patching" else []
    for option in VIEW_OPTIONS[what]:
        if option not in ("source", "against"):  # which reach not every head, and need a token
            later = (
                ["--layer", "1"] if option == "without" and "layer" in VIEW_OPTIONS[what] else []
            )  # which a head can reach
            before = see(folder, "abcab", "--what", what, *given, *later)
            assert see(folder, "abcab", "--what", what, *given, *later, *OPTIONS[option]) != before


def test_what_else_a_model_reads_is_asked_for_in_words_of_the_shell(folders, tmp_path):
    with pytest.raises(ch.ClearheadError, match="give it with --source"):
        see(folders[1], "abc")
    ch.save(ch.new("tiny-pictures"), tmp_path / "eye")
    (tmp_path / "mine.png").touch()
    done = CliRunner().invoke(app, ["see", str(tmp_path / "eye"), str(tmp_path / "mine.png")])
    assert re.search(
        r"reads pictures, .* ch\.lens\.rollout\(model, pictures=…\)", str(done.exception)
    )
    assert done.stderr == ""


def test_less_than_nothing_looks_otherwise_than_more(folders):
    shown = see(folders[0], "abcd", "--what", "scores")
    assert re.search("[░▒▓█]", shown)
    assert not re.search("-[0-9.]+[░▒▓█]", shown)
