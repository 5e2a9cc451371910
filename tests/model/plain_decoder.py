"""A decoder in plain torch over the same weights, and a script that compares compiled graphs.

Run as a script, it asserts that a pass without hooks compiles to one graph with exactly the
operations of the plain decoder, in inference and in training.
"""

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

POSITIONS = ("none", "learned", "sinusoidal", "t5", "shaw", "alibi", "rotary")


class PlainDecoder(nn.Module):
    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net
        self.is_rotary = net.config.position.kind == "rotary"

    def forward(self, ids):
        net = self.net
        m = self.net.config
        position_ids = torch.arange(ids.shape[1])[None]
        x = net.embed.tokens(ids)
        if self.is_rotary:
            frequencies = 1.0 / m.position.theta ** (
                torch.arange(0, m.d_head, 2).float() / m.d_head
            )
            angle = (position_ids[..., None] * frequencies)[:, None]
            cos = angle.cos()
            sin = angle.sin()
        else:
            x = x + F.embedding(position_ids, net.position.table)
        for block in net.blocks:
            h = block.attn_norm(x)
            qkv = joint_linear(h, block.attn.q, block.attn.k, block.attn.v)
            q, k, v = (x.unflatten(-1, (-1, m.d_head)).transpose(1, 2) for x in qkv)
            if self.is_rotary:
                q = rotate(q, cos, sin)
                k = rotate(k, cos, sin)
            z = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=m.n_kv_heads != m.attention.n_heads
            )
            x = x + block.attn.out(z.transpose(1, 2).flatten(2))
            h = block.ffn_norm(x)
            if m.ffn.is_gated:
                gate, up = joint_linear(h, block.ffn.gate, block.ffn.up)
                x = x + block.ffn.down(block.ffn.activation(gate) * up)
            else:
                x = x + block.ffn.down(block.ffn.activation(block.ffn.up(h)))
        return net.final_norm(x)


def joint_linear(x, *layers):
    """One matrix product in training, as is usual; else one per layer."""
    if not torch.is_grad_enabled():
        return [layer(x) for layer in layers]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    joint = F.linear(x, torch.cat([layer.weight for layer in layers]), bias)
    return joint.split([len(layer.weight) for layer in layers], dim=-1)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a = x[..., :half]
    b = x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class ModelLoss(nn.Module):
    """Token ids and targets to the loss."""

    def __init__(self, model: nn.Module, net: Transformer) -> None:
        super().__init__()
        self.model = model
        self.net = net

    def forward(self, ids, targets):
        return self.net.loss(self.model(ids), targets)


class PlainLoss(ModelLoss):
    def forward(self, ids, targets):
        logits = F.linear(self.model(ids), self.net.head.unembed.weight).flatten(0, -2).float()
        targets = targets.flatten()
        total = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        return total, (targets != -100).sum()


class ModelLogits(nn.Module):
    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net.compute_logits(self.net(ids))


class GraphRecorder:
    """A compiler backend that counts the operations of each graph."""

    def __init__(self) -> None:
        self.graphs: list[Counter[str]] = []

    def __call__(self, graph, inputs):
        operations = (str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        self.graphs.append(Counter(operations))
        return make_boxed_func(graph.forward)


def trace_forward(model: nn.Module, *args, **kwargs) -> tuple[torch.Tensor, list[Counter[str]]]:
    """The output, and the operations of each graph it compiles to."""
    recorder = GraphRecorder()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=recorder))
    with torch.no_grad():
        return compiled(*args, **kwargs), recorder.graphs


def trace_training(model: nn.Module, *args) -> tuple[list[torch.Tensor], list[Counter[str]]]:
    """The gradients, and the operations of the forward and of the backward graph."""
    recorder = GraphRecorder()
    torch.compiler.reset()
    model.zero_grad()
    backend = aot_autograd(fw_compiler=recorder, bw_compiler=recorder)
    loss, _ = torch.compile(model, backend=backend)(*args)
    loss.backward()
    return [p.grad.clone() for p in model.parameters()], recorder.graphs


def check_same_operations_as_plain_decoder(name: str, ids: torch.Tensor) -> None:
    net = build_transformer(ch.presets[name].model).eval()
    plain = PlainDecoder(net)
    output, graphs = trace_forward(net, ids)
    plain_output, plain_graphs = trace_forward(plain, ids)
    assert torch.equal(output, plain_output), name
    assert len(graphs) == 1, f"{name}: {len(graphs)} graphs"
    assert graphs == plain_graphs, (
        f"{name}: extra operations {graphs[0] - plain_graphs[0]}, "
        f"missing operations {plain_graphs[0] - graphs[0]}"
    )
    gradients, graphs = trace_training(ModelLoss(net, net), ids, ids)
    plain_gradients, plain_graphs = trace_training(PlainLoss(plain, net), ids, ids)
    assert len(graphs) == 2, f"{name}: {len(graphs)} graphs to train"
    assert graphs == plain_graphs, f"{name}: different operations in training"
    assert all(torch.equal(a, b) for a, b in zip(gradients, plain_gradients, strict=True)), name


def shallow(name: str, position: str) -> ModelConfig:
    """One layer per stack, to compile faster; two if layers share a bias."""
    n_layers = 2 if position in ("t5", "alibi") else 1
    changes = {"position": position, "n_layers": n_layers}
    if name == "tiny-encoder-decoder":
        changes["architecture__encoder_layers"] = n_layers
    return ch.presets[name].replace(**changes).model


def check_every_position_compiles_to_one_graph(ids: torch.Tensor) -> None:
    for position in POSITIONS:
        for name in ("tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"):
            net = build_transformer(shallow(name, position)).eval()
            inputs = {"source": ids} if net.encoder is not None else {}
            compiled, graphs = trace_forward(net, ids, **inputs)
            assert len(graphs) == 1, f"{name} with {position}: {len(graphs)} graphs"
            assert torch.allclose(compiled, net(ids, **inputs), atol=1e-5)


def check_unaligned_vocabulary_compiles_to_one_graph(ids: torch.Tensor) -> None:
    net = build_transformer(ch.presets["tiny-decoder"].replace(vocab_size=61).model).eval()
    _, graphs = trace_forward(ModelLogits(net), ids % 61)
    assert len(graphs) == 1, "an unaligned vocabulary breaks the graph"


def check_blocks_share_one_graph(ids: torch.Tensor) -> None:
    for position in ("learned", "rotary", "shaw"):
        config = ch.presets["tiny-decoder"].replace(n_layers=4, position=position)
        net = build_transformer(config.model).eval()
        torch.compiler.reset()
        counters.clear()
        for block in net.blocks:
            block.compile(backend="eager", fullgraph=True)
        net(ids)
        assert counters["stats"]["unique_graphs"] == 1, f"{position}: blocks do not share a graph"


def check_compiled_network_can_be_watched(ids: torch.Tensor) -> None:
    model = ch.new("tiny-decoder")
    model.net.compile(backend="eager", fullgraph=True)
    cache = model.watch(ids, ["blocks.0.attn.pattern"])
    assert cache["blocks.0.attn.pattern"].shape == (2, 4, 9, 9)


def main() -> None:
    ids = torch.randint(0, 64, (2, 9))
    for name in ("tiny-decoder", "tiny-llama"):
        check_same_operations_as_plain_decoder(name, ids)
    check_unaligned_vocabulary_compiles_to_one_graph(ids)
    check_every_position_compiles_to_one_graph(ids)
    check_blocks_share_one_graph(ids)
    check_compiled_network_can_be_watched(ids)
    print("one graph")


if __name__ == "__main__":
    sys.exit(main())
