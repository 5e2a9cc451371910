"""`ch.check`: right functions pass, and each common mistake is named."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.exercises.checker import compare
from clearhead.exercises.exercises import EXERCISES
from clearhead.exercises.worker import describe_error, find_functions, import_file, to_json

FOLDER = Path(__file__).parent
MISTAKES = [(name, text) for name, exercise in EXERCISES.items() for text in exercise.mistakes]


@pytest.fixture(scope="module")
def cases():
    return {name: exercise.cases() for name, exercise in EXERCISES.items()}


def check_function(name, function, cases):
    """The check of a function, in this process."""
    results = [to_json(function(*case.arguments.values())) for case in cases[name]]
    return compare(EXERCISES[name], cases[name], results)


def draw(name, seed):
    return EXERCISES[name].cases()[seed]


@pytest.mark.parametrize("name", EXERCISES)
def test_own_modules_pass(name, cases):
    final = [*EXERCISES[name].steps(cases[name][0])][-1]
    with torch.no_grad():
        result = check_function(name, lambda *args: EXERCISES[name].compute(*args)[final], cases)
    assert result.passed, result


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_every_mistake_is_named(name, mistake, cases):
    with torch.no_grad():
        result = check_function(name, EXERCISES[name].mistakes[mistake], cases)
    assert result.status == "different"
    assert mistake in result.hint


def test_other_differences_have_no_hint(cases):
    result = check_function("attention", lambda q, k, v, mask=None: 0.1 + 0 * q @ k.T @ v, cases)
    assert result.status == "different"
    assert not result.hint


def test_overflow_in_float32_has_a_hint(cases):
    def attention(q, k, v, mask=None):
        scores = q.float() @ k.T.float() / q.shape[1] ** 0.5
        exps = (scores if mask is None else scores + mask.float()).exp()
        return exps / exps.sum(dim=1, keepdim=True) @ v.float()

    assert "overflows" in check_function("attention", attention, cases).hint


def test_first_difference_is_named_by_step_and_place(cases):
    def attention(q, k, v, mask=None):
        steps = dict(EXERCISES["attention"].compute(q, k, v, mask))
        if mask is not None:
            steps["masked_scores"] = steps["masked_scores"].nan_to_num(neginf=0.42)
            steps["pattern"] = steps["masked_scores"].softmax(-1)
            steps["z"] = steps["pattern"] @ v
        return steps

    case = next(case for case in cases["attention"] if "mask" in case.arguments)
    row, column = case.arguments["mask"].isinf().nonzero()[0].tolist()
    message = check_function("attention", attention, cases).message
    place = f"masked_scores, row {row}, column {column}: expected -inf, got 0.42"
    assert message.startswith(f"{place} ({case})")
    assert f"seed={case.sizes['seed']}" in message


def test_same_cases_every_time():
    for one, two in zip(*(EXERCISES["block"].cases() for _ in range(2)), strict=True):
        assert str(one) == str(two)
        assert torch.equal(one.arguments["x"], two.arguments["x"])


def test_smallest_case_comes_first(cases):
    assert cases["attention"][0].sizes == {"n": 1, "m": 1, "d": 1, "seed": 0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"unexpected": "None"}),
        ("ab", {"unexpected": "a value of type str"}),
        (np.array([True]), {"unexpected": "booleans"}),
        (np.array([1j]), {"unexpected": "complex numbers"}),
        ([[1.0, 2.0], [3.0]], {"unexpected": "a value of type list"}),
        (2, {"shape": [], "array": [2.0]}),
        (torch.ones(1, 2, requires_grad=True), {"shape": [1, 2], "array": [1.0, 1.0]}),
        (torch.ones(1, dtype=torch.bfloat16), {"shape": [1], "array": [1.0]}),
        ([("a", "b")], {"list": [("a", "b")]}),
        ([1, 2], {"list": [1, 2]}),
    ],
)
def test_results_are_sent_as_json(value, expected):
    assert to_json(value) == expected


def test_imported_functions_are_no_exercises(tmp_path, monkeypatch):
    """Whether imported by name, with a star, or within another function."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (tmp_path / "helpers.py").write_text("def attention(): 0\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch.nn.functional import *\nfrom helpers import attention\n"
        "def softmax(): 0\n"
        "def rotary():\n    from torch.nn.functional import softmax\n"
    )
    assert set(find_functions(import_file(file), file)) == {"rotary", "softmax", "attention"}


def test_traceback_shows_only_the_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import numpy as np\ndef f(x):\n    return np.linalg.inv(x)\n")
    namespace = {}
    spec = __import__("importlib.util").util.spec_from_file_location("mine", file)
    module = __import__("importlib.util").util.module_from_spec(spec)
    spec.loader.exec_module(module)
    namespace.update(vars(module))
    with pytest.raises(np.linalg.LinAlgError) as caught:
        namespace["f"](np.zeros((2, 2)))
    error = describe_error(caught.value, file)
    assert error["traceback"] == ["mine.py, line 3, in f", "  return np.linalg.inv(x)"]
    assert error["message"].startswith("LinAlgError: Singular")


@pytest.mark.slow
def test_numpy_solution_passes():
    results = ch.check(FOLDER / "numpy_solution.py")
    assert [result.function for result in results] == [*EXERCISES]
    assert all(result.passed for result in results), [*map(str, results)]


@pytest.mark.slow
def test_torch_solution_passes_in_float32():
    results = {r.function: r for r in ch.check(FOLDER / "torch_solution.py")}
    assert results["softmax"].status == "not found"
    assert results["multi_head"].passed, results["multi_head"]
    assert sum(result.passed for result in results.values()) == 7
    assert all(result.status in ("passed", "not found") for result in results.values())


@pytest.mark.slow
def test_failures_are_explained(capfd):
    results = {r.function: r for r in ch.check(FOLDER / "faulty.py", time_limit=5)}
    expected = {
        "bpe": "a value of type str, expected the tokens",
        "embed": "longer than 5 seconds (vocabulary=1",
        "positional_encoding": "expected the shape 1 × 2, got 2 × 2",
        "rotary": "raised IndexError: index 100",
        "softmax": "has the parameters (x), expected softmax(x, temperature=1.0)",
        "causal_mask": "returned booleans, expected n × n numbers, 0 or −∞",
        "simple_attention": "ended the process",
        "attention": "z, row",
        "masked_attention": "raised SystemExit",
        "layer_norm": "got nan",
        "feed_forward": "not a function",
        "unembed": "not written yet",
        "cross_entropy": "None, expected one number",
        "beam_search": "expected",
        "multi_head": "not found",
    }
    for name, words in expected.items():
        assert words in results[name].message, results[name]
    assert results["rotary"].traceback[-1].strip() == "return x[100]"
    assert "line 9" in results["rotary"].traceback[2]
    assert "printed by the file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("mine.txt", "", "Python file"),
        ("mine.ipynb", "{}", "nbconvert"),
        ("missing.py", None, "no such file"),
        pytest.param("mine.py", "x = (", "line 1", marks=pytest.mark.slow),
        pytest.param("mine.py", "import nowhere", "nowhere", marks=pytest.mark.slow),
        pytest.param("mine.py", "while 1: 0", "import", marks=pytest.mark.slow),
        pytest.param("mine.py", "exit()", "SystemExit", marks=pytest.mark.slow),
        pytest.param("mine.py", "def layernorm(): 0", "layer_norm", marks=pytest.mark.slow),
        pytest.param("mine.py", "x = 3", "--list", marks=pytest.mark.slow),
    ],
)
def test_unusable_files_are_errors(name, text, words, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ch.ClearheadError, match=words):
        ch.check(tmp_path / name, time_limit=5)


@pytest.mark.parametrize(
    "options", [{"only": ["attentoin"]}, {"time_limit": 0}, {"time_limit": 1e9}]
)
def test_unusable_options_are_errors(options):
    with pytest.raises(ch.ClearheadError, match=r"attention|time limit"):
        ch.check(FOLDER / "faulty.py", **options)


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(ch.ClearheadError, match="folder"):
        ch.check(tmp_path)
