"""Laws of MediaDataset: examples once per epoch, no leaks, no shifted validation images."""

from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from media_files import COLOR, MEL, dataset, indices, media_examples, pixels, wav
from PIL import Image

from clearhead.config.model import Images
from clearhead.config.presets import presets
from clearhead.data.media_dataset import MediaExamples, load_media
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build_transformer
from clearhead.tokenizers.media import read_image


@given(st.integers(4, 40), st.integers(1, 9), st.integers(0, 2**40))
def test_every_image_occurs_once_per_epoch(count, batch_size, seed):
    data = dataset(media_examples(count), batch_size=batch_size, seed=seed)
    steps = -(-2 * count // batch_size)
    images_read = [n for step in range(steps) for n in indices(data.batch(step).tokens)]
    assert sorted(images_read[:count]) == sorted(images_read[count:][:count]) == list(range(count))
    assert (data.batches_per_epoch, data.packing_efficiency) == (count / batch_size, 1.0)


@given(st.integers(0, 50), st.integers(0, 3))
def test_media_batch_is_a_function_of_seed_and_step(step, shift):
    one, other = (dataset(media_examples(9), random_shift=shift, seed=3) for _ in range(2))
    one.batch(0)
    assert torch.equal(one.batch(step).tokens, other.batch(step).tokens)
    assert torch.equal(one.batch(step).targets, other.batch(step).targets)


def test_training_images_equal_inference_images():
    images = pixels(6, 4, 4, 3)
    train = MediaExamples(torch.from_numpy(images).permute(0, 3, 1, 2), [*"ababab"], [*"012345"])
    batch = next(dataset(train, train, config=COLOR, batch_size=6).valid_batches())
    assert torch.equal(batch.tokens, torch.stack([read_image(image, COLOR) for image in images]))
    assert batch.targets.tolist() == [0, 1, 0, 1, 0, 1]


@given(st.integers(1, 6), st.integers(0, 99))
def test_shifted_image_is_a_crop_of_the_replicate_padded_image(shift, step):
    source = Images(image_size=4, patch_size=2, num_channels=3)
    train = MediaExamples(torch.from_numpy(pixels(4, 3, 4, 4)), [*"abab"], [*"0123"])
    plain, shifted = (
        dataset(train, config=source, random_shift=by).batch(step) for by in (0, shift)
    )
    wide = torch.nn.functional.pad(plain.tokens, (shift,) * 4, mode="replicate")
    for i, picture in enumerate(shifted.tokens):
        parts = wide[i].unfold(1, 4, 1).unfold(2, 4, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        assert any(torch.equal(part, picture) for part in parts)
    assert torch.equal(plain.targets, shifted.targets)


def test_shifts_go_in_all_directions_but_not_in_validation():
    picture = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    picture[..., 2, 2] = 255
    train = MediaExamples(picture.expand(2, 1, 5, 5), ["a", "b"], ["0", "1"])
    source = Images(image_size=5, patch_size=1, num_channels=1)
    data = dataset(train, train, config=source, random_shift=1)
    batches = [[int(one.argmax()) for one in data.batch(step).tokens] for step in range(40)]
    assert {spot for spots in batches for spot in spots} == {6, 7, 8, 11, 12, 13, 16, 17, 18}
    assert any(len(set(spots)) > 2 for spots in batches)  # each picture goes its own way
    assert all(int(one.argmax()) == 12 for batch in data.valid_batches() for one in batch.tokens)


@given(st.integers(2, 40), st.floats(0.05, 0.8), st.integers(0, 99))
def test_validation_split_is_disjoint_and_complete(count, fraction, seed):
    data = dataset(media_examples(count * 3, classes=3), fraction, seed=seed)
    trained = {
        n for step in range(ceil(data.batches_per_epoch)) for n in indices(data.batch(step).tokens)
    }
    valid = [
        (n, int(t))
        for batch in data.valid_batches()
        for n, t in zip(indices(batch.tokens), batch.targets, strict=True)
    ]
    assert trained.isdisjoint(n for n, _ in valid)
    assert trained | {n for n, _ in valid} == set(range(count * 3))
    assert all(n % 3 == target for n, target in valid)
    each = min(count - 1, max(1, round(fraction * count)))
    assert [sum(target == c for _, target in valid) for c in range(3)] == [each] * 3


def test_duplicate_images_stay_in_one_split():
    ten = media_examples(10)
    twice = MediaExamples(torch.cat((ten.data, ten.data)), [*ten.labels] * 2, [*ten.locations] * 2)
    data = dataset(twice, 0.3)
    trained = {
        n for step in range(ceil(data.batches_per_epoch)) for n in indices(data.batch(step).tokens)
    }
    valid = [n for batch in data.valid_batches() for n in indices(batch.tokens)]
    assert len(valid) == 2 * len(set(valid)) > 0
    assert trained.isdisjoint(valid)


def test_validation_media_with_an_unknown_label_fail_or_are_skipped():
    valid = MediaExamples(
        media_examples(3).data, ["class 0", "class 7", "class 1"], ["x[0]", "x[1]", "x[2]"]
    )
    with pytest.raises(
        ClearheadError, match=r"x\[1\] \('class 7'\): the label does not occur in the training data"
    ):
        dataset(media_examples(4), valid)
    data = dataset(media_examples(4), valid, DataReport("skip"))
    assert [(indices(b.tokens), b.targets.tolist()) for b in data.valid_batches()] == [
        ([0, 2], [0, 1])
    ]


def test_media_need_two_classes():
    with pytest.raises(ClearheadError, match="at least two labels"):
        dataset(media_examples(4, classes=1))


def test_random_shift_needs_images():
    with pytest.raises(ClearheadError, match="random_shift needs images"):
        dataset(
            MediaExamples(torch.zeros(2, 5, 7), ["a", "b"], ["0", "1"]), config=MEL, random_shift=1
        )


@pytest.mark.parametrize("name", ["tiny-images", "tiny-audio"])
def test_media_batches_run_through_the_model(tmp_path, name):
    model = presets[name].model
    for i in range(10):
        file = tmp_path / str(i % 5) / f"{i}.x"
        file.parent.mkdir(exist_ok=True)
        if name == "tiny-images":
            Image.fromarray(pixels(9, 9, 3)).save(file.with_suffix(".png"))
        else:
            wav(file.with_suffix(".wav"), 0.2)
    report = DataReport()
    data = dataset(load_media(tmp_path, model.input, report), 0.5, report, config=model.input)
    net = build_transformer(model)
    for batch in (data.batch(0), data.batch(1), *data.valid_batches()):
        total, count = net.loss(net(batch.tokens, segment_ids=batch.segment_ids), batch.targets)
        assert count == len(batch.targets)
        assert torch.isfinite(total)
