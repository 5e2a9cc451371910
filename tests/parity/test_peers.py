"""The peers of the benchmarks compute the same function: equal weights give equal logits."""

import pytest
import torch

import clearhead as ch
from clearhead.model.transformer import build_transformer
from peers import HuggingFace, Ours, TorchEncoder


def random_net(activation):
    config = ch.presets["gpt2-124m"].replace(
        vocab_size=61,
        context_length=16,
        d_model=24,
        n_layers=3,
        attention__n_heads=3,
        ffn__activation=activation,
    )
    net = build_transformer(config.model, seed=2).eval()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    return net


@pytest.mark.parametrize(
    ("peer", "activation"),
    [(HuggingFace, "gelu-tanh"), (HuggingFace, "gelu"), (TorchEncoder, "gelu")],
)
def test_peers_of_the_benchmarks_have_equal_logits_and_gradients(peer, activation):
    if peer is HuggingFace:
        pytest.importorskip("transformers")
    ours = Ours(random_net(activation))
    theirs = peer(random_net(activation)).eval()
    ids = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours(ids), theirs(ids), atol=1e-5)
    losses = [model(ids, ids.roll(-1, 1)) for model in (ours, theirs)]
    assert torch.allclose(*losses, atol=1e-6)
    for loss in losses:
        loss.backward()
    table = theirs.tokens if peer is TorchEncoder else theirs.model.transformer.wte
    assert torch.allclose(ours.net.embed.tokens.weight.grad, table.weight.grad, atol=1e-5)
