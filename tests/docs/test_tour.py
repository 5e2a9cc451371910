"""The notebooks of the tour are well formed, and the site builds, which executes them."""

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import clearhead as ch
from clearhead.exercises.checker import compare
from clearhead.exercises.exercises import EXERCISES
from clearhead.exercises.worker import to_argument, to_json

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
        solutions = re.findall(r"<details>(.*?)</details>", html, re.DOTALL)
        assert all('<div class="highlight">' in solution for solution in solutions)
        assert len(solutions) == len(solutions_of(notebook))


def cells_of(notebook, kind):
    content = nbformat.read(notebook, as_version=4)
    return [cell.source for cell in content.cells if cell.cell_type == kind]


def solutions_of(notebook):
    """The code of the solutions, one per exercise."""
    return re.findall(
        r"<details markdown=\"1\">.*?```python\n(.*?)```.*?</details>",
        cells_of(notebook, "markdown")[-1],
        re.DOTALL,
    )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_exercises_are_numbered_and_one_uses_the_check(notebook):
    exercises = cells_of(notebook, "markdown")[-1]
    numbers = re.findall(r"^\*\*(\d)\.\*\*", exercises, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert 4 <= len(numbers) <= 6
    assert len(solutions_of(notebook)) == len(numbers)
    assert "`clearhead check mine.py`" in exercises


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_solutions_run_and_pass_the_check(notebook, monkeypatch):
    monkeypatch.chdir(TOUR)
    monkeypatch.syspath_prepend(TOUR)
    solutions = solutions_of(notebook)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for source in [*cells_of(notebook, "code"), *solutions]:
            exec(source, names)
    assert "False" not in printed.getvalue()
    counts = re.findall(r"^temperature (\S+): (\d) different", printed.getvalue(), re.MULTILINE)
    assert all((int(count) > 1) == (temperature != "0") for temperature, count in counts)
    assert bool(counts) == notebook.name.startswith("5")
    defined = [
        node.name
        for source in solutions
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in EXERCISES
    ]
    assert defined
    for name in defined:
        cases = EXERCISES[name].cases()
        results = []
        for case in cases:
            arguments = [to_argument(value, as_tensors=True) for value in case.arguments.values()]
            results.append(to_json(names[name](*arguments)))
        result = compare(EXERCISES[name], cases, results)
        assert result.passed, result


def printed_by(notebook, start):
    """What the cell prints that starts with these words."""
    (source,) = (cell for cell in cells_of(TOUR / notebook, "code") if cell.startswith(start))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(source, {"ch": ch})
    return printed.getvalue()


@pytest.mark.slow
def test_the_texts_on_numbers_and_on_it_are_true():
    printed = printed_by("1-tokens.ipynb", "english = ")
    scores = [float(score) for score in re.findall(r"^  \w+ +(\S+)", printed, re.MULTILINE)]
    one, two, three, four, five, students = scores[:6]
    assert one < five < four < three < two < students
    assert scores[6 + 3] > scores[6 + 2]  # four and three, for cat and cats alone
    printed = printed_by("6-architectures.ipynb", "sentence_model = ")
    tired_chicken, tired_road, wide_chicken, wide_road = map(float, re.findall(r"0\.\d+", printed))
    assert tired_chicken > wide_chicken > wide_road > tired_road


@pytest.mark.slow
def test_two_notebooks_may_train_the_same_model_at_once(tmp_path):
    env = os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    script = "import toy_models; toy_models.copy_model(); toy_models.word_vectors()"
    command = [sys.executable, "-c", script]
    processes = [
        subprocess.Popen(command, cwd=TOUR, env=env, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_has_a_title_short_cells_an_exercise_and_no_outputs(notebook):
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert all(len(cell.source.splitlines()) <= 12 for cell in code)
    assert content.cells[0].source.startswith("# ")
    assert content.cells[-1].source.startswith("## Exercises")


def test_index_lists_one_notebook_per_part():
    index = (TOUR / "README.md").read_text(encoding="utf-8")
    names = [notebook.name for notebook in NOTEBOOKS]
    assert re.findall(r"\]\(([\w-]+\.ipynb)\)", index) == names
    assert [name[0] for name in names] == list("123456")
