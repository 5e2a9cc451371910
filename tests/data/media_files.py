"""Small labeled images and audio clips, and files of them."""

import gzip
import struct
from pathlib import Path

import numpy as np
import soundfile
import torch

from clearhead.config.model import Images, MelSpectrogram
from clearhead.data.media_dataset import MediaDataset, MediaExamples
from clearhead.data.readers import DataReport

GRAY = Images(image_size=4, patch_size=2, num_channels=1, mean=(0.3,), std=(0.7,))
COLOR = Images(
    image_size=4, patch_size=2, num_channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
)
MEL = MelSpectrogram(sample_rate=8000, n_fft=32, hop_length=10, n_mels=5, n_frames=7)
RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def media_examples(count: int, classes: int = 2) -> MediaExamples:
    """Images whose pixels all equal their index."""
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
    valid: MediaExamples | float = 0.0,
    report: DataReport | None = None,
    **options,
) -> MediaDataset:
    return MediaDataset(
        train,
        valid,
        options.pop("config", GRAY),
        report or DataReport(),
        **{"batch_size": 4, "seed": 0, **options},
    )


def indices(tokens: torch.Tensor) -> list[int]:
    return ((tokens[:, 0, 0, 0] * 0.7 + 0.3) * 255).round().int().tolist()


def idx(path: Path, array: np.ndarray, compress: bool = False) -> Path:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    raw = header + array.tobytes()
    path.write_bytes(gzip.compress(raw) if compress else raw)
    return path


def wav(path: Path, seconds: float = 0.05, rate: int = 8000) -> Path:
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, RNG.uniform(-0.5, 0.5, int(seconds * rate)).astype(np.float32), rate)
    return path
