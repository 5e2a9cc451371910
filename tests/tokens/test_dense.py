"""Laws of pictures and sounds given as numbers: what holds nothing, or no numbers, is refused before it is read."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError

SIGHT = ch.new("tiny-pictures")
HEARING = ch.new("tiny-sound")
PICTURE = torch.zeros(
    SIGHT.config.model.input.num_channels, *[SIGHT.config.model.input.image_size] * 2
)
SOUND = torch.zeros(900)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    picture = PICTURE.clone()
    sound = SOUND.clone()
    picture[0, 1, 1] = sound[5] = value
    with pytest.raises(
        ClearheadError, match="the tensor of pictures is empty, or holds values that are no finite"
    ):
        SIGHT.logits(images=picture)
    with pytest.raises(
        ClearheadError, match=r"the tensor of .* is empty, or holds values that are no finite"
    ):
        HEARING.logits(audio=sound)


@pytest.mark.parametrize("shape", [(0,), (0, 900), (2, 0)])
def test_no_sound_is_refused(shape):
    with pytest.raises(ClearheadError, match="is empty"):
        HEARING.logits(audio=torch.zeros(shape))


def test_no_picture_is_refused():
    with pytest.raises(ClearheadError, match="is empty"):
        SIGHT.logits(images=PICTURE[None][:0])


def test_what_is_no_file_is_named_by_its_kind():
    with pytest.raises(
        ClearheadError,
        match=r"^the name of a picture's file, an image or an array is needed, not Tensor",
    ):
        SIGHT.logits(images=[PICTURE])
    with pytest.raises(
        ClearheadError, match=r"must be a tensor of samples or the name of a file, not Tensor\.$"
    ):
        HEARING.logits(audio=[SOUND])
