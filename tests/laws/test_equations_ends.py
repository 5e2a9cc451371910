"""Heads besides words, and inputs besides text (L6.3, L6.4), against plain loops written from the equations."""

import math

import numpy as np
import pytest
import torch
from loops import (
    FP32,
    close,
    gelu,
    linear,
    norm,
    parameters,
    random_ids,
    random_net,
    random_values,
    softmax,
    watch,
)

from clearhead.errors import ClearheadError
from clearhead.model.heads import mean_pool

SEGMENTS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


# ---------------------------------------------------------------- heads
@pytest.mark.parametrize("vocabulary", [64, 61])
def test_masked_word_head_is_layer_gelu_norm_then_tied_logits_with_a_bias(vocabulary):
    net = random_net("tiny-encoder", vocab_size=vocabulary, **{"norm.eps": 0.3})
    P = parameters(net)
    v = watch(net, random_ids(2, 5, vocabulary=vocabulary))
    E = P["embed.tokens.weight"]
    for b, i in np.ndindex(2, 5):
        inner = np.array([gelu(x) for x in linear(P, "head.dense")(v["norm"][b, i])])
        h = norm(P, "head.norm", net.config.norm)(inner)
        close(
            v["logits"][b, i],
            [sum(h * E[word]) + P["head.bias"][word] for word in range(vocabulary)],
        )


@pytest.mark.parametrize("head", ["classes", "number"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_pooled_heads_read_the_first_token_or_the_mean_of_the_real_ones(
    head, pooling, pooler, padded
):
    changes = {"head": head, "head.pooling": pooling, "head.pooler": pooler}
    net = random_net(
        "tiny-encoder", **changes, **({"head.num_labels": 3} if head == "classification" else {})
    )
    P = parameters(net)
    how = {"segments": SEGMENTS} if padded else {}
    v = watch(net, random_ids(2, 5), **how)
    for b in range(2):
        real = [
            h for h, segment in zip(v["norm"][b], SEGMENTS[b], strict=True) if segment or not padded
        ]
        pooled = v["norm"][b, 0] if pooling == "first" else sum(real) / len(real)
        if pooler:
            pooled = np.array([math.tanh(x) for x in linear(P, "head.pooler")(pooled)])
        close(v["logits"][b], linear(P, "head.out")(pooled))
    assert v["logits"].shape == (2, 3 if head == "classification" else 1)


def test_what_stands_on_padding_changes_no_pooled_answer():
    net = random_net("tiny-encoder", **{"head": "classification", "head.pooling": "mean"})
    ids = random_ids(2, 5)
    other = ids.clone()
    other[1, 3:] = (ids[1, 3:] + 1) % 64
    close(
        watch(net, ids, segment_ids=SEGMENTS)["logits"],
        watch(net, other, segment_ids=SEGMENTS)["logits"],
        1e-12,
    )


def test_the_mean_of_no_tokens_is_zero():
    assert (mean_pool(random_values(2, 5, 4), torch.tensor([[1] * 5, [0] * 5]))[1] == 0).all()


@torch.no_grad()
def test_class_loss_is_minus_log_p_of_the_class():
    net = random_net("tiny-encoder", **{"head": "classification", "head.num_labels": 3})
    ids = random_ids(4, 5)
    targets = torch.tensor([2, 0, 1, 1])
    total, count = net.loss(net(ids), targets)
    logits = watch(net, ids)["logits"]
    assert count == 4
    close(total, sum(-math.log(softmax(list(logits[b]))[targets[b]]) for b in range(4)), FP32)


@torch.no_grad()
def test_number_loss_is_the_squared_distance():
    net = random_net("tiny-encoder", head="regression")
    ids = random_ids(4, 5)
    targets = random_values(4)
    total, count = net.loss(net(ids), targets)
    answers = watch(net, ids)["logits"]
    assert count == 4
    close(total, sum((answers[b, 0] - float(targets[b])) ** 2 for b in range(4)), FP32)


def test_without_a_head_the_hidden_states_are_the_result():
    values = watch(net := random_net("tiny-encoder", head="none"), ids := random_ids(2, 5))
    assert "logits" not in values
    close(net.compute_logits(net(ids)).detach(), values["norm"])
    with pytest.raises(ClearheadError):
        net.loss(net(ids), ids)


# ---------------------------------------------------------------- pictures and sounds
def patches(picture, W, b, height, width):
    """Row by row of patches: Σ W · pixel over colours, then lines, then columns of a patch."""
    channels, lines, columns = picture.shape
    for top in range(0, lines, height):
        for left in range(0, columns, width):
            token = b.copy()
            for channel, y, x in np.ndindex(channels, height, width):
                token += (
                    W[:, (channel * height + y) * width + x] * picture[channel, top + y, left + x]
                )
            yield token


@pytest.mark.parametrize("first", [True, False])
def test_a_picture_is_cut_into_patches_times_one_matrix(first):
    changes = {
        "input.image_size": 6,
        "input.patch_size": 2,
        "input.num_channels": 3,
        "input.cls_token": first,
    }
    net = random_net("tiny-pictures", context_length=9 + first, **changes)
    pictures = random_values(2, 3, 6, 6)
    P = parameters(net)
    v = watch(net, pictures)
    W = P["embed.project.weight"]
    b = P["embed.project.bias"]
    learned = [P["embed.first"]] if first else []
    for n in range(2):
        tokens = learned + list(patches(pictures[n].numpy(), W, b, 2, 2))
        close(v["embed"][n], tokens)
        close(v["full_embed"][n], tokens + P["position.table"])


@pytest.mark.parametrize("first", [True, False])
def test_a_spectrogram_is_a_picture_of_one_colour(first):
    sizes = {"mels": 6, "frames": 8, "patch_mels": 2, "patch_frames": 4, "first_token": first}
    net = random_net("tiny-sound", context_length=6 + first, input={"kind": "spectrogram", **sizes})
    mels = random_values(2, 6, 8)
    P = parameters(net)
    v = watch(net, mels)
    W = P["embed.project.weight"]
    b = P["embed.project.bias"]
    learned = [P["embed.first"]] if first else []
    for n in range(2):
        tokens = learned + list(patches(mels[n : n + 1].numpy(), W, b, 2, 4))
        close(v["embed"][n], tokens)
        close(v["full_embed"][n], tokens + P["position.table"])


def convolved(x, W, b, stride):
    """y[o, t] = b[o] + Σ W[o, i, k] · x[i, stride·t + k − 1], with silence beyond both ends, then GELU."""
    outputs, inputs, _ = W.shape
    frames = range(0, x.shape[1], stride)
    y = np.zeros((outputs, len(frames)))
    for (t, middle), o in ((pair, o) for pair in enumerate(frames) for o in range(outputs)):
        y[o, t] = b[o]
        for i, k in np.ndindex(inputs, 3):
            if 0 <= middle + k - 1 < x.shape[1]:
                y[o, t] += W[o, i, k] * x[i, middle + k - 1]
    return np.array([[gelu(value) for value in row] for row in y])


@pytest.mark.parametrize("frames", [8, 7])
@pytest.mark.parametrize("shape", ["encoder", "encoder-decoder"])
def test_sound_passes_two_convolutions_the_second_halving_it(shape, frames):
    sound = {"kind": "sound", "mels": 5, "frames": frames}
    mels = random_values(2, 5, frames)
    if shape == "encoder":
        net = random_net("tiny-sound", d_model=8, context_length=4, input=sound)
        v = watch(net, mels)
        root = ""
    else:
        shape = {"kind": "encoder-decoder", "layers": 1, "context": 4, "input": sound}
        net = random_net("tiny-decoder", d_model=8, architecture=shape)
        v = watch(net, random_ids(2, 3), source=mels)
        root = "encoder."
    P = parameters(net)
    for n in range(2):
        near = convolved(
            mels[n].numpy(), P[f"{root}embed.near.weight"], P[f"{root}embed.near.bias"], 1
        )
        tokens = convolved(near, P[f"{root}embed.halve.weight"], P[f"{root}embed.halve.bias"], 2).T
        assert tokens.shape == (4, 8)
        close(v[f"{root}embed"][n], tokens)
        close(v[f"{root}embed"][n], tokens + P[f"{root}position.table"])
