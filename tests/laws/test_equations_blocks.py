"""Blocks, logits and loss (L4, L5) equal the equations, computed by plain loops."""

import math

import numpy as np
import pytest
import torch
from reference import (
    FP32,
    attend,
    bidirectional,
    causal,
    close,
    each_token,
    feed_forward,
    linear,
    norm,
    parameters,
    random_ids,
    random_net,
    random_values,
    sinusoid,
    softmax,
    split_heads,
    watch,
)
from torch.nn import functional as F

from clearhead.model.layers import unembed

ACTIVATIONS = ["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]
SUBLAYERS = (
    ("resid_pre", "attn", "resid_mid"),
    ("resid_mid", "cross_attn", "resid_cross"),
    ("resid_cross", "ffn", "resid_post"),
)
ENCODER_SUBLAYERS = (("resid_pre", "attn", "resid_mid"), ("resid_mid", "ffn", "resid_post"))


def blocks():
    for i in range(2):
        yield f"blocks.{i}", SUBLAYERS
        yield f"encoder.blocks.{i}", ENCODER_SUBLAYERS


# --- L4.1, L4.4
def test_residual_stream_passes_from_block_to_block():
    v = watch(random_net("tiny-encoder-decoder"), random_ids(2, 5), source=random_ids(2, 7, seed=1))
    for root in ("", "encoder."):
        close(v[f"{root}blocks.0.resid_pre"], v[f"{root}full_embed"], 0)
        close(v[f"{root}blocks.1.resid_pre"], v[f"{root}blocks.0.resid_post"], 0)


def test_pre_norm_sublayers_read_the_normed_stream_and_add_to_it():
    net = random_net("tiny-encoder-decoder", norm_position="pre")
    P = parameters(net)
    v = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))

    def normed(name, x):
        return each_token(norm(P, name, net.config.norm), x)

    for block, sublayers in blocks():
        for before, name, after in sublayers:
            path = f"{block}.{name}"
            close(v[f"{path}.in"], normed(f"{path}_norm", v[f"{block}.{before}"]))
            close(v[f"{block}.{after}"] - v[f"{block}.{before}"], v[f"{path}.out"])
    for root in ("", "encoder."):
        expected = normed(f"{root}final_norm", v[f"{root}blocks.1.resid_post"])
        close(v[f"{root}final_norm"], expected)


def test_post_norm_sublayers_read_the_stream_and_the_sum_is_normed():
    net = random_net("tiny-encoder-decoder", norm_position="post")
    P = parameters(net)
    v = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))
    for block, sublayers in blocks():
        for before, name, after in sublayers:
            path = f"{block}.{name}"
            close(v[f"{path}.in"], v[f"{block}.{before}"], 0)
            f = norm(P, f"{path}_norm", net.config.norm)
            close(v[f"{block}.{after}"], each_token(f, v[f"{block}.{before}"] + v[f"{path}.out"]))
    for root in ("", "encoder."):
        close(v[f"{root}final_norm"], v[f"{root}blocks.1.resid_post"], 0)


# --- L4.2
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_is_two_linear_layers_with_an_activation_between(activation, bias):
    net = random_net(**{"ffn.activation": activation, "ffn.d_ff": 24, "ffn.bias": bias})
    P = parameters(net)
    v = watch(net, random_ids(2, 4))
    assert ("blocks.0.ffn.down.bias" in P) == bias
    for i in range(2):
        path = f"blocks.{i}.ffn"
        x = v[f"{path}.in"]
        for name in ("up", "gate") if net.config.ffn.is_gated else ("up",):
            close(v[f"{path}.{name}"], each_token(linear(P, f"{path}.{name}"), x))
        close(v[f"{path}.out"], each_token(feed_forward(P, path, activation), x))


def test_only_attention_moves_information_between_tokens():
    net = random_net(position="none", **{"attention.bias": []})
    ids = random_ids(1, 5)
    with torch.no_grad():
        for block in net.blocks:
            block.attn.out.weight.zero_()
    one = watch(net, ids)["final_norm"]
    other = watch(net, ids.flip(1))["final_norm"]
    close(one, other[:, ::-1])


# --- L4.3
@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize(
    "config", [{"kind": "layernorm"}, {"kind": "layernorm", "bias": False}, {"kind": "rmsnorm"}]
)
def test_norms_act_on_one_vector(config, eps):
    net = random_net(norm={**config, "eps": eps})
    P = parameters(net)
    v = watch(net, random_ids(2, 5))
    assert ("final_norm.bias" in P) == (config == {"kind": "layernorm"})
    for parameter, before, after in (
        ("blocks.0.attn_norm", "blocks.0.resid_pre", "blocks.0.attn.in"),
        ("blocks.1.ffn_norm", "blocks.1.resid_mid", "blocks.1.ffn.in"),
        ("final_norm", "blocks.1.resid_post", "final_norm"),
    ):
        close(v[after], each_token(norm(P, parameter, net.config.norm), v[before]))


# --- L5.1
@pytest.mark.parametrize("vocab_size", [64, 61])  # a multiple of 16, and not
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_logits_are_dot_products_with_the_unembedding(vocab_size, is_tied, has_bias, is_scaled):
    net = random_net(
        vocab_size=vocab_size,
        **{"head.tie_embeddings": is_tied, "head.bias": has_bias, "head.scale_logits": is_scaled},
    )
    P = parameters(net)
    v = watch(net, random_ids(2, 5, vocab_size=vocab_size))
    W = P["embed.tokens.weight" if is_tied else "head.unembed.weight"]
    assert is_tied == np.array_equal(P["embed.tokens.weight"], P["head.unembed.weight"])
    scale = 1 / math.sqrt(32) if is_scaled else 1.0
    bias = P["head.bias"] if has_bias else np.zeros(vocab_size)
    for b, i in np.ndindex(2, 5):
        h = v["final_norm"][b, i] * scale
        close(v["logits"][b, i], [sum(h * W[token]) + bias[token] for token in range(vocab_size)])


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 61])
@pytest.mark.parametrize("has_bias", [True, False])
def test_padded_unembedding_has_the_value_and_gradient_of_a_linear_layer(vocab_size, has_bias):
    bias = random_values(vocab_size, seed=2) if has_bias else None
    inputs = [random_values(2, 3, 8), random_values(vocab_size, 8, seed=1), bias]
    weights = random_values(2, 3, vocab_size, seed=3)
    results = []

    def unembed_with(hidden, weight, bias):
        table = torch.nn.Embedding(*weight.shape, device="meta")
        table._parameters["weight"] = weight
        return unembed(hidden, table, bias)

    for f in (unembed_with, F.linear):
        leaves = [x if x is None else x.clone().requires_grad_() for x in inputs]
        logits = f(*leaves)
        (logits.square() * weights).sum().backward()
        results.append([logits.detach(), *(x.grad for x in leaves if x is not None)])
    for actual, expected in zip(*results, strict=True):
        close(actual, expected, 1e-12)


# --- L5.3
def loss_by_loop(logits, targets):
    """Σ −log p(target) over the positions with a target, and their number."""
    positions = [(b, i) for b, i in np.ndindex(targets.shape) if targets[b, i] != -100]
    losses = [-math.log(softmax(list(logits[b, i]))[targets[b, i]]) for b, i in positions]
    return sum(losses), len(losses)


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"])
@pytest.mark.parametrize("vocab_size", [64, 61])
def test_loss_is_minus_log_p_summed_over_targets(preset, vocab_size):
    net = random_net(preset, vocab_size=vocab_size)
    ids = random_ids(2, 6, vocab_size=vocab_size)
    targets = random_ids(2, 6, seed=1, vocab_size=vocab_size)
    targets[0, 1] = targets[1, 3:] = -100
    inputs = {}
    if preset == "tiny-encoder-decoder":
        inputs["source"] = random_ids(2, 4, vocab_size=vocab_size)
    with torch.no_grad():
        total, count = net.loss(net(ids, **inputs), targets)
    expected_total, expected_count = loss_by_loop(
        watch(net, ids, **inputs)["logits"], targets.numpy()
    )
    assert count == expected_count == 8
    close(total, expected_total, FP32)


def test_batch_without_targets_has_loss_zero_and_count_zero():
    net = random_net()
    ids = random_ids(2, 6)
    total, count = net.loss(net(ids), torch.full_like(ids, -100))
    total.backward()
    assert (total, count) == (0, 0)
    assert all((p.grad == 0).all() for p in net.parameters())


# --- L6.1, L6.2: from ids to logits
def run_stack(P, m, root, x, allowed, layers, encoder_output=None):
    """The blocks of one stack as equations."""

    def attention(path, h, key_stream, allowed):
        q, k, v = (
            split_heads(each_token(linear(P, f"{path}.{name}"), x), m.attention.n_heads)
            for name, x in (("q", h), ("k", key_stream), ("v", key_stream))
        )
        z = attend(q, k, v, allowed)["z"]
        concatenated = z.transpose(0, 2, 1, 3).reshape(*h.shape[:2], -1)
        return each_token(linear(P, f"{path}.out"), concatenated)

    def residual(path, sublayer, x):
        f = norm(P, f"{path}_norm", m.norm)
        if m.norm_position == "pre":
            return x + sublayer(path, each_token(f, x))
        return each_token(f, x + sublayer(path, x))

    for i in range(layers):
        block = f"{root}blocks.{i}"
        x = residual(f"{block}.attn", lambda path, h: attention(path, h, h, allowed), x)
        if encoder_output is not None:
            x = residual(
                f"{block}.cross_attn",
                lambda path, h: attention(path, h, encoder_output, bidirectional),
                x,
            )
        x = residual(
            f"{block}.ffn",
            lambda path, h: each_token(feed_forward(P, path, m.ffn.activation), h),
            x,
        )
    return each_token(norm(P, f"{root}final_norm", m.norm), x) if m.norm_position == "pre" else x


@torch.no_grad()
def test_decoder_from_ids_to_logits():
    net = random_net()
    ids = random_ids(2, 5)
    P = parameters(net)
    E = P["embed.tokens.weight"]
    E_pos = P["position.table"]
    x = np.array([[E[w] + E_pos[n] for n, w in enumerate(row)] for row in ids.tolist()])
    h = run_stack(P, net.config, "", x, causal, net.config.n_layers)
    close(net.compute_logits(net(ids)), h @ E.T)


@torch.no_grad()
def test_encoder_decoder_from_ids_to_logits():
    net = random_net("tiny-encoder-decoder")
    ids = random_ids(2, 5)
    source = random_ids(2, 7, seed=1)
    P = parameters(net)
    m = net.config
    E = P["embed.tokens.weight"]  # one matrix in three places

    def embed(ids):
        return np.array(
            [
                [E[w] * math.sqrt(32) + sinusoid(n, 32) for n, w in enumerate(row)]
                for row in ids.tolist()
            ]
        )

    encoder_layers = m.architecture.encoder_layers
    encoder_output = run_stack(P, m, "encoder.", embed(source), bidirectional, encoder_layers)
    close(net.encode(source), encoder_output, FP32)
    h = run_stack(P, m, "", embed(ids), causal, m.n_layers, encoder_output)
    close(net.compute_logits(net(ids, source=source)), h @ E.T, FP32)
