"""`clearhead translate`: files in batches and in order, n-best, JSON, tables and errors."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli import translate as command
from clearhead.cli.main import app
from clearhead.errors import ClearheadError

WORDS = ch.Tokenizer.bytes(("<|end|>",))
LINES = ["A dog runs.", "", "Two men.", "A long sentence of a dog", "One."]
SHORT = ("--num-beams", 2, "--max-tokens", 5)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translators") / "translator"
    options = {
        "vocab_size": 257,
        "context_length": 48,
        "architecture__source_context_length": 48,
        "inference__decoder_start_tokens": [256],
        "inference__eos_tokens": [256],
        "inference__sep_tokens": [256],
    }
    ch.save(ch.new("tiny-encoder-decoder", tokenizer=WORDS, seed=3, **options), folder)
    return folder


def run(*words, stdin=None):
    result = CliRunner().invoke(app, ["translate", *(str(word) for word in words)], input=stdin)
    if isinstance(result.exception, ClearheadError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_translates_a_pipe(translator, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as executor:
        executor.submit(pipe.write_text, "A dog runs.\nTwo men.\n")
        assert "2 lines" in run(
            translator, "--input", pipe, "--output", tmp_path / "out.txt", *SHORT
        )


def test_batches_keep_order_and_output_is_atomic(translator, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("\r\n".join(LINES) + "\n")
    output = run(
        translator, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", *SHORT
    )
    assert "5 lines" in output
    text = (tmp_path / "out.txt").read_text()
    assert text.count("\n") == 5
    assert text.split("\n")[1] == ""
    batch_sizes = []
    monkeypatch.setattr(command, "LINES_PER_BATCH", 2)
    translate = ch.Model.translate
    monkeypatch.setattr(
        ch.Model,
        "translate",
        lambda m, texts, **o: batch_sizes.append(len(texts)) or translate(m, texts, **o),
    )
    assert run(translator, "--input", "-", *SHORT, stdin="\n".join(LINES)) == text
    assert batch_sizes == [2, 2, 1]
    assert run(translator, LINES[0], *SHORT) == text.split("\n")[0] + "\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_n_best_lines_have_number_and_score(translator):
    rows = [
        line.split("\t")
        for line in run(
            translator, "--input", "-", "--n-best", 2, *SHORT, stdin="a\nb\n"
        ).splitlines()
    ]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[0][2] == run(translator, "a", *SHORT).strip()


def test_alignment_is_printed_as_a_table(translator):
    text, header, *rows = run(translator, "A dog.", "--align", "-2", *SHORT).splitlines()
    [result] = ch.load(translator).translate(["A dog."], num_beams=2, max_tokens=5, align=-2)
    assert text == " ".join(result.text.splitlines()).strip()
    assert header.split() == ["target", "source"]
    source = WORDS.to_str_tokens([*WORDS.encode("A dog."), 256])
    assert [row.split()[-1] for row in rows] == [source[position] for position in result.alignment]


@pytest.mark.parametrize("options", [("--align", "-2"), ("--logprobs", 1)])
def test_tables_follow_the_output(translator, tmp_path, options):
    (tmp_path / "in.txt").write_text("a\nb\n")
    words = (translator, "--input", tmp_path / "in.txt", *SHORT, *options)
    assert (
        run(*words, "--output", tmp_path / "out.txt")
        == f"wrote 2 lines to {tmp_path / 'out.txt'}\n"
    )
    assert (tmp_path / "out.txt").read_text() == run(*words)


def test_json_equals_the_library(translator):
    tree = json.loads(run(translator, "A dog.", "--json", "--align", "-2", "--n-best", 2, *SHORT))
    model = ch.load(translator, device="cpu")
    expected = model.translate("A dog.", num_beams=2, max_tokens=5, n_best=2, align=-2)
    assert tree["source"] == "A dog."
    for record, choice in zip(tree["translations"], expected.choices, strict=True):
        assert record["text"] == choice.text
        assert record["tokens"] == choice.tokens
        assert record["alignment"] == choice.alignment
        assert record["score"] == pytest.approx(choice.score)
        assert record["logprob"] == pytest.approx(choice.logprob)


def test_logprobs_are_printed_and_in_json(translator):
    [record] = json.loads(run(translator, "a", "--json", "--logprobs", 2, *SHORT))["translations"]
    assert [token["id"] for token in record["logprobs"]] == record["tokens"]
    assert all(token["token"] and len(token["top_logprobs"]) == 2 for token in record["logprobs"])
    _, header, *rows = run(translator, "a", "--logprobs", 2, *SHORT).splitlines()
    assert header.split() == ["token", "logprob", "most", "likely"]
    assert len(rows) == len(record["tokens"])


def test_search_options_equal_the_library(translator):
    assert run(translator, "a", "--prefix", "Ein", *SHORT).startswith("Ein")
    model = ch.load(translator, device="cpu")
    options = {
        "num_beams": 2,
        "max_tokens": 5,
        "early_stopping": True,
        "no_repeat_ngram_size": 1,
        "length_penalty": 0.0,
    }
    words = ("--early-stopping", "--no-repeat-ngram-size", 1, "--length-penalty", 0)
    [record] = json.loads(run(translator, "a", "--json", *words, *SHORT))["translations"]
    assert record["tokens"] == model.translate("a", **options).tokens
    others = run(translator, "a", "--json", "--n-best", 3, "--alternatives", 1, *SHORT)
    assert len({record["tokens"][1] for record in json.loads(others)["translations"]}) == 3


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        ((), None, "no input"),
        (("a", "--input", "b"), None, "cannot be combined"),
        (("--input", "nowhere.txt"), None, "nowhere.txt cannot be read: no such file"),
        (("a", "--json", "--align", "top"), None, "align"),
        (("--input", "-"), "a\nb\n" + "c" * 50, "line 3 .*51 tokens"),
        (("--input", "-"), b"a\n\xff\n", "-:2: .*UTF-8"),
        (("a", "--output", "/nowhere/out.txt"), None, "cannot write /nowhere/out.txt"),
        (("a", "--num-beams", 0), None, "--num-beams must be a positive integer"),
        (("",), None, "the text is empty"),
    ],
)
def test_invalid_input_is_refused(translator, monkeypatch, words, stdin, message):
    monkeypatch.setattr(command, "LINES_PER_BATCH", 2)
    with pytest.raises(ClearheadError, match=message):
        run(translator, *words, "--max-tokens", 3, stdin=stdin)


def test_failed_translation_keeps_the_old_file(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LINES_PER_BATCH", 1)
    (tmp_path / "out.txt").write_text("old")
    with pytest.raises(ClearheadError, match="line 2"):
        run(
            translator,
            "--input",
            "-",
            "--output",
            tmp_path / "out.txt",
            *SHORT,
            stdin="a\n" + "b" * 60,
        )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
