"""The commands that put a model to work: fill, classify, embed, score, translate, chat."""

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
        {"head": {"kind": "classification", "classes": 2}, "use__labels": ["no", "yes"]},
    ),
    "pairs": (
        "tiny-encoder",
        {
            "head": {"kind": "classification", "classes": 2},
            "inference__sep_tokens": [END],
            "input__token_types": 2,
        },
    ),
    "writer": (
        "tiny-decoder",
        {"context": 256, "inference__eos_tokens": [END], "inference__chat_template": TEMPLATE},
    ),
    "translator": (
        "tiny-encoder-decoder",
        {"inference__decoder_start_tokens": [END], "inference__eos_tokens": [END]},
    ),
}
LETTERS = ch.Tokenizer.characters("a cat", ("<|end|>",))
SPELLED = {
    "letters": ("tiny-decoder", {}),
    "spelling": (
        "tiny-encoder-decoder",
        {"inference__decoder_start_tokens": [4], "inference__eos_tokens": [4]},
    ),
}
WORDLESS = {"eye": "tiny-images", "ear": "tiny-audio"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, (preset, changes) in MODELS.items():
        ch.save(ch.new(preset, vocab_size=SIZE, tokenizer=WORDS, seed=1, **changes), folder / name)
    for name, (preset, changes) in SPELLED.items():
        ch.save(
            ch.new(preset, vocab_size=len(LETTERS), tokenizer=LETTERS, **changes), folder / name
        )
    for name, preset in WORDLESS.items():
        ch.save(ch.new(preset), folder / name)
    return folder


def run(*words, typed=None):
    done = CliRunner().invoke(
        app, [str(word) for word in words], input=typed, catch_exceptions=True
    )
    if isinstance(done.exception, ClearheadError):
        raise done.exception
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_fill_tells_words_with_their_probability(models):
    assert len(run("fill", models / "reader", "the [MASK] sat", "--top", 3).splitlines()) == 3
    (models / "gaps.txt").write_text("the [MASK] sat\n[MASK] cat [MASK]\n")
    told = run("fill", models / "reader", "--input", models / "gaps.txt", "--top", 2).splitlines()
    assert (told[0], told[4], len(told)) == ("the [MASK] sat", "[MASK] cat [MASK]", 13)
    assert (told[5], told[9]) == ("gap 1", "gap 2")
    gaps = json.loads(run("fill", models / "reader", "[MASK] cat [MASK]", "--top", 2, "--json"))
    assert [len(gap) for gap in gaps] == [2, 2]


def test_classify_judges_a_text_and_each_line_of_a_file(models, tmp_path):
    (tmp_path / "lines.txt").write_text("the cat\nsat on the mat\n")
    common = run("classify", models / "judge", "--input", tmp_path / "lines.txt").splitlines()
    assert common[0] == run("classify", models / "judge", "the cat").strip()
    assert len(common) == 2
    tree = json.loads(run("classify", models / "judge", "the cat", "--json"))
    assert sum(tree["all"].values()) == pytest.approx(1)


def test_a_picture_that_is_dark_on_light_is_told_where_the_model_expects_light_on_dark(tmp_path):
    reads = {
        "kind": "pictures",
        "size": 8,
        "patch": 4,
        "channels": 1,
        "mean": [0.13],
        "deviation": [0.31],
    }
    ch.save(ch.new("tiny-images", input=reads, context_length=5), tmp_path / "eye")
    told = {}
    for name, ground, ink in (("dark.png", 0, 255), ("light.png", 255, 0)):
        picture = Image.new("L", (8, 8), ground)
        picture.paste(ink, (3, 1, 4, 7))
        picture.save(tmp_path / name)
        done = CliRunner().invoke(app, ["classify", str(tmp_path / "eye"), str(tmp_path / name)])
        assert done.stdout.endswith("%\n")
        told[name] = done.stderr
    assert told["dark.png"] == ""
    assert (
        "light.png is far brighter than what this model expects (about 0.13 of white)"
        in told["light.png"]
    )


def test_classify_judges_pairs(models, tmp_path):
    (tmp_path / "pairs.tsv").write_text("the cat\tsat\nthe mat\n")
    common = run("classify", models / "pairs", "--input", tmp_path / "pairs.tsv").splitlines()
    assert common[0] == run("classify", models / "pairs", "the cat", "--second", "sat").strip()
    tree = json.loads(run("classify", models / "pairs", "the cat", "--second", "sat", "--json"))
    expected = ch.load(models / "pairs", device="cpu").classify(("the cat", "sat"))
    assert (tree["input"], tree["label"]) == ("the cat\tsat", expected.label)
    assert tree["probability"] == pytest.approx(expected.probability, abs=1e-6)


def test_embed_writes_a_row_for_each_line(models, tmp_path):
    run(
        "embed",
        models / "reader",
        "--input",
        "-",
        "--output",
        tmp_path / "v.npy",
        typed="the cat\na mat\n",
    )
    vectors = np.load(tmp_path / "v.npy")
    model = ch.load(models / "reader", device="cpu")
    assert vectors == pytest.approx(model.embed(["the cat", "a mat"]).numpy(), abs=1e-6)


def test_a_line_that_says_nothing_is_told_by_its_number(models, tmp_path):
    (tmp_path / "lines.txt").write_text("the cat\n \nthe mat\n")
    for command, model in (("classify", "judge"), ("embed", "reader"), ("score", "writer")):
        with pytest.raises(ClearheadError, match=r"line 2 of .*lines\.txt is empty"):
            run(command, models / model, "--input", tmp_path / "lines.txt")


@pytest.mark.parametrize(
    ("command", "model", "good", "bad", "why"),
    [
        ("fill", "reader", "a [MASK]", "no gap", "has no gap; write"),
        ("fill", "reader", "a [MASK]", "[MASK] " * 99, "is too long: 100 tokens are more"),
        ("classify", "pairs", "a\tb", "a\tb\tc", "has several tabs; one stands between the two"),
        ("classify", "pairs", "a\tb", "a\t", "is the pair .* of which one is empty"),
        ("classify", "judge", "a", "a\tb", "has a tab, which separates two texts; this model"),
        ("embed", "reader", "a", "cat " * 99, "is too long: 100 tokens are more"),
        ("score", "writer", "a", "cat " * 300, "is too long: 301 tokens are more"),
        ("score", "letters", "a cat", "a dog", "contains 'd'"),
        ("translate", "spelling", "a cat", "a" * 600, "has a sentence of 600 tokens"),
        ("translate", "spelling", "a cat", "a dog", "contains 'd'"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_by_its_number(
    models, tmp_path, monkeypatch, command, model, good, bad, why
):
    monkeypatch.setattr(common, "SOME", 2)
    file = tmp_path / "lines.txt"
    options = ["--output", tmp_path / "o"] if command in ("embed", "translate") else []
    file.write_text(f"{good}\n" * 3 + f"{bad}\n")
    with pytest.raises(ClearheadError, match=rf"^line 4 of .*lines\.txt {why}"):
        run(command, models / model, "--input", file, *options)
    with pytest.raises(ClearheadError, match=f"^line 4 {why}"):
        run(command, models / model, "--input", "-", *options, typed=file.read_text())
    with pytest.raises(ClearheadError, match=f"^the text {why}"):
        run(command, models / model, bad, *options)


def test_what_is_wrong_with_the_model_is_told_of_no_line(models):
    for command, sentence in (
        ("fill", "^this decoder fills no gaps"),
        ("classify", "^this decoder has head"),
    ):
        with pytest.raises(ClearheadError, match=sentence):
            run(command, models / "writer", "--input", "-", typed="a [MASK]\n")


def test_that_nothing_is_given_is_told_before_a_model_is_loaded():
    for command in ("fill", "classify", "embed", "score", "translate"):
        with pytest.raises(ClearheadError, match=r"^give a text, or"):
            run(command, "nowhere")


def test_score_slides_over_a_long_text(models):
    tree = json.loads(
        run("score", models / "writer", "the cat sat " * 99, "--overflow", "slide", "--json")
    )
    assert len(tree["logprobs"]) > 256


def test_score_tells_perplexity(models):
    tree = json.loads(run("score", models / "writer", "the cat sat", "--json"))
    assert tree["perplexity"] == pytest.approx(
        ch.load(models / "writer", device="cpu").score("the cat sat").perplexity
    )


def test_translate_keeps_the_order_and_empty_lines(models, tmp_path):
    (tmp_path / "in.txt").write_text("the cat sat on the mat\n\nthe cat\n")
    run("translate", models / "translator", "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt",
        "--num-beams", 2, "--max-tokens", 4)  # fmt: skip
    common = (tmp_path / "out.txt").read_text().split("\n")
    assert (len(common), common[1]) == (4, "")
    assert (
        common[2]
        == run(
            "translate", models / "translator", "the cat", "--num-beams", 2, "--max-tokens", 4
        ).strip()
    )


def test_a_conversation_goes_on_is_seen_and_saved(models, tmp_path):
    typed = f"the cat\n/see\n/regenerate\n/save {tmp_path / 'talk.json'}\n/help\n/system You are a mat.\nsat\n/see\n/quit\n"
    shown = run(
        "chat", models / "writer", "--max-tokens", 5, "--system", "You are a cat.", typed=typed
    )
    assert "system: You are a cat.\nuser: the cat\nassistant:" in shown
    assert "system: You are a mat.\nuser: sat\nassistant:" in shown
    assert "/regenerate    another answer" in shown
    talk = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in talk] == ["system", "user", "assistant"]


def test_generate_shows_streams_and_counts_the_same_text(models):
    words = ("generate", models / "writer", "the cat", "--max-tokens", 6, "--seed", 3)
    plain = run(*words)
    assert run(*words, "--stream") == plain
    assert json.loads(run(*words, "--json"))["text"] == plain.removesuffix("\n").removeprefix(
        "the cat"
    )
    assert "likeliest" in run(*words, "--logprobs", 2)
    assert run(*words, "--n", 2).startswith(plain)


MISTAKES = [
    (("fill", "reader", "no gap"), "the text has no gap"),
    (
        ("classify", "judge", "a", "--input", "b"),
        "give a text, or the name of a picture or a sound, or --input",
    ),
    (("classify", "reader", "a"), "tells no classes"),
    (("score", "translator", "a"), "does not write text"),
    (("score", "writer", "   "), "the text is empty"),
    (("embed", "reader", ""), "the text is empty"),
    (("score", "writer", "a", "--overflow", "cut"), "overflow 'cut' is unknown"),
    (("score", "writer", "cat " * 300), "more than this model's context"),
    (("classify", "pairs", "--second", "a"), "--second goes with a text"),
    (
        ("classify", "pairs", "a\tb", "--second", "c"),
        "the text has several tabs; one stands between",
    ),
    (("classify", "judge", "a", "--second", "b"), "reads one text at a time; leave out --second"),
    (
        ("classify", "judge", "a\tb"),
        "the text has a tab, which separates two texts; this model reads one at a time",
    ),
    *(
        (words, "the text is empty")
        for words in (("fill", "reader", ""), ("classify", "judge", ""), ("score", "writer", ""))
    ),
    (("embed", "reader", "a", "--pooling", "max"), "it is mean or first"),
    (
        ("embed", "reader", "a", "--output", "/no/such/a.npy"),
        "there is no folder /no/such to save a.npy in",
    ),
    (("fill", "reader", "a [MASK]", "--top", "0"), "top must be a positive integer"),
    (("translate", "writer", "a"), "has no source to read"),
    (("chat", "reader"), "does not write text"),
    (("generate", "writer", "a", "--stream", "--n", "2"), "--stream shows one text"),
    (("generate", "writer", "a", "--temperature", "-1"), "of at least 0"),
    (("generate", "writer", "", "--max-tokens", "2"), "empty"),
]


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_mistakes_get_a_sentence(models, words, sentence, monkeypatch):
    command, name, *rest = words
    if command == "chat":
        typed = io.StringIO("hello\n")
        monkeypatch.setattr("sys.stdin", typed)
        with pytest.raises(ClearheadError, match=sentence):
            chat(str(models / name), "", 5, 0.7, 0, "refuse", "")
        assert typed.tell() == 0  # before anything is read
        return
    with pytest.raises(ClearheadError, match=sentence):
        run(command, models / name, *rest)


@pytest.mark.parametrize("words", [("generate", "-"), ("chat",)])
def test_standard_input_that_is_not_utf_8_is_told(models, words):
    with pytest.raises(ClearheadError, match=r"^standard input is not UTF-8: .* at byte 3\.$"):
        run(words[0], models / "writer", *words[1:], typed=b"caf\xe9\n")


def test_of_a_file_with_too_many_lines_no_more_are_read(monkeypatch):
    def endless(file):
        while True:
            yield "the cat"

    monkeypatch.setattr(common, "text_lines", endless)
    monkeypatch.setattr(common, "MOST", 5)
    with pytest.raises(ClearheadError, match="a has more than 5 lines; there must be from 1 to 5"):
        common.read_input_lines(None, "a")
