"""The commands fill, classify, embed, score, translate, chat and generate."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli import common
from clearhead.cli.chat import chat
from clearhead.cli.main import app
from clearhead.data import readers
from clearhead.errors import ClearheadError

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat"], 300, ("<|end|>", "<|mask|>"))
SIZE = len(WORDS)
MASK = WORDS.special_tokens["<|mask|>"]
END = WORDS.special_tokens["<|end|>"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
MODELS = {
    "reader": ("tiny-encoder", {"inference__mask_token": [MASK]}),
    "judge": (
        "tiny-encoder",
        {"head": {"kind": "classification", "num_labels": 2}, "inference__labels": ["no", "yes"]},
    ),
    "pairs": (
        "tiny-encoder",
        {
            "head": {"kind": "classification", "num_labels": 2},
            "inference__sep_tokens": [END],
            "input__token_types": 2,
        },
    ),
    "writer": (
        "tiny-decoder",
        {
            "context_length": 256,
            "inference__eos_tokens": [END],
            "inference__chat_template": TEMPLATE,
        },
    ),
    "translator": (
        "tiny-encoder-decoder",
        {"inference__decoder_start_tokens": [END], "inference__eos_tokens": [END]},
    ),
}
LETTERS = ch.Tokenizer.characters("a cat", ("<|end|>",))
CHARACTER_MODELS = {
    "letters": ("tiny-decoder", {}),
    "spelling": (
        "tiny-encoder-decoder",
        {"inference__decoder_start_tokens": [4], "inference__eos_tokens": [4]},
    ),
}
MEDIA_MODELS = {"eye": "tiny-images", "ear": "tiny-audio"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, (preset, changes) in MODELS.items():
        ch.save(ch.new(preset, vocab_size=SIZE, tokenizer=WORDS, seed=1, **changes), folder / name)
    for name, (preset, changes) in CHARACTER_MODELS.items():
        ch.save(
            ch.new(preset, vocab_size=len(LETTERS), tokenizer=LETTERS, **changes), folder / name
        )
    for name, preset in MEDIA_MODELS.items():
        ch.save(ch.new(preset), folder / name)
    return folder


def run(*words, stdin=None):
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    if isinstance(result.exception, ClearheadError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_fill_prints_candidates_for_each_mask(models):
    assert len(run("fill", models / "reader", "the [MASK] sat", "--top-k", 3).splitlines()) == 3
    (models / "masked.txt").write_text("the [MASK] sat\n[MASK] cat [MASK]\n")
    lines = run(
        "fill", models / "reader", "--input", models / "masked.txt", "--top-k", 2
    ).splitlines()
    assert len(lines) == 13
    assert (lines[0], lines[4]) == ("the [MASK] sat", "[MASK] cat [MASK]")
    assert (lines[5], lines[9]) == ("mask 1", "mask 2")
    masks = json.loads(run("fill", models / "reader", "[MASK] cat [MASK]", "--top-k", 2, "--json"))
    assert [len(words) for words in masks] == [2, 2]


def test_classify_of_a_file_equals_single_texts(models, tmp_path):
    (tmp_path / "lines.txt").write_text("the cat\nsat on the mat\n")
    lines = run("classify", models / "judge", "--input", tmp_path / "lines.txt").splitlines()
    assert lines[0] == run("classify", models / "judge", "the cat").strip()
    assert len(lines) == 2
    record = json.loads(run("classify", models / "judge", "the cat", "--json"))
    assert sum(record["probabilities"].values()) == pytest.approx(1)


def test_inverted_image_gets_a_warning(tmp_path):
    image_input = {
        "kind": "images",
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 1,
        "mean": [0.13],
        "std": [0.31],
    }
    ch.save(ch.new("tiny-images", input=image_input, context_length=5), tmp_path / "eye")
    hints = {}
    for name, background, ink in (("dark.png", 0, 255), ("light.png", 255, 0)):
        image = Image.new("L", (8, 8), background)
        image.paste(ink, (3, 1, 4, 7))
        image.save(tmp_path / name)
        result = CliRunner().invoke(app, ["classify", str(tmp_path / "eye"), str(tmp_path / name)])
        assert result.stdout.endswith("%\n")
        hints[name] = result.stderr
    assert hints["dark.png"] == ""
    assert "light.png is much brighter" in hints["light.png"]


def test_classify_reads_pairs_from_columns(models, tmp_path):
    (tmp_path / "pairs.tsv").write_text("the cat\tsat\nthe mat\n")
    lines = run("classify", models / "pairs", "--input", tmp_path / "pairs.tsv").splitlines()
    assert lines[0] == run("classify", models / "pairs", "the cat", "--text-pair", "sat").strip()
    record = json.loads(
        run("classify", models / "pairs", "the cat", "--text-pair", "sat", "--json")
    )
    expected = ch.load(models / "pairs", device="cpu").classify(("the cat", "sat"))
    assert (record["input"], record["label"]) == ("the cat\tsat", expected.label)
    assert record["score"] == pytest.approx(expected.score, abs=1e-6)


def test_embed_saves_the_vectors_of_the_library(models, tmp_path):
    run(
        "embed",
        models / "reader",
        "--input",
        "-",
        "--output",
        tmp_path / "v.npy",
        stdin="the cat\na mat\n",
    )
    vectors = np.load(tmp_path / "v.npy")
    model = ch.load(models / "reader", device="cpu")
    assert vectors == pytest.approx(model.embed(["the cat", "a mat"]).numpy(), abs=1e-6)


def test_embed_writes_csv(models, tmp_path):
    for name in ("v.npy", "v.csv"):
        run("embed", models / "reader", "the cat", "--output", tmp_path / name)
    vectors = np.loadtxt(tmp_path / "v.csv", dtype=np.float32, delimiter=",", ndmin=2)
    assert np.array_equal(vectors, np.load(tmp_path / "v.npy"))


def test_exported_model_is_replaced_only_if_wanted(models, tmp_path):
    output = tmp_path / "out"
    run("export", models / "writer", output)
    config = (output / "config.json").read_text()
    with pytest.raises(ClearheadError, match="--overwrite"):
        run("export", models / "reader", output)
    assert (output / "config.json").read_text() == config
    run("export", models / "reader", output, "--overwrite")
    assert (output / "config.json").read_text() != config
    with pytest.raises(ClearheadError, match="hf format"):
        run("export", models / "reader", output, "--overwrite", "--format", "clearhead")


def test_empty_line_is_named_in_the_error(models, tmp_path):
    (tmp_path / "lines.txt").write_text("the cat\n \nthe mat\n")
    for command, model in (("classify", "judge"), ("embed", "reader"), ("score", "writer")):
        with pytest.raises(ClearheadError, match=r"line 2 of .*lines\.txt is empty"):
            run(command, models / model, "--input", tmp_path / "lines.txt")


@pytest.mark.parametrize(
    ("command", "model", "good", "bad", "problem"),
    [
        ("fill", "reader", "a [MASK]", "no gap", "has no mask"),
        ("fill", "reader", "a [MASK]", "[MASK] " * 99, ".*100 tokens"),
        ("classify", "pairs", "a\tb", "a\tb\tc", "contains several tabs"),
        ("classify", "pairs", "a\tb", "a\t", ".*at least one token"),
        ("classify", "judge", "a", "a\tb", "contains a tab"),
        ("embed", "reader", "a", "cat " * 99, ".*100 tokens"),
        ("score", "writer", "a", "cat " * 300, ".*301 tokens"),
        ("score", "letters", "a cat", "a dog", "contains 'd'"),
        ("translate", "spelling", "a cat", "a" * 600, ".*600 tokens"),
        ("translate", "spelling", "a cat", "a dog", "contains 'd'"),
    ],
)
def test_unreadable_line_is_named_in_the_error(
    models, tmp_path, monkeypatch, command, model, good, bad, problem
):
    monkeypatch.setattr(common, "LINES_PER_BATCH", 2)
    file = tmp_path / "lines.txt"
    options = ["--output", tmp_path / "o.npy"] if command in ("embed", "translate") else []
    file.write_text(f"{good}\n" * 3 + f"{bad}\n")
    with pytest.raises(ClearheadError, match=rf"^line 4 of .*lines\.txt {problem}"):
        run(command, models / model, "--input", file, *options)
    with pytest.raises(ClearheadError, match=f"^line 4 {problem}"):
        run(command, models / model, "--input", "-", *options, stdin=file.read_text())
    with pytest.raises(ClearheadError, match=f"^the text {problem}"):
        run(command, models / model, bad, *options)


def test_errors_about_the_model_name_no_line(models):
    for command, message in (
        ("fill", "^(?!line)"),
        ("classify", "^(?!line)"),
    ):
        with pytest.raises(ClearheadError, match=message):
            run(command, models / "writer", "--input", "-", stdin="a [MASK]\n")


def test_missing_input_is_an_error_before_loading():
    for command in ("fill", "classify", "embed", "score", "translate"):
        with pytest.raises(ClearheadError, match="no input"):
            run(command, "nowhere")


def test_score_slides_over_a_long_text(models):
    record = json.loads(
        run("score", models / "writer", "the cat sat " * 99, "--overflow", "slide", "--json")
    )
    assert len(record["logprobs"]) > 256


def test_score_equals_the_library(models):
    record = json.loads(run("score", models / "writer", "the cat sat", "--json"))
    assert record["perplexity"] == pytest.approx(
        ch.load(models / "writer", device="cpu").score("the cat sat").perplexity
    )


def test_translate_keeps_order_and_empty_lines(models, tmp_path):
    (tmp_path / "in.txt").write_text("the cat sat on the mat\n\nthe cat\n")
    command = ("translate", models / "translator", "--num-beams", 2, "--max-tokens", 4)
    run(*command, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_text().split("\n")
    assert (len(lines), lines[1]) == (4, "")
    assert lines[2] == run(*command, "the cat").strip()


def test_chat_understands_slash_commands(models, tmp_path):
    path = tmp_path / "chat.json"
    typed = f"the cat\n/prompt\n/regenerate\n/save {path}\n/help\n"
    typed += "/system You are a mat.\nsat\n/prompt\n/clear\n/prompt\n/quit\n"
    shown = run(
        "chat", models / "writer", "--max-tokens", 5, "--system", "You are a cat.", stdin=typed
    )
    assert "system: You are a cat.\nuser: the cat\nassistant:" in shown
    assert "system: You are a mat.\nuser: sat\nassistant:" in shown
    assert "/regenerate    replace the last answer" in shown
    messages = json.loads(path.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]


def test_generate_output_formats_show_the_same_text(models):
    words = ("generate", models / "writer", "the cat", "--max-tokens", 6, "--seed", 3)
    plain = run(*words)
    assert run(*words, "--stream") == plain
    assert json.loads(run(*words, "--json"))["text"] == plain.removesuffix("\n").removeprefix(
        "the cat"
    )
    assert "most likely" in run(*words, "--logprobs", 2)
    assert run(*words, "--n", 2).startswith(plain)


MISTAKES = [
    (("fill", "reader", "no gap"), "the text "),
    (
        ("classify", "judge", "a", "--input", "b"),
        "cannot be combined",
    ),
    (("classify", "reader", "a"), "head"),
    (("score", "translator", "a"), "not a language model"),
    (("score", "writer", "   "), "the text is empty"),
    (("embed", "reader", ""), "the text is empty"),
    (("score", "writer", "cat " * 300), "context"),
    (("classify", "pairs", "--text-pair", "a"), "--text-pair needs a text"),
    (
        ("classify", "pairs", "a\tb", "--text-pair", "c"),
        "the text contains several tabs",
    ),
    (("classify", "judge", "a", "--text-pair", "b"), "omit --text-pair"),
    (
        ("classify", "judge", "a\tb"),
        "the text contains a tab.*clearhead evaluate",
    ),
    *(
        (words, "the text is empty")
        for words in (("fill", "reader", ""), ("classify", "judge", ""), ("score", "writer", ""))
    ),
    (
        ("embed", "reader", "a", "--output", "/no/such/a.npy"),
        "no folder /no/such",
    ),
    (("embed", "reader", "a", "--output", "a.txt"), r"must be a \.npy or \.csv file"),
    (("fill", "reader", "a [MASK]", "--top-k", "0"), "top_k must be a positive integer"),
    (("translate", "writer", "a"), "translat|encoder-decoder"),
    (("chat", "reader"), "not a language model"),
    (("generate", "writer", "a", "--stream", "--n", "2"), "--stream prints one text"),
    (("generate", "writer", "a", "--temperature", "-1"), "temperature"),
    (("generate", "writer", "", "--max-tokens", "2"), "empty"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_invalid_options_are_refused(models, words, message, monkeypatch):
    command, name, *rest = words
    if command == "chat":
        typed = io.StringIO("hello\n")
        monkeypatch.setattr("sys.stdin", typed)
        with pytest.raises(ClearheadError, match=message):
            chat(str(models / name), "", 5, 0.7, 0, "error", "")
        assert typed.tell() == 0  # before anything is read
        return
    with pytest.raises(ClearheadError, match=message):
        run(command, models / name, *rest)


@pytest.mark.parametrize("words", [("generate", "-"), ("chat",)])
def test_invalid_utf8_on_stdin_is_an_error(models, words):
    with pytest.raises(
        ClearheadError, match=r"^standard input is not valid UTF-8: .* at byte 3\.$"
    ):
        run(words[0], models / "writer", *words[1:], stdin=b"caf\xe9\n")


def test_too_many_lines_are_refused(monkeypatch):
    def endless(file):
        while True:
            yield "the cat"

    monkeypatch.setattr(readers, "read_lines", endless)
    monkeypatch.setattr(common, "MAX_INPUT_LINES", 5)
    with pytest.raises(ClearheadError, match="a has more than 5 lines"):
        common.read_input_lines(None, "a")
