"""Laws of pictures and sounds with classes: the same from any file, each once an epoch, nothing leaks."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clearhead.config import Mel, Pictures
from clearhead.data.packed import Report
from clearhead.data.pictured import Pictured, Things, load, without
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build
from clearhead.presets import presets
from clearhead.tokens import pictures, sound

GREY = Pictures(size=4, patch=2, channels=1, mean=(0.3,), deviation=(0.7,))
COLOUR = Pictures(size=4, patch=2, channels=3, mean=(0.1, 0.2, 0.3), deviation=(0.5, 0.6, 0.7))
MEL = Mel(rate=8000, window=32, hop=10, mels=5, frames=7)
CHANCE = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return CHANCE.integers(0, 256, shape, dtype=np.uint8)


def things(count: int, classes: int = 2) -> Things:
    """Pictures whose every pixel is their own number."""
    data = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 4, 4).contiguous()
    return Things(data, [f"class {i % classes}" for i in range(count)], [f"x[{i}]" for i in range(count)])


def dataset(train: Things, held: Things | float = 0.0, report: Report | None = None, **options) -> Pictured:
    return Pictured(train, held, options.pop("source", GREY), report or Report(), **{"rows": 4, "seed": 0, **options})


def numbers(tokens: torch.Tensor) -> list[int]:
    return ((tokens[:, 0, 0, 0] * 0.7 + 0.3) * 255).round().int().tolist()


def idx(path: Path, array: np.ndarray, packed: bool = False) -> Path:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    raw = head + array.tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return path


def wav(path: Path, seconds: float = 0.05, rate: int = 8000) -> Path:
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, CHANCE.uniform(-0.5, 0.5, int(seconds * rate)).astype(np.float32), rate)
    return path


def test_files_that_are_held_out_are_taken_out_of_the_folder_that_holds_them(tmp_path):
    for number in range(4):
        wav(tmp_path / ("valid" if number > 2 else ".") / f"{number % 2}_x{number}.wav")
    report = Report()
    train, held = (load(path, MEL, report, label="stem") for path in (tmp_path, tmp_path / "valid"))
    assert [Path(where).name for where in without(train, held, report).where] == ["0_x0.wav", "0_x2.wav", "1_x1.wav"]
    assert report.places["the file is one of data.valid"] == [str(tmp_path / "valid" / "1_x3.wav")]
    assert without(held, things(3), report) is held
    with pytest.raises(ClearheadError, match=r"every file of data\.train"):
        without(held, train, report)


# ---------------------------------------------------------------- batches
@given(st.integers(4, 40), st.integers(1, 9), st.integers(0, 2**40))
def test_every_picture_comes_once_an_epoch(count, per_batch, seed):
    data = dataset(things(count), rows=per_batch, seed=seed)
    steps = -(-2 * count // per_batch)
    seen = [n for step in range(steps) for n in numbers(data.batch(step).tokens)]
    assert sorted(seen[:count]) == sorted(seen[count:][:count]) == list(range(count))
    assert (data.epoch, data.share) == (-(-count // per_batch), 1.0)


@given(st.integers(0, 50), st.integers(0, 3))
def test_a_batch_is_a_function_of_seed_and_step(step, shift):
    one, other = (dataset(things(9), shift=shift, seed=3) for _ in range(2))
    one.batch(0)
    assert torch.equal(one.batch(step).tokens, other.batch(step).tokens)
    assert torch.equal(one.batch(step).targets, other.batch(step).targets)


def test_batches_are_what_the_model_reads_when_it_is_used():
    images = pixels(6, 4, 4, 3)
    train = Things(torch.from_numpy(images).permute(0, 3, 1, 2), [*"ababab"], [*"012345"])
    batch = next(dataset(train, train, source=COLOUR, rows=6).held_out())
    assert torch.equal(batch.tokens, pictures.batch(list(images), COLOUR))
    assert batch.targets.tolist() == [0, 1, 0, 1, 0, 1]


@given(st.integers(1, 6), st.integers(0, 99))
def test_a_shifted_picture_is_a_part_of_the_picture_with_its_border_repeated(shift, step):
    source = Pictures(size=4, patch=2, channels=3)
    train = Things(torch.from_numpy(pixels(4, 3, 4, 4)), [*"abab"], [*"0123"])
    plain, shifted = (dataset(train, source=source, shift=by).batch(step) for by in (0, shift))
    wide = torch.nn.functional.pad(plain.tokens, (shift,) * 4, mode="replicate")
    for i, picture in enumerate(shifted.tokens):
        parts = wide[i].unfold(1, 4, 1).unfold(2, 4, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        assert any(torch.equal(part, picture) for part in parts)
    assert torch.equal(plain.targets, shifted.targets)


def test_shifts_go_every_way_but_never_where_pictures_are_held_out():
    picture = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    picture[..., 2, 2] = 255
    train = Things(picture.expand(2, 1, 5, 5), ["a", "b"], ["0", "1"])
    source = Pictures(size=5, patch=1, channels=1)
    data = dataset(train, train, source=source, shift=1)
    batches = [[int(one.argmax()) for one in data.batch(step).tokens] for step in range(40)]
    assert {spot for spots in batches for spot in spots} == {6, 7, 8, 11, 12, 13, 16, 17, 18}
    assert any(len(set(spots)) > 2 for spots in batches)  # each picture goes its own way
    assert all(int(one.argmax()) == 12 for batch in data.held_out() for one in batch.tokens)


@given(st.integers(2, 40), st.floats(0.05, 0.8), st.integers(0, 99))
def test_what_is_held_out_is_never_trained_on_and_nothing_is_lost(count, share, seed):
    data = dataset(things(count * 3, classes=3), share, seed=seed)
    trained = {n for step in range(data.epoch) for n in numbers(data.batch(step).tokens)}
    held = [(n, int(t)) for batch in data.held_out() for n, t in zip(numbers(batch.tokens), batch.targets, strict=True)]
    assert trained.isdisjoint(n for n, _ in held)
    assert trained | {n for n, _ in held} == set(range(count * 3))
    assert all(n % 3 == target for n, target in held)
    each = min(count - 1, max(1, round(share * count)))
    assert [sum(target == c for _, target in held) for c in range(3)] == [each] * 3


def test_copies_of_a_picture_are_never_on_both_sides():
    ten = things(10)
    twice = Things(torch.cat((ten.data, ten.data)), [*ten.labels] * 2, [*ten.where] * 2)
    data = dataset(twice, 0.3)
    trained = {n for step in range(data.epoch) for n in numbers(data.batch(step).tokens)}
    held = [n for batch in data.held_out() for n in numbers(batch.tokens)]
    assert len(held) == 2 * len(set(held)) > 0
    assert trained.isdisjoint(held)


def test_held_out_things_of_an_unknown_class_are_refused_or_left_out():
    held = Things(things(3).data, ["class 0", "class 7", "class 1"], ["x[0]", "x[1]", "x[2]"])
    with pytest.raises(ClearheadError, match=r"x\[1\] \('class 7'\): the label does not occur in training"):
        dataset(things(4), held)
    data = dataset(things(4), held, Report("skip"))
    assert [(numbers(b.tokens), b.targets.tolist()) for b in data.held_out()] == [([0, 2], [0, 1])]


def test_one_class_is_none():
    with pytest.raises(ClearheadError, match="no two classes"):
        dataset(things(4, classes=1))


# ---------------------------------------------------------------- pictures
def test_folders_arrays_and_idx_files_hold_the_same_pictures(tmp_path):
    images, labels = pixels(6, 4, 4), np.array([0, 0, 0, 1, 1, 1], np.uint8)
    for i, image in enumerate(images):
        folder = tmp_path / "folder" / str(labels[i])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    np.savez_compressed(tmp_path / "y.npz", images=images[..., None], labels=labels.astype(str))
    idx(tmp_path / "t-images-idx3-ubyte", images), idx(tmp_path / "t-labels-idx1-ubyte", labels)
    idx(tmp_path / "t-images-idx3-ubyte.gz", images, True), idx(tmp_path / "t-labels-idx1-ubyte.gz", labels, True)
    for name in ("folder", "x.npz", "y.npz", "t-images-idx3-ubyte", "t-images-idx3-ubyte.gz"):
        report = Report()
        read = load(tmp_path / name, GREY, report)
        assert read.data.dtype == torch.uint8
        assert torch.equal(read.data[:, 0], torch.from_numpy(images))
        assert list(read.labels) == [*"000111"]
        assert report.read == 6


@pytest.mark.parametrize(
    ("source", "shape"), [(GREY, (4, 4)), (COLOUR, (4, 4, 3)), (GREY, (4, 4, 3)), (COLOUR, (6, 5))]
)
def test_arrays_go_the_way_of_all_pictures(tmp_path, source, shape):
    images = pixels(3, *shape)
    np.savez(tmp_path / "x.npz", images=images, labels=["a", "b", "a"])
    read = load(tmp_path / "x.npz", source, Report())
    batch = next(dataset(read, read, source=source).held_out())
    assert torch.equal(batch.tokens, pictures.batch(list(images), source))


def test_broken_pictures_are_refused_or_left_out_with_their_name(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(pixels(40, 40)).save(tmp_path / name / "good.PNG")
    (tmp_path / "a" / "cut.png").write_bytes((tmp_path / "a" / "good.PNG").read_bytes()[:600])
    (tmp_path / "b" / "text.png").write_text("no picture")
    (tmp_path / "top.png").write_bytes((tmp_path / "a" / "good.PNG").read_bytes())
    (tmp_path / "b" / ".hidden.png").write_text("")
    (tmp_path / "README").write_text("about")
    with pytest.raises(ClearheadError, match=r"cut\.png: cannot be read.*skip would leave it out"):
        load(tmp_path, GREY, Report())
    report = Report("skip")
    assert [Path(where).name for where in load(tmp_path, GREY, report).where] == ["good.PNG"] * 2
    for words in ("cut.png", "is not a picture", "text.png", "not in the folder of a class", "top.png", "README"):
        assert words in str(report)
    assert (report.read, sum(report.skipped.values())) == (2, 4)


class Trap:
    """Would run code while it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", images=pixels(2, 4, 4), labels=np.array([Trap(), "b"], object))
    with pytest.raises(ClearheadError, match=r"x\.npz cannot be read: Object arrays cannot be loaded"):
        load(tmp_path / "x.npz", GREY, Report("skip"))


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (pixels(2, 4, 4).astype(np.float32), [0, 1], "must be uint8 .* not float32 of 2 x 4 x 4"),
        (pixels(2, 16), [0, 1], "not uint8 of 2 x 16"),
        (pixels(0, 4, 4), np.array([], int), "not uint8 of 0 x 4 x 4"),
        (pixels(2, 4, 4), [0, 1, 1], r"one for each picture, not int64 of \(3,\) for 2"),
        (pixels(2, 4, 4), [0.5, 1], "whole numbers or texts"),
        (pixels(2, 4, 4), [[0], [1]], "whole numbers or texts"),
        (pixels(2, 4, 4, 2), [0, 1], "3 or 4 channels last"),
    ],
)
def test_arrays_that_are_no_labelled_pictures_are_refused(tmp_path, images, labels, words):
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    with pytest.raises(ClearheadError, match=words):
        load(tmp_path / "x.npz", GREY, Report())


def test_an_npz_that_is_none_or_lacks_an_array_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", pictures=pixels(2, 4, 4), labels=[0, 1])
    with pytest.raises(ClearheadError, match="no array 'images'; it has pictures, labels"):
        load(tmp_path / "x.npz", GREY, Report())
    whole = (tmp_path / "x.npz").read_bytes()
    np.save(tmp_path / "one.npy", pixels(2, 4, 4))
    for raw in (b"", b"no zip", whole[:-40], (tmp_path / "one.npy").read_bytes()):
        (tmp_path / "x.npz").write_bytes(raw)
        with pytest.raises(ClearheadError, match=r"x\.npz cannot be read"):
            load(tmp_path / "x.npz", GREY, Report())


def test_idx_files_are_held_to_their_magic_and_sizes(tmp_path):
    images = idx(tmp_path / "t-images-idx3-ubyte", pixels(3, 4, 4))
    labels = idx(tmp_path / "t-labels-idx1-ubyte", np.array([0, 1, 1], np.uint8))
    right = images.read_bytes()
    for wrong, words in [
        (right[:-1], "must have 64 bytes for 3 x 4 x 4, as its head tells, not 63"),
        (right + b"x", "not 65"),
        (right[:9], "not 9"),
        (b"", "must begin with 00 00 08 03"),
        (right[:2] + b"\x0d" + right[3:], "must begin with 00 00 08 03, as idx files do, not 00 00 0d 03"),
        (labels.read_bytes(), "not 00 00 08 01"),
        (right[:4] + b"\xff" * 12 + right[16:], "must have"),
    ]:
        images.write_bytes(wrong)
        with pytest.raises(ClearheadError, match=words):
            load(images, GREY, Report("skip"))
    images.write_bytes(right)
    idx(labels, np.array([0, 1], np.uint8))
    with pytest.raises(ClearheadError, match=r"has 3 pictures, but .* 2 labels"):
        load(images, GREY, Report())
    labels.unlink()
    with pytest.raises(ClearheadError, match="labels-idx1-ubyte cannot be read"):
        load(images, GREY, Report())
    zstandard = pytest.importorskip("zstandard")
    for file in (idx(images, pixels(3, 4, 4)), idx(labels, np.array([0, 1, 0], np.uint8))):
        file.with_name(f"{file.name}.zst").write_bytes(zstandard.ZstdCompressor().compress(file.read_bytes()))
    packed = images.with_name(f"{images.name}.zst")
    assert load(packed, GREY, Report()).data.equal(load(images, GREY, Report()).data)
    packed = idx(tmp_path / "t-images-idx3-ubyte.gz", pixels(3, 4, 4), True)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ClearheadError, match=r"ubyte\.gz cannot be read"):
        load(packed, GREY, Report())


# ---------------------------------------------------------------- sound
@pytest.mark.parametrize("label", ["folder", "stem"])
def test_sounds_are_the_frames_that_the_model_reads(tmp_path, label):
    files = [tmp_path / name for name in ("7/7_theo_0.wav", "7/7_theo_1.flac", "8/8_lucas_0.wav")]
    for i, file in enumerate(files):
        wav(file, 0.03 * (i + 1), rate=8000 + 1000 * i)
    report = Report()
    read = load(tmp_path, MEL, report, label=label)
    assert list(read.labels) == [*"778"]
    expected = torch.cat([sound.log_mel(sound.read(file, MEL), MEL) for file in files])
    batch = next(dataset(read, read, source=MEL).held_out())
    assert batch.tokens.dtype == torch.float
    assert torch.equal(batch.tokens, expected)
    assert report.read == 3


def test_broken_sounds_are_refused_or_left_out_with_their_name(tmp_path):
    wav(tmp_path / "1_a.wav"), wav(tmp_path / "2_a.wav"), wav(tmp_path / "3_empty.wav", 0)
    soundfile.write(tmp_path / "4_nan.wav", np.array([0.0, np.nan], np.float32), 8000, subtype="FLOAT")
    (tmp_path / "5_text.wav").write_text("no sound")
    with pytest.raises(ClearheadError, match=r"3_empty\.wav: has no samples"):
        load(tmp_path, MEL, Report(), label="stem")
    report = Report("skip")
    assert list(load(tmp_path, MEL, report, label="stem").labels) == ["1", "2"]
    assert all(name in str(report) for name in ("3_empty.wav", "4_nan.wav", "5_text.wav"))


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("none", GREY, "no such file or folder"),
        ("empty", GREY, "holds no picture with a class"),
        ("empty", MEL, "holds no sound with a class"),
        ("x.npz", MEL, "must be a folder"),
        ("x.bin", GREY, "must be a folder, an .npz or"),
    ],
)
def test_paths_that_hold_nothing_to_read_are_refused(tmp_path, name, source, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.npz").write_bytes(b"")
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ClearheadError, match=words):
        load(tmp_path / name, source, Report())


def test_sound_is_not_shifted():
    with pytest.raises(ClearheadError, match="only pictures can be shifted"):
        dataset(Things(torch.zeros(2, 5, 7), ["a", "b"], ["0", "1"]), source=MEL, shift=1)


@pytest.mark.parametrize("name", ["tiny-pictures", "tiny-sound"])
def test_batches_go_through_the_model(tmp_path, name):
    model = presets[name].model
    for i in range(10):
        file = tmp_path / str(i % 5) / f"{i}.x"
        file.parent.mkdir(exist_ok=True)
        if name == "tiny-pictures":
            Image.fromarray(pixels(9, 9, 3)).save(file.with_suffix(".png"))
        else:
            wav(file.with_suffix(".wav"), 0.2)
    report = Report()
    data = dataset(load(tmp_path, model.input, report), 0.5, report, source=model.input)
    net = build(model)
    for batch in (data.batch(0), data.batch(1), *data.held_out()):
        total, count = net.loss(net(batch.tokens, segments=batch.segments), batch.targets)
        assert count == len(batch.targets)
        assert torch.isfinite(total)
