"""Norms of the residual stream, and of what each component adds."""

import pytest
import torch

import clearhead as ch

BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}


def test_norms_are_those_of_the_activations():
    model = ch.new("tiny-encoder-decoder", seed=3, **BYTES)
    view = ch.lens.residual_norms(model, "abc", source="hello")
    names = ("blocks.1.cross_attn.out", "blocks.1.resid_cross")
    cache = model.watch("abc", names, source="hello")
    component = view.axes[1].labels.index("1 cross")
    for quantity, name in enumerate(names):
        norms = cache[name][0].norm(dim=-1)
        assert torch.allclose(view.values[quantity, component], norms)
    encoder_view = ch.lens.residual_norms(model, "abc", source="hello", encoder=True)
    assert encoder_view.axes[2].labels == tuple("hello")


@pytest.mark.parametrize(
    "preset", ["tiny-decoder", "tiny-llama"]
)  # with position embeddings, without
def test_the_stream_starts_with_the_token_embedding(preset):
    model = ch.new(preset, seed=3)
    cache = model.watch([1, 2, 3], ["full_embed", "embed"])
    view = ch.lens.residual_norms(model, [1, 2, 3])
    added, stream = view.values
    torch.testing.assert_close(stream[0], cache["embed"][0].norm(dim=-1))
    torch.testing.assert_close(added[0], stream[0])
    before_attention = list(view.axes[1].labels).index("0 attention") - 1
    torch.testing.assert_close(stream[before_attention], cache["full_embed"][0].norm(dim=-1))
