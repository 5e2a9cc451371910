"""Laws of audio: Whisper's mel frames, also computed by loops, and resampling."""

import cmath
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from clearhead.config.model import Audio, MelSpectrogram, Spectrogram
from clearhead.errors import ClearheadError
from clearhead.tokenizers.media import log_mel, mel_filter_bank, read_audio, resample

TINY = MelSpectrogram(sample_rate=8000, n_fft=32, hop_length=10, n_mels=5, n_frames=7)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 10


def tone(rate: int, hertz: float, seconds: float = 1.0) -> Tensor:
    return torch.sin(
        2 * math.pi * hertz * torch.arange(int(rate * seconds), dtype=torch.float64) / rate
    ).float()


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0, 5, 30, 31])
def test_log_mel_equals_whisper(mels: int, seconds: int) -> None:
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=mels)
    samples = noise(seconds * 16000 + 123) + tone(16000, 440, seconds + 123 / 16000)
    theirs = extractor(samples.numpy(), sampling_rate=16000, return_tensors="np").input_features
    np.testing.assert_allclose(log_mel(samples, Audio(n_mels=mels)), theirs, atol=1e-5)


def by_loops(samples: list[float], m: MelSpectrogram) -> list[list[float]]:
    """The definition, one number at a time."""

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    top = (
        m.sample_rate / 2 * 3 / 200
        if m.sample_rate < 2000
        else 15 + math.log(m.sample_rate / 2000) / (math.log(6.4) / 27)
    )
    corners = [hertz(top * i / (m.n_mels + 1)) for i in range(m.n_mels + 2)]
    length = m.n_frames * m.hop_length
    half = m.n_fft // 2
    samples = (samples + [0.0] * length)[:length]
    mirrored = samples[half:0:-1] + samples + samples[-2 : -half - 2 : -1]
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * n / m.n_fft) for n in range(m.n_fft)]
    bels = [[0.0] * m.n_frames for _ in range(m.n_mels)]
    for frame in range(m.n_frames):
        under = [h * x for h, x in zip(hann, mirrored[frame * m.hop_length :], strict=False)]
        for band in range(m.n_mels):
            left, middle, right = corners[band : band + 3]
            energy = 0.0
            for k in range(m.n_fft // 2 + 1):
                f = k * m.sample_rate / m.n_fft
                height = max(0.0, min((f - left) / (middle - left), (right - f) / (right - middle)))
                wave = sum(
                    x * cmath.exp(-2j * math.pi * k * n / m.n_fft) for n, x in enumerate(under)
                )
                energy += height * 2 / (right - left) * abs(wave) ** 2
            bels[band][frame] = math.log10(max(energy, 1e-10))
    loudest = max(map(max, bels))
    return [[(max(x, loudest - 8) + 4) / 4 for x in row] for row in bels]


@pytest.mark.parametrize(("rate", "window"), [(8000, 32), (8000, 31), (2100, 32), (1200, 32)])
@pytest.mark.parametrize("count", [40, 70, 90])
def test_log_mel_equals_its_definition(rate: int, window: int, count: int) -> None:
    m = MelSpectrogram(sample_rate=rate, n_fft=window, hop_length=10, n_mels=5, n_frames=7)
    samples = noise(count)
    np.testing.assert_allclose(log_mel(samples, m)[0], by_loops(samples.tolist(), m), atol=1e-4)


def test_batched_log_mel_equals_single() -> None:
    samples = noise(3, 70) * torch.tensor([[100.0], [1e-3], [0.0]])
    together = log_mel(samples, TINY)
    assert together.shape == (3, TINY.n_mels, TINY.n_frames)
    torch.testing.assert_close(together, torch.cat([log_mel(one, TINY) for one in samples]))


def test_spectrogram_frames_are_normalized_to_one() -> None:
    source = Spectrogram(**vars(TINY), patch_mels=5, patch_frames=7)
    near, far = (log_mel(noise(70) * loudness, source)[0] for loudness in (1.0, 0.1))
    torch.testing.assert_close(near, far)
    plain = log_mel(noise(70), TINY)[0]
    torch.testing.assert_close(near, plain - plain.max() + 1)


def test_silence_is_the_minimum() -> None:
    assert (log_mel(torch.zeros(0), TINY) == (math.log10(1e-10) + 4) / 4).all()


def test_tone_is_loudest_in_its_mel_band() -> None:
    m = MelSpectrogram(n_frames=100)
    centers = mel_filter_bank(m).argmax(1) * m.sample_rate / m.n_fft
    for hertz in (400, 1000, 4000):
        loudest = int(log_mel(tone(m.sample_rate, hertz), m)[0].mean(1).argmax())
        assert abs(float(centers[loudest]) - hertz) <= m.sample_rate / m.n_fft


@pytest.mark.parametrize(
    ("old", "new"), [(44100, 16000), (8000, 16000), (48000, 16000), (16001, 16000)]
)
def test_resampled_tone_keeps_its_frequency(old: int, new: int) -> None:
    ours = resample(tone(old, 440), old, new)
    expected = tone(new, 440)
    assert len(ours) == len(expected)
    calm = slice(new // 50, -new // 50)  # the sudden start and end hold every frequency
    torch.testing.assert_close(ours[calm], expected[calm], atol=1e-3, rtol=0)


def test_downsampling_removes_high_frequencies() -> None:
    calm = resample(tone(44100, 9000), 44100, 16000)[1600:-1600]
    assert calm.abs().max() < 0.01


def test_resampling_does_not_wrap_around() -> None:
    samples = torch.zeros(2 * 44100 - 1)
    samples[-10:] = 1
    assert resample(samples, 44100, 16000)[:16000].abs().max() < 1e-3


def test_resampled_length_is_rounded_up() -> None:
    assert [len(resample(torch.zeros(n), 44100, 16000)) for n in (0, 1, 10, 441)] == [0, 1, 4, 160]


def test_resampling_up_and_down_round_trips() -> None:
    samples = noise(12345)
    back = resample(resample(samples, 8000, 16000), 16000, 8000)
    torch.testing.assert_close(back[100:-100], samples[100:-100], atol=2e-3, rtol=0)


def test_read_audio_mixes_to_mono(tmp_path: Path) -> None:
    left = tone(16000, 440) / 2
    right = tone(16000, 1000) / 2
    soundfile.write(
        tmp_path / "a.wav", torch.stack([left, right], 1).numpy(), 16000, subtype="FLOAT"
    )
    read = read_audio(tmp_path / "a.wav", MelSpectrogram())
    torch.testing.assert_close(read, (left + right) / 2)


def test_read_audio_resamples_to_the_model_rate(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(44100, 440).numpy() / 2, 44100)
    read = read_audio(str(tmp_path / "a.flac"), MelSpectrogram())
    assert len(read) == 16000
    torch.testing.assert_close(read[320:-320], tone(16000, 440)[320:-320] / 2, atol=1e-3, rtol=0)


def test_read_audio_decodes_at_most_one_extra_second(tmp_path: Path) -> None:
    long = noise(8000 * 3, 2)
    heard = TINY.n_frames * TINY.hop_length
    soundfile.write(tmp_path / "a.wav", long.numpy(), 8000, subtype="FLOAT")
    read = read_audio(tmp_path / "a.wav", TINY)
    torch.testing.assert_close(read, long.mean(1)[: heard + 8000])


@pytest.mark.parametrize("samples", [[], [0.1, math.nan], [0.1, -math.inf], [1e30, 0.1]])
def test_empty_or_nan_audio_is_rejected(samples: list[float], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array(samples, np.float32), 8000, subtype="FLOAT")
    with pytest.raises(ClearheadError, match=r"a\.wav is empty or contains NaN"):
        read_audio(tmp_path / "a.wav", MelSpectrogram())


@pytest.mark.parametrize("rate", [1, 999, 400_001])
def test_invalid_sample_rates_are_rejected(rate: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(2000).numpy(), rate)
    with pytest.raises(
        ClearheadError,
        match=rf"sample rate of 1,000 to 400,000 Hz, got {rate:,}\.",
    ):
        read_audio(tmp_path / "a.wav", MelSpectrogram())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: log_mel(torch.zeros(9, dtype=torch.int16), TINY),
            r"float tensor .* got 1-D torch\.int16",
        ),
        (
            lambda: log_mel(torch.zeros(1, 2, 3), TINY),
            r"\[batch, sample\], got 3-D",
        ),
        (
            lambda: log_mel(noise(9), MelSpectrogram(n_frames=1)),
            r"160 samples .* too few for n_fft = 400",
        ),
        (
            lambda: read_audio("/no/such.wav", TINY),
            r"/no/such\.wav cannot be read",
        ),
    ],
)
def test_invalid_audio_is_rejected(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ClearheadError, match=message):
        call()


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.raw", "a"])
def test_files_of_other_formats_are_rejected_as_audio(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("not audio")
    with pytest.raises(ClearheadError, match=rf"{name} is not an audio file"):
        read_audio(tmp_path / name, TINY)
