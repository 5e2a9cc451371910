"""Optimizers: updates, precision and gradients."""

import pytest
import torch
from optimizer_helpers import (
    ADAMW,
    DEVICES,
    MUON,
    backward,
    same_weights,
    squared_distance,
    take_steps,
    tiny_net,
)

import clearhead as ch
from clearhead.config.training import Adam, AdamW, Muon
from clearhead.model.transformer import build_transformer
from clearhead.train.optim import Optimizer, is_block_matrix, orthogonalize

# --- updates


def block_matrices(preset):
    net = build_transformer(ch.presets[preset].model, None)
    return {name for name, p in net.named_parameters() if is_block_matrix(name, p)}


def test_block_matrices_are_the_projections_of_attention_and_ffn():
    presets = ("tiny-encoder-decoder", "tiny-encoder", "whisper-tiny", "vit-tiny")
    names = {name.removeprefix("encoder.") for preset in presets for name in block_matrices(preset)}
    suffixes = {name.split(".", maxsplit=2)[-1] for name in names}
    projections = {
        f"{module}.{projection}.weight"
        for module in ("attn", "cross_attn")
        for projection in ("q", "k", "v", "out")
    }
    assert suffixes == projections | {"ffn.up.weight", "ffn.down.weight"}


@pytest.mark.parametrize("device", DEVICES)
def test_adamw_equals_torch(device):
    net = tiny_net(device=device)
    peer = tiny_net(device=device)
    optimizer = Optimizer(net, ADAMW)
    named = list(peer.named_parameters())
    decayed = [p for name, p in named if is_block_matrix(name, p)]
    others = [p for name, p in named if not is_block_matrix(name, p)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    torch_optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    for step in range(5):
        lr_factor = 0.5 if step else 1.0
        backward(net, step)
        backward(peer, step)
        for group in torch_optimizer.param_groups:
            group["lr"] = ADAMW.lr * lr_factor
        torch_optimizer.step()
        optimizer.step(lr_factor)
        torch_optimizer.zero_grad()
        optimizer.zero_grad()
        assert same_weights(net, peer), step


@pytest.mark.parametrize(
    "config", [AdamW(lr=0.01, weight_decay=0.5), Muon(lr=0.01, weight_decay=0.5)]
)
def test_weight_decay_applies_to_block_matrices_only(config):
    net = tiny_net()
    before = tiny_net()
    optimizer = Optimizer(net, config)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for (name, p), old in zip(net.named_parameters(), before.parameters(), strict=True):
        factor = 0.995 if is_block_matrix(name, p) else 1.0
        torch.testing.assert_close(p, old * factor, msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(8, 8), (32, 8), (8, 32), (64, 48)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape, device):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    s = s + 0.1 * s.amax(-1, keepdim=True)  # no direction is nearly lost
    result = orthogonalize((u * s[:, None] @ vh).float()).double()
    singular_values = torch.linalg.svdvals(result)
    assert (singular_values > 0.6).all()
    assert (singular_values < 1.25).all()
    core = u.mT @ result @ vh.mT  # the singular vectors stay the same
    off_diagonal = core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))
    assert off_diagonal.abs().max() < (1e-4 if device == "cpu" else 0.1)


def test_orthogonalized_zero_is_zero():
    assert not orthogonalize(torch.zeros(2, 4, 8)).any()


def test_batched_orthogonalization_equals_single():
    x = torch.randn(6, 48, 32, generator=torch.Generator().manual_seed(0))
    single = torch.cat([orthogonalize(matrix[None]) for matrix in x])
    torch.testing.assert_close(orthogonalize(x), single, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama", "tiny-encoder-decoder"])
def test_muon_equals_its_formula_for_one_matrix(preset):
    net = tiny_net(preset)
    peer = tiny_net(preset)
    optimizer = Optimizer(net, MUON)
    momenta = {}
    matrices = {name: p for name, p in peer.named_parameters() if is_block_matrix(name, p)}
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
        optimizer.step(0.5)
        for name, p in matrices.items():
            momenta[name] = 0.95 * momenta.get(name, 0) + 0.05 * gradients[name]
            x = 0.05 * gradients[name] + 0.95 * momenta[name]
            x = x / x.norm()
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
            lr = 0.01 * max(1, p.shape[0] / p.shape[1]) ** 0.5
            p.data = p.data * (1 - 0.01 * MUON.weight_decay) - lr * x
    for name, p in net.named_parameters():
        if name in matrices:
            torch.testing.assert_close(p, matrices[name], atol=2e-5, rtol=1e-4, msg=name)


def test_muon_updates_other_parameters_with_adam():
    net = tiny_net()
    peer = tiny_net()
    muon = Optimizer(net, MUON)
    adam = Optimizer(peer, AdamW(lr=3e-3, weight_decay=0.0))
    for each, optimizer in ((net, muon), (peer, adam)):
        backward(each)
        optimizer.step()
    for (name, p), q in zip(net.named_parameters(), peer.parameters(), strict=True):
        assert torch.equal(p, q) is not is_block_matrix(name, p), name


# --- precision


@pytest.mark.parametrize("config", [AdamW(lr=1e-4), Muon(lr=2e-4, adam=Adam(lr=1e-4))])
def test_master_weights_follow_fp32_weights(config):
    initial = tiny_net(dtype=torch.bfloat16).float()
    fp32_net = tiny_net(dtype=torch.bfloat16).float()
    bf16_net = tiny_net(dtype=torch.bfloat16)
    optimizers = {net: Optimizer(net, config) for net in (fp32_net, bf16_net)}
    for step in range(30):
        for net, optimizer in optimizers.items():
            backward(net, step % 3)
            optimizer.step()
            optimizer.zero_grad()
    masters = optimizers[bf16_net].weights
    difference = sum((masters[n] - p).square().sum() for n, p in fp32_net.named_parameters())
    # What is left comes from rounding in the passes, not in the updates.
    assert difference < 0.02 * squared_distance(initial, fp32_net)


@pytest.mark.parametrize("config", [ADAMW, MUON])
def test_bf16_weights_are_rounded_master_weights(config):
    net = tiny_net(dtype=torch.bfloat16)
    optimizer = Optimizer(net, config)
    take_steps(net, optimizer, 2)
    for name, p in net.named_parameters():
        assert optimizer.weights[name].dtype == torch.float32
        assert torch.equal(p, optimizer.weights[name].bfloat16())


def test_fp32_network_has_no_master_weights():
    assert not any("master" in name for name in Optimizer(tiny_net(), ADAMW).state_dict())


# --- gradients


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clip_grad_norm_equals_torch(max_norm):
    net = tiny_net()
    peer = tiny_net()
    backward(net)
    backward(peer)
    norm = Optimizer(net, ADAMW).clip_grad_norm(max_norm)
    expected = torch.nn.utils.clip_grad_norm_(peer.parameters(), max_norm)
    torch.testing.assert_close(norm, expected)
    for p, q in zip(net.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_norm_of_bf16_gradients_is_computed_in_fp32():
    net = tiny_net(dtype=torch.bfloat16)
    backward(net)
    expected = torch.cat([p.grad.double().flatten() for p in net.parameters()]).norm()
    norm = Optimizer(net, ADAMW).clip_grad_norm(1e9)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(expected.item(), rel=1e-5)


def test_bf16_gradients_accumulate_in_fp32():
    net = tiny_net(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    expected = {name: 0.0 for name, _ in net.named_parameters()}
    for seed in range(8):
        backward(net, seed)
        for name, p in net.named_parameters():
            expected[name] = expected[name] + p.grad.double()
        optimizer.accumulate_gradients()
    for name, gradient in optimizer.gradients().items():
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient.double(), expected[name], atol=1e-8, rtol=1e-5)
    optimizer.step()
    optimizer.zero_grad()
    assert not optimizer.accumulated


def test_fp32_gradients_accumulate_in_place():
    net = tiny_net()
    optimizer = Optimizer(net, ADAMW)
    backward(net)
    optimizer.accumulate_gradients()
    gradients = optimizer.gradients().values()
    assert all(g is p.grad for g, p in zip(gradients, net.parameters(), strict=True))


def test_frozen_parameters_do_not_change():
    net = tiny_net()
    net.embed.requires_grad_(False)
    before = net.embed.tokens.weight.clone()
    take_steps(net, Optimizer(net, MUON), 1)
    assert torch.equal(net.embed.tokens.weight, before)


def test_missing_gradient_is_reported():
    with pytest.raises(ch.ClearheadError, match="has no gradient"):
        Optimizer(tiny_net(), MUON).step()


def test_network_without_trainable_parameters_is_refused():
    with pytest.raises(ch.ClearheadError, match="no trainable parameters"):
        Optimizer(tiny_net().requires_grad_(False), MUON)
