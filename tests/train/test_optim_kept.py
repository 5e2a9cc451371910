"""What is kept between steps, and averaged; and that it learns."""

import pytest
import torch
from optimised import ADAMW, DEVICES, MUON, learn, same, tiny, train
from safetensors.torch import load, save

import clearhead as ch
from clearhead.train.optim import EMA, Optimizer


# ---------------------------------------------------------------- what is kept
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("option", [ADAMW, MUON])
def test_a_resumed_run_is_the_same_bit_for_bit(option, dtype, device):
    net = tiny(dtype=dtype, device=device)
    optimizer = Optimizer(net, option)
    ema = EMA(optimizer, 0.9)
    train(net, optimizer, 3, ema=ema)
    saved = [
        save({n: t.detach() for n, t in part.items()})
        for part in (optimizer.state_dict(), ema.state_dict())
    ]
    weights = {n: p.clone() for n, p in net.state_dict().items()}
    train(net, optimizer, 3, seed=3, ema=ema)

    again = tiny(dtype=dtype, device=device)
    again.load_state_dict(weights)
    resumed = Optimizer(again, option)
    average = EMA(resumed, 0.9)
    resumed.load_state_dict(load(saved[0]))
    average.load_state_dict(load(saved[1]))
    train(again, resumed, 3, seed=3, ema=average)
    assert same(net, again)
    for a, b in ((optimizer, resumed), (ema, average)):
        assert a.state_dict().keys() == b.state_dict().keys()
        assert all(
            torch.equal(a.state_dict()[name], b.state_dict()[name]) for name in a.state_dict()
        )


def test_the_state_is_named_after_the_parameters():
    state = Optimizer(tiny(dtype=torch.bfloat16), MUON).state_dict()
    q = "blocks.0.attn.q.weight"
    e = "embed.tokens.weight"
    assert {n for n in state if n.startswith(q)} == {f"{q}.momentum", f"{q}.master"}
    assert {n for n in state if n.startswith(e)} == {
        f"{e}.{x}" for x in ("exp_avg", "exp_avg_sq", "step", "master")
    }
    assert state[f"{e}.step"].shape == ()
    assert all(not t.requires_grad and t.is_contiguous() for t in state.values())


def test_a_bf16_net_gets_its_masters_when_they_are_loaded():
    net = tiny(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    train(net, optimizer, 2)
    other = tiny(dtype=torch.bfloat16)
    Optimizer(other, ADAMW).load_state_dict(optimizer.state_dict())
    assert same(net, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("norm.bias.step"), r"has no norm\.bias\.step; it was saved by another"),
        (lambda s: s.update({"other.step": torch.zeros(())}), r"has a other\.step"),
        (
            lambda s: s.update({"norm.bias.exp_avg": torch.zeros(5)}),
            r"float32 \[5\], but float32 \[32\] is needed",
        ),
        (lambda s: s.update({"norm.bias.exp_avg": s["norm.bias.exp_avg"].half()}), "float16"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, words):
    net = tiny()
    optimizer = Optimizer(net, ADAMW)
    train(net, optimizer, 1)
    before = {name: t.clone() for name, t in optimizer.state_dict().items()}
    given = {name: torch.ones_like(t) for name, t in before.items()}
    change(given)
    with pytest.raises(ch.ClearheadError, match=words):
        optimizer.load_state_dict(given)
    assert all(torch.equal(before[name], t) for name, t in optimizer.state_dict().items())


# ---------------------------------------------------------------- averages
def test_the_average_is_the_weighted_sum_of_all_weights_and_leaves_the_net_as_it_was():
    net = tiny()
    optimizer = Optimizer(net, ADAMW)
    ema = EMA(optimizer, 0.9)
    expected = {n: p.detach().double() for n, p in net.named_parameters()}
    for step in range(4):
        train(net, optimizer, 1, seed=step)
        ema.update()
        expected = {
            n: 0.9 * expected[n] + 0.1 * p.detach().double() for n, p in net.named_parameters()
        }
    own = {n: p.detach().clone() for n, p in net.named_parameters()}
    with ema.swap_weights():
        for name, p in net.named_parameters():
            torch.testing.assert_close(p, expected[name].float())
    assert all(torch.equal(own[n], p) for n, p in net.named_parameters())
    with pytest.raises(ch.ClearheadError, match="less than 1"):
        EMA(optimizer, 1.0)


def test_the_average_is_of_the_masters_not_of_what_the_net_got_rounded():
    net = tiny(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    ema = EMA(optimizer, 0.0)  # the last weights themselves
    train(net, optimizer, 2, ema=ema)
    assert all(
        torch.equal(ema.state_dict()[f"{name}.ema"], master)
        for name, master in optimizer.master_weights.items()
    )
    assert not all(
        torch.equal(ema.state_dict()[f"{name}.ema"], p.float())
        for name, p in net.named_parameters()
    )


# ---------------------------------------------------------------- it learns
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("option", [ADAMW, MUON])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])
def test_one_batch_is_learned_by_heart_in_100_steps(preset, option, dtype, device):
    net = tiny(preset, dtype, device)
    optimizer = Optimizer(net, option)
    for _ in range(99):
        last = learn(net)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert last < 0.1
