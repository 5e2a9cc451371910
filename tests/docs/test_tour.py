"""The notebooks of the tour run from top to bottom, and are kept without what they print."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "docs" / "tour"
PAGES = sorted(TOUR.glob("*.ipynb"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where the models go that the pages share: a folder of this run's own, so that nothing old is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tour")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_draws_its_figures(page, trained):
    notebook = nbformat.read(page, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(TOUR)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.get("data", {}) for output in outputs]
    assert 5 <= sum("<svg" in data.get("text/html", "") for data in shown) <= 16
    assert not any(data.get("text/plain") == "False" for data in shown)  # what a page says is equal is


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
