"""A decoder without anything to see: plain torch over the same weights, and the operations each traces to."""

import sys
from collections import Counter

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional as F

import clearhead as ch
from clearhead.config.model import ModelConfig
from clearhead.model.transformer import Transformer, build_transformer


class Bare(nn.Module):
    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net
        self.rotary = net.config.position.kind == "rotary"

    def forward(self, ids):
        net = self.net
        m = self.net.config
        at = torch.arange(ids.shape[1])[None]
        x = net.embed.tokens(ids)
        if self.rotary:
            rates = 1.0 / m.position.theta ** (torch.arange(0, m.d_head, 2).float() / m.d_head)
            angle = (at[..., None] * rates)[:, None]
            cos = angle.cos()
            sin = angle.sin()
        else:
            x = x + F.embedding(at, net.position.table)
        for block in net.blocks:
            h = block.attn_norm(x)
            made = side_by_side(h, block.attn.q, block.attn.k, block.attn.v)
            q, k, v = (x.unflatten(-1, (-1, m.d_head)).transpose(1, 2) for x in made)
            if self.rotary:
                q = turn(q, cos, sin)
                k = turn(k, cos, sin)
            z = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=m.n_kv_heads != m.attention.n_heads
            )
            x = x + block.attn.out(z.transpose(1, 2).flatten(2))
            h = block.ffn_norm(x)
            if m.ffn.is_gated:
                up, gate = side_by_side(h, block.ffn.up, block.ffn.gate)
                x = x + block.ffn.down(block.ffn.activation(up) * gate)
            else:
                x = x + block.ffn.down(block.ffn.activation(block.ffn.up(h)))
        return net.final_norm(x)


def side_by_side(x, *layers):
    """One product in training, as plain models have it; else one for each."""
    if not torch.is_grad_enabled():
        return [layer(x) for layer in layers]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    joined = F.linear(x, torch.cat([layer.weight for layer in layers]), bias)
    return joined.split([len(layer.weight) for layer in layers], dim=-1)


def turn(x, cos, sin):
    half = x.shape[-1] // 2
    a = x[..., :half]
    b = x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def traced(model: nn.Module, *args, **kwargs) -> tuple[torch.Tensor, list[Counter]]:
    """The result, and the operations of each graph the compiler made of it."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function"))
        return graph.forward

    torch.compiler.reset()
    with torch.no_grad():
        return torch.compile(model, backend=aot_autograd(fw_compiler=keep))(*args, **kwargs), graphs


class Learns(nn.Module):
    """Hidden states to the loss, as each would be trained."""

    def __init__(self, model: nn.Module, net: Transformer, ours: bool) -> None:
        super().__init__()
        self.model = model
        self.net = net
        self.ours = ours

    def forward(self, ids, targets):
        hidden = self.model(ids)
        if self.ours:
            return self.net.loss(hidden, targets)
        logits = F.linear(hidden, self.net.head.unembed.weight).flatten(0, -2).float()
        return F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum"), (
            targets != -100
        ).sum()


class Predicts(nn.Module):
    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net.compute_logits(self.net(ids))


def trained(model: nn.Module, *args) -> tuple[list[torch.Tensor], list[Counter]]:
    """The gradients, and the operations of the forward and of the backward graph."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function"))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    model.zero_grad()
    torch.compile(model, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))(*args)[
        0
    ].backward()
    return [p.grad.clone() for p in model.parameters()], graphs


def shallow(name: str, position: str) -> ModelConfig:
    """One layer on each side, as there are many to trace; two where layers share a bias."""
    layers = 2 if position in ("relative", "alibi") else 1
    below = {"architecture__encoder_layers": layers} if name == "tiny-encoder-decoder" else {}
    return ch.presets[name].replace(position=position, n_layers=layers, **below).model


def main() -> None:
    ids = torch.randint(0, 64, (2, 9))
    for name in ("tiny-decoder", "tiny-llama"):
        net = build_transformer(ch.presets[name].model).eval()
        ours, our_graphs = traced(net, ids)
        bare, bare_graphs = traced(Bare(net), ids)
        assert torch.equal(ours, bare), name
        assert len(our_graphs) == 1, f"{name}: {len(our_graphs)} graphs"
        assert our_graphs == bare_graphs, (
            f"{name}: {our_graphs[0] - bare_graphs[0]} more, {bare_graphs[0] - our_graphs[0]} less"
        )
        gradients, our_graphs = trained(Learns(net, net, ours=True), ids, ids)
        bare_gradients, bare_graphs = trained(Learns(Bare(net), net, ours=False), ids, ids)
        assert len(our_graphs) == 2, f"{name}: {len(our_graphs)} graphs to train"
        assert our_graphs == bare_graphs, f"{name}: other operations in training"
        assert all(torch.equal(a, b) for a, b in zip(gradients, bare_gradients, strict=True)), name
    odd = build_transformer(ch.presets["tiny-decoder"].replace(vocab_size=61).model).eval()
    _, graphs = traced(Predicts(odd), ids % 61)
    assert len(graphs) == 1, "an odd vocabulary breaks the graph"
    for position in ("none", "learned", "sinusoidal", "relative", "shaw", "alibi", "rotary"):
        for name in ("tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"):
            net = build_transformer(shallow(name, position)).eval()
            more = {"source": ids} if net.encoder is not None else {}
            compiled, graphs = traced(net, ids, **more)
            assert len(graphs) == 1, f"{name} with {position}: {len(graphs)} graphs"
            assert torch.allclose(compiled, net(ids, **more), atol=1e-5)
    for position in ("learned", "rotary", "shaw"):
        net = build_transformer(
            ch.presets["tiny-decoder"].replace(n_layers=4, position=position).model
        ).eval()
        torch.compiler.reset()
        counters.clear()
        for block in net.blocks:
            block.compile(backend="eager", fullgraph=True)
        net(ids)
        assert counters["stats"]["unique_graphs"] == 1, f"{position}: blocks do not share a graph"
    model = ch.new("tiny-decoder")
    model.net.compile(backend="eager", fullgraph=True)
    watch = model.watch(
        ids, ["blocks.0.attn.pattern"]
    )  # over a compiled network, without compiling again
    assert watch["blocks.0.attn.pattern"].shape == (2, 4, 9, 9)
    print("one graph")


if __name__ == "__main__":
    sys.exit(main())
