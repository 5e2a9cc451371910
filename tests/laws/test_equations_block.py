"""The block and what comes out of the stack (L4, L5), against plain loops written from the equations."""

import math

import numpy as np
import pytest
import torch
from loops import (
    FP32,
    attend,
    causal,
    close,
    each_token,
    everywhere,
    feed_forward,
    linear,
    norm,
    parameters,
    random_ids,
    random_net,
    random_values,
    softmax,
    split,
    watch,
    wave,
)
from torch.nn import functional as F

from clearhead.model import layers as unembed

ACTIVATIONS = ["relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]


# ---------------------------------------------------------------- L4.1, L4.4
def test_pre_norm_parts_read_the_normed_stream_and_add_to_it():
    net = random_net("tiny-encoder-decoder", norm_position="pre")
    P = parameters(net)
    v = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))

    def normed(name, x):
        return each_token(norm(P, name, net.config.norm), x)

    for i in range(2):
        b = f"blocks.{i}"
        close(v[f"{b}.pre"], v["full_embed"] if i == 0 else v[f"blocks.{i - 1}.resid_post"], 0)
        for before, part, after in (
            ("pre", "attn", "mid"),
            ("mid", "cross", "crossed"),
            ("crossed", "ffn", "post"),
        ):
            close(v[f"{b}.{part}.in"], normed(f"{b}.{part}_norm", v[f"{b}.{before}"]))
            close(v[f"{b}.{after}"] - v[f"{b}.{before}"], v[f"{b}.{part}.out"])
        e = f"encoder.blocks.{i}"
        close(v[f"{e}.mid"] - v[f"{e}.pre"], v[f"{e}.attn.out"])
        close(v[f"{e}.post"] - v[f"{e}.mid"], v[f"{e}.ffn.out"])
    close(v["norm"], normed("norm", v["blocks.1.resid_post"]))
    close(v["encoder.norm"], normed("encoder.norm", v["encoder.blocks.1.resid_post"]))


def test_post_norm_parts_read_the_stream_and_the_sum_is_normed():
    net = random_net("tiny-encoder-decoder", norm_position="post")
    P = parameters(net)
    v = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))

    def summed(name, x, part):
        return each_token(norm(P, name, net.config.norm), x + part)

    for i in range(2):
        b = f"blocks.{i}"
        close(v[f"{b}.pre"], v["full_embed"] if i == 0 else v[f"blocks.{i - 1}.resid_post"], 0)
        for before, part, after in (
            ("pre", "attn", "mid"),
            ("mid", "cross", "crossed"),
            ("crossed", "ffn", "post"),
        ):
            close(v[f"{b}.{part}.in"], v[f"{b}.{before}"], 0)
            close(
                v[f"{b}.{after}"],
                summed(f"{b}.{part}_norm", v[f"{b}.{before}"], v[f"{b}.{part}.out"]),
            )
        e = f"encoder.blocks.{i}"
        close(v[f"{e}.mid"], summed(f"{e}.attn_norm", v[f"{e}.pre"], v[f"{e}.attn.out"]))
        close(v[f"{e}.post"], summed(f"{e}.ffn_norm", v[f"{e}.mid"], v[f"{e}.ffn.out"]))
    close(v["norm"], v["blocks.1.resid_post"], 0)
    close(v["encoder.norm"], v["encoder.blocks.1.resid_post"], 0)


# ---------------------------------------------------------------- L4.2
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_is_two_layers_with_the_activation_between(activation, bias):
    net = random_net(**{"ffn.activation": activation, "ffn.d_ff": 24, "ffn.bias": bias})
    P = parameters(net)
    v = watch(net, random_ids(2, 4))
    assert ("blocks.0.ffn.down.bias" in P) == bias
    for i in range(2):
        x = v[f"blocks.{i}.ffn.in"]
        name = f"blocks.{i}.ffn"
        close(v[f"{name}.pre"], each_token(linear(P, f"{name}.up"), x))
        close(v[f"{name}.out"], each_token(feed_forward(P, name, activation), x))


def test_only_attention_moves_information_between_tokens():
    net = random_net(position="none", **{"attention.bias": []})
    ids = random_ids(1, 5)
    with torch.no_grad():
        for block in net.blocks:
            block.attn.out.weight.zero_()
    one = watch(net, ids)["norm"]
    other = watch(net, ids.flip(1))["norm"]
    close(one, other[:, ::-1])


# ---------------------------------------------------------------- L4.3
@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize(
    "kind", [{"kind": "layer"}, {"kind": "layer", "bias": False}, {"kind": "rms"}]
)
def test_norms_act_on_one_vector(kind, eps):
    net = random_net(norm={**kind, "eps": eps})
    P = parameters(net)
    v = watch(net, random_ids(2, 5))
    assert ("norm.bias" in P) == (kind == {"kind": "layer"})
    close(
        v["blocks.0.attn.in"],
        each_token(norm(P, "blocks.0.attn_norm", net.config.norm), v["blocks.0.resid_pre"]),
    )
    close(
        v["blocks.1.ffn.in"],
        each_token(norm(P, "blocks.1.ffn_norm", net.config.norm), v["blocks.1.resid_mid"]),
    )
    close(v["norm"], each_token(norm(P, "norm", net.config.norm), v["blocks.1.resid_post"]))


# ---------------------------------------------------------------- L5.1
@pytest.mark.parametrize("vocabulary", [64, 61])  # a multiple of 16, and not
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_logit_is_the_stream_dotted_with_the_word(vocabulary, tied, bias, scaled):
    head = {"head.tie_embeddings": tied, "head.bias": bias, "head.scale_logits": scaled}
    net = random_net(vocab_size=vocabulary, **head)
    P = parameters(net)
    v = watch(net, random_ids(2, 5, vocabulary=vocabulary))
    W = P["embed.tokens.weight" if tied else "head.unembed.weight"]
    assert tied == np.array_equal(P["embed.tokens.weight"], P["head.unembed.weight"])
    scale = 1 / math.sqrt(32) if scaled else 1.0
    shift = P["head.bias"] if bias else np.zeros(vocabulary)
    for b, i in np.ndindex(2, 5):
        h = v["norm"][b, i] * scale
        close(v["logits"][b, i], [sum(h * W[word]) + shift[word] for word in range(vocabulary)])


@pytest.mark.parametrize("vocabulary", [1, 15, 16, 17, 61])
@pytest.mark.parametrize("biased", [True, False])
def test_unembedding_an_odd_vocabulary_has_the_value_and_gradient_of_a_linear_layer(
    vocabulary, biased
):
    bias = random_values(vocabulary, seed=2) if biased else None
    given = [random_values(2, 3, 8), random_values(vocabulary, 8, seed=1), bias]
    pull = random_values(2, 3, vocabulary, seed=3)
    results = []

    def ours(hidden, weight, bias):
        table = torch.nn.Embedding(*weight.shape, device="meta")
        table._parameters["weight"] = weight
        return unembed.unembed(hidden, table, bias)

    for f in (ours, F.linear):
        leaves = [x if x is None else x.clone().requires_grad_() for x in given]
        logits = f(*leaves)
        (logits.square() * pull).sum().backward()
        results.append([logits.detach(), *(x.grad for x in leaves if x is not None)])
    for got, expected in zip(*results, strict=True):
        close(got, expected, 1e-12)


# ---------------------------------------------------------------- L5.3
def loss_by_loop(logits, targets):
    """Σ −log p(target) over the positions that teach, and how many they are."""
    teaching = [(b, i) for b, i in np.ndindex(targets.shape) if targets[b, i] != -100]
    return sum(-math.log(softmax(list(logits[b, i]))[targets[b, i]]) for b, i in teaching), len(
        teaching
    )


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"])
@pytest.mark.parametrize("vocabulary", [64, 61])
def test_loss_is_the_mean_of_minus_log_p_over_positions_that_teach(preset, vocabulary):
    net = random_net(preset, vocab_size=vocabulary)
    ids = random_ids(2, 6, vocabulary=vocabulary)
    targets = random_ids(2, 6, seed=1, vocabulary=vocabulary)
    targets[0, 1] = targets[1, 3:] = -100
    how = (
        {"source": random_ids(2, 4, vocabulary=vocabulary)}
        if preset == "tiny-encoder-decoder"
        else {}
    )
    with torch.no_grad():
        total, count = net.loss(net(ids, **how), targets)
    expected, teaching = loss_by_loop(watch(net, ids, **how)["logits"], targets.numpy())
    assert count == teaching == 8
    close(total, expected, FP32)
    close(total / count, expected / 8, FP32)


def test_a_batch_that_teaches_nothing_has_loss_zero_and_count_zero():
    net = random_net()
    ids = random_ids(2, 6)
    total, count = net.loss(net(ids), torch.full_like(ids, -100))
    total.backward()
    assert (total, count) == (0, 0)
    assert all((p.grad == 0).all() for p in net.parameters())


# ---------------------------------------------------------------- L6.1, L6.2: from ids to logits in one go
def run_stack(P, m, root, x, allowed, layers, memory=None, seen=everywhere):
    """The blocks of one stack, written as equations."""

    def attention(path, h, source, who):
        q, k, v = (
            each_token(linear(P, f"{path}.{n}"), y)
            for n, y in (("q", h), ("k", source), ("v", source))
        )
        heads = m.attention.n_heads
        z = attend(split(q, heads), split(k, heads), split(v, heads), who)["z"]
        return each_token(
            linear(P, f"{path}.out"), z.transpose(0, 2, 1, 3).reshape(*h.shape[:2], -1)
        )

    def wired(name, part, x):
        f = norm(P, name, m.norm)
        return x + part(each_token(f, x)) if m.norm_position == "pre" else each_token(f, x + part(x))

    for i in range(layers):
        b = f"{root}blocks.{i}"
        x = wired(f"{b}.attn_norm", lambda h, b=b: attention(f"{b}.attn", h, h, allowed), x)
        if memory is not None:
            x = wired(f"{b}.cross_norm", lambda h, b=b: attention(f"{b}.cross", h, memory, seen), x)
        x = wired(
            f"{b}.ffn_norm",
            lambda h, b=b: each_token(feed_forward(P, f"{b}.ffn", m.ffn.activation), h),
            x,
        )
    return each_token(norm(P, f"{root}norm", m.norm), x) if m.norm_position == "pre" else x


@torch.no_grad()
def test_the_lectures_decoder_from_ids_to_logits():
    net = random_net()
    ids = random_ids(2, 5)
    P = parameters(net)
    m = net.config
    x = np.array(
        [
            [P["embed.tokens.weight"][w] + P["position.table"][n] for n, w in enumerate(row)]
            for row in ids.tolist()
        ]
    )
    h = run_stack(P, m, "", x, causal, m.n_layers)
    close(net.compute_logits(net(ids)), h @ P["embed.tokens.weight"].T)


@torch.no_grad()
def test_the_encoder_decoder_of_2017_from_ids_to_logits():
    net = random_net("tiny-encoder-decoder")
    ids = random_ids(2, 5)
    source = random_ids(2, 7, seed=1)
    P = parameters(net)
    m = net.config
    E = P["embed.tokens.weight"]  # one matrix in three places

    def embed(rows):
        return np.array(
            [
                [E[w] * math.sqrt(32) + wave(n, 32) for n, w in enumerate(row)]
                for row in rows.tolist()
            ]
        )

    memory = run_stack(P, m, "encoder.", embed(source), everywhere, m.architecture.encoder_layers)
    close(net.encode(source), memory, FP32)
    close(
        net.compute_logits(net(ids, source=source)),
        run_stack(P, m, "", embed(ids), causal, m.n_layers, memory) @ E.T,
        FP32,
    )
