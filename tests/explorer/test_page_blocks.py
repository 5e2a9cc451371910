"""Blocks: norms follow from their operands, the residual stream from its summands."""

import base64
from functools import cache

import pytest
import torch

import clearhead as ch
from clearhead.serve.explorer.forward_passes import RunStore
from clearhead.serve.explorer.requests import Edit, RunRequest
from clearhead.serve.explorer.routes.activations import describe_block
from clearhead.serve.registry import ModelRegistry

WORDS = ch.Tokenizer.bytes(("<|end|>",))
CHANGES = {
    "decoder": ("tiny-decoder", {}),
    "post": ("tiny-decoder", {"norm_position": "post"}),
    "llama": ("tiny-llama", {}),
    "both": ("tiny-encoder-decoder", {"inference__decoder_start_tokens": [256]}),
}


@cache  # a run does not keep its model
def byte_model(kind):
    preset, changes = CHANGES[kind]
    model = ch.new(preset, tokenizer=WORDS, vocab_size=257, seed=3, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.net.parameters():
            p += 0.2 * torch.randn(p.shape, generator=generator)
    return model


def a_run(kind, edits=()):
    source = {"source": "A dog"} if kind == "both" else {}
    return RunStore().get_or_create(
        ModelRegistry.from_models({"m": byte_model(kind)}).loaded["m"],
        RunRequest(text="hello", edits=list(edits), **source),
    )


def numbers(view):
    values = torch.frombuffer(
        bytearray(base64.b64decode(view["values"])), dtype=torch.float32
    ).view(view["shape"])
    return dict(zip(view["axes"][0]["labels"], values, strict=True))


@pytest.mark.parametrize(
    ("kind", "encoder"), [*((kind, False) for kind in CHANGES), ("both", True)]
)
def test_norms_follow_from_their_operands(kind, encoder):
    shown = describe_block(a_run(kind), 1, 2, encoder)
    assert [norm["part"] for norm in shown["norms"]] == (
        ["attn", "cross_attn", "ffn"] if kind == "both" and not encoder else ["attn", "ffn"]
    )
    for norm in shown["norms"]:
        rows = numbers(norm["view"])
        made = rows["γ"] * (rows["x"] - norm["mean"]) / norm["std"] + rows.get("β", 0)
        assert torch.allclose(made, rows["out"], atol=1e-5)


@pytest.mark.parametrize("kind", ["decoder", "llama"])
def test_the_residual_stream_is_a_sum(kind):
    rows = numbers(describe_block(a_run(kind), 0, -1, False)["residual"])
    added = sum(
        value for name, value in rows.items() if name == "resid_pre" or name.endswith(".out")
    )
    assert torch.allclose(added, rows["resid_post"], atol=1e-5)


@pytest.mark.parametrize("kind", list(CHANGES))
def test_top_neurons_have_the_largest_outputs(kind):
    run = a_run(kind)
    shown = describe_block(run, 1, 3, False)["neurons"]
    down = run.trace.model.net.blocks[1].ffn.down.weight.detach()
    post = run.trace.value("blocks.1.ffn.post")[3]
    lengths = [float((post[i] * down[:, i]).norm()) for i in range(len(post))]
    assert [one["norm"] for one in shown["top"]] == pytest.approx(
        sorted(lengths, reverse=True)[:12], rel=1e-5
    )
    assert all(one["value"] == pytest.approx(float(post[one["neuron"]])) for one in shown["top"])
    assert all(len(one["words"]) == 3 for one in shown["top"])


@pytest.mark.parametrize("kind", ["decoder", "post", "llama"])
def test_feed_forward_of_one_token_needs_no_other(kind):
    """Unless an edit changes its output."""
    assert describe_block(a_run(kind), 1, 2, False)["neurons"]["alone_difference"] < 1e-5
    edited = a_run(kind, [Edit(name="blocks.1.ffn.out")])
    assert describe_block(edited, 1, 2, False)["neurons"]["alone_difference"] > 1e-3


def test_edits_are_visible_in_the_block():
    rows = numbers(
        describe_block(a_run("decoder", [Edit(name="blocks.1.ffn.out")]), 1, 0, False)["residual"]
    )
    assert not rows["ffn.out"].any()
    assert torch.equal(rows["resid_mid"], rows["resid_post"])


@pytest.mark.parametrize(("layer", "token"), [(2, 0), (-3, 0), (0, 99)])
def test_invalid_layers_and_tokens_are_refused(layer, token):
    with pytest.raises(ch.ClearheadError, match="there is no"):
        describe_block(a_run("decoder"), layer, token, False)
