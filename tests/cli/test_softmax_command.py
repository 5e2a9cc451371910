"""`clearhead softmax` and `clearhead models NAME --parameters`."""

import json

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app


def run(*words):
    return CliRunner().invoke(app, words, catch_exceptions=False).stdout


def test_softmax_prints_the_values_of_the_library():
    shown = run("softmax", "6 -5 4 1.5 9.9", "--temperature", "1")
    table = ch.lens.softmax([6, -5, 4, 1.5, 9.9])
    for line, row in zip(shown.splitlines()[2:], table.words, strict=False):
        assert line.split()[1:] == list(row)


def test_logits_may_have_names_signs_and_commas(tmp_path):
    path = tmp_path / "x.csv"
    run("softmax", "−5, +6 cat=1e1; masked=-inf", "--output", str(path))
    lines = [line.split(",")[:2] for line in path.read_text().splitlines()[1:]]
    assert lines == [["0", "-5.0"], ["1", "6.0"], ["cat", "10.0"], ["masked", "-inf"]]
    assert "-5" in run("softmax", "-5 6")
    assert "5" in run("softmax", "1,5")  # two logits


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["6 x"], "'x' is not a logit"),
        (["a=6 a=5"], "two logits named 'a'"),
        (["6 nan"], "finite"),
        (["  "], "at least one"),
        (["1,5 2"], "comma in '1,5'"),
        (["cat=1,5; dog=2"], "comma"),
        (["6 5", "--temperature", "-1"], "temperature"),
        (["6 5", "--output", "x.pdf"], "must end in"),
    ],
)
def test_invalid_logits_are_refused(words, message):
    with pytest.raises(ch.ClearheadError, match=message):
        run("softmax", *words)


def test_parameters_of_any_model(tmp_path):
    model = ch.new("tiny-decoder", vocab_size=50, seed=0)
    folder = str(tmp_path / "model")
    ch.save(model, folder)
    assert f"{model.num_parameters():,}" in run("models", folder, "--parameters").splitlines()[-2]
    record = json.loads(run("models", folder, "--parameters", "--json"))
    assert record["total"] == model.num_parameters()
    assert record["parameters"] == ch.lens.parameters(model).table()
    with pytest.raises(ch.ClearheadError, match="NAME"):
        run("models", "--parameters")
