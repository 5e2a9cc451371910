"""Hints: what was probably meant otherwise is told on stderr, and the answer stays as it is."""

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
READ = {"vocabulary": len(WORDS), "tokenizer": WORDS, "context": 48}
MODELS = {
    "writer": ("tiny-decoder", READ),
    "reader": ("tiny-encoder", READ | {"inference__mask_token": [257]}),
    "judge": ("tiny-encoder", READ | {"head": {"kind": "classification", "classes": 2}}),
    "translator": (
        "tiny-encoder-decoder",
        READ
        | {
            "architecture__source_context_length": 48,
            "inference__decoder_start_tokens": [256],
            "inference__eos_tokens": [256],
        },
    ),
    "eye": ("tiny-pictures", {}),
    "ear": ("tiny-sound", {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hints")
    for name, (preset, changes) in MODELS.items():
        ch.save(ch.new(preset, **changes), folder / name)
    (folder / "a [MASK].txt").write_text("the cat")
    return folder


def told(folder, monkeypatch, *words):
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


def test_what_looks_like_a_file_that_is_not_there_is_told(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["score", "writer", "nofile.txt"])
    assert done.exit_code == 0
    assert "nofile.txt looks like the name of a file, but there is none" in done.stderr


def test_a_picture_is_not_read_as_a_text(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "seven.png").write_bytes(b"")
    done = CliRunner().invoke(app, ["classify", "judge", "seven.png"])
    assert str(done.exception) == "seven.png is a picture or a sound; this model reads texts."


def test_a_model_that_writes_nothing_is_not_said_to_go_on(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["chat", "judge"], input="hello\n")
    assert "goes on" not in done.output
    assert "does not write text after a prompt" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (
            ["translate", "translator", "--max-tokens", "2"],
            "--input 'a [MASK].txt' reads its lines",
        ),
        (["score", "writer"], "--input 'a [MASK].txt' reads its lines"),
        (["classify", "judge"], "--input 'a [MASK].txt' reads its lines"),
        (["embed", "writer"], "--input 'a [MASK].txt' reads its lines"),
        (["fill", "reader"], "--input 'a [MASK].txt' reads its lines"),
        (
            ["see", "writer", "--what", "tokens"],
            "\"$(cat 'a [MASK].txt')\" in its place gives what it holds",
        ),
        (
            ["generate", "writer", "--max-tokens", "2"],
            "- < 'a [MASK].txt' in its place reads what it holds",
        ),
        (["tokenizer", "show", "writer"], "- < 'a [MASK].txt' in its place reads what it holds"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_name_of_a_file_is_read_as_a_text_and_the_way_to_read_the_file_is_told(
    folder, monkeypatch, words, instead
):
    answer, hint = told(folder, monkeypatch, *words, "a [MASK].txt")
    assert hint == f"a [MASK].txt is the name of a file, and was read as a text; {instead}.\n"
    (folder / "a [MASK].txt").rename(folder / "away")
    assert told(folder, monkeypatch, *words, "a [MASK].txt") == (answer, "")
    (folder / "away").rename(folder / "a [MASK].txt")


@pytest.mark.parametrize("text", ["", "a" * 5000, "a\0b", "."])
def test_a_text_that_names_no_file_is_passed_over_in_silence(text, capsys):
    warn_if_file_name(text)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("colour", ["black", "white", "red"])
def test_a_picture_of_one_colour_is_told(folder, monkeypatch, colour):
    Image.new("RGB", (30, 20), colour).save(folder / "even.png")
    answer, hint = told(folder, monkeypatch, "classify", "eye", "even.png")
    assert answer.endswith("%\n")
    assert hint == "even.png is of one colour: there is nothing to see, whatever the answer.\n"


@pytest.mark.parametrize(
    ("name", "loud"), [("silent", 0), ("constant", 0), ("one bit", 1), ("quiet", 30)]
)
def test_a_sound_without_energy_is_told(folder, monkeypatch, name, loud):
    write_sound(
        folder / "s.wav", loud * np.sin(np.arange(2000)) + (1000 if name == "constant" else 0)
    )
    answer, hint = told(folder, monkeypatch, "classify", "ear", "s.wav")
    assert answer.endswith("%\n")
    silent = "s.wav is silent: there is nothing to hear, whatever the answer.\n"
    assert hint == ("" if name == "quiet" else silent)


def test_sounds_of_several_lengths_are_judged_as_each_alone(folder, monkeypatch):
    for name, length in (("short.wav", 900), ("long.wav", 40000)):
        write_sound(folder / name, noise(length))
    (folder / "names.txt").write_text("short.wav\nlong.wav\n")
    alone = [
        told(folder, monkeypatch, "classify", "ear", name)[0] for name in ("short.wav", "long.wav")
    ]
    assert told(folder, monkeypatch, "classify", "ear", "--input", "names.txt") == (
        "".join(alone),
        "long.wav lasts 5.0 s; only its first 0.3 s is heard.\n",
    )


def test_of_a_long_sound_only_what_is_heard_is_called_silent(folder, monkeypatch):
    write_sound(folder / "late.wav", np.concatenate((np.zeros(24000), noise(3200))))
    sentence = (
        "late.wav lasts 3.4 s; only its first 0.3 s is heard, and that is silent: "
        "there is nothing to hear, whatever the answer."
    )
    assert told(folder, monkeypatch, "classify", "ear", "late.wav")[1] == f"{sentence}\n"
    with pytest.warns(ClearheadWarning) as given:
        ch.load("ear").classify(audio="late.wav")
    assert [(str(one.message), one.filename) for one in given] == [(sentence, __file__)]


def test_a_text_that_is_cut_is_told(folder, monkeypatch):
    one = "the text is too long: of its 60 tokens 48 are read, and the rest is cut."
    assert told(folder, monkeypatch, "classify", "judge", "a" * 60)[1] == f"{one}\n"
    judge = ch.load("judge")
    with pytest.warns(ClearheadWarning, match="texts of more than 48 tokens are cut: 1 of 3"):
        judge.classify(["a" * 60, "a" * 48, [1] * 48])


def test_what_fits_is_not_said_to_be_cut(folder, recwarn):
    ch.load(folder / "judge").classify(["a" * 48, "b"])
    assert not recwarn.list


def test_pictures_are_doubted_in_python_too():
    with pytest.warns(ClearheadWarning, match="the picture is of one colour"):
        ch.new("tiny-pictures").classify(images=Image.new("L", (8, 8), 200))
