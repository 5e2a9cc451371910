"""Hints: what was probably meant otherwise is told on stderr, and the answer stays as it is."""

import wave

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli import hints
from clearhead.cli.main import app

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>"))
READ = {"vocabulary": len(WORDS), "tokenizer": WORDS, "context": 48}
MODELS = {
    "writer": ("tiny-decoder", READ),
    "reader": ("tiny-encoder", READ | {"use__mask": [257]}),
    "judge": ("tiny-encoder", READ | {"head": {"kind": "classes", "classes": 2}}),
    "translator": ("tiny-encoder-decoder", READ | {"shape__context": 48, "use__start": [256], "use__stop": [256]}),
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


def test_what_looks_like_a_file_that_is_not_there_is_told(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["score", "writer", "nofile.txt"])
    assert done.exit_code == 0
    assert "nofile.txt looks like the name of a file, but there is none" in done.stderr


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["translate", "translator", "--max-tokens", "2"], "--input 'a [MASK].txt' reads its lines"),
        (["score", "writer"], "--input 'a [MASK].txt' reads its lines"),
        (["classify", "judge"], "--input 'a [MASK].txt' reads its lines"),
        (["embed", "writer"], "--input 'a [MASK].txt' reads its lines"),
        (["fill", "reader"], "--input 'a [MASK].txt' reads its lines"),
        (["see", "writer", "--what", "tokens"], "\"$(cat 'a [MASK].txt')\" in its place gives what it holds"),
        (["generate", "writer", "--max-tokens", "2"], "- < 'a [MASK].txt' in its place reads what it holds"),
        (["tokenizer", "show", "writer"], "- < 'a [MASK].txt' in its place reads what it holds"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_name_of_a_file_is_read_as_a_text_and_the_way_to_read_the_file_is_told(folder, monkeypatch, words, instead):
    answer, hint = told(folder, monkeypatch, *words, "a [MASK].txt")
    assert hint == f"a [MASK].txt is the name of a file, and was read as a text; {instead}.\n"
    (folder / "a [MASK].txt").rename(folder / "away")
    assert told(folder, monkeypatch, *words, "a [MASK].txt") == (answer, "")
    (folder / "away").rename(folder / "a [MASK].txt")


@pytest.mark.parametrize("text", ["", "a" * 5000, "a\0b", "."])
def test_a_text_that_names_no_file_is_passed_over_in_silence(text, capsys):
    hints.if_file(text)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("colour", ["black", "white", "red"])
def test_a_picture_of_one_colour_is_told(folder, monkeypatch, colour):
    Image.new("RGB", (30, 20), colour).save(folder / "even.png")
    answer, hint = told(folder, monkeypatch, "classify", "eye", "even.png")
    assert answer.endswith("%\n")
    assert hint == "even.png is of one colour: there is nothing to see, whatever the answer.\n"


@pytest.mark.parametrize(("name", "loud"), [("silent", 0), ("constant", 0), ("one bit", 1), ("quiet", 30)])
def test_a_sound_without_energy_is_told(folder, monkeypatch, name, loud):
    samples = loud * np.sin(np.arange(16000)) + (1000 if name == "constant" else 0)
    with wave.open(str(folder / "s.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(samples.round().astype("<i2").tobytes())
    answer, hint = told(folder, monkeypatch, "classify", "ear", "s.wav")
    assert answer.endswith("%\n")
    silent = "s.wav is silent: there is nothing to hear, whatever the answer.\n"
    assert hint == ("" if name == "quiet" else silent)


def test_sounds_of_several_lengths_are_judged_as_each_alone(folder, monkeypatch):
    draw = np.random.default_rng(0)
    for name, length in (("short.wav", 900), ("long.wav", 40000)):
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(draw.integers(-9000, 9000, length).astype("<i2").tobytes())
    (folder / "names.txt").write_text("short.wav\nlong.wav\n")
    alone = [told(folder, monkeypatch, "classify", "ear", name)[0] for name in ("short.wav", "long.wav")]
    assert told(folder, monkeypatch, "classify", "ear", "--input", "names.txt") == ("".join(alone), "")
