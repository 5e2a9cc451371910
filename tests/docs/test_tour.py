"""The notebooks of the tour are well formed, and the site builds, which executes them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "tour"
NOTEBOOKS = sorted(TOUR.glob("*.ipynb"))


@pytest.mark.slow
def test_site_builds_and_notebooks_draw_figures(tmp_path):
    """With an empty temporary folder, so that all models are trained."""
    env = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    site = tmp_path / "site"
    options = ["--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | env,
    )
    assert done.returncode == 0, done.stderr
    for notebook in NOTEBOOKS:
        html = (site / "tour" / notebook.stem / "index.html").read_text(encoding="utf-8")
        assert 5 <= html.count('class="drawn"') <= 16
        assert "<code>False\n" not in html  # all comparisons hold


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_has_a_title_short_cells_an_exercise_and_no_outputs(notebook):
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert all(len(cell.source.splitlines()) <= 12 for cell in code)
    assert content.cells[0].source.startswith("# ")
    assert content.cells[-1].source.startswith("## Exercise")


def test_index_lists_one_notebook_per_part():
    index = (TOUR / "README.md").read_text(encoding="utf-8")
    names = [notebook.name for notebook in NOTEBOOKS]
    assert re.findall(r"\]\(([\w-]+\.ipynb)\)", index) == names
    assert [name[0] for name in names] == list("123456")
