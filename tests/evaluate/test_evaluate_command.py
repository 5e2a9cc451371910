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
    "judge": (
        "tiny-encoder",
        {"head": {"kind": "classification", "num_labels": 2}, "inference__labels": ["no", "yes"]},
    ),
    "writer": ("tiny-decoder", {"inference__eos_tokens": [END]}),
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
def place(tmp_path_factory):
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


def run(*words):
    done = CliRunner().invoke(app, ["evaluate", *map(str, words)], catch_exceptions=True)
    if isinstance(done.exception, ClearheadError):
        raise done.exception
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_table_shows_metrics_with_intervals(place):
    output = run(place / "writer", "--data", place / "texts.txt")
    found = ch.evaluate(ch.load(place / "writer", device="cpu"), place / "texts.txt")
    for figure in found.metrics:
        assert figure.name in output
        assert f"{figure.value:.4f}"[:5] in output or figure.value > 10
    assert "Intervals: " in output


def test_several_files_and_json_output(place, tmp_path):
    files = ["--data", place / "a.en", place / "a.de", "--num-beams", 1]
    report = json.loads(
        run(place / "translator", *files, "--json", "--output", tmp_path / "f.json")
    )
    assert report["data"] == [str(place / "a.en"), str(place / "a.de")]
    assert [figure["name"] for figure in report["metrics"]] == [
        "bleu",
        "chrf",
        "loss",
        "perplexity",
    ]
    assert json.loads((tmp_path / "f.json").read_text()) == report
    twice = ["--data", place / "a.en", "--data", place / "a.de", "--num-beams", 1]
    assert json.loads(run(place / "translator", *twice, "--json")) == report


def test_examples_and_confusion_matrix_are_saved(place, tmp_path):
    columns = ["--data.label_column", "mood", "--data.text_column", "said"]
    saved = ["--per-example", tmp_path / "each.jsonl", "--confusion-matrix", tmp_path / "c.csv"]
    output = run(place / "judge", *columns, "--data", place / "rows.csv", *saved)
    rows = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == ["the cat", "sat on"]
    assert (tmp_path / "c.csv").read_text().splitlines()[0] == "true,predicted,rows"
    assert "Confusion matrix" in output


def test_invalid_options_fail_before_evaluation(place, tmp_path):
    with pytest.raises(ClearheadError, match="--confusion-matrix needs"):
        run(
            place / "writer", "--data", place / "none.txt", "--confusion-matrix", tmp_path / "c.png"
        )
    with pytest.raises(ClearheadError, match="folder"):
        run(
            place / "writer",
            "--data",
            place / "texts.txt",
            "--per-example",
            tmp_path / "none" / "each.jsonl",
        )
    with pytest.raises(ClearheadError, match="folder"):
        run(place / "writer", "--data", place / "texts.txt", "--output", tmp_path)
    for name, column in (
        ("writer", "label_column"),
        ("writer", "source_column"),
        ("judge", "target_column"),
        ("translator", "text_column"),
    ):
        with pytest.raises(ClearheadError, match=f"{column} does not apply"):
            run(place / name, "--data", place / "none.txt", f"--data.{column}", "x")
    with pytest.raises(ClearheadError, match="must end in"):
        run(place / "judge", "--data", place / "rows.csv", "--confusion-matrix", tmp_path / "c.txt")
