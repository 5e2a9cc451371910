"""Optimisers: what moves the weights, in which precision."""

import pytest
import torch
from optimised import ADAMW, DEVICES, MUON, distance, learn, same, tiny, train

import clearhead as ch
from clearhead.config.training import Adam, AdamW, Muon
from clearhead.model.transformer import build_transformer
from clearhead.train.optim import Optimizer, is_block_matrix, orthogonalize


# ---------------------------------------------------------------- what moves how
def test_matrices_of_blocks_are_told_from_all_else():
    names = {
        n
        for p in ("tiny-encoder-decoder", "tiny-encoder", "whisper-tiny", "vit-tiny")
        for n in hidden(p)
    }
    ends = {name.split(".", maxsplit=3 if name.startswith("encoder") else 2)[-1] for name in names}
    parts = {f"{part}.{x}.weight" for part in ("attn", "cross") for x in ("q", "k", "v", "out")}
    assert ends == parts | {"ffn.up.weight", "ffn.down.weight"}


def hidden(preset):
    return {
        n
        for n, p in build_transformer(ch.presets[preset].model, None).named_parameters()
        if is_block_matrix(n, p)
    }


@pytest.mark.parametrize("device", DEVICES)
def test_adamw_equals_torchs_step_by_step(device):
    ours = tiny(device=device)
    theirs = tiny(device=device)
    optimizer = Optimizer(ours, ADAMW)
    blocks = [p for n, p in theirs.named_parameters() if n.startswith("blocks.") and p.dim() == 2]
    rest = [
        p for n, p in theirs.named_parameters() if not (n.startswith("blocks.") and p.dim() == 2)
    ]
    groups = [{"params": blocks, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    peer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    for step in range(5):
        learn(ours, step), learn(theirs, step)
        for group in peer.param_groups:
            group["lr"] = ADAMW.lr * (0.5 if step else 1.0)
        peer.step(), optimizer.step(0.5 if step else 1.0)
        peer.zero_grad(), optimizer.zero_grad()
        assert same(ours, theirs), step


@pytest.mark.parametrize(
    "option", [AdamW(lr=0.01, weight_decay=0.5), Muon(lr=0.01, weight_decay=0.5)]
)
def test_without_gradients_only_the_matrices_of_blocks_shrink(option):
    net = tiny()
    before = tiny()
    optimizer = Optimizer(net, option)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for (name, p), old in zip(net.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(p, old * (0.995 if is_block_matrix(name, p) else 1.0), msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(8, 8), (32, 8), (8, 32), (64, 48)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape, device):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    x = (
        u * (s + 0.1 * s.amax(-1, keepdim=True))[:, None] @ vh
    ).float()  # no direction is nearly lost
    after = orthogonalize(x).double()
    values = torch.linalg.svdvals(after)
    assert (values > 0.6).all()
    assert (values < 1.25).all()
    core = u.mT @ after @ vh.mT  # the directions are kept: only their lengths change
    off = core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < (1e-4 if device == "cpu" else 0.1)


def test_no_gradient_is_no_direction():
    assert not orthogonalize(torch.zeros(2, 4, 8)).any()


def test_stacking_changes_nothing():
    x = torch.randn(6, 48, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        orthogonalize(x), torch.cat([orthogonalize(m[None]) for m in x]), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama", "tiny-encoder-decoder"])
def test_muon_equals_the_same_written_for_one_matrix(preset):
    net = tiny(preset)
    peer = tiny(preset)
    optimizer = Optimizer(net, MUON)
    momenta = {}
    matrices = {n: p for n, p in peer.named_parameters() if is_block_matrix(n, p)}
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        gradients = {n: p.grad.clone() for n, p in net.named_parameters()}
        optimizer.step(0.5)
        for name, p in matrices.items():
            momenta[name] = 0.95 * momenta.get(name, 0) + 0.05 * gradients[name]
            x = 0.05 * gradients[name] + 0.95 * momenta[name]
            x = x / x.norm()
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
            far = 0.01 * max(1, p.shape[0] / p.shape[1]) ** 0.5
            p.data = p.data * (1 - 0.01 * MUON.weight_decay) - far * x
    for name, p in net.named_parameters():
        if name in matrices:
            torch.testing.assert_close(p, matrices[name], atol=2e-5, rtol=1e-4, msg=name)


def test_muon_leaves_the_rest_to_adam():
    net = tiny()
    peer = tiny()
    optimizer = Optimizer(net, MUON)
    adam = Optimizer(peer, AdamW(lr=3e-3, weight_decay=0.0))
    learn(net), learn(peer)
    optimizer.step(), adam.step()
    for (name, p), q in zip(net.named_parameters(), peer.parameters(), strict=True):
        assert torch.equal(p, q) is not is_block_matrix(name, p), name


# ---------------------------------------------------------------- precision
@pytest.mark.parametrize("option", [AdamW(lr=1e-4), Muon(lr=2e-4, adam=Adam(lr=1e-4))])
def test_masters_go_where_fp32_weights_go(option):
    start, exact, rounded = (tiny(dtype=torch.bfloat16) for _ in range(3))
    exact = exact.float()
    optimisers = {net: Optimizer(net, option) for net in (exact, rounded)}
    for step in range(30):
        for net, optimizer in optimisers.items():
            learn(net, step % 3)
            optimizer.step()
            optimizer.zero_grad()
    masters = optimisers[rounded].weights
    apart = sum((masters[n] - p).square().sum() for n, p in exact.named_parameters())
    assert apart < 0.02 * distance(
        start.float(), exact
    )  # what is left is the rounding of passes, not of steps


@pytest.mark.parametrize("option", [ADAMW, MUON])
def test_a_bf16_net_is_its_masters_rounded(option):
    net = tiny(dtype=torch.bfloat16)
    optimizer = Optimizer(net, option)
    train(net, optimizer, 2)
    for name, p in net.named_parameters():
        assert optimizer.weights[name].dtype == torch.float32
        assert torch.equal(p, optimizer.weights[name].bfloat16())


def test_an_fp32_net_has_no_masters():
    assert not any("master" in name for name in Optimizer(tiny(), ADAMW).state_dict())


# ---------------------------------------------------------------- gradients
@pytest.mark.parametrize("limit", [0.01, 100.0])
def test_clip_equals_torchs(limit):
    ours = tiny()
    theirs = tiny()
    learn(ours), learn(theirs)
    norm = Optimizer(ours, ADAMW).clip_grad_norm(limit)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_the_norm_of_bf16_gradients_is_taken_in_fp32():
    net = tiny(dtype=torch.bfloat16)
    learn(net)
    exact = torch.cat([p.grad.double().flatten() for p in net.parameters()]).norm()
    norm = Optimizer(net, ADAMW).clip_grad_norm(1e9)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(exact.item(), rel=1e-5)


def test_gradients_of_a_bf16_net_are_added_up_in_fp32():
    net = tiny(dtype=torch.bfloat16)
    optimizer = Optimizer(net, ADAMW)
    exact = dict.fromkeys(dict(net.named_parameters()), 0.0)
    for seed in range(8):
        learn(net, seed)
        exact = {name: exact[name] + p.grad.double() for name, p in net.named_parameters()}
        optimizer.accumulate_gradients()
    for name, gradient in optimizer.gradients().items():
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient.double(), exact[name], atol=1e-8, rtol=1e-5)
    optimizer.step()
    optimizer.zero_grad()
    assert not optimizer.accumulated


def test_gradients_of_an_fp32_net_are_left_where_they_are():
    net = tiny()
    optimizer = Optimizer(net, ADAMW)
    learn(net)
    optimizer.accumulate_gradients()
    assert all(
        g is p.grad for g, p in zip(optimizer.gradients().values(), net.parameters(), strict=True)
    )


def test_frozen_parameters_stay_and_a_missing_gradient_is_told():
    net = tiny()
    net.embed.requires_grad_(False)
    before = net.embed.tokens.weight.clone()
    optimizer = Optimizer(net, MUON)
    with pytest.raises(
        ch.ClearheadError, match=r"position\.table has no gradient; call backward first"
    ):
        optimizer.step()
    train(net, optimizer, 1)
    assert torch.equal(net.embed.tokens.weight, before)
    with pytest.raises(ch.ClearheadError, match="no parameter that may change"):
        Optimizer(net.requires_grad_(False), MUON)
