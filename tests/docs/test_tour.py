"""The site builds, which runs the notebooks of the tour from top to bottom; they are kept without what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "tour"
PAGES = sorted(TOUR.glob("*.ipynb"))


def test_the_site_builds_without_a_warning_and_the_pages_of_the_tour_draw_their_figures(tmp_path):
    """Building runs the notebooks, in a folder of this run's own, so that no model of an earlier one is found."""
    alone = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        build, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **alone}
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        shown = (tmp_path / "site/tour" / page.stem / "index.html").read_text(encoding="utf-8")
        assert 5 <= shown.count('class="drawn"') <= 16
        assert "<code>False\n" not in shown  # what a page says is equal is


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_kept_bare_with_a_title_short_cells_and_an_exercise(page):
    notebook = nbformat.read(page, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert all(len(cell.source.splitlines()) <= 12 for cell in code)
    assert notebook.cells[0].source.startswith("# ")
    assert notebook.cells[-1].source.startswith("## Try it")


def test_there_is_a_page_for_each_part_and_the_index_has_it():
    index = (TOUR / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w-]+\.ipynb)\)", index) == [page.name for page in PAGES]
    assert [page.name[0] for page in PAGES] == list("123456")
