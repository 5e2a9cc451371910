"""--ablate-head in every command that has it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app

WORDS = ch.Tokenizer.bytes(("[MASK]",))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder, and a masked language model."""
    paths = {}
    encoder = {"head": {"kind": "mlm"}, "inference__mask_token": [WORDS.special_tokens["[MASK]"]]}
    for name, options in (("tiny-decoder", {}), ("tiny-encoder", encoder)):
        paths[name] = str(tmp_path_factory.mktemp("models") / name)
        ch.save(
            ch.new(name, seed=3, vocab_size=len(WORDS), tokenizer=WORDS, **options), paths[name]
        )
    return paths


def run(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_command_equals_python(folders):
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
    generated = json.loads(run(*words, "--ablate-head", "1.2"))
    expected = writer.generate("abc", 5, logprobs=1, edits=edits)
    assert [token["logprob"] for token in generated["tokens"]] == [
        one.logprob for one in expected.token_logprobs
    ]
    assert generated != json.loads(run(*words))
    (filled,) = json.loads(
        run("fill", folders["tiny-encoder"], "a[MASK]c", "--json", "--ablate-head", "1.2")
    )
    assert [one["probability"] for one in filled] == [
        one.probability for one in reader.fill("a[MASK]c", edits=edits).masks[0]
    ]


def test_several_heads_of_a_layer_can_be_ablated(folders, tmp_path):
    def both(z):
        z[:, [0, 3]] = 0
        return z

    out = tmp_path / "lens.npy"
    heads = ["--ablate-head", "1.0", "--ablate-head", "1.3"]
    run("see", folders["tiny-decoder"], "abc", "--what", "residual", *heads, "--output", str(out))
    expected = ch.lens.residual_norms(
        ch.load(folders["tiny-decoder"]), "abc", edits={"blocks.1.attn.z": both}
    )
    np.testing.assert_array_equal(np.load(out), expected.numpy())


def test_beam_search_can_ablate_heads(folders):
    words = ("generate", folders["tiny-decoder"], "abc", "--max-tokens", "5", "--num-beams", "2")
    scores = [
        json.loads(run(*words, "--json", *options))["score"]
        for options in ((), ("--ablate-head", "1.2"))
    ]
    assert scores[0] != scores[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "abc", "--ablate-head", "2.0"], "from 0.0 to 1.3, got 2.0"),
        (["generate", "abc", "--ablate-head", "0.4"], "from 0.0 to 1.3"),
        (["generate", "abc", "--ablate-head", "0,1"], "LAYER.HEAD"),
        (["generate", "abc", "--ablate-head", "first"], "LAYER.HEAD"),
        (
            ["generate", "abc", "--temperature", "0.2", "--num-beams", "2"],
            "--temperature does not apply",
        ),
        (
            ["generate", "abc", "--ablate-head", "0.0", "--backend", "onnxruntime"],
            "omit --ablate-head or --backend",
        ),
        (
            ["see", "abc", "--what", "ablation", "--ablate-head", "0.0"],
            "--ablate-head does not apply to --what ablation",
        ),
        (["see", "abc", "--what", "patching"], "needs --patch-from TEXT"),
        (["see", "abc", "--patch-from", "abcd"], "same number of tokens"),
    ],
)
def test_invalid_heads_are_refused(folders, words, message):
    command, *rest = words
    result = CliRunner().invoke(app, [command, folders["tiny-decoder"], *rest])
    assert isinstance(result.exception, ch.ClearheadError)
    assert message in str(result.exception)


@pytest.mark.parametrize("words", [[], ["--layer", "0"], ["--layer", "-2"]])
def test_heads_without_effect_on_simple_attention_are_refused(folders, words):
    command = ["see", folders["tiny-decoder"], "abc", "--what", "simple-attention", *words]
    assert run(*command)
    with pytest.raises(ch.ClearheadError, match="--layer 1 or a later"):
        run(*command, "--ablate-head", "1.0")
    changed = run(*command, "--layer", "-1", "--ablate-head", "1.0")
    assert changed != run(*command, "--layer", "-1")


def test_an_empty_against_is_refused(folders):
    with pytest.raises(ch.ClearheadError, match="--against"):
        run("see", folders["tiny-decoder"], "abc", "--what", "attribution", "--against", "")
    with pytest.raises(ch.ClearheadError, match="--against"):
        run("verify", folders["tiny-decoder"], "--against", "")
