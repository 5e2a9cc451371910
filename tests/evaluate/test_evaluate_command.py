"""`clearhead evaluate` on small models."""

import json

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.errors import ClearheadError

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat"], 300, ("<|end|>",))
END = WORDS.special_tokens["<|end|>"]
MODELS = {
    "classifier": (
        "tiny-encoder",
        {"head": {"kind": "classification", "num_labels": 2}, "inference__labels": ["no", "yes"]},
    ),
    "decoder": ("tiny-decoder", {"inference__eos_tokens": [END]}),
    "translator": (
        "tiny-encoder-decoder",
        {
            "context_length": 24,
            "inference__decoder_start_tokens": [END],
            "inference__eos_tokens": [END],
        },
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, (preset, changes) in MODELS.items():
        ch.save(
            ch.new(preset, vocab_size=len(WORDS), tokenizer=WORDS, seed=1, **changes), folder / name
        )
    (folder / "texts.txt").write_text("the cat sat on the mat\n" * 20)
    (folder / "a.en").write_text("the cat\nsat\n")
    (folder / "a.de").write_text("mat\non the\n")
    (folder / "rows.csv").write_text("said,mood\nthe cat,no\nsat on,yes\n")
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, ClearheadError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_table_shows_metrics_with_intervals(folder):
    output = run(folder / "decoder", "--data", folder / "texts.txt")
    evaluation = ch.evaluate(ch.load(folder / "decoder", device="cpu"), folder / "texts.txt")
    for metric in evaluation.metrics:
        assert metric.name in output
        assert f"{metric.value:.4f}"[:5] in output or metric.value > 10
    assert "Intervals: " in output


def test_several_files_and_json_output(folder, tmp_path):
    files = ["--data", folder / "a.en", folder / "a.de", "--num-beams", 1]
    output = json.loads(
        run(folder / "translator", *files, "--json", "--output", tmp_path / "f.json")
    )
    assert output["data"] == [str(folder / "a.en"), str(folder / "a.de")]
    assert [metric["name"] for metric in output["metrics"]] == [
        "bleu",
        "chrf",
        "loss",
        "perplexity",
    ]
    assert json.loads((tmp_path / "f.json").read_text()) == output
    repeated = ["--data", folder / "a.en", "--data", folder / "a.de", "--num-beams", 1]
    assert json.loads(run(folder / "translator", *repeated, "--json")) == output


def test_examples_and_confusion_matrix_are_saved(folder, tmp_path):
    columns = ["--data.label_column", "mood", "--data.text_column", "said"]
    outputs = ["--per-example", tmp_path / "each.jsonl", "--confusion-matrix", tmp_path / "c.csv"]
    output = run(folder / "classifier", *columns, "--data", folder / "rows.csv", *outputs)
    rows = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == ["the cat", "sat on"]
    assert (tmp_path / "c.csv").read_text().splitlines()[0] == "true,predicted,rows"
    assert "Confusion matrix" in output


def test_invalid_options_fail_before_evaluation(folder, tmp_path):
    with pytest.raises(ClearheadError, match="--confusion-matrix needs"):
        run(
            folder / "decoder",
            "--data",
            folder / "none.txt",
            "--confusion-matrix",
            tmp_path / "c.png",
        )
    with pytest.raises(ClearheadError, match="folder"):
        run(
            folder / "decoder",
            "--data",
            folder / "texts.txt",
            "--per-example",
            tmp_path / "none" / "each.jsonl",
        )
    with pytest.raises(ClearheadError, match="folder"):
        run(folder / "decoder", "--data", folder / "texts.txt", "--output", tmp_path)
    for name, column in (
        ("decoder", "label_column"),
        ("decoder", "source_column"),
        ("classifier", "target_column"),
        ("translator", "text_column"),
    ):
        with pytest.raises(ClearheadError, match=f"{column} does not apply"):
            run(folder / name, "--data", folder / "none.txt", f"--data.{column}", "x")
    with pytest.raises(ClearheadError, match="must end in"):
        run(
            folder / "classifier",
            "--data",
            folder / "rows.csv",
            "--confusion-matrix",
            tmp_path / "c.txt",
        )
