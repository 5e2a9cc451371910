"""Images and audio passed as tensors: empty and non-finite ones are rejected."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError

IMAGE_MODEL = ch.new("tiny-images")
AUDIO_MODEL = ch.new("tiny-audio")
IMAGE = torch.zeros(
    IMAGE_MODEL.config.model.input.num_channels, *[IMAGE_MODEL.config.model.input.image_size] * 2
)
SAMPLES = torch.zeros(900)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_tensors_are_rejected(value):
    image = IMAGE.clone()
    samples = SAMPLES.clone()
    image[0, 1, 1] = value
    samples[5] = value
    with pytest.raises(
        ClearheadError, match="the images tensor is empty or contains NaN or infinity"
    ):
        IMAGE_MODEL.logits(images=image)
    with pytest.raises(
        ClearheadError, match=r"the audio tensor is empty or contains NaN or infinity"
    ):
        AUDIO_MODEL.logits(audio=samples)


@pytest.mark.parametrize("shape", [(0,), (0, 900), (2, 0)])
def test_empty_audio_tensors_are_rejected(shape):
    with pytest.raises(ClearheadError, match="is empty"):
        AUDIO_MODEL.logits(audio=torch.zeros(shape))


def test_empty_image_tensors_are_rejected():
    with pytest.raises(ClearheadError, match="is empty"):
        IMAGE_MODEL.logits(images=IMAGE[None][:0])


def test_lists_of_tensors_are_rejected():
    with pytest.raises(
        ClearheadError,
        match=r"expected an image: .*got Tensor",
    ):
        IMAGE_MODEL.logits(images=[IMAGE])
    with pytest.raises(ClearheadError, match=r"a tensor of samples or a path, got Tensor"):
        AUDIO_MODEL.logits(audio=[SAMPLES])
