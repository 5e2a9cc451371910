"""Small pictures and sounds with classes, and files of them."""

import gzip
import struct
from pathlib import Path

import numpy as np
import soundfile
import torch

from clearhead.config.model import Images, MelSpectrogram
from clearhead.data.batch import DataReport
from clearhead.data.media import MediaDataset, MediaExamples

GREY = Images(image_size=4, patch_size=2, num_channels=1, mean=(0.3,), std=(0.7,))
COLOUR = Images(
    image_size=4, patch_size=2, num_channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
)
MEL = MelSpectrogram(sample_rate=8000, n_fft=32, hop_length=10, n_mels=5, n_frames=7)
CHANCE = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return CHANCE.integers(0, 256, shape, dtype=np.uint8)


def things(count: int, classes: int = 2) -> MediaExamples:
    """Pictures whose every pixel is their own number."""
    data = (
        torch.arange(count, dtype=torch.uint8)[:, None, None, None]
        .expand(count, 1, 4, 4)
        .contiguous()
    )
    return MediaExamples(
        data, [f"class {i % classes}" for i in range(count)], [f"x[{i}]" for i in range(count)]
    )


def dataset(
    train: MediaExamples,
    held: MediaExamples | float = 0.0,
    report: DataReport | None = None,
    **options,
) -> MediaDataset:
    return MediaDataset(
        train,
        held,
        options.pop("source", GREY),
        report or DataReport(),
        **{"rows": 4, "seed": 0, **options},
    )


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
