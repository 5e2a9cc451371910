"""Attention (L3), against plain loops written from the equations."""

import math

import numpy as np
import pytest
import torch
from loops import (
    KERNELS,
    attend,
    attention_meets,
    causal,
    close,
    each_token,
    everywhere,
    linear,
    norm,
    parameters,
    random_ids,
    random_net,
    random_values,
    softmax,
    split,
    watch,
)

from clearhead.hooks import Recorder
from clearhead.model import attention


# ---------------------------------------------------------------- L3.2, L3.3
def test_simplest_attention_is_one_head_whose_matrices_do_nothing():
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


def test_one_head_from_x_to_a():
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


# ---------------------------------------------------------------- L3.4
def rows_of_softmax(grid):
    return np.array([softmax(list(row)) for row in grid])


@pytest.mark.parametrize("kernel", KERNELS)
def test_matrix_form_and_column_form_are_the_same_computation(kernel):
    net = random_net(**{"attention.bias": []})
    P = parameters(net)
    values = watch(net, random_ids(2, 6), kernel)
    M = np.array([[0.0 if j <= i else -math.inf for j in range(6)] for i in range(6)])
    for b, h in np.ndindex(2, 4):
        X = values["blocks.0.attn.in"][b]
        W_Q, W_K, W_V = (
            P[f"blocks.0.attn.{name}.weight"].T[:, 8 * h : 8 * h + 8] for name in ("q", "k", "v")
        )
        Q = X @ W_Q
        K = X @ W_K
        V = X @ W_V
        Z = rows_of_softmax(Q @ K.T / math.sqrt(8) + M) @ V
        close(values["blocks.0.attn.z"][b, h], Z)
        # columns are tokens now, and so are those of the pattern
        Q = W_Q.T @ X.T
        K = W_K.T @ X.T
        V = W_V.T @ X.T
        close(values["blocks.0.attn.z"][b, h].T, V @ rows_of_softmax(Q.T @ K / math.sqrt(8) + M).T)


# ---------------------------------------------------------------- L3.5
def test_causal_mask_gives_exact_zeros():
    net = random_net()
    after = np.triu(np.ones((6, 6), dtype=bool), 1)
    hooks = Recorder(
        ["**"], edits={"blocks.1.attn.scores": lambda s, _: s + torch.tensor(after) * 1e6}
    )
    net(random_ids(2, 6), hooks=hooks)
    for layer in range(2):
        scores, masked, pattern = (
            hooks.values[f"blocks.{layer}.attn.{name}"].detach().numpy()
            for name in ("scores", "masked", "pattern")
        )
        assert (masked[..., after] == -math.inf).all()
        assert (masked[..., ~after] == scores[..., ~after]).all()
        assert (pattern[..., after] == 0).all()  # however high the score was
        assert (pattern[..., ~after] > 0).all()
        close(pattern.sum(-1), np.ones((2, 4, 6)))


def test_an_encoder_has_no_mask():
    values = watch(random_net("tiny-encoder"), random_ids(2, 6))
    attention_meets(values, "blocks.0.attn", everywhere)
    assert (values["blocks.0.attn.pattern"] > 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_later_tokens_change_nothing_before_them(kernel):
    net = random_net()
    ids = random_ids(2, 6)
    other = ids.clone()
    other[:, 4:] = (ids[:, 4:] + 1) % 64
    one, two = (watch(net, x, kernel)["norm"] for x in (ids, other))
    close(one[:, :4], two[:, :4], 1e-12)
    assert np.abs(one[:, 4:] - two[:, 4:]).max() > 1e-3


# ---------------------------------------------------------------- L3.7
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("biased", [("q", "k", "v", "out"), ("q", "v", "out"), ("k",), ()])
@pytest.mark.parametrize(("kv_heads", "head_width"), [(0, 0), (0, 6), (4, 0), (2, 0), (1, 6)])
def test_many_heads_each_with_its_own_matrices_are_concatenated_times_w_o(
    kv_heads, head_width, biased, kernel
):
    changes = {
        "attention.n_kv_heads": kv_heads,
        "attention.d_head": head_width,
        "attention.bias": biased,
    }
    net = random_net(**changes)
    P = parameters(net)
    values = watch(net, random_ids(2, 6), kernel)
    groups = kv_heads or 4
    assert {name for name in ("q", "k", "v", "out") if f"blocks.0.attn.{name}.bias" in P} == set(
        biased
    )
    for layer in range(2):
        path = f"blocks.{layer}.attn"
        x = values[f"{path}.in"]
        q, k, v = (each_token(linear(P, f"{path}.{name}"), x) for name in ("q", "k", "v"))
        q = split(q, 4)
        k = split(k, groups)
        v = split(v, groups)
        close(values[f"{path}.q"], q)
        close(values[f"{path}.k"], k)
        close(values[f"{path}.v"], v)
        z = attend(q, k, v, causal)["z"]
        close(values[f"{path}.z"], z)
        concatenated = np.array([[np.concatenate(z[b, :, i]) for i in range(6)] for b in range(2)])
        close(values[f"{path}.out"], each_token(linear(P, f"{path}.out"), concatenated))


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_qk_norm_normalises_each_head_of_queries_and_keys_but_not_values(kind, kernel):
    net = random_net(
        "tiny-llama", **{"attention.qk_norm": True, "norm": {"kind": kind, "eps": 0.3}}
    )
    P = parameters(net)
    values = watch(net, random_ids(2, 6), kernel)
    path = "blocks.1.attn"
    for name, heads in (("q", 4), ("k", 2)):
        raw = split(each_token(linear(P, f"{path}.{name}"), values[f"{path}.in"]), heads)
        f = norm(P, f"{path}.{name}_norm", net.config.norm)
        close(
            values[f"{path}.{name}"],
            [[[f(token) for token in head] for head in row] for row in raw],
        )
    close(values[f"{path}.v"], split(each_token(linear(P, f"{path}.v"), values[f"{path}.in"]), 2))
    attention_meets(values, path, causal)


@pytest.mark.parametrize("kernel", KERNELS)
def test_unscaled_scores_are_not_divided(kernel):
    net = random_net(**{"attention.scale": False})
    attention_meets(watch(net, random_ids(2, 6), kernel), "blocks.0.attn", causal, scale=1.0)


# ---------------------------------------------------------------- sliding window, packed documents, padding
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [1, 3, 6, 7])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_a_window_counts_the_token_itself(preset, window, kernel):
    def near(b, i, j):
        return abs(i - j) < window and (j <= i or preset == "tiny-encoder")

    net = random_net(preset, **{"attention.sliding_window": window})
    attention_meets(watch(net, random_ids(2, 7), kernel), "blocks.1.attn", near)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("position", ["learned", "alibi"])
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_documents_see_only_themselves_and_padding_only_padding(preset, window, position, kernel):
    segment_ids = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 0, 0]])
    net = random_net(
        preset, position=position, **{"attention.sliding_window": window, "attention.n_heads": 1}
    )
    values = watch(net, random_ids(2, 6), kernel, segment_ids=segment_ids)

    def same(b, i, j):
        near = not window or abs(i - j) < window
        return (
            near and segment_ids[b, i] == segment_ids[b, j] and (j <= i or preset == "tiny-encoder")
        )

    def penalty(
        b, h, i, j
    ):  # one head's slope is 2^−8; within a document, distances in it are those in the row
        return (
            -(2**-8) * abs(i - j)
            if position == "alibi" and segment_ids[b, i] == segment_ids[b, j]
            else 0.0
        )

    z = attend(
        *(values[f"blocks.1.attn.{name}"] for name in ("rot_q", "rot_k", "v")), same, penalty
    )["z"]
    close(values["blocks.1.attn.z"], z, 1e-6)


# ---------------------------------------------------------------- L3.8
SOURCE_SEGMENTS = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("wiring", ["pre", "post"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("padded", [True, False])
def test_cross_attention_asks_the_encoders_output(padded, kv_heads, wiring, kernel):
    bias = {"attention.bias": ["q", "k", "v", "out"], "attention.n_kv_heads": kv_heads}
    net = random_net("tiny-encoder-decoder", norm_position=wiring, **bias)
    how = {"source": random_ids(2, 7, seed=1)} | (
        {"source_segments": SOURCE_SEGMENTS} if padded else {}
    )
    P = parameters(net)
    values = watch(net, random_ids(2, 5), kernel, **how)
    for layer in range(2):
        path = f"blocks.{layer}.cross_attn"
        q = split(each_token(linear(P, f"{path}.q"), values[f"{path}.in"]), 4)
        memory = values["encoder.norm"]
        k, v = (
            split(each_token(linear(P, f"{path}.{name}"), memory), kv_heads) for name in ("k", "v")
        )
        z = attend(q, k, v, lambda b, i, j: not padded or SOURCE_SEGMENTS[b, j] == 1)["z"]
        close(values[f"{path}.z"], z)
        concatenated = np.array([[np.concatenate(z[b, :, i]) for i in range(5)] for b in range(2)])
        close(values[f"{path}.out"], each_token(linear(P, f"{path}.out"), concatenated))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_may_look_at_nothing_gets_zeros_and_harmless_gradients(kernel):
    net = random_net("tiny-encoder-decoder")
    hooks = Recorder(KERNELS[kernel])
    hidden = net(
        random_ids(2, 5),
        segment_ids=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
        source=random_ids(2, 7, seed=1),
        source_segment_ids=torch.ones(2, 7, dtype=torch.long),  # no padding for the padding to see
        hooks=hooks,
    )
    z = hooks.values["blocks.0.cross_attn.z"]
    assert (z[0, :, 3:] == 0).all()
    assert (z[0, :, :3] != 0).all()
    hidden.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


# ---------------------------------------------------------------- L5.2
def test_softmax_is_exp_over_the_sum_of_exps():
    scores = 3 * random_values(2, 3, 4, 5)
    scores[0, 0, 0] += 1e4  # no overflow
    scores[0, 1, :, 2:] = -torch.inf
    got = attention.softmax(scores)
    expected = [[[softmax(row) for row in head] for head in heads] for heads in scores.tolist()]
    close(got, expected, 1e-12)
    close(got.sum(-1), np.ones((2, 3, 4)), 1e-12)
    assert (got[0, 1, :, 2:] == 0).all()


def test_softmax_of_a_fully_masked_row_and_its_gradient_are_zeros():
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
