"""--without: heads that are left out, wherever a model works."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app

WORDS = ch.Tokenizer.bytes(("[MASK]",))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder, and an encoder that fills gaps."""
    found = {}
    encoder = {"head": {"kind": "mlm"}, "inference__mask_token": [WORDS.special_tokens["[MASK]"]]}
    for name, more in (("tiny-decoder", {}), ("tiny-encoder", encoder)):
        found[name] = str(tmp_path_factory.mktemp("models") / name)
        ch.save(ch.new(name, seed=3, vocab_size=len(WORDS), tokenizer=WORDS, **more), found[name])
    return found


def told(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_what_is_written_and_filled_is_that_of_python(folders):
    edits = {"blocks.1.attn.z": ch.ablate(head=2)}
    writer = ch.load(folders["tiny-decoder"])
    reader = ch.load(folders["tiny-encoder"])
    words = [
        "generate",
        folders["tiny-decoder"],
        "abc",
        "--max-tokens",
        "5",
        "--logprobs",
        "1",
        "--json",
    ]
    written = json.loads(told(*words, "--without", "1.2"))
    wanted = writer.generate("abc", 5, logprobs=1, edits=edits)
    assert [token["logprob"] for token in written["tokens"]] == [
        one.logprob for one in wanted.chosen
    ]
    assert written != json.loads(told(*words))
    (filled,) = json.loads(
        told("fill", folders["tiny-encoder"], "a[MASK]c", "--json", "--without", "1.2")
    )
    assert [one["probability"] for one in filled] == [
        one.probability for one in reader.fill("a[MASK]c", edits=edits)
    ]


def test_several_heads_of_a_layer_are_left_out_together(folders, tmp_path):
    def both(z):
        z[:, [0, 3]] = 0
        return z

    out = tmp_path / "lens.npy"
    heads = ["--without", "1.0", "--without", "1.3"]
    told("see", folders["tiny-decoder"], "abc", "--what", "residual", *heads, "--out", str(out))
    wanted = ch.lens.residual_norms(
        ch.load(folders["tiny-decoder"]), "abc", edits={"blocks.1.attn.z": both}
    )
    np.testing.assert_array_equal(np.load(out), wanted.numpy())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["generate", "abc", "--without", "2.0"],
            "--without 2.0: there is no such head; they are 0.0 to 1.3",
        ),
        (["generate", "abc", "--without", "0.4"], "there is no such head"),
        (["generate", "abc", "--without", "0,1"], "a point stands between layer and head"),
        (["generate", "abc", "--without", "first"], "there is no such head"),
        (["generate", "abc", "--without", "0.0", "--beam", "2"], "--without has no part in it"),
        (
            ["generate", "abc", "--temperature", "0.2", "--beam", "2"],
            "--temperature has no part in it",
        ),
        (["generate", "abc", "--without", "0.0", "--engine", "onnxruntime"], "leave out --engine"),
        (
            ["see", "abc", "--what", "heads", "--without", "0.0"],
            "--without has no part in --what heads",
        ),
        (["see", "abc", "--what", "patching"], "give it: --other TEXT"),
        (["see", "abc", "--other", "abcd"], "they need as many"),
    ],
)
def test_mistakes_are_told(folders, words, sentence):
    command, *rest = words
    found = CliRunner().invoke(app, [command, folders["tiny-decoder"], *rest])
    assert isinstance(found.exception, ch.ClearheadError)
    assert sentence in str(found.exception)
