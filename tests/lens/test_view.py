"""Views: the same numbers in tables, drawings and files."""

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
from clearhead.lens.render.colors import NEGATIVE, POSITIVE
from clearhead.lens.view import View, label_axes


def make_view(values, axes, title="t", value_name="v", **fields):
    return View(values, label_axes(axes), title, value_name, **fields)


GRID = make_view(
    torch.tensor([[0.5, -1.0, 0.0], [float("nan"), 0.25, -float("inf")]]),
    {"word": ["a<b", "$c$"], "layer": 3},
    title="a title & more",
    value_name="weight",
    signed=True,
    note="a note",
)
BARS = make_view(
    torch.tensor([0.5, -1.0]), {"word": ["x", "y"]}, "bars", value_name="logit", signed=True
)
VIEWS = {
    "grid": GRID,
    "bars": BARS,
    "panels": make_view(torch.rand(2, 3, 4, 5), {"a": 2, "b": 3, "c": 4, "d": 5}),
    "words": make_view(torch.tensor([[0.125, 0.25]]), {"a": 1, "b": 2}, words=(("so", "wide"),)),
    "large": make_view(torch.randn(80, 80), {"a": 80, "b": 80}, signed=True),
}
WORDS = VIEWS["words"]
PANELS = VIEWS["panels"]


def test_table_equals_csv():
    assert GRID.table()[1] == {"word": "a<b", "layer": "1", "weight": -1.0}
    rows = list(csv.DictReader(io.StringIO(GRID.csv())))
    assert [float(row["weight"]) for row in rows][:3] == [0.5, -1.0, 0.0]
    assert len(rows) == GRID.values.numel()
    assert WORDS.table()[1]["word"] == "wide"


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("suffix", ["png", "svg", "html", "csv", "npy"])
def test_every_view_can_be_saved_in_every_format(name, suffix, tmp_path):
    view = VIEWS[name]
    path = tmp_path / f"x.{suffix}"
    view.save(path, dark=True)
    if suffix == "npy":
        assert np.array_equal(np.load(path), view.numpy(), equal_nan=True)
    assert path.stat().st_size > 20


@pytest.mark.parametrize("name", VIEWS)
def test_html_is_well_formed_and_self_contained(name):
    html = VIEWS[name]._repr_html_()
    ET.fromstring(html)
    assert set(re.findall(r"https?://[^\"]*", html)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in html
    assert "currentColor" in html  # text inherits the page's color


def test_html_cells_have_opacity_by_value_and_none_for_nan():
    html = GRID._repr_html_()
    cells = re.findall(r'fill="(#\w+)" fill-opacity="([\d.]+)"', html)
    assert cells == [
        (POSITIVE, "0.500"),
        (NEGATIVE, "1.000"),
        (POSITIVE, "0.000"),
        (POSITIVE, "0.000"),
        (POSITIVE, "0.250"),
        (POSITIVE, "0.000"),
    ]
    assert "word a&lt;b, layer 1: -1" in html


def test_bar_of_nan_is_labeled_nan():
    bars = make_view(torch.tensor([1.0, torch.nan]), {"word": ["a", "b"]})
    assert ">nan</text>" in bars._repr_html_()
    assert "nan" in str(bars.terminal())


def test_large_heat_map_is_one_image_that_keeps_peaks():
    values = torch.zeros(1200, 1200)
    values[700, 301] = 1.0
    values[5, 6] = -0.5
    html = make_view(values, {"a": 1200, "b": 1200}, signed=True)._repr_html_()
    data = re.search(r"base64,([^\"]*)", html).group(1)
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert image.shape == (560, 560, 4)
    peak = image[700 * 560 // 1200, 301 * 560 // 1200].tolist()
    assert peak == [*bytes.fromhex(POSITIVE[1:]), 255]
    assert sorted(set(image[..., 3].ravel().tolist())) == [0, 128, 255]
    assert html.count("<rect") == 1  # the frame


def test_figures_show_the_values():
    image = GRID.figure().axes[0].images[0]
    assert image.get_clim() == (-1.0, 1.0)
    values = image.get_array()
    assert values.mask.tolist() == [[False, False, False], [True, False, True]]
    assert values[0].tolist() == [0.5, -1.0, 0.0]
    assert [bar.get_width() for bar in BARS.figure().axes[0].patches] == [0.5, -1.0]
    assert len(PANELS.figure().axes) == 7  # with the color bar
    assert WORDS.figure().axes[0].texts[1].get_text() == "wide 0.250"
    assert GRID.figure(dark=True).get_facecolor() != GRID.figure().get_facecolor()


def test_words_are_drawn_with_their_numbers():
    assert WORDS.cells == (("so 0.125", "wide 0.250"),)
    assert ">wide 0.250</text>" in WORDS._repr_html_()
    assert "wide 0.250" in str(WORDS.terminal())
    many = make_view(torch.rand(1, 20), {"a": 1, "b": 20}, words=(("so",) * 20,))
    assert many.cells == many.words
    assert replace(WORDS, vmax=float("inf")).cells == WORDS.words
    with_nan = replace(WORDS, values=torch.tensor([[0.125, torch.nan]]))
    assert with_nan.cells == (("so 0.125", "wide"),)


def test_small_maps_show_numbers_in_every_format():
    numbers = ["0.50", "-1.00", "0", "", "0.25", "−∞"]
    assert [text.get_text() for text in GRID.figure().axes[0].texts] == numbers
    assert ">-1.00</text>" in GRID._repr_html_()
    assert not VIEWS["large"].figure().axes[0].texts


def test_long_title_is_wrapped():
    figure = replace(WORDS, title="a long title " * 9).figure()
    figure.draw_without_rendering()
    assert figure.texts[0].get_window_extent().x1 <= figure.bbox.x1


def test_tick_labels_do_not_overlap():
    figure = make_view(torch.rand(2, 30, 60), {"p": 2, "a": 30, "b": 60}).figure()
    figure.canvas.draw()
    for ticks in (figure.axes[0].get_yticklabels(), figure.axes[0].get_xticklabels()):
        boxes = [tick.get_window_extent() for tick in ticks]
        assert 10 < len(boxes) <= 30
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_terminal_shows_small_maps_as_numbers():
    lines = str(GRID.terminal()).splitlines()
    assert lines[1].split() == ["word\\layer", "0", "1", "2"]
    assert lines[2].split() == ["a<b", "0.50▒", "-1.00≡", "0"]
    assert lines[3].split() == ["$c$", "0.25░", "−∞"]  # NaN is blank
    assert "-1" in str(BARS.terminal())


def test_terminal_shows_large_maps_as_squares_that_keep_peaks_and_signs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    values = torch.zeros(80, 160)
    values[0, 100] = 1.0
    values[1, 101] = -1.0
    values[2, 102] = -0.3
    lines = str(make_view(values, {"a": 80, "b": 160}, signed=True).terminal()).splitlines()
    assert "each square is the strongest of 4 values" in lines[1]
    assert lines[2].split() == ["0", "██", "100", "1"]
    assert lines[3].split() == ["1", "≡≡", "101", "-1"]
    assert lines[4].split() == ["2", "-", "102", "-0.3"]
    assert max(map(len, lines)) <= 100


def test_terminal_wraps_columns_of_words(monkeypatch):
    words = tuple(f"word{n}" for n in range(6))
    view = make_view(torch.arange(6.0)[None] / 5, {"a": 1, "b": 6}, words=(words,))
    assert len(str(view.terminal()).splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "40")
    lines = str(view.terminal()).splitlines()
    headings = [line.split() for line in lines[1::2]]
    assert headings == [["a\\b", "0", "1", "2"], ["a\\b", "3", "4", "5"]]
    assert lines[4].split() == ["0", "word3", "0.60", "word4", "0.80", "word5", "1.00"]
    assert max(map(len, lines)) <= 40


def test_terminal_draws_a_single_row_as_bars():
    row = make_view(
        BARS.values[None], {"name": ["z"], "word": ["x", "y"]}, "bars", "logit", signed=True
    )
    assert str(row.terminal()) == str(BARS.terminal())


def test_terminal_puts_panels_side_by_side():
    lines = str(PANELS.terminal()).splitlines()
    assert lines[1].split("   ")[0] == "a 0, b 0"
    assert lines[1].count("b ") > 1
    assert max(map(len, lines)) <= 100


def test_repr_of_terminal_text_is_the_text():
    text = GRID.terminal()
    assert repr(text) == str(text) == text.plain
    assert text.spans  # styles for a rich console


def test_unknown_suffix_is_an_error():
    with pytest.raises(ch.ClearheadError, match=re.escape("x.pdf must end in .png, .svg")):
        GRID.save("x.pdf")


def test_missing_folder_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(ch.ClearheadError, match=re.escape(f"no folder {tmp_path}/a")):
        GRID.save(tmp_path / "a" / "x.png")
    (tmp_path / "y.csv").mkdir()
    with pytest.raises(ch.ClearheadError, match=re.escape("y.csv is a folder")):
        GRID.save(tmp_path / "y.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["y.csv"]


@pytest.mark.parametrize(
    ("axes", "words"), [({"score": 1, "b": 1}, None), ({"word": 1, "b": 1}, (("so",),))]
)
def test_columns_of_the_table_must_differ(axes, words):
    with pytest.raises(ValueError, match="must differ"):
        make_view(torch.zeros(1, 1), axes, value_name="score", words=words)
