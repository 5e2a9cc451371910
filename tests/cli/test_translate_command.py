"""`clearhead translate`: files in blocks and in order, n-best, JSON, and a sentence for each mistake."""

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
FEW = ("--num-beams", 2, "--max-tokens", 5)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translators") / "translator"
    shape = {"vocabulary": 257, "context": 48, "architecture__source_context_length": 48}
    use = {
        "inference__decoder_start_tokens": [256],
        "inference__eos_tokens": [256],
        "inference__sep_tokens": [256],
    }
    ch.save(ch.new("tiny-encoder-decoder", tokenizer=WORDS, seed=3, **shape, **use), folder)
    return folder


def run(*words, typed=None):
    done = CliRunner().invoke(app, ["translate", *(str(word) for word in words)], input=typed)
    if isinstance(done.exception, ClearheadError):
        raise done.exception
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_a_pipe_that_can_be_read_once_is_translated(translator, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as elsewhere:
        elsewhere.submit(pipe.write_text, "A dog runs.\nTwo men.\n")
        assert "2 lines" in run(translator, "--input", pipe, "--output", tmp_path / "out.txt", *FEW)


def test_a_file_is_translated_in_blocks_in_order_and_is_there_as_a_whole(
    translator, tmp_path, monkeypatch
):
    (tmp_path / "in.txt").write_text("\r\n".join(LINES) + "\n")
    told = run(translator, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", *FEW)
    assert "5 lines" in told
    whole = (tmp_path / "out.txt").read_text()
    assert whole.count("\n") == 5
    assert whole.split("\n")[1] == ""
    asked = []
    monkeypatch.setattr(command, "BLOCK", 2)
    translate = ch.Model.translate
    monkeypatch.setattr(
        ch.Model,
        "translate",
        lambda m, texts, **o: asked.append(len(texts)) or translate(m, texts, **o),
    )
    assert run(translator, "--input", "-", *FEW, typed="\n".join(LINES)) == whole
    assert asked == [2, 2, 1]
    assert run(translator, LINES[0], *FEW) == whole.split("\n")[0] + "\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_n_best_are_told_with_the_line_and_their_scores(translator):
    rows = [
        line.split("\t")
        for line in run(
            translator, "--input", "-", "--n-best", 2, *FEW, typed="a\nb\n"
        ).splitlines()
    ]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[0][2] == run(translator, "a", *FEW).strip()


def test_people_read_where_each_token_looked(translator):
    text, names, *rows = run(translator, "A dog.", "--align", "-2", *FEW).splitlines()
    [one] = ch.load(translator).translate(["A dog."], num_beams=2, max_tokens=5, align=-2)
    assert (text, names.split()) == (
        " ".join(one.text.splitlines()).strip(),
        ["written", "looked", "at"],
    )
    source = WORDS.to_str_tokens([*WORDS.encode("A dog."), 256])
    assert [row.split()[-1] for row in rows] == [source[place] for place in one.alignment]


@pytest.mark.parametrize("asked", [("--align", "-2"), ("--logprobs", 1)])
def test_tables_go_where_the_lines_go(translator, tmp_path, asked):
    (tmp_path / "in.txt").write_text("a\nb\n")
    words = (translator, "--input", tmp_path / "in.txt", *FEW, *asked)
    assert run(*words, "--output", tmp_path / "out.txt") == f"2 lines in {tmp_path / 'out.txt'}\n"
    assert (tmp_path / "out.txt").read_text() == run(*words)


def test_json_tells_scores_tokens_and_alignment(translator):
    tree = json.loads(run(translator, "A dog.", "--json", "--align", "-2", "--n-best", 2, *FEW))
    model = ch.load(translator, device="cpu")
    [found] = model.translate("A dog.", num_beams=2, max_tokens=5, n_best=2, align=-2)
    assert tree["source"] == "A dog."
    for told, one in zip(tree["translations"], found, strict=True):
        assert (told["text"], told["tokens"], told["alignment"]) == (
            one.text,
            one.tokens,
            one.alignment,
        )
        assert (told["score"], told["logprob"]) == pytest.approx((one.score, one.logprob))


def test_each_token_is_told_with_its_log_probability(translator):
    [told] = json.loads(run(translator, "a", "--json", "--logprobs", 2, *FEW))["translations"]
    assert [one["token"] for one in told["logprobs"]] == told["tokens"]
    assert all(one["piece"] and len(one["top"]) == 2 for one in told["logprobs"])
    _, head, *rows = run(translator, "a", "--logprobs", 2, *FEW).splitlines()
    assert head.split() == ["token", "log", "p", "likeliest"]
    assert len(rows) == len(told["tokens"])


def test_options_reach_the_search(translator):
    assert run(translator, "a", "--prefix", "Ein", *FEW).startswith("Ein")
    model = ch.load(translator, device="cpu")
    options = {"beam": 2, "max_tokens": 5, "early": True, "no_repeat": 1, "length_penalty": 0.0}
    words = ("--early", "--no-repeat", 1, "--length-penalty", 0)
    assert json.loads(run(translator, "a", "--json", *words, *FEW))["translations"][0][
        "tokens"
    ] == (model.translate("a", **options)[0].tokens)
    others = run(translator, "a", "--json", "--n-best", 3, "--alternatives", 1, *FEW)
    assert len({one["tokens"][1] for one in json.loads(others)["translations"]}) == 3


@pytest.mark.parametrize(
    ("words", "typed", "sentence"),
    [
        ((), None, "give a text, or --input"),
        (("a", "--input", "b"), None, "give a text, or --input"),
        (("--input", "nowhere.txt"), None, "nowhere.txt cannot be read: no such file"),
        (("a", "--json", "--align", "top"), None, "align = 'top' is no layer"),
        (("--input", "-"), "a\nb\n" + "c" * 50, "line 3 has a sentence of 51 tokens"),
        (("--input", "-"), b"a\n\xff\n", "-:2: the line is not UTF-8"),
        (("a", "--output", "/nowhere/out.txt"), None, "/nowhere/out.txt cannot be written"),
        (("a", "--num-beams", 0), None, "--beam must be a positive integer"),
        (("",), None, "the text is empty"),
    ],
)
def test_mistakes_are_told_in_a_sentence(translator, monkeypatch, words, typed, sentence):
    monkeypatch.setattr(command, "BLOCK", 2)
    with pytest.raises(ClearheadError, match=sentence):
        run(translator, *words, "--max-tokens", 3, typed=typed)


def test_a_file_that_cannot_be_finished_leaves_the_old_one(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "BLOCK", 1)
    (tmp_path / "out.txt").write_text("old")
    with pytest.raises(ClearheadError, match="line 2"):
        run(
            translator,
            "--input",
            "-",
            "--output",
            tmp_path / "out.txt",
            *FEW,
            typed="a\n" + "b" * 60,
        )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
