"""Views: numbers first, and the same numbers in every picture and file."""

import base64
import csv
import io
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.lens.view import Axis, View

GRID = View(
    torch.tensor([[0.5, -1.0, 0.0], [float("nan"), 0.25, -float("inf")]]),
    (Axis.from_labels("word", ["a<b", "$c$"]), Axis.from_labels("layer", 3)),
    "a title & more",
    "weight",
    signed=True,
    note="a note",
)
BARS = View(
    torch.tensor([0.5, -1.0]), (Axis.from_labels("word", ["x", "y"]),), "bars", "logit", signed=True
)
PANELS = View(
    torch.rand(2, 3, 4, 5),
    tuple(Axis.from_labels(n, k) for n, k in zip("abcd", (2, 3, 4, 5), strict=True)),
    "p",
    "v",
)
WORDS = View(
    torch.tensor([[0.125, 0.25]]),
    (Axis.from_labels("a", 1), Axis.from_labels("b", 2)),
    "w",
    "v",
    words=(("so", "wide"),),
)
LARGE = View(
    torch.randn(80, 80),
    (Axis.from_labels("a", 80), Axis.from_labels("b", 80)),
    "large",
    "v",
    signed=True,
)


def test_the_table_has_a_row_for_each_value_and_reads_back_from_csv():
    rows = GRID.table()
    assert rows[1] == {"word": "a<b", "layer": "1", "weight": -1.0}
    read = list(csv.DictReader(io.StringIO(GRID.csv())))
    assert [float(row["weight"]) for row in read][:3] == [0.5, -1.0, 0.0]
    assert len(read) == GRID.values.numel()
    assert WORDS.table()[1]["word"] == "wide"


@pytest.mark.parametrize(
    "view", [GRID, BARS, PANELS, WORDS, LARGE], ids=["grid", "bars", "panels", "words", "large"]
)
@pytest.mark.parametrize("ending", ["png", "svg", "html", "csv", "npy"])
def test_every_view_goes_into_every_file(view, ending, tmp_path):
    path = tmp_path / f"x.{ending}"
    view.save(path, dark=True)
    if ending == "npy":
        assert np.array_equal(np.load(path), view.numpy(), equal_nan=True)
    assert path.stat().st_size > 20


@pytest.mark.parametrize(
    "view", [GRID, BARS, PANELS, WORDS, LARGE], ids=["grid", "bars", "panels", "words", "large"]
)
def test_a_notebook_gets_a_drawing_that_needs_nothing_from_outside(view):
    drawn = view._repr_html_()
    ET.fromstring(drawn)  # well formed, whatever the labels hold
    assert set(re.findall(r"https?://[^\"]*", drawn)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    assert "<script" not in drawn
    assert "currentColor" in drawn  # text is of the page's colour, on light paper and dark


def test_the_drawing_shows_each_value_with_its_share_of_colour_and_nothing_for_no_number():
    squares = re.findall(r'fill="(#\w+)" fill-opacity="([\d.]+)"', GRID._repr_html_())
    more = "#2b83d8"
    less = "#d9691c"
    assert squares == [
        (more, "0.500"),
        (less, "1.000"),
        (more, "0.000"),
        (more, "0.000"),
        (more, "0.250"),
        (more, "0.000"),
    ]
    assert "word a&lt;b, layer 1: -1" in GRID._repr_html_()


def test_a_bar_of_no_number_is_not_called_0():
    bars = View(
        torch.tensor([1.0, torch.nan]), (Axis.from_labels("word", ["a", "b"]),), "bars", "share"
    )
    assert ">nan</text>" in bars._repr_html_()
    assert "nan" in str(bars.terminal())


def test_tokens_are_shown_of_one_text_that_is_one():
    words = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}
    both = ch.new("tiny-encoder-decoder", **words, inference__sep_tokens=[0])
    assert ch.lens.tokens(both, "ab").words == (("a", "b", "‹00›"), ("97", "98", "0"))
    for model, text, told in [
        (ch.new("tiny-decoder", **words), ["ab", "c"], "one text at a time, not at 2"),
        (ch.new("tiny-pictures"), "ab", "this model reads pictures, not text"),
    ]:
        with pytest.raises(ch.ClearheadError, match=told):
            ch.lens.tokens(model, text)


def test_a_large_map_is_one_picture_no_larger_than_the_screen_that_hides_no_peak():
    values = torch.zeros(1200, 1200)
    values[700, 301], values[5, 6] = 1.0, -0.5
    drawn = View(
        values, (Axis.from_labels("a", 1200), Axis.from_labels("b", 1200)), "t", "v", signed=True
    )._repr_html_()
    coded = re.search(r"base64,([^\"]*)", drawn).group(1)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded))))
    assert picture.shape == (560, 560, 4)
    assert picture[700 * 560 // 1200, 301 * 560 // 1200].tolist() == [0x2B, 0x83, 0xD8, 255]
    assert sorted(set(picture[..., 3].ravel().tolist())) == [0, 128, 255]
    assert drawn.count("<rect") == 1  # the frame


def test_figures_show_the_same_numbers():
    picture = GRID.figure().axes[0].images[0]
    assert picture.get_clim() == (-1.0, 1.0)
    shown = picture.get_array()
    assert shown.mask.tolist() == [[False, False, False], [True, False, True]]
    assert shown[0].tolist() == [0.5, -1.0, 0.0]
    assert [bar.get_width() for bar in BARS.figure().axes[0].patches] == [0.5, -1.0]
    assert len(PANELS.figure().axes) == 7  # and the scale
    assert WORDS.figure().axes[0].texts[1].get_text() == "wide 0.250"
    assert GRID.figure(dark=True).get_facecolor() != GRID.figure().get_facecolor()


def test_words_stand_with_their_numbers_in_every_picture_unless_those_mean_nothing_or_are_too_many():
    assert WORDS.cells == (("so 0.125", "wide 0.250"),)
    assert ">wide 0.250</text>" in WORDS._repr_html_()
    assert "wide 0.250" in str(WORDS.terminal())
    axes = Axis.from_labels("a", 1), Axis.from_labels("b", 20)
    assert View(torch.rand(1, 20), axes, "w", "v", words=(("so",) * 20,)).cells == (("so",) * 20,)
    assert replace(WORDS, most=float("inf")).cells == WORDS.words
    assert replace(WORDS, values=torch.tensor([[0.125, torch.nan]])).cells == (
        ("so 0.125", "wide"),
    )


def test_a_long_title_is_not_cut_off():
    drawn = replace(WORDS, title="a long title " * 9).figure()
    drawn.draw_without_rendering()
    assert drawn.texts[0].get_window_extent().x1 <= drawn.bbox.x1


def test_the_terminal_shows_small_maps_as_numbers_with_a_shade():
    lines = str(GRID.terminal()).splitlines()
    assert lines[1].split() == ["word\\layer", "0", "1", "2"]
    assert lines[2].split() == ["a<b", "0.50▒", "-1.00≡", "0"]
    assert lines[3].split() == ["$c$", "0.25░", "−∞"]  # and nothing for no number
    assert "-1" in str(BARS.terminal())


def test_the_terminal_shows_large_maps_as_squares_that_hide_no_peak_and_tell_signs_without_colours(
    monkeypatch,
):
    monkeypatch.setenv("COLUMNS", "100")
    values = torch.zeros(80, 160)
    values[0, 100], values[1, 101], values[2, 102] = 1.0, -1.0, -0.3
    lines = str(
        View(
            values, (Axis.from_labels("a", 80), Axis.from_labels("b", 160)), "t", "v", signed=True
        ).terminal()
    ).splitlines()
    assert "each square is the strongest of 4 values" in lines[1]
    assert lines[2].split() == ["0", "██", "100", "1"]
    assert lines[3].split() == ["1", "≡≡", "101", "-1"]
    assert lines[4].split() == ["2", "-", "102", "-0.3"]
    assert max(map(len, lines)) <= 100


def test_the_terminal_puts_words_with_their_values_into_as_many_columns_as_fit(monkeypatch):
    words = tuple(f"word{n}" for n in range(6))
    view = View(
        torch.arange(6.0)[None] / 5,
        (Axis.from_labels("a", 1), Axis.from_labels("b", 6)),
        "t",
        "v",
        words=(words,),
    )
    assert len(str(view.terminal()).splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "40")
    lines = str(view.terminal()).splitlines()
    assert [line.split() for line in lines[1::2]] == [
        ["a\\b", "0", "1", "2"],
        ["a\\b", "3", "4", "5"],
    ]
    assert lines[4].split() == ["0", "word3", "0.60", "word4", "0.80", "word5", "1.00"]
    assert max(map(len, lines)) <= 40


def test_the_terminal_draws_a_single_row_as_bars():
    row = View(
        BARS.values[None],
        (Axis.from_labels("name", ["z"]), *BARS.axes),
        "bars",
        "logit",
        signed=True,
    )
    assert str(row.terminal()) == str(BARS.terminal())


def test_the_terminal_puts_panels_side_by_side():
    lines = str(PANELS.terminal()).splitlines()
    assert lines[1].split("   ")[0] == "a 0, b 0"
    assert lines[1].count("b ") > 1
    assert max(map(len, lines)) <= 100


def test_small_maps_have_their_numbers_in_every_picture():
    assert [text.get_text() for text in GRID.figure().axes[0].texts] == [
        "0.50",
        "-1.00",
        "0",
        "",
        "0.25",
        "−∞",
    ]
    assert ">-1.00</text>" in GRID._repr_html_()
    assert not LARGE.figure().axes[0].texts


def test_labels_are_left_out_before_they_overlap():
    axes = View(
        torch.rand(2, 30, 60),
        tuple(Axis.from_labels(n, k) for n, k in (("p", 2), ("a", 30), ("b", 60))),
        "t",
        "v",
    )
    figure = axes.figure()
    figure.canvas.draw()
    for ticks in (figure.axes[0].get_yticklabels(), figure.axes[0].get_xticklabels()):
        boxes = [tick.get_window_extent() for tick in ticks]
        assert 10 < len(boxes) <= 30
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_what_no_file_can_be_is_refused():
    with pytest.raises(
        ch.ClearheadError, match=re.escape("x.pdf must end in .png, .svg, .html, .csv or .npy.")
    ):
        GRID.save("x.pdf")


def test_a_folder_that_is_not_there_is_told_before_any_work(tmp_path):
    with pytest.raises(
        ch.ClearheadError, match=re.escape(f"there is no folder {tmp_path}/a to save x.png in")
    ):
        GRID.save(tmp_path / "a" / "x.png")
    (tmp_path / "y.csv").mkdir()
    with pytest.raises(
        ch.ClearheadError, match=re.escape(f"{tmp_path}/y.csv is a folder; name a file in it.")
    ):
        GRID.save(tmp_path / "y.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["y.csv"]  # nothing half written is left


def test_a_prompt_shows_the_terminals_picture_as_it_is():
    shown = GRID.terminal()
    assert repr(shown) == str(shown) == shown.plain
    assert shown.spans  # and a console has its colours
