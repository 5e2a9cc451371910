"""Circuits: the factored matrices give what the full ones would."""

import re

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.lens import circuits
from clearhead.lens.circuits import head_matrices

BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}


def make_model(preset="tiny-decoder", **changes):
    model = ch.new(preset, seed=3, **BYTES, **changes)
    generator = torch.Generator().manual_seed(5)
    for module in model.net.modules():  # so that norms are not trivial
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.weight.data += 0.3 * torch.randn(module.weight.shape, generator=generator)
    model.net.requires_grad_(False)
    return model


def center(x, norm):
    return x - x.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x


def full_matrix(model, layer, head, kind):
    """The circuit by its equation, vocab_size × vocab_size."""
    net = model.net
    m = model.config.model
    block = net.blocks[layer]
    group_size = m.attention.n_heads // m.n_kv_heads
    rows = slice(head * m.d_head, (head + 1) * m.d_head)
    kv_head = head // group_size
    kv_rows = slice(kv_head * m.d_head, (kv_head + 1) * m.d_head)
    read = center(net.embed.tokens.weight, block.attn_norm) * block.attn_norm.weight
    if kind == "QK":
        queries = read @ block.attn.q.weight[rows].T
        keys = read @ block.attn.k.weight[kv_rows].T
        return queries @ keys.T / m.d_head**0.5
    written = read @ block.attn.v.weight[kv_rows].T @ block.attn.out.weight[:, rows].T
    normed = center(written, net.final_norm) * net.final_norm.weight
    return normed @ net.head.unembed.weight.T


@pytest.mark.parametrize("kind", ["OV", "QK"])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])
def test_rows_columns_and_pairs_are_those_of_the_full_matrix(preset, kind, monkeypatch):
    monkeypatch.setattr(circuits, "MAX_BLOCK_ENTRIES", 7 * 256)  # several blocks
    changes = {"attention__qk_norm": False} if preset == "tiny-llama" else {}
    model = make_model(preset, **changes)
    circuit = ch.lens.circuit(model, 1, 3, kind)
    matrix = full_matrix(model, 1, 3, kind)
    to_str_tokens = model.tokenizer.to_str_tokens
    for view, expected in (
        (circuit.row("a", 5), matrix[97]),
        (circuit.column(98, 5), matrix[:, 98]),
    ):
        best = expected.topk(5)
        assert torch.allclose(view.values, best.values, atol=1e-5)
        assert list(view.axes[0].labels) == to_str_tokens(best.indices.tolist())
    best = matrix.flatten().topk(9)
    pairs = circuit.top_pairs(9)
    assert torch.allclose(pairs.values, best.values, atol=1e-5)
    row, column = divmod(int(best.indices[0]), 256)
    assert pairs.axes[0].labels[0] == " → ".join(to_str_tokens([row, column]))


def test_eigenvalues_are_those_of_the_full_matrix():
    circuit = ch.lens.circuit(make_model(), 0, 1)
    matrix = full_matrix(make_model(), 0, 1, "OV")
    eigenvalues = torch.linalg.eigvals(matrix.double())
    order = eigenvalues.abs().argsort(descending=True)
    expected = eigenvalues[order][: len(circuit.eigenvalues)]
    magnitudes = circuit.eigenvalues.abs()
    assert torch.allclose(magnitudes, expected.abs().float(), atol=1e-3, rtol=1e-3)
    copying_score = float(matrix.trace() / expected.abs().sum())
    assert circuit.copying_score == pytest.approx(copying_score, abs=1e-3)
    assert torch.equal(circuit.spectrum().values[:, 0], circuit.eigenvalues.real)


def test_copying_score_of_a_copying_head_is_1():
    model = make_model()
    attention = model.net.blocks[0].attn
    attention.v.weight[:8] = torch.eye(32)[:8]
    attention.out.weight[:, :8] = torch.eye(32)[:, :8]
    model.net.blocks[0].attn_norm.weight.fill_(1)
    model.net.final_norm.weight.fill_(1)
    assert ch.lens.circuit(model, 0, 0).copying_score > 0.99


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])
def test_composition_is_the_norm_of_the_product(preset, kind):
    model = make_model(preset)
    earlier, later = (head_matrices(model.net, i) for i in (0, 1))
    composition = ch.lens.composition(model, kind).values
    n_heads = model.config.model.attention.n_heads
    for i in range(n_heads):
        for j in range(n_heads):
            written = earlier.o[i] @ earlier.v[i]
            read = {
                "Q": later.k[j].T @ later.q[j],
                "K": later.q[j].T @ later.k[j],
                "V": later.o[j] @ later.v[j],
            }[kind]
            expected = (read @ written).norm() / (read.norm() * written.norm())
            score = float(composition[i, n_heads + j])
            assert score == pytest.approx(float(expected), rel=1e-4)
    assert not composition[n_heads:].any()
    assert not composition[:n_heads, :n_heads].any()


def test_a_classifier_has_qk_circuits_of_tokens():
    model = make_model("tiny-encoder", head="classification")
    by_text = ch.lens.circuit(model, 0, 0, "QK").row("a").values
    by_id = ch.lens.circuit(model, 0, 0, "QK").row(ord("a")).values
    assert torch.equal(by_text, by_id)


def test_embedding_norm_is_folded_in():
    model = make_model("tiny-encoder")
    embed = model.net.embed
    attention = model.net.blocks[0].attn
    table = embed.tokens.weight
    read = (table - table.mean(dim=-1, keepdim=True)) * embed.norm.weight
    q, k = (read @ matrix.weight[8:16].T for matrix in (attention.q, attention.k))
    best = (q[5] @ k.T / 8**0.5).topk(10).values
    torch.testing.assert_close(ch.lens.circuit(model, 0, 1, "QK").row(5).values, best)


def test_repr_is_one_line():
    circuit = ch.lens.circuit(make_model(), 0, 1)
    assert repr(circuit) == "<OV circuit of layer 0, head 1: logit, 256 × 256 tokens>"


def test_negative_layers_and_heads_count_from_the_end():
    model = make_model()
    assert ch.lens.circuit(model, -1, -1).location == "layer 1, head 3"
    cache = model.watch("abc", "blocks.1.attn.pattern")
    assert ch.lens.cached_attention(cache, layer=-1)
    steps = ch.lens.softmax_steps(model, "abc", layer=-1, head=-1)
    assert steps.title.startswith("layer 1, head 3")
    last, second = (ch.vectors(model, layer).similarity(["a", "b"]) for layer in (-1, 1))
    assert last.values.equal(second.values)


ERRORS = [
    (lambda m: ch.lens.circuit(m, 2, 0), "there is no layer 2"),
    (lambda m: ch.lens.circuit(m, 0, 4), "there is no head 4"),
    (lambda m: ch.lens.circuit(m, 0, 0, "VO"), "there is no circuit 'VO'; known: OV, QK."),
    (lambda m: ch.lens.circuit(m, 0, 0).row("word"), "'word' is 4 tokens"),
    (lambda m: ch.lens.circuit(m, 0, 0).row(256), "got 256"),
    (lambda m: ch.lens.circuit(m, 0, 0).top_pairs(0), "top_k must be a positive integer"),
    (lambda m: ch.lens.circuit(ch.new("tiny-images"), 0, 0), "reads text"),
    (
        lambda m: ch.lens.circuit(ch.new("tiny-encoder", head="classification"), 0, 0),
        "language-model head",
    ),
    (lambda m: ch.lens.composition(m, "X"), "no 'X'-composition; known: Q, K, V."),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
