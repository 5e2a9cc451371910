"""A sound becomes log-mel frames, the ones that Whisper reads, at any rate, window and number of bands (L6.4)."""

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.config import Mel, Spectrogram
from clearhead.errors import ClearheadError, unreadable

SLOWEST, FASTEST = 1_000, 400_000  # samples a second of a file; at other rates a small file would become a huge sound
BLOCK = 1 << 16  # samples that are mixed at once, however many channels they have


def log_mel(samples: Float[Tensor, "*batch sample"], source: Mel) -> Float[Tensor, "batch mel frame"]:
    """How loud each band of pitches is, frame by frame, in bels, squeezed to about −1 … 1.

    Sounds are cut, or filled with silence, to `frames × hop` samples. Whisper's frames are louder near the microphone;
    those that become patches are all made equally loud: their loudest is 1.
    """
    length = source.frames * source.hop
    if samples.dim() not in (1, 2) or not samples.is_floating_point():
        got = f"{str(samples.dtype).removeprefix('torch.')} of {samples.dim()} dimensions"
        raise ClearheadError(f"sound must be floats from -1 to 1, samples or batch x samples, not {got}.")
    if length <= source.window // 2:  # the ends are mirrored under half a window
        raise ClearheadError(f"{length} samples (frames x hop) are too few for a window of {source.window}.")
    samples = F.pad(samples.float(), (0, length - samples.shape[-1])).view(-1, length)  # a negative pad cuts
    window = torch.hann_window(source.window, device=samples.device)
    waves = torch.stft(samples, source.window, source.hop, window=window, return_complex=True)
    power = waves[..., : source.frames].abs().square()
    bels = (mel_filters(source).to(power) @ power).clamp(min=1e-10).log10()
    loudest = bels.amax((1, 2), keepdim=True)
    middle = loudest - 4 if isinstance(source, Spectrogram) else -4
    return (bels.maximum(loudest - 8) - middle) / 4


def mel_filters(source: Mel) -> Float[Tensor, "mel frequency"]:
    """Triangles over the frequencies, evenly spaced in mels, each of area one (Slaney)."""
    frequencies = torch.arange(source.window // 2 + 1, dtype=torch.float64) * source.rate / source.window
    corners = _hertz(torch.linspace(0, _mels(source.rate / 2), source.mels + 2, dtype=torch.float64))
    left, middle, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    return (rising.minimum(falling).clamp(min=0) * 2 / (right - left)).float()


# Slaney's scale: three mels every 200 Hz up to 1000 Hz, from there on 27 mels for each factor of 6.4.
def _mels(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000, 6.4)


def _hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def read(path: str | Path, source: Mel) -> Float[Tensor, " sample"]:
    """The samples of a sound file, its channels mixed, at the source's rate; of a long one what is heard, and a second.

    So its end rings where nothing is heard, and what a file unfolds to is bounded.
    """
    import soundfile  # type: ignore[import-untyped] # only files need libsndfile

    try:
        with Path(path).open("rb") as file, soundfile.SoundFile(file) as opened:
            rate = opened.samplerate
            if not SLOWEST <= rate <= FASTEST:
                right = f"it must have {SLOWEST:,} to {FASTEST:,}"
                raise ClearheadError(f"{path} has {rate:,} samples a second; {right}.")
            heard = math.ceil(source.frames * source.hop * rate / source.rate) + rate
            sizes = [min(BLOCK, heard - at) for at in range(0, heard, BLOCK)]  # beyond the end, nothing is read
            blocks = (opened.read(size, dtype="float32", always_2d=True) for size in sizes)
            mixed = torch.cat([torch.from_numpy(block).mean(1) for block in blocks])
    except OSError as error:
        raise unreadable(path, error) from None
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: headerless .raw
        why = getattr(error, "error_string", error)
        raise ClearheadError(f"{path} is not a sound; a WAV, FLAC, OGG or MP3 file is needed ({why}).") from None
    if not len(mixed) or not bool(mixed.isfinite().all()):
        raise ClearheadError(f"{path} has no samples, or some that are no numbers.")
    return resample(mixed, rate, source.rate)


def lasts(path: str | Path) -> float:
    """The seconds of a sound file that `read` reads, all of it."""
    import soundfile

    return float(soundfile.info(str(path)).duration)


def resample(samples: Float[Tensor, " old_sample"], old: int, new: int) -> Float[Tensor, " new_sample"]:
    """The same wave at another rate: its spectrum cut off, or continued with zeros, at the new highest frequency."""
    if old == new:
        return samples
    seconds = len(samples) // old + 2  # whole ones, and a silent one lest the end ring into the beginning
    spectrum = torch.fft.rfft(samples, seconds * old)
    wave: Tensor = torch.fft.irfft(spectrum, seconds * new) * (new / old)
    return wave[: math.ceil(len(samples) * new / old)]
