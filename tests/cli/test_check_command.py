"""`clearhead check`: output and exit status."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clearhead.cli.main import app
from clearhead.errors import ClearheadError
from clearhead.exercises.exercises import EXERCISES

EXERCISE_TESTS = Path(__file__).parents[1] / "exercises"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "check.md"


def run(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)], standalone_mode=False)


def functions(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_list_shows_every_function_with_types_and_equation():
    output = run("--list").stdout
    assert all(f"{name}(" in output for name in EXERCISES)
    assert output.count("Equation: ") == output.count("Returns: ") == len(EXERCISES)
    assert "attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array" in output


def test_template_has_every_function_and_is_not_overwritten(tmp_path):
    file = tmp_path / "mine.py"
    assert "wrote" in run("--template", file).stdout
    assert functions(file) == [*EXERCISES]
    result = run("--template", file)
    assert isinstance(result.exception, ClearheadError)
    assert "exists already" in str(result.exception)


def test_template_of_some_functions(tmp_path):
    run("--template", tmp_path / "mine.py", "--only", "softmax", "--only", "rotary")
    assert functions(tmp_path / "mine.py") == ["rotary", "softmax"]


@pytest.mark.parametrize("words", [[], ["mine.py", "--list"], ["--list", "--template", "x.py"]])
def test_one_action_is_needed(words):
    assert "--template" in str(run(*words).exception)


@pytest.mark.slow
def test_exit_status_and_summary():
    right = run(EXERCISE_TESTS / "numpy_solution.py", "--only", "softmax", "--only", "embed")
    assert right.exit_code in (0, None)
    assert "✓ softmax" in right.stdout
    assert "2 passed." in right.stdout
    wrong = run(EXERCISE_TESTS / "faulty.py", "--only", "softmax", "--only", "multi_head")
    assert wrong.return_value == 1 or wrong.exit_code == 1
    assert "✗ softmax" in wrong.stdout
    assert "1 failed, 1 not found." in wrong.stdout


@pytest.mark.slow
def test_guide_shows_what_is_printed(tmp_path, monkeypatch):
    shutil.copy(EXERCISE_TESTS / "guide_example.py", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    _, _, shown = GUIDE.read_text(encoding="utf-8").partition("$ clearhead check mine.py\n")
    shown = shown.partition("…")[0]
    assert run("mine.py").stdout.startswith(shown)
    assert "layer_norm" in shown


@pytest.mark.slow
def test_json_has_one_line_per_function(tmp_path):
    run("--template", tmp_path / "mine.py")
    lines = run(tmp_path / "mine.py", "--json").stdout.splitlines()
    results = [json.loads(line) for line in lines]
    assert [result["function"] for result in results] == [*EXERCISES]
    assert {result["status"] for result in results} == {"not written"}
