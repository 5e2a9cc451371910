"""Samples follow the distribution, and depend only on seed, step and token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.generate.sampling import (
    Sampler,
    SamplingConfig,
    apply_penalties,
    apply_top_k,
    apply_top_p,
    gumbel_from_bits,
    rng_key,
)
from strategies import examples

CPU = torch.device("cpu")
rows = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40).map(
    lambda x: torch.tensor([x])
)


def sample(logits, sampling, step=0, keys=(0,)):
    sampler = Sampler([sampling] * len(keys), [rng_key(key) for key in keys], CPU)
    counts = torch.zeros(len(keys), logits.shape[1], dtype=torch.long)
    return sampler(
        logits.expand(len(keys), -1), torch.full((len(keys), 1), step), counts=(counts, counts)
    )[0]


def chi_square(found, expected):
    return float(((found - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("by", ["seed", "step"])
def test_samples_follow_the_softmax(temperature, by):
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -2.0]])
    n = 20_000
    if by == "seed":
        found = sample(logits, SamplingConfig(temperature=temperature), keys=range(n))
    else:
        sampler = Sampler([SamplingConfig(temperature=temperature)] * n, [rng_key(5)] * n, CPU)
        found = sampler(logits.expand(n, -1), torch.arange(n)[:, None])[0]
    expected = n * (logits[0] / temperature).softmax(-1)
    assert (
        chi_square(torch.bincount(found, minlength=6), expected) < 20.5
    )  # one in a thousand exceeds it


@given(rows, st.integers(1, 45))
def test_top_k_keeps_the_k_most_likely(x, k):
    kept = apply_top_k(x, torch.tensor([[float(k)]]), k)[0].isfinite()
    least = x[0].sort(descending=True).values[min(k, x.shape[1]) - 1]
    assert torch.equal(kept, x[0] >= least)


@given(rows, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set(x, share):
    kept = apply_top_p(x, torch.tensor([[share]]))[0].isfinite().numpy()
    p = np.exp(x[0].double().numpy())
    p /= p.sum()
    falling = np.sort(p)[::-1]
    size = int(np.searchsorted(np.cumsum(falling), share - 1e-6)) + 1
    assert p[kept].sum() >= share - 1e-4
    assert p[kept].sum() - p[kept].min() < share + 1e-4 or (p[kept] == p[kept].min()).sum() > 1
    assert p[kept].min() >= falling[min(size, len(p)) - 1] - 1e-6


@given(rows, st.integers(0, 2**40), st.integers(0, 1000))
def test_stricter_options_only_remove_candidates(x, seed, place):
    free = sample(x, SamplingConfig(), place, (seed,))
    kept = apply_top_k(x, torch.tensor([[3.0]]), 3)[0].isfinite()
    strict = sample(x, SamplingConfig(top_k=3), place, (seed,))
    assert strict == free or not kept[free]
    assert kept[strict]


@given(rows, st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 5))
@examples(50)
def test_batched_samples_equal_single_ones(x, seed, place, others):
    alone = sample(x, SamplingConfig(top_p=0.9), place, (seed,))
    among = Sampler(
        [SamplingConfig(top_k=2, temperature=0.3), SamplingConfig(top_p=0.9)] * others,
        [1, rng_key(seed)] * others,
        CPU,
    )
    logits = torch.cat([x.flip(1), x] * others)
    assert among(logits, torch.full((2 * others, 1), place))[0][1] == alone


def test_noise_is_finite_for_any_bits():
    assert gumbel_from_bits(torch.tensor([0, 2**31, 2**32 - 1])).isfinite().all()
    assert gumbel_from_bits(torch.arange(2**32 - 4096, 2**32)).isfinite().all()


def test_temperature_zero_is_argmax():
    assert sample(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), SamplingConfig(temperature=0)).item() == 1


def test_min_p_removes_unlikely_tokens():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    found = sample(logits, SamplingConfig(min_p=0.5), keys=range(500))
    assert set(found.tolist()) == {0, 1}


def test_penalties_follow_their_definitions():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    read = torch.tensor([[1, 1, 0, 0]])
    written = torch.tensor([[0, 0, 2, 0]])
    two, one, half = (torch.tensor([[x]]) for x in (2.0, 1.0, 0.5))
    found = apply_penalties(logits, read, written, two, one, half)
    assert found.tolist() == [[1.0, -4.0, 0.5 - 1.0 - 1.0, 0.0]]


def test_samples_of_one_seed_differ():
    assert len({rng_key(seed, sample) for seed in range(100) for sample in range(100)}) == 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", 1e39),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 10**400),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", -(10**400)),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: True}),
        ("temperature", True),
        ("top_p", True),
        ("min_p", False),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ("",)),
    ],
)
def test_invalid_sampling_options_are_refused(name, value):
    with pytest.raises(ch.ClearheadError, match=f"^{name} must"):
        SamplingConfig(**{name: value})


def test_error_shows_the_stop_string_that_was_passed():
    with pytest.raises(ch.ClearheadError, match=r"got ''\."):
        SamplingConfig(stop="")
