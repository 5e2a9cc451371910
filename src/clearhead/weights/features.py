"""How pictures and sounds become numbers, as the `preprocessor_config.json` of a published model tells it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead import config as c
from clearhead import reader
from clearhead.errors import ClearheadError
from clearhead.files import write_json

Tree = dict[str, Any]
FEATURES = "preprocessor_config.json"
SMOOTH: dict[int, Any] = {2: "bilinear", 3: "bicubic"}  # as pillow numbers them
PIXELS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_center_crop": False,
}


def read(folder: Path, m: c.ModelConfig) -> c.ModelConfig:
    """How a picture becomes numbers; for sounds there is one way, and the file must agree."""
    said = reader.load(folder / FEATURES) if (folder / FEATURES).is_file() else {}
    both = isinstance(m.shape, c.EncoderDecoder)
    source = m.reads
    if isinstance(source, c.Sound):
        for name, value in _heard(source).items():
            if said.get(name, value) != value:
                raise ClearheadError(f"{FEATURES} asks for {name} = {said[name]!r}; clearhead listens with {value}.")
    if not isinstance(source, c.Pictures) or both or not said:
        return m
    means, deviations = said.get("image_mean", 0.5), said.get("image_std", 0.5)
    size = said.get("size")
    asked = {**said, "size": size.get("height") if isinstance(size, dict) else size}
    for name, value in {**PIXELS, "size": source.size}.items():
        if asked.get(name) not in (value, None):
            raise ClearheadError(f"{FEATURES} asks for {name} = {said[name]!r}; clearhead only knows {value}.")
    smooth = SMOOTH.get(said.get("resample", 2))
    if smooth is None:
        raise ClearheadError(f"{FEATURES} asks for resample = {said['resample']!r}; clearhead knows 2 and 3.")
    return replace(m, input=replace(source, mean=_colours(means), deviation=_colours(deviations), smooth=smooth))


def _colours(values: object) -> tuple[float, ...]:
    """One number for each colour, or one for all."""
    listed = values if isinstance(values, list) else [values]
    if not all(isinstance(value, int | float) for value in listed):
        raise ClearheadError(f"{FEATURES}: {values!r} must be a number for each colour.")
    return tuple(map(float, listed[:1] if len(set(listed)) == 1 else listed))


def _heard(source: c.Sound) -> Tree:
    said = {"sampling_rate": source.rate, "n_fft": source.window, "hop_length": source.hop, "feature_size": source.mels}
    return {**said, "nb_max_frames": source.frames, "n_samples": source.frames * source.hop}


def write(folder: Path, m: c.ModelConfig) -> None:
    source = m.reads
    if isinstance(source, c.Sound):
        length = source.frames * source.hop // source.rate
        extra = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": length, "padding_value": 0.0}
        write_json(folder / FEATURES, {**_heard(source), **extra})
    if isinstance(source, c.Pictures):
        said: Tree = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": source.size, "width": source.size},
        }
        said |= PIXELS
        said |= {"image_mean": _each(source.mean, source), "image_std": _each(source.deviation, source)}
        said["resample"] = next(number for number, name in SMOOTH.items() if name == source.smooth)
        write_json(folder / FEATURES, said)


def _each(values: tuple[float, ...], source: c.Pictures) -> list[float]:
    return list(values) * (source.channels if len(values) == 1 else 1)
