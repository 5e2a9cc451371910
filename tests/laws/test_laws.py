"""The shipped laws, on every kind of model there is: all positions × shapes × head layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.evaluate.subject import Subject
from clearhead.evaluate.verify import LAWS, check_one
from clearhead.model.transformer import build
from strategies import models


def lively(m, seed):
    """A network in which no bias is zero and no gain is one, so that nothing hides."""
    net = build(m, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return net


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@given(m=models(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_law(law, m, seed):
    result = check_one(law, Subject(lively(m, seed), seed))
    assert result.holds, f"{result} in {m}"


@pytest.mark.parametrize("name", [name for name in ch.presets if name.startswith("tiny-")])
def test_verify_holds_on_every_tiny_preset(name):
    results = ch.verify(ch.new(name))
    assert all(r.holds for r in results)
    assert sum(r.difference is not None for r in results) >= 8


def test_a_leak_from_the_future_is_noticed(monkeypatch):
    from clearhead.evaluate import laws
    from clearhead.model import transformer
    from clearhead.model.masks import Mask

    monkeypatch.setattr(transformer.masks, "in_a_row", lambda *a, **k: Mask())
    subject = Subject(build(ch.presets["tiny-decoder"].model))
    assert not check_one(laws.the_future_is_not_seen, subject).holds
    assert not check_one(laws.cached_equals_full, subject).holds


def test_a_slow_path_that_drifts_is_noticed(monkeypatch):
    from clearhead.evaluate import laws
    from clearhead.model import attention

    monkeypatch.setattr(attention, "softmax", lambda scores: (scores * 1.01).softmax(-1))
    subject = Subject(lively(ch.presets["tiny-decoder"].model, 0))
    assert not check_one(laws.watched_equals_fused, subject).holds


def test_a_loss_that_averages_is_noticed(monkeypatch):
    from clearhead.evaluate import laws

    subject = Subject(build(ch.presets["tiny-decoder"].model))
    honest = subject.net.head.loss
    monkeypatch.setattr(subject.net.head, "loss", lambda *a: (honest(*a)[0] / honest(*a)[1], honest(*a)[1]))
    assert not check_one(laws.accumulated_gradients_equal_the_full_batch, subject).holds


@pytest.mark.parametrize("name", ["norm.weight", "blocks.1.attn.q.weight"])
def test_not_a_number_never_holds(name):
    from clearhead.evaluate import laws

    subject = Subject(build(ch.presets["tiny-decoder"].model))
    with torch.no_grad():
        subject.net.get_parameter(name).fill_(float("nan"))
    assert not check_one(laws.watched_equals_fused, subject).holds
    assert not check_one(laws.accumulated_gradients_equal_the_full_batch, subject).holds
    if "attn" in name:
        assert not check_one(laws.attention_rows_add_up_to_one, subject).holds


def test_laws_fit_a_short_source_and_frozen_weights():
    assert all(r.holds for r in ch.verify(ch.new("tiny-encoder-decoder", shape__context=12)))
    frozen = ch.new("tiny-decoder")
    frozen.net.requires_grad_(False)
    assert all(r.holds for r in ch.verify(frozen))
