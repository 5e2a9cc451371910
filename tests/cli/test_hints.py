"""Hints on stderr about inputs that are probably mistakes; the output does not change."""

import wave

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.common import warn_if_file_name
from clearhead.cli.main import app
from clearhead.errors import ClearheadWarning

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>"))
READ = {"vocab_size": len(WORDS), "tokenizer": WORDS, "context_length": 48}
MODELS = {
    "writer": ("tiny-decoder", READ),
    "reader": ("tiny-encoder", READ | {"inference__mask_token": [257]}),
    "judge": ("tiny-encoder", READ | {"head": {"kind": "classification", "num_labels": 2}}),
    "translator": (
        "tiny-encoder-decoder",
        READ
        | {
            "architecture__source_context_length": 48,
            "inference__decoder_start_tokens": [256],
            "inference__eos_tokens": [256],
        },
    ),
    "eye": ("tiny-images", {}),
    "ear": ("tiny-audio", {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hints")
    for name, (preset, changes) in MODELS.items():
        ch.save(ch.new(preset, **changes), folder / name)
    (folder / "a [MASK].txt").write_text("the cat")
    return folder


def run(folder, monkeypatch, *words):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.exception
    return done.stdout, done.stderr


def write_sound(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(samples.round().astype("<i2").tobytes())


def noise(length):
    return np.random.default_rng(0).uniform(-9000, 9000, length)


def test_missing_file_name_is_read_as_text(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["score", "writer", "nofile.txt"])
    assert done.exit_code == 0
    assert "nofile.txt was read as text; there is no such file" in done.stderr


def test_image_file_is_not_read_as_text(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "seven.png").write_bytes(b"")
    done = CliRunner().invoke(app, ["classify", "judge", "seven.png"])
    assert "seven.png is an image or audio file" in str(done.exception)


def test_chat_needs_a_generative_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["chat", "judge"], input="hello\n")
    assert isinstance(done.exception, ch.ClearheadError)
    assert "template" not in done.output


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (
            ["translate", "translator", "--max-tokens", "2"],
            "use --input 'a [MASK].txt' to read its lines",
        ),
        (["score", "writer"], "use --input 'a [MASK].txt' to read its lines"),
        (["classify", "judge"], "use --input 'a [MASK].txt' to read its lines"),
        (["embed", "writer"], "use --input 'a [MASK].txt' to read its lines"),
        (["fill", "reader"], "use --input 'a [MASK].txt' to read its lines"),
        (
            ["see", "writer", "--what", "tokens"],
            "use \"$(cat 'a [MASK].txt')\" to pass its content",
        ),
        (
            ["generate", "writer", "--max-tokens", "2"],
            "use - < 'a [MASK].txt' to read its content",
        ),
        (["tokenizer", "show", "writer"], "use - < 'a [MASK].txt' to read its content"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_file_name_is_read_as_text_with_a_hint(folder, monkeypatch, words, usage):
    answer, hint = run(folder, monkeypatch, *words, "a [MASK].txt")
    assert hint == f"a [MASK].txt is a file, but was read as text; {usage}.\n"
    (folder / "a [MASK].txt").rename(folder / "away")
    assert run(folder, monkeypatch, *words, "a [MASK].txt") == (answer, "")
    (folder / "away").rename(folder / "a [MASK].txt")


@pytest.mark.parametrize("text", ["", "a" * 5000, "a\0b", "."])
def test_no_hint_for_other_texts(text, capsys):
    warn_if_file_name(text)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("color", ["black", "white", "red"])
def test_blank_image_gets_a_warning(folder, monkeypatch, color):
    Image.new("RGB", (30, 20), color).save(folder / "even.png")
    answer, hint = run(folder, monkeypatch, "classify", "eye", "even.png")
    assert answer.endswith("%\n")
    assert hint.startswith("even.png is blank")


@pytest.mark.parametrize(
    ("name", "loud"), [("silent", 0), ("constant", 0), ("one bit", 1), ("quiet", 30)]
)
def test_silent_audio_gets_a_warning(folder, monkeypatch, name, loud):
    write_sound(
        folder / "s.wav", loud * np.sin(np.arange(2000)) + (1000 if name == "constant" else 0)
    )
    answer, hint = run(folder, monkeypatch, "classify", "ear", "s.wav")
    assert answer.endswith("%\n")
    assert hint.startswith("s.wav is silent") == (name != "quiet")


def test_audio_batch_equals_single_files(folder, monkeypatch):
    for name, length in (("short.wav", 900), ("long.wav", 40000)):
        write_sound(folder / name, noise(length))
    (folder / "names.txt").write_text("short.wav\nlong.wav\n")
    alone = [
        run(folder, monkeypatch, "classify", "ear", name)[0] for name in ("short.wav", "long.wav")
    ]
    answer, hint = run(folder, monkeypatch, "classify", "ear", "--input", "names.txt")
    assert answer == "".join(alone)
    assert hint.startswith("long.wav lasts 5.0 s; only the first 0.3 s")


def test_silence_in_the_part_that_is_read_gets_a_warning(folder, monkeypatch):
    write_sound(folder / "late.wav", np.concatenate((np.zeros(24000), noise(3200))))
    _, hint = run(folder, monkeypatch, "classify", "ear", "late.wav")
    assert "only the first 0.3 s is read, which is silent" in hint
    with pytest.warns(ClearheadWarning) as warned:
        ch.load("ear").classify(audio="late.wav")
    assert [(f"{one.message}\n", one.filename) for one in warned] == [(hint, __file__)]


def test_truncated_text_gets_a_warning(folder, monkeypatch):
    _, hint = run(folder, monkeypatch, "classify", "judge", "a" * 60)
    assert hint == "the text was truncated from 60 to 48 tokens.\n"
    judge = ch.load("judge")
    with pytest.warns(ClearheadWarning, match="1 of 3 texts were truncated to 48 tokens"):
        judge.classify(["a" * 60, "a" * 48, [1] * 48])


def test_no_warning_without_truncation(folder, recwarn):
    ch.load(folder / "judge").classify(["a" * 48, "b"])
    assert not recwarn.list


def test_blank_image_gets_a_python_warning():
    with pytest.warns(ClearheadWarning, match="is blank"):
        ch.new("tiny-images").classify(images=Image.new("L", (8, 8), 200))
