"""State of optimizers and weight averages: saved, restored and refused."""

import pytest
import torch
from optimizer_helpers import ADAMW, DEVICES, MUON, backward, same_weights, take_steps, tiny_net
from safetensors.torch import load, save

import clearhead as ch
from clearhead.train.optim import EMA, Optimizer

# --- state


def serialize(state):
    return save({name: t.detach() for name, t in state.items()})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [ADAMW, MUON])
def test_restored_state_continues_bit_for_bit(config, dtype, device):
    net = tiny_net(dtype=dtype, device=device)
    optimizer = Optimizer(net, config)
    ema = EMA(optimizer, 0.9)
    take_steps(net, optimizer, 3, ema=ema)
    optimizer_state = serialize(optimizer.state_dict())
    ema_state = serialize(ema.state_dict())
    weights = {name: p.clone() for name, p in net.state_dict().items()}
    take_steps(net, optimizer, 3, seed=3, ema=ema)

    restored_net = tiny_net(dtype=dtype, device=device)
    restored_net.load_state_dict(weights)
    restored = Optimizer(restored_net, config)
    restored_ema = EMA(restored, 0.9)
    restored.load_state_dict(load(optimizer_state))
    restored_ema.load_state_dict(load(ema_state), 3)
    take_steps(restored_net, restored, 3, seed=3, ema=restored_ema)
    assert same_weights(net, restored_net)
    for expected, actual in ((optimizer, restored), (ema, restored_ema)):
        expected_state = expected.state_dict()
        actual_state = actual.state_dict()
        assert expected_state.keys() == actual_state.keys()
        assert all(torch.equal(expected_state[name], actual_state[name]) for name in actual_state)


def test_state_is_named_after_parameters():
    state = Optimizer(tiny_net(dtype=torch.bfloat16), MUON).state_dict()
    q = "blocks.0.attn.q.weight"
    embedding = "embed.tokens.weight"
    adam = ("exp_avg", "exp_avg_sq", "step", "master")
    assert {name for name in state if name.startswith(q)} == {f"{q}.momentum", f"{q}.master"}
    names = {name for name in state if name.startswith(embedding)}
    assert names == {f"{embedding}.{key}" for key in adam}
    assert state[f"{embedding}.step"].shape == ()
    assert all(not t.requires_grad and t.is_contiguous() for t in state.values())


def test_loading_master_weights_updates_the_network():
    net = tiny_net(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    take_steps(net, optimizer, 2)
    other = tiny_net(dtype=torch.bfloat16)
    Optimizer(other, ADAMW).load_state_dict(optimizer.state_dict())
    assert same_weights(net, other)


BIAS = "final_norm.bias"


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        (lambda s: s.pop(f"{BIAS}.step"), f"{BIAS}.step is missing"),
        (lambda s: s.update({"other.step": torch.zeros(())}), "other.step is unexpected"),
        (lambda s: s.update({f"{BIAS}.exp_avg": torch.zeros(5)}), r"float32 \[5\]"),
        (lambda s: s.update({f"{BIAS}.exp_avg": s[f"{BIAS}.exp_avg"].half()}), "float16"),
    ],
)
def test_mismatched_state_is_refused_and_changes_nothing(change, keyword):
    net = tiny_net()
    optimizer = Optimizer(net, ADAMW)
    take_steps(net, optimizer, 1)
    before = {name: t.clone() for name, t in optimizer.state_dict().items()}
    state = {name: torch.ones_like(t) for name, t in before.items()}
    change(state)
    with pytest.raises(ch.ClearheadError, match=keyword):
        optimizer.load_state_dict(state)
    assert all(torch.equal(before[name], t) for name, t in optimizer.state_dict().items())


# --- weight averages


def test_ema_is_the_weighted_sum_and_swaps_back():
    net = tiny_net()
    optimizer = Optimizer(net, ADAMW)
    ema = EMA(optimizer, 0.3)
    expected = {name: p.detach().double() for name, p in net.named_parameters()}
    for step in range(4):
        take_steps(net, optimizer, 1, seed=step)
        ema.update()
        for name, p in net.named_parameters():
            decay = min(0.3, (1 + step) / (10 + step))
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()
    original = {name: p.detach().clone() for name, p in net.named_parameters()}
    with ema.swap_weights():
        for name, p in net.named_parameters():
            torch.testing.assert_close(p, expected[name].float())
    assert all(torch.equal(original[name], p) for name, p in net.named_parameters())


def test_ema_decay_of_one_is_refused():
    with pytest.raises(ch.ClearheadError, match="less than 1"):
        ch.Config().replace(train={"ema_decay": 1.0})


def test_ema_averages_master_weights():
    net = tiny_net(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    ema = EMA(optimizer, 0.0)  # the last weights
    take_steps(net, optimizer, 2, ema=ema)
    averages = ema.state_dict()
    masters = optimizer.master_weights.items()
    assert all(torch.equal(averages[f"{name}.ema"], master) for name, master in masters)
    rounded = net.named_parameters()
    assert not all(torch.equal(averages[f"{name}.ema"], p.float()) for name, p in rounded)


# --- learning


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [ADAMW, MUON])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])
@pytest.mark.slow
def test_one_batch_is_memorized_in_100_steps(preset, config, dtype, device):
    net = tiny_net(preset, dtype, device)
    optimizer = Optimizer(net, config)
    for _ in range(99):
        loss = backward(net)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.1
