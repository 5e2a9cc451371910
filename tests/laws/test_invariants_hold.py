"""The invariants of `clearhead verify` hold for every architecture, and notice broken models."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.evaluate import invariants
from clearhead.evaluate.invariants import INVARIANTS, ModelUnderTest, check_invariant
from clearhead.model import attention, transformer
from clearhead.model.attention import Mask
from clearhead.model.transformer import build_transformer
from strategies import examples, models


def tiny_decoder() -> ModelUnderTest:
    return ModelUnderTest(build_transformer(ch.presets["tiny-decoder"].model))


def perturbed(m, seed):
    """A network without zero biases or unit gains, which would hide errors."""
    net = build_transformer(m, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return ModelUnderTest(net, seed)


def fails(invariant, subject) -> bool:
    return not check_invariant(invariant, subject).passed


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.__name__)
@given(m=models(), seed=st.integers(0, 9))
@examples(60)
def test_invariant_holds(invariant, m, seed):
    result = check_invariant(invariant, perturbed(m, seed))
    assert result.passed, f"{result} in {m}"


@pytest.mark.parametrize("name", [name for name in ch.presets if name.startswith("tiny-")])
def test_verify_passes_on_every_tiny_preset(name):
    results = ch.verify(ch.new(name))
    assert all(r.passed for r in results)
    assert sum(r.difference is not None for r in results) >= 8


def test_verify_passes_with_a_short_source_and_frozen_weights():
    model = ch.new("tiny-encoder-decoder", architecture__source_context_length=12)
    assert all(r.passed for r in ch.verify(model))
    frozen = ch.new("tiny-decoder")
    frozen.net.requires_grad_(False)
    assert all(r.passed for r in ch.verify(frozen))


def test_a_missing_causal_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(transformer, "self_attention_mask", lambda *a, **k: Mask())
    subject = tiny_decoder()
    assert fails(invariants.causal_mask_hides_the_future, subject)
    assert fails(invariants.cached_equals_full, subject)


def test_eager_attention_that_differs_is_noticed(monkeypatch):
    monkeypatch.setattr(attention, "softmax", lambda scores: (scores * 1.01).softmax(-1))
    subject = perturbed(ch.presets["tiny-decoder"].model, 0)
    assert fails(invariants.eager_attention_equals_fused_attention, subject)


def test_a_mean_loss_is_noticed(monkeypatch):
    subject = tiny_decoder()
    head = subject.net.head
    sum_and_count = head.loss

    def mean_and_count(*args):
        total, count = sum_and_count(*args)
        return total / count, count

    monkeypatch.setattr(head, "loss", mean_and_count)
    assert fails(invariants.accumulated_gradients_equal_full_batch_gradients, subject)


@pytest.mark.parametrize("name", ["final_norm.weight", "blocks.1.attn.q.weight"])
def test_nan_never_passes(name):
    subject = tiny_decoder()
    with torch.no_grad():
        subject.net.get_parameter(name).fill_(float("nan"))
    assert fails(invariants.eager_attention_equals_fused_attention, subject)
    assert fails(invariants.accumulated_gradients_equal_full_batch_gradients, subject)
    if "attn" in name:
        assert fails(invariants.attention_rows_sum_to_one, subject)
