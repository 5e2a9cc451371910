"""Other heads and inputs than text (L6.3, L6.4) equal the equations, computed by plain loops."""

import math

import numpy as np
import pytest
import torch
from reference import (
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

SEGMENT_IDS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


# --- heads
@pytest.mark.parametrize("vocab_size", [64, 61])
def test_mlm_head_is_linear_gelu_norm_then_tied_logits_with_a_bias(vocab_size):
    net = random_net("tiny-encoder", vocab_size=vocab_size, **{"norm.eps": 0.3})
    P = parameters(net)
    v = watch(net, random_ids(2, 5, vocab_size=vocab_size))
    E = P["embed.tokens.weight"]
    for b, i in np.ndindex(2, 5):
        inner = np.array([gelu(x) for x in linear(P, "head.dense")(v["final_norm"][b, i])])
        h = norm(P, "head.norm", net.config.norm)(inner)
        expected = [sum(h * E[token]) + P["head.bias"][token] for token in range(vocab_size)]
        close(v["logits"][b, i], expected)


@pytest.mark.parametrize("head", ["classification", "regression"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("is_padded", [True, False])
def test_pooled_heads_read_the_first_token_or_the_mean_without_padding(
    head, pooling, pooler, is_padded
):
    changes = {"head": head, "head.pooling": pooling, "head.pooler": pooler}
    if head == "classification":
        changes["head.num_labels"] = 3
    net = random_net("tiny-encoder", **changes)
    P = parameters(net)
    v = watch(net, random_ids(2, 5), **({"segment_ids": SEGMENT_IDS} if is_padded else {}))
    for b in range(2):
        length = int((SEGMENT_IDS[b] != 0).sum()) if is_padded else 5
        hidden = v["final_norm"][b, :length]
        pooled = hidden[0] if pooling == "first" else sum(hidden) / length
        if pooler:
            pooled = np.array([math.tanh(x) for x in linear(P, "head.pooler")(pooled)])
        close(v["logits"][b], linear(P, "head.out")(pooled))
    assert v["logits"].shape == (2, 3 if head == "classification" else 1)


def test_padding_does_not_change_pooled_outputs():
    net = random_net("tiny-encoder", **{"head": "classification", "head.pooling": "mean"})
    ids = random_ids(2, 5)
    other = ids.clone()
    other[1, 3:] = (ids[1, 3:] + 1) % 64
    one, two = (watch(net, x, segment_ids=SEGMENT_IDS)["logits"] for x in (ids, other))
    close(one, two, 1e-12)


def test_mean_of_no_tokens_is_zero():
    assert (mean_pool(random_values(2, 5, 4), torch.tensor([[1] * 5, [0] * 5]))[1] == 0).all()


@torch.no_grad()
def test_classification_loss_is_minus_log_p_of_the_label():
    net = random_net("tiny-encoder", **{"head": "classification", "head.num_labels": 3})
    ids = random_ids(4, 5)
    targets = torch.tensor([2, 0, 1, 1])
    total, count = net.loss(net(ids), targets)
    logits = watch(net, ids)["logits"]
    assert count == 4
    close(total, sum(-math.log(softmax(list(logits[b]))[targets[b]]) for b in range(4)), FP32)


@torch.no_grad()
def test_regression_loss_is_the_squared_error():
    net = random_net("tiny-encoder", head="regression")
    ids = random_ids(4, 5)
    targets = random_values(4)
    total, count = net.loss(net(ids), targets)
    outputs = watch(net, ids)["logits"]
    assert count == 4
    close(total, sum((outputs[b, 0] - float(targets[b])) ** 2 for b in range(4)), FP32)


def test_without_a_head_the_hidden_states_are_the_output():
    net = random_net("tiny-encoder", head="none")
    ids = random_ids(2, 5)
    values = watch(net, ids)
    assert "logits" not in values
    close(net.compute_logits(net(ids)).detach(), values["final_norm"])
    with pytest.raises(ClearheadError, match="no head"):
        net.loss(net(ids), ids)


# --- images and audio
def patches(image, W, b, height, width):
    """Row by row of patches: Σ W · pixel over the channels, rows and columns of a patch."""
    channels, rows, columns = image.shape
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            token = b.copy()
            for channel, y, x in np.ndindex(channels, height, width):
                pixel = image[channel, top + y, left + x]
                token += W[:, (channel * height + y) * width + x] * pixel
            yield token


def check_patch_embedding(net, inputs, images, height, width):
    P = parameters(net)
    v = watch(net, inputs)
    W = P["embed.projection.weight"]
    b = P["embed.projection.bias"]
    cls_token = [P["embed.cls_token"]] if "embed.cls_token" in P else []
    for n in range(len(images)):
        tokens = cls_token + list(patches(images[n].numpy(), W, b, height, width))
        close(v["embed"][n], tokens)
        close(v["full_embed"][n], tokens + P["position.table"])


@pytest.mark.parametrize("cls_token", [True, False])
def test_image_patches_are_multiplied_by_one_matrix(cls_token):
    sizes = {"image_size": 6, "patch_size": 2, "num_channels": 3, "cls_token": cls_token}
    image_input = {"kind": "images", **sizes}
    net = random_net("tiny-images", context_length=9 + cls_token, input=image_input)
    images = random_values(2, 3, 6, 6)
    check_patch_embedding(net, images, images, 2, 2)


@pytest.mark.parametrize("cls_token", [True, False])
def test_spectrogram_is_an_image_with_one_channel(cls_token):
    sizes = {"n_mels": 6, "n_frames": 8, "patch_mels": 2, "patch_frames": 4}
    spectrogram = {"kind": "spectrogram", "cls_token": cls_token, **sizes}
    net = random_net("tiny-audio", context_length=6 + cls_token, input=spectrogram)
    mels = random_values(2, 6, 8)
    check_patch_embedding(net, mels, mels[:, None], 2, 4)


def convolve(x, W, b, stride):
    """GELU(y), y[o, t] = b[o] + Σ W[o, i, k] · x[i, stride·t + k − 1], zero-padded at both ends."""
    outputs, inputs, _ = W.shape
    frames = range(0, x.shape[1], stride)
    y = np.zeros((outputs, len(frames)))
    for t, middle in enumerate(frames):
        for o in range(outputs):
            y[o, t] = b[o]
            for i, k in np.ndindex(inputs, 3):
                if 0 <= middle + k - 1 < x.shape[1]:
                    y[o, t] += W[o, i, k] * x[i, middle + k - 1]
    return np.array([[gelu(value) for value in row] for row in y])


@pytest.mark.parametrize("n_frames", [8, 7])
@pytest.mark.parametrize("architecture", ["encoder", "encoder-decoder"])
def test_audio_passes_two_convolutions_the_second_with_stride_two(architecture, n_frames):
    audio = {"kind": "audio", "n_mels": 5, "n_frames": n_frames}
    mels = random_values(2, 5, n_frames)
    if architecture == "encoder":
        net = random_net("tiny-audio", d_model=8, context_length=4, input=audio)
        v = watch(net, mels)
        root = ""
    else:
        sizes = {"encoder_layers": 1, "source_context_length": 4, "source_input": audio}
        architecture = {"kind": "encoder-decoder", **sizes}
        net = random_net("tiny-decoder", d_model=8, architecture=architecture)
        v = watch(net, random_ids(2, 3), source=mels)
        root = "encoder."
    P = {name.removeprefix(root): value for name, value in parameters(net).items() if root in name}
    for n in range(2):
        frames = convolve(mels[n].numpy(), P["embed.conv1.weight"], P["embed.conv1.bias"], 1)
        tokens = convolve(frames, P["embed.conv2.weight"], P["embed.conv2.bias"], 2).T
        assert tokens.shape == (4, 8)
        close(v[f"{root}embed"][n], tokens)
        close(v[f"{root}full_embed"][n], tokens + P["position.table"])
