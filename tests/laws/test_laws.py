"""The shipped laws, on every kind of model there is: all positions × shapes × head layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.evaluate.invariants import INVARIANTS, ModelUnderTest, check_invariant
from clearhead.model.transformer import build_transformer
from strategies import models


def lively(m, seed):
    """A network in which no bias is zero and no gain is one, so that nothing hides."""
    net = build_transformer(m, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return net


@pytest.mark.parametrize("law", INVARIANTS, ids=lambda law: law.__name__)
@given(m=models(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_law(law, m, seed):
    result = check_invariant(law, ModelUnderTest(lively(m, seed), seed))
    assert result.passed, f"{result} in {m}"


@pytest.mark.parametrize("name", [name for name in ch.presets if name.startswith("tiny-")])
def test_verify_holds_on_every_tiny_preset(name):
    results = ch.verify(ch.new(name))
    assert all(r.passed for r in results)
    assert sum(r.difference is not None for r in results) >= 8


def test_a_leak_from_the_future_is_noticed(monkeypatch):
    from clearhead.evaluate.invariants import (
        cached_equals_full,
        causal_mask_hides_the_future,
    )
    from clearhead.model.attention import Mask
    from clearhead.model.transformer import masks

    monkeypatch.setattr(masks, "in_a_row", lambda *a, **k: Mask())
    subject = ModelUnderTest(build_transformer(ch.presets["tiny-decoder"].model))
    assert not check_invariant(causal_mask_hides_the_future, subject).passed
    assert not check_invariant(cached_equals_full, subject).passed


def test_a_slow_path_that_drifts_is_noticed(monkeypatch):
    from clearhead.evaluate.invariants import eager_attention_equals_fused_attention
    from clearhead.model import attention

    monkeypatch.setattr(attention, "softmax", lambda scores: (scores * 1.01).softmax(-1))
    subject = ModelUnderTest(lively(ch.presets["tiny-decoder"].model, 0))
    assert not check_invariant(eager_attention_equals_fused_attention, subject).passed


def test_a_loss_that_averages_is_noticed(monkeypatch):
    from clearhead.evaluate.invariants import (
        accumulated_gradients_equal_full_batch_gradients,
    )

    subject = ModelUnderTest(build_transformer(ch.presets["tiny-decoder"].model))
    honest = subject.net.head.loss
    monkeypatch.setattr(
        subject.net.head, "loss", lambda *a: (honest(*a)[0] / honest(*a)[1], honest(*a)[1])
    )
    assert not check_invariant(accumulated_gradients_equal_full_batch_gradients, subject).passed


@pytest.mark.parametrize("name", ["norm.weight", "blocks.1.attn.q.weight"])
def test_not_a_number_never_holds(name):
    from clearhead.evaluate.invariants import (
        accumulated_gradients_equal_full_batch_gradients,
        attention_rows_sum_to_one,
        eager_attention_equals_fused_attention,
    )

    subject = ModelUnderTest(build_transformer(ch.presets["tiny-decoder"].model))
    with torch.no_grad():
        subject.net.get_parameter(name).fill_(float("nan"))
    assert not check_invariant(eager_attention_equals_fused_attention, subject).passed
    assert not check_invariant(accumulated_gradients_equal_full_batch_gradients, subject).passed
    if "attn" in name:
        assert not check_invariant(attention_rows_sum_to_one, subject).passed


def test_laws_fit_a_short_source_and_frozen_weights():
    assert all(
        r.passed
        for r in ch.verify(ch.new("tiny-encoder-decoder", architecture__source_context_length=12))
    )
    frozen = ch.new("tiny-decoder")
    frozen.net.requires_grad_(False)
    assert all(r.passed for r in ch.verify(frozen))
