"""The network: initialization, dropout, tying, caches, masks, dtypes and errors."""

import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.model.attention import positions_from_segments
from clearhead.model.transformer import (
    EditedTransformer,
    build_transformer,
    eval_mode,
    init_weights,
)
from strategies import models


def tiny(name="tiny-decoder", **changes):
    return build_transformer(ch.presets[name].replace(**changes).model).eval()


# --- weights
def test_same_seed_same_weights():
    m = ch.presets["tiny-decoder"].model
    one = build_transformer(m, 1)
    two = build_transformer(m, 1)
    other = build_transformer(m, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.blocks[0].attn.q.weight, other.blocks[0].attn.q.weight)


def has_std(parameter, expected):
    return parameter.std().item() == pytest.approx(expected, rel=0.05)


def test_weights_have_the_initial_standard_deviations():
    d = 192
    n_layers = 4
    net = build_transformer(ch.presets["lecture-lm"].model)
    assert has_std(net.embed.tokens.weight, 0.02)
    assert has_std(net.blocks[0].attn.q.weight, d**-0.5)
    assert has_std(net.blocks[0].attn.out.weight, (d * 2 * n_layers) ** -0.5)
    assert has_std(net.blocks[0].ffn.down.weight, (4 * d * 2 * n_layers) ** -0.5)
    assert (net.final_norm.weight == 1).all()
    assert (net.blocks[0].attn.q.bias == 0).all()


def test_encoder_decoder_weights_have_the_initial_standard_deviations():
    d = 64
    changes = {"architecture__encoder_layers": 6, "architecture__source_vocab_size": 100}
    net = tiny("tiny-encoder-decoder", d_model=d, **changes)
    assert has_std(net.embed.tokens.weight, d**-0.5)
    assert has_std(net.encoder.embed.tokens.weight, d**-0.5)
    assert has_std(net.encoder.blocks[0].attn.out.weight, (d * 2 * 6) ** -0.5)
    assert has_std(net.blocks[0].cross_attn.out.weight, (d * 3 * 2) ** -0.5)


@given(models())
def test_every_parameter_is_initialized(m):
    net = build_transformer(m)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(float("nan"))
    init_weights(net, m, seed=0)
    assert all(p.isfinite().all() for p in net.parameters())


def test_tied_embeddings_are_one_parameter():
    net = tiny()
    assert net.head.unembed.weight is net.embed.tokens.weight
    untied = tiny(**{"head.tie_embeddings": False})
    assert untied.head.unembed.weight is not untied.embed.tokens.weight
    with_encoder = tiny("tiny-encoder-decoder")
    assert with_encoder.encoder.embed.tokens.weight is with_encoder.embed.tokens.weight


# --- forward
@pytest.mark.parametrize("place", ["embedding", "residual", "attention"])
def test_dropout_acts_in_training_only(place):
    net = tiny(**{f"dropout.{place}": 0.5})
    ids = torch.arange(8)[None]
    assert torch.equal(net(ids), net(ids))
    net.train()
    assert not torch.equal(net(ids), net(ids))


def test_dropout_is_off_until_all_threads_have_left_eval_mode():
    net = tiny().train()
    net.blocks[0].eval()
    training = [module.training for module in net.modules()]
    for other in (net, EditedTransformer(net, {})):
        first, second = eval_mode(net), eval_mode(other)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not any(module.training for module in other.modules())
        second.__exit__(None, None, None)
        assert [module.training for module in net.modules()] == training


def test_rows_of_different_lengths_share_a_cache():
    net = tiny(position="rotary")
    rows = [[1, 2, 3, 4, 5], [6, 7]]
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]])
    segment_ids = torch.tensor([[1] * 5, [1, 1, 0, 0, 0]])
    cache = net.init_cache(2, 12)
    net(ids, segment_ids=segment_ids, cache=cache)
    for step in range(3):
        tokens = [step + 8, step + 20]
        batched = net(torch.tensor(tokens)[:, None], cache=cache)
        for row, token, hidden in zip(rows, tokens, batched, strict=True):
            row.append(token)
            assert torch.allclose(hidden[-1], net(torch.tensor([row]))[0, -1], atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_unused_capacity_of_a_cache_takes_no_memory():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    net = ch.new("tiny-decoder", context_length=2**19).net
    before = resident_bytes()
    cache = net.init_cache(1)
    with torch.no_grad():
        net(torch.ones(1, 9, dtype=torch.long), cache=cache)
    num_bytes = sum(kv.keys.nbytes + kv.values.nbytes for kv, _ in cache.layers)
    assert num_bytes > 2**27
    assert resident_bytes() - before < num_bytes / 4
    for kv, _ in cache.layers:
        assert kv.keys[:, :, :9].abs().amax(-1).min() > 0
        assert not kv.keys[:, :, 9:99].any()


def test_packed_target_attends_only_to_the_source_of_its_segment():
    net = tiny("tiny-encoder-decoder")
    ids = torch.tensor([[1, 2, 3, 4]])
    segment_ids = torch.tensor([[1, 1, 2, 2]])
    # A source without segment ids is all segment 1.
    one, two = (
        net(ids, segment_ids=segment_ids, source=torch.tensor([[5, 6, last]])) for last in (7, 8)
    )
    assert not torch.equal(one[:, :2], two[:, :2])
    assert torch.equal(one[:, 2:], two[:, 2:])


def test_sliding_window_reaches_exactly_its_size():
    net = tiny(n_layers=1, **{"attention.sliding_window": 3})
    ids = torch.arange(10)[None]
    other = ids.clone()
    other[0, 4] = 50
    is_changed = (net(ids) != net(other)).any(-1)[0]
    assert is_changed.tolist() == [False] * 4 + [True] * 3 + [False] * 3


def test_positions_restart_in_every_segment():
    segment_ids = torch.tensor([[1, 1, 1, 2, 2, 0, 0], [3, 1, 1, 1, 1, 1, 2]])
    expected = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 0]]
    assert positions_from_segments(segment_ids).tolist() == expected


# --- loss and dtypes
def test_ignored_labels_do_not_count():
    net = tiny("tiny-images")
    x = torch.rand(2, 1, 8, 8)
    one = net.loss(net(x[:1]), torch.tensor([1]))
    two = net.loss(net(x), torch.tensor([1, -100]))
    assert torch.allclose(one[0], two[0])
    assert one[1] == two[1] == 1


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "t5", "shaw", "alibi", "rotary"]
)
@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-images", "tiny-audio"]
)
def test_every_parameter_gets_a_gradient(name, position):
    net = tiny(name, position=position)
    subject = ModelUnderTest(net)
    x = subject.random_inputs()
    total, count = net.loss(net(**x), subject.random_targets(x))
    (total / count).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder-decoder"])
def test_bfloat16_runs(name):
    net = tiny(name).to(torch.bfloat16)
    ids = torch.arange(6)[None]
    inputs = {"source": ids} if net.encoder is not None else {}
    assert net.compute_logits(net(ids, **inputs)).dtype == torch.bfloat16
    assert net(ids, cache=net.init_cache(1, 6), **inputs).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-llama"]
)
def test_invariants_hold_on_the_gpu(name):
    model = ch.new(name)
    model.net.cuda()
    assert all(result.passed for result in ch.verify(model))


# --- errors
def ids(count: int) -> torch.Tensor:
    return torch.arange(count)[None]


def forward_with_cache(batch: int, capacity: int, count: int, **inputs: torch.Tensor):
    net = tiny()
    return net(ids(count), cache=net.init_cache(batch, capacity), **inputs)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: tiny("tiny-encoder-decoder")(ids(3)), "needs a source"),
        (lambda: tiny("tiny-encoder").init_cache(1), "no KV cache"),
        (lambda: tiny().encode(ids(3)), "no separate encoder"),
        (lambda: tiny()(ids(3), source=ids(3)), "no separate encoder"),
        (lambda: tiny()(ids(3), encoder_output=torch.zeros(1, 3, 32)), "takes no source"),
        (lambda: tiny()(ids(3), token_type_ids=torch.zeros_like(ids(3))), "token_type_ids"),
        (lambda: tiny()(ids(33)), "33 tokens exceed the context length of 32"),
        (lambda: tiny().init_cache(1, 33), "33 tokens exceeds the context length of 32"),
        (lambda: forward_with_cache(3, 8, 3), "3 rows, got a batch of 1"),
        (lambda: forward_with_cache(1, 4, 5), "0 \\+ 5 tokens exceed the cache capacity of 4"),
        (lambda: forward_with_cache(1, 8, 3, position_ids=ids(3)), "position_ids or a cache"),
        (
            lambda: forward_with_cache(1, 8, 4, segment_ids=torch.tensor([[0, 0, 1, 1]])),
            "padded on the right",
        ),
        (
            lambda: forward_with_cache(1, 8, 4, segment_ids=torch.tensor([[1, 1, 2, 2]])),
            "padded on the right",
        ),
        (
            lambda: tiny("tiny-encoder", head="none").loss(torch.zeros(1, 3, 32), ids(3)),
            "no head",
        ),
        (lambda: tiny("tiny-images")(torch.zeros(1, 3, 8, 8)), "must be 1 x 8 x 8"),
    ],
)
def test_mistakes_are_reported(call, error):
    with pytest.raises(ClearheadError, match=error):
        call()
