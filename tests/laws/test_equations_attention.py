"""Attention (L3) equals the equations, computed by plain loops."""

import math

import numpy as np
import pytest
import torch
from reference import (
    IMPLEMENTATIONS,
    attend,
    bidirectional,
    causal,
    check_attention,
    close,
    each_token,
    linear,
    norm,
    parameters,
    random_ids,
    random_net,
    random_values,
    softmax,
    split_heads,
    watch,
)

from clearhead.hooks import Recorder
from clearhead.model import attention


# --- L3.2, L3.3
def test_attention_with_identity_matrices():
    net = random_net(
        position="none", **{"attention.n_heads": 1, "attention.bias": [], "attention.scale": False}
    )
    attn = net.blocks[0].attn
    with torch.no_grad():
        for layer in (attn.q, attn.k, attn.v, attn.out):
            layer.weight.copy_(torch.eye(32))
    values = watch(net, random_ids(2, 6))
    x = values["blocks.0.attn.in"]
    for b, i in np.ndindex(2, 6):
        a = softmax([sum(x[b, i] * x[b, j]) for j in range(i + 1)])
        close(values["blocks.0.attn.pattern"][b, 0, i, : i + 1], a)
        close(values["blocks.0.attn.out"][b, i], sum(a[j] * x[b, j] for j in range(i + 1)))


def test_one_head_equals_its_equation():
    net = random_net(position="none", **{"attention.n_heads": 1, "attention.bias": []})
    P = parameters(net)
    values = watch(net, random_ids(2, 6))
    x = values["blocks.0.attn.in"]
    W_Q, W_K, W_V, W_O = (P[f"blocks.0.attn.{name}.weight"].T for name in ("q", "k", "v", "out"))
    for b, i in np.ndindex(2, 6):
        scores = [sum((x[b, i] @ W_Q) * (x[b, j] @ W_K)) / math.sqrt(32) for j in range(i + 1)]
        a = softmax(scores)
        close(values["blocks.0.attn.scores"][b, 0, i, : i + 1], scores)
        close(
            values["blocks.0.attn.out"][b, i],
            sum(a[j] * (x[b, j] @ W_V) for j in range(i + 1)) @ W_O,
        )


# --- L3.4
def softmax_rows(grid):
    return np.array([softmax(list(row)) for row in grid])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_row_form_equals_column_form(implementation):
    net = random_net(**{"attention.bias": []})
    P = parameters(net)
    values = watch(net, random_ids(2, 6), implementation)
    M = np.array([[0.0 if j <= i else -math.inf for j in range(6)] for i in range(6)])
    for b, h in np.ndindex(2, 4):
        X = values["blocks.0.attn.in"][b]
        W_Q, W_K, W_V = (
            P[f"blocks.0.attn.{name}.weight"].T[:, 8 * h : 8 * h + 8] for name in ("q", "k", "v")
        )
        Q = X @ W_Q
        K = X @ W_K
        V = X @ W_V
        Z = softmax_rows(Q @ K.T / math.sqrt(8) + M) @ V
        close(values["blocks.0.attn.z"][b, h], Z)
        # Now columns are tokens, also those of the pattern.
        Q = W_Q.T @ X.T
        K = W_K.T @ X.T
        V = W_V.T @ X.T
        close(values["blocks.0.attn.z"][b, h].T, V @ softmax_rows(Q.T @ K / math.sqrt(8) + M).T)


# --- L3.5
def test_causal_mask_gives_exact_zeros():
    net = random_net()
    future = np.triu(np.ones((6, 6), dtype=bool), 1)
    edits = {"blocks.1.attn.scores": lambda s, _: s + torch.tensor(future) * 1e6}
    hooks = Recorder(["**"], edits=edits)
    net(random_ids(2, 6), hooks=hooks)
    for layer in range(2):
        scores, masked_scores, pattern = (
            hooks.values[f"blocks.{layer}.attn.{name}"].detach().numpy()
            for name in ("scores", "masked_scores", "pattern")
        )
        assert (masked_scores[..., future] == -math.inf).all()
        assert (masked_scores[..., ~future] == scores[..., ~future]).all()
        assert (pattern[..., future] == 0).all()  # however high the score is
        assert (pattern[..., ~future] > 0).all()
        close(pattern.sum(-1), np.ones((2, 4, 6)))


def test_encoder_attention_is_not_masked():
    values = watch(random_net("tiny-encoder"), random_ids(2, 6))
    check_attention(values, "blocks.0.attn", bidirectional)
    assert (values["blocks.0.attn.pattern"] > 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_later_tokens_do_not_change_earlier_ones(implementation):
    net = random_net()
    ids = random_ids(2, 6)
    other = ids.clone()
    other[:, 4:] = (ids[:, 4:] + 1) % 64
    one, two = (watch(net, x, implementation)["final_norm"] for x in (ids, other))
    close(one[:, :4], two[:, :4], 1e-12)
    assert np.abs(one[:, 4:] - two[:, 4:]).max() > 1e-3


# --- L3.7
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bias", [("q", "k", "v", "out"), ("q", "v", "out"), ("k",), ()])
@pytest.mark.parametrize(("n_kv_heads", "d_head"), [(0, 0), (0, 6), (4, 0), (2, 0), (1, 6)])
def test_heads_are_concatenated_and_multiplied_by_w_o(n_kv_heads, d_head, bias, implementation):
    heads = {"attention.n_kv_heads": n_kv_heads, "attention.d_head": d_head}
    net = random_net(**heads, **{"attention.bias": bias})
    P = parameters(net)
    values = watch(net, random_ids(2, 6), implementation)
    n_kv_heads = n_kv_heads or 4
    with_bias = {name for name in ("q", "k", "v", "out") if f"blocks.0.attn.{name}.bias" in P}
    assert with_bias == set(bias)
    for layer in range(2):
        path = f"blocks.{layer}.attn"
        x = values[f"{path}.in"]
        q, k, v = (each_token(linear(P, f"{path}.{name}"), x) for name in ("q", "k", "v"))
        q = split_heads(q, 4)
        k = split_heads(k, n_kv_heads)
        v = split_heads(v, n_kv_heads)
        close(values[f"{path}.q"], q)
        close(values[f"{path}.k"], k)
        close(values[f"{path}.v"], v)
        z = attend(q, k, v, causal)["z"]
        close(values[f"{path}.z"], z)
        concatenated = np.array([[np.concatenate(z[b, :, i]) for i in range(6)] for b in range(2)])
        close(values[f"{path}.out"], each_token(linear(P, f"{path}.out"), concatenated))


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_qk_norm_normalizes_each_head_of_q_and_k_but_not_v(kind, implementation):
    net = random_net(
        "tiny-llama", **{"attention.qk_norm": True, "norm": {"kind": kind, "eps": 0.3}}
    )
    P = parameters(net)
    values = watch(net, random_ids(2, 6), implementation)
    path = "blocks.1.attn"
    for name, heads in (("q", 4), ("k", 2)):
        raw = split_heads(each_token(linear(P, f"{path}.{name}"), values[f"{path}.in"]), heads)
        f = norm(P, f"{path}.{name}_norm", net.config.norm)
        close(
            values[f"{path}.{name}"],
            [[[f(token) for token in head] for head in row] for row in raw],
        )
    close(
        values[f"{path}.v"],
        split_heads(each_token(linear(P, f"{path}.v"), values[f"{path}.in"]), 2),
    )
    check_attention(values, path, causal)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_unscaled_scores_are_plain_dot_products(implementation):
    net = random_net(**{"attention.scale": False})
    check_attention(
        watch(net, random_ids(2, 6), implementation), "blocks.0.attn", causal, scale=1.0
    )


# --- sliding window, packing, padding
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [1, 3, 6, 7])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_sliding_window_includes_the_token_itself(preset, window, implementation):
    def near(b, i, j):
        return abs(i - j) < window and (j <= i or preset == "tiny-encoder")

    net = random_net(preset, **{"attention.sliding_window": window})
    check_attention(watch(net, random_ids(2, 7), implementation), "blocks.1.attn", near)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("position", ["learned", "alibi"])
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_attention_never_crosses_segments(preset, window, position, implementation):
    segment_ids = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 0, 0]])
    changes = {"attention.sliding_window": window, "attention.n_heads": 1}
    net = random_net(preset, position=position, **changes)
    values = watch(net, random_ids(2, 6), implementation, segment_ids=segment_ids)

    def is_same_segment(b, i, j):
        return segment_ids[b, i] == segment_ids[b, j]

    def allowed(b, i, j):
        is_near = not window or abs(i - j) < window
        return is_near and is_same_segment(b, i, j) and (j <= i or preset == "tiny-encoder")

    def bias(b, h, i, j):  # the slope of a single head is 2^−8
        return -(2**-8) * abs(i - j) if position == "alibi" and is_same_segment(b, i, j) else 0.0

    qkv = (values[f"blocks.1.attn.{name}"] for name in ("rot_q", "rot_k", "v"))
    close(values["blocks.1.attn.z"], attend(*qkv, allowed, bias)["z"], 1e-6)


# --- L3.8
SOURCE_SEGMENT_IDS = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("is_padded", [True, False])
def test_cross_attention_reads_the_encoder_output(
    is_padded, n_kv_heads, norm_position, implementation
):
    changes = {"attention.bias": ["q", "k", "v", "out"], "attention.n_kv_heads": n_kv_heads}
    net = random_net("tiny-encoder-decoder", norm_position=norm_position, **changes)
    inputs = {"source": random_ids(2, 7, seed=1)}
    if is_padded:
        inputs["source_segment_ids"] = SOURCE_SEGMENT_IDS
    P = parameters(net)
    values = watch(net, random_ids(2, 5), implementation, **inputs)
    for layer in range(2):
        path = f"blocks.{layer}.cross_attn"
        q = split_heads(each_token(linear(P, f"{path}.q"), values[f"{path}.in"]), 4)
        encoder_output = values["encoder.final_norm"]
        k, v = (
            split_heads(each_token(linear(P, f"{path}.{name}"), encoder_output), n_kv_heads)
            for name in ("k", "v")
        )
        z = attend(q, k, v, lambda b, i, j: not is_padded or SOURCE_SEGMENT_IDS[b, j] == 1)["z"]
        close(values[f"{path}.z"], z)
        concatenated = np.array([[np.concatenate(z[b, :, i]) for i in range(5)] for b in range(2)])
        close(values[f"{path}.out"], each_token(linear(P, f"{path}.out"), concatenated))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_fully_masked_query_gives_zeros_and_finite_gradients(implementation):
    net = random_net("tiny-encoder-decoder")
    hooks = Recorder(IMPLEMENTATIONS[implementation])
    hidden = net(
        random_ids(2, 5),
        segment_ids=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
        source=random_ids(2, 7, seed=1),
        source_segment_ids=torch.ones(
            2, 7, dtype=torch.long
        ),  # no padding that padding could attend to
        hooks=hooks,
    )
    z = hooks.values["blocks.0.cross_attn.z"]
    assert (z[0, :, 3:] == 0).all()
    assert (z[0, :, :3] != 0).all()
    hidden.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


# --- L5.2
def test_softmax_is_exp_over_the_sum_of_exps():
    scores = 3 * random_values(2, 3, 4, 5)
    scores[0, 0, 0] += 1e4  # no overflow
    scores[0, 1, :, 2:] = -torch.inf
    actual = attention.softmax(scores)
    expected = [[[softmax(row) for row in head] for head in heads] for heads in scores.tolist()]
    close(actual, expected, 1e-12)
    close(actual.sum(-1), np.ones((2, 3, 4)), 1e-12)
    assert (actual[0, 1, :, 2:] == 0).all()


def test_softmax_of_a_fully_masked_row_and_its_gradient_are_zero():
    scores = random_values(3, 4)
    scores[1] = -torch.inf
    scores.requires_grad_()
    pattern = attention.softmax(scores)
    assert (pattern[1] == 0).all()
    (pattern * torch.arange(4)).sum().backward()
    assert (scores.grad[1] == 0).all()
    for row in (0, 2):  # ∂/∂s_j Σ j·α_j = α_j (j − Σ i·α_i)
        a = softmax(scores[row].tolist())
        close(scores.grad[row], [a[j] * (j - sum(i * a[i] for i in range(4))) for j in range(4)])
