"""The activation table and `model.watch`: every value by name, in every architecture."""

import re

import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.lens.attention import cached_attention
from clearhead.lens.hook_points import activation_table
from clearhead.model import attention
from clearhead.model.transformer import build_transformer
from strategies import examples, models

BYTES = {"tokenizer": ch.Tokenizer.bytes()}
IDS = [3, 1, 4, 1, 5, 9]


def make_model(preset="tiny-decoder", **changes):
    return ch.new(preset, seed=3, **changes)


def dimension_sizes(m, batch_size):
    """The sizes of dimensions that do not depend on the text."""
    return {
        "batch|1": {1, batch_size},
        "batch": {batch_size},
        "head": {m.attention.n_heads},
        "kv_head": {m.n_kv_heads},
        "d_head": {m.d_head},
        "d_model": {m.d_model},
        "d_ff": {m.d_ff},
        "vocab_size": {m.vocab_size},
        "num_labels": {getattr(m.head, "num_labels", 1)},
        "seq": None,
        "query": None,
        "key": None,
    }


@given(models())
@examples(60)
def test_table_has_every_activation_with_its_shape(m):
    subject = ModelUnderTest(build_transformer(m).eval())
    recorder = Recorder(["**"])
    with torch.no_grad():
        hidden = subject.net(**subject.random_inputs(), hooks=recorder)
        subject.net.compute_logits(hidden, hooks=recorder)
    table = activation_table(m)
    assert set(recorder.values) == set(table)
    for name, value in recorder.values.items():
        dimensions = table[name].shape.split()
        assert len(dimensions) == value.dim(), name
        for dimension, size in zip(dimensions, value.shape, strict=True):
            sizes = dimension_sizes(m, value.shape[0])[dimension]
            assert sizes is None or size in sizes, f"{name}: {dimension} is {size}"


def test_watch_keeps_only_matching_activations():
    cache = make_model().watch(IDS, ["blocks.*.attn.pattern", "blocks.1.resid_post"])
    assert set(cache) == {"blocks.0.attn.pattern", "blocks.1.attn.pattern", "blocks.1.resid_post"}


def test_watch_accepts_a_generator_or_one_name():
    assert list(make_model().watch(IDS, (name for name in ["full_embed"]))) == ["full_embed"]
    assert list(make_model().watch(IDS, "full_embed")) == ["full_embed"]


def test_watching_the_residual_stream_keeps_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(attention, "eager_attention", None)  # would fail if called
    make_model().watch(IDS, ["blocks.*.resid_post", "blocks.*.attn.z"])
    with pytest.raises(TypeError):
        make_model().watch(IDS, ["blocks.1.attn.pattern"])


def test_only_watched_layers_use_eager_attention(monkeypatch):
    calls = []
    eager_attention = attention.eager_attention

    def counting_attention(*args):
        calls.append(1)
        return eager_attention(*args)

    monkeypatch.setattr(attention, "eager_attention", counting_attention)
    make_model().watch(IDS, ["blocks.1.attn.scores"])
    assert len(calls) == 1


def test_selector_keeps_only_its_part_in_memory():
    name = "blocks.0.attn.pattern"
    part = make_model().watch(IDS, {name: lambda p: p[:, 2]})[name]
    pattern = make_model().watch(IDS, [name])[name]
    assert torch.equal(part, pattern[:, 2])
    assert part.untyped_storage().nbytes() == pattern[:, 2].numel() * 4


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder-decoder"])
def test_each_activation_can_be_watched_alone(preset):
    model = ch.new(preset, seed=1)
    inputs = {"source": IDS} if model.architecture == "encoder-decoder" else {}
    everything = model.watch(IDS, **inputs)
    for name in everything:
        alone = model.watch(IDS, [name], **inputs)
        assert list(alone) == [name]
        torch.testing.assert_close(alone[name], everything[name])


def test_gradients_flow_to_watched_values():
    names = ("blocks.0.attn.pattern", "blocks.1.resid_pre")
    cache = make_model().watch(IDS, [*names, "logits"], gradients=True)
    values = [cache[name] for name in names]
    gradients = torch.autograd.grad(cache["logits"][0, -1, 5], values)
    for gradient, value in zip(gradients, values, strict=True):
        assert gradient.shape == value.shape
        assert gradient.abs().max() > 0


def test_gradients_flow_through_a_kv_cache():
    net = make_model().net
    ids = torch.tensor([IDS])
    cache = net.init_cache(1, 6)
    cached = Recorder(["blocks.0.attn.v"])
    net(ids[:, :4], cache=cache, hooks=cached)
    last = net(ids[:, 4:], cache=cache)[0, -1].sum()
    (cached_gradient,) = torch.autograd.grad(last, cached.values["blocks.0.attn.v"])
    full = Recorder(["blocks.0.attn.v"])
    last = net(ids, hooks=full)[0, -1].sum()
    (full_gradient,) = torch.autograd.grad(last, full.values["blocks.0.attn.v"])
    assert torch.allclose(cached_gradient, full_gradient[:, :, :4], atol=1e-5)


def test_padding_has_no_label_and_patches_are_numbered():
    model = ch.new("tiny-decoder", vocab_size=256, **BYTES)
    padded = model.watch(["a", "abc"], "blocks.0.attn.pattern")
    assert padded.tokens == ["a"]
    figure = ch.lens.cached_attention(padded, 0, 1).figure()
    assert len(figure.axes[0].get_xticklabels()) == 3
    image = torch.rand(1, 8, 8)
    image_cache = ch.new("tiny-images").watch(images=image, names="blocks.0.attn.pattern")
    assert len(cached_attention(image_cache, 0, 0).values) == 17


def test_ids_without_a_token_are_labeled_by_number():
    model = ch.new("tiny-decoder", vocab_size=300, **BYTES)
    assert model.watch([65, 299], "full_embed").tokens == ["A", "299"]
    assert ch.lens.position_shift(model, [65, 299]).axes[1].labels == ("A", "299")


def test_repr_has_shapes_and_descriptions_and_html_draws_patterns():
    cache = make_model().watch(IDS, ["blocks.0.attn.pattern"])
    assert "1 × 4 × 6 × 6" in repr(cache)
    assert activation_table(cache.config)["blocks.0.attn.pattern"].description in repr(cache)
    assert cache._repr_html_().count("<svg") == 4
    assert "<svg" not in make_model().watch(IDS, "full_embed")._repr_html_()
    assert cache.tokens == [str(i) for i in IDS]
    assert ch.lens.cached_attention(cache, 0, 1).title == "layer 0, head 1"
    assert len(ch.lens.cached_attention(cache, 0).figure().axes) == 5  # with the color bar


def test_parts_of_patterns_are_not_drawn():
    cache = make_model().watch(IDS, {"blocks.0.attn.pattern": lambda p: p[:, 3]})
    assert cache["blocks.0.attn.pattern"].shape == (1, 6, 6)
    assert "<svg" not in cache._repr_html_()
    with pytest.raises(ch.ClearheadError, match="only partly recorded"):
        ch.lens.cached_attention(cache, 0)


def test_all_kinds_of_attention_are_drawn():
    cache = make_model("tiny-encoder-decoder").watch(IDS, "**.1.*.pattern", source=[2, 7])
    assert cache._repr_html_().count("<svg") == 3 * 4
    assert "cross-attention, layer 1" in cache._repr_html_()
    view = ch.lens.cached_attention(cache, 1, 0, kind="encoder")
    assert view.title == "encoder, layer 1, head 0"


def test_tokens_shows_tokens_and_ids():
    model = ch.new("tiny-encoder-decoder", vocab_size=256, inference__sep_tokens=[0], **BYTES)
    assert ch.lens.tokens(model, "ab").words == (("a", "b", "‹00›"), ("97", "98", "0"))
    with pytest.raises(ch.ClearheadError, match="one text at a time, got 2"):
        ch.lens.tokens(ch.new("tiny-decoder", vocab_size=256, **BYTES), ["ab", "c"])
    with pytest.raises(ch.ClearheadError, match="not text"):
        ch.lens.tokens(ch.new("tiny-images"), "ab")


ERRORS = [
    (lambda m: m.watch(IDS, None), "NoneType"),
    (lambda m: m.watch(IDS, ["blocks.7.resid_post"]), "its layers are 0 to 1"),
    (lambda m: m.watch(IDS, "blocks.1.atn.z"), "did you mean 'blocks.1.attn.z'?"),
    (lambda m: m.watch(IDS, "patern"), "did you mean 'blocks.*.attn.pattern'?"),
    (lambda m: m.watch(IDS, "blocks.*"), "did you mean 'blocks.**'?"),
    (lambda m: m.watch(IDS)["pattern", 2], "'blocks.2.attn.pattern', got ('pattern', 2)"),
    (lambda m: m.watch(IDS)[0], "expected a name such as"),
    (lambda m: ("pattern", 2) in m.watch(IDS), "expected a name such as"),
    (lambda m: m.watch(IDS, "???"), "known: embed, pos_embed, full_embed, blocks.*.resid_pre"),
    (lambda m: m.watch(IDS, ["full_embed"])["final_norm"], "'final_norm' was not watched"),
    (
        lambda m: ch.lens.cached_attention(m.watch(IDS, ["full_embed"]), 0),
        "blocks.0.attn.pattern was only partly recorded",
    ),
    (
        lambda m: ch.lens.cached_attention(m.watch(IDS, ["blocks.0.attn.pattern"]), 0, 9),
        "there is no head 9",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
