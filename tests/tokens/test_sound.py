"""Laws of sound: Whisper's frames, spelled out once more in loops; the same wave at any rate."""

import cmath
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from clearhead.config import Mel, Sound, Spectrogram
from clearhead.errors import ClearheadError
from clearhead.tokens import sound

TINY = Mel(rate=8000, window=32, hop=10, mels=5, frames=7)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 10


def tone(rate: int, hertz: float, seconds: float = 1.0) -> Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(int(rate * seconds), dtype=torch.float64) / rate).float()


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0, 5, 30, 31])
def test_log_mel_is_whispers(mels: int, seconds: int) -> None:
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=mels)
    samples = noise(seconds * 16000 + 123) + tone(16000, 440, seconds + 123 / 16000)
    theirs = extractor(samples.numpy(), sampling_rate=16000, return_tensors="np").input_features
    np.testing.assert_allclose(sound.log_mel(samples, Sound(mels=mels)), theirs, atol=1e-5)


def by_loops(samples: list[float], m: Mel) -> list[list[float]]:
    """The definition, one number at a time."""

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    top = m.rate / 2 * 3 / 200 if m.rate < 2000 else 15 + math.log(m.rate / 2000) / (math.log(6.4) / 27)
    corners = [hertz(top * i / (m.mels + 1)) for i in range(m.mels + 2)]
    length, half = m.frames * m.hop, m.window // 2
    samples = (samples + [0.0] * length)[:length]
    mirrored = samples[half:0:-1] + samples + samples[-2 : -half - 2 : -1]
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * n / m.window) for n in range(m.window)]
    bels = [[0.0] * m.frames for _ in range(m.mels)]
    for frame in range(m.frames):
        under = [h * x for h, x in zip(hann, mirrored[frame * m.hop :], strict=False)]
        for band in range(m.mels):
            left, middle, right = corners[band : band + 3]
            energy = 0.0
            for k in range(m.window // 2 + 1):
                f = k * m.rate / m.window
                height = max(0.0, min((f - left) / (middle - left), (right - f) / (right - middle)))
                wave = sum(x * cmath.exp(-2j * math.pi * k * n / m.window) for n, x in enumerate(under))
                energy += height * 2 / (right - left) * abs(wave) ** 2
            bels[band][frame] = math.log10(max(energy, 1e-10))
    loudest = max(map(max, bels))
    return [[(max(x, loudest - 8) + 4) / 4 for x in row] for row in bels]


@pytest.mark.parametrize(("rate", "window"), [(8000, 32), (8000, 31), (2100, 32), (1200, 32)])
@pytest.mark.parametrize("count", [40, 70, 90])
def test_log_mel_is_its_definition(rate: int, window: int, count: int) -> None:
    m = Mel(rate=rate, window=window, hop=10, mels=5, frames=7)
    samples = noise(count)
    np.testing.assert_allclose(sound.log_mel(samples, m)[0], by_loops(samples.tolist(), m), atol=1e-4)


def test_each_sound_of_a_batch_is_read_alone() -> None:
    samples = noise(3, 70) * torch.tensor([[100.0], [1e-3], [0.0]])
    together = sound.log_mel(samples, TINY)
    assert together.shape == (3, TINY.mels, TINY.frames)
    torch.testing.assert_close(together, torch.cat([sound.log_mel(one, TINY) for one in samples]))


def test_patches_are_of_frames_whose_loudest_is_one_however_loud_the_sound_was() -> None:
    source = Spectrogram(**vars(TINY), patch_mels=5, patch_frames=7)
    near, far = (sound.log_mel(noise(70) * loudness, source)[0] for loudness in (1.0, 0.1))
    torch.testing.assert_close(near, far)
    plain = sound.log_mel(noise(70), TINY)[0]
    torch.testing.assert_close(near, plain - plain.max() + 1)


def test_silence_is_the_floor() -> None:
    assert (sound.log_mel(torch.zeros(0), TINY) == (math.log10(1e-10) + 4) / 4).all()


def test_a_tone_is_loudest_in_its_own_band() -> None:
    m = Mel(frames=100)
    centres = sound.mel_filters(m).argmax(1) * m.rate / m.window
    for hertz in (400, 1000, 4000):
        loudest = int(sound.log_mel(tone(m.rate, hertz), m)[0].mean(1).argmax())
        assert abs(float(centres[loudest]) - hertz) <= m.rate / m.window


@pytest.mark.parametrize(("old", "new"), [(44100, 16000), (8000, 16000), (48000, 16000), (16001, 16000)])
def test_a_tone_is_the_same_tone_at_another_rate(old: int, new: int) -> None:
    ours, expected = sound.resample(tone(old, 440), old, new), tone(new, 440)
    assert len(ours) == len(expected)
    calm = slice(new // 50, -new // 50)  # the sudden start and end hold every frequency
    torch.testing.assert_close(ours[calm], expected[calm], atol=1e-3, rtol=0)


def test_what_the_new_rate_cannot_hold_is_gone() -> None:
    calm = sound.resample(tone(44100, 9000), 44100, 16000)[1600:-1600]
    assert calm.abs().max() < 0.01


def test_the_end_does_not_ring_into_the_beginning() -> None:
    samples = torch.zeros(2 * 44100 - 1)
    samples[-10:] = 1
    assert sound.resample(samples, 44100, 16000)[:16000].abs().max() < 1e-3


def test_a_started_sample_is_a_sample() -> None:
    assert [len(sound.resample(torch.zeros(n), 44100, 16000)) for n in (0, 1, 10, 441)] == [0, 1, 4, 160]


def test_up_and_down_again_is_the_same_sound() -> None:
    samples = noise(12345)
    back = sound.resample(sound.resample(samples, 8000, 16000), 16000, 8000)
    torch.testing.assert_close(back[100:-100], samples[100:-100], atol=2e-3, rtol=0)


def test_reading_mixes_channels_and_keeps_the_wave(tmp_path: Path) -> None:
    left, right = tone(16000, 440) / 2, tone(16000, 1000) / 2
    soundfile.write(tmp_path / "a.wav", torch.stack([left, right], 1).numpy(), 16000, subtype="FLOAT")
    read = sound.read(tmp_path / "a.wav", Mel())
    torch.testing.assert_close(read, (left + right) / 2)


def test_reading_brings_a_file_to_the_models_rate(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(44100, 440).numpy() / 2, 44100)
    read = sound.read(str(tmp_path / "a.flac"), Mel())
    assert len(read) == 16000
    torch.testing.assert_close(read[320:-320], tone(16000, 440)[320:-320] / 2, atol=1e-3, rtol=0)


def test_of_a_long_sound_only_what_is_heard_and_a_second_are_read(tmp_path: Path) -> None:
    long, heard = noise(8000 * 3, 2), TINY.frames * TINY.hop
    soundfile.write(tmp_path / "a.wav", long.numpy(), 8000, subtype="FLOAT")
    read = sound.read(tmp_path / "a.wav", TINY)
    torch.testing.assert_close(read, long.mean(1)[: heard + 8000])


@pytest.mark.parametrize("samples", [[], [0.1, math.nan]])
def test_a_sound_without_samples_or_with_such_as_are_no_numbers_is_refused(
    samples: list[float], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "a.wav", np.array(samples, np.float32), 8000, subtype="FLOAT")
    with pytest.raises(ClearheadError, match=r"a\.wav has no samples, or some that are no numbers\."):
        sound.read(tmp_path / "a.wav", Mel())


@pytest.mark.parametrize("rate", [1, 999, 400_001])
def test_a_rate_that_no_sound_has_is_refused(rate: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(2000).numpy(), rate)
    with pytest.raises(ClearheadError, match=rf"a\.wav has {rate:,} samples a second; it must have 1,000 to 400,000\."):
        sound.read(tmp_path / "a.wav", Mel())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: sound.log_mel(torch.zeros(9, dtype=torch.int16), TINY), r"floats from -1 to 1, .* not int16 of 1 dim"),
        (lambda: sound.log_mel(torch.zeros(1, 2, 3), TINY), r"batch x samples, not float32 of 3 dimensions\."),
        (lambda: sound.log_mel(noise(9), Mel(frames=1)), r"160 samples \(frames x hop\) .* a window of 400\."),
        (lambda: sound.read("/no/such.wav", TINY), r"/no/such\.wav cannot be read: there is no such file\."),
    ],
)
def test_a_mistake_is_told_in_a_sentence(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ClearheadError, match=sentence):
        wrong()


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.raw", "a"])
def test_a_file_that_is_no_sound_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("not a sound")
    with pytest.raises(ClearheadError, match=rf"{name} is not a sound; a WAV"):
        sound.read(tmp_path / name, TINY)
