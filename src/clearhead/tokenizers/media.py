"""A picture becomes numbers, about −1 to 1, in the one size that the model cuts into patches (L6.4)."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.config.model import Images, MelSpectrogram, Spectrogram
from clearhead.errors import ClearheadError, cannot_read, check_type, warn

# ---- pictures: A picture becomes numbers, about −1 to 1, in the one size that the model cuts into patches (L6.4).

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


def read_image(image_input: ImageInput, config: Images) -> Float[Tensor, "channel height width"]:
    """One picture as a person sees it: upright, clear parts on white; stretched to the square, grey or in colour."""
    if config.num_channels not in (1, 3):
        raise ClearheadError(
            f"pictures have 1 channel (grey) or 3 (colour), not {config.num_channels}."
        )
    image = _open_image(image_input).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if config.num_channels == 1 else "RGB")
    image = image.resize(
        (config.image_size, config.image_size), Image.Resampling[config.resample.upper()]
    )
    pixels = torch.from_numpy(np.array(image)).view(
        config.image_size, config.image_size, config.num_channels
    )
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (config.mean, config.std))
    return (pixels.permute(2, 0, 1).contiguous() / 255 - mean) / deviation


def read_images(
    images: Iterable[ImageInput], config: Images
) -> Float[Tensor, "batch channel height width"]:
    """Several pictures, for the model to read at once."""
    read_ones = [read_image(picture, config) for picture in images]
    if not read_ones:
        raise ClearheadError("a batch needs at least one picture; none was given.")
    return torch.stack(read_ones)


def _open_image(image_input: ImageInput) -> Image.Image:
    if isinstance(image_input, np.ndarray):
        return _from_array(image_input)
    check_type(
        image_input, str | Path | Image.Image, "the name of a picture's file, an image or an array"
    )
    name = "the picture" if isinstance(image_input, Image.Image) else str(image_input)
    try:
        image = image_input if isinstance(image_input, Image.Image) else Image.open(image_input)
        image = ImageOps.exif_transpose(image)
    except UnidentifiedImageError:
        raise ClearheadError(
            f"{name} is not a picture; a PNG, JPEG, GIF, WebP or the like is needed."
        ) from None
    except Exception as error:  # pillow's decoders raise whatever they stumble over
        raise cannot_read(name, error) from None
    if image.mode[0] in "IF":  # pillow would turn all but the darkest pixels white
        raise ClearheadError(
            f"{name} has deep pixels (mode {image.mode}); save it with 8 bits a colour."
        )
    return image


def _from_array(array: NDArray[np.uint8]) -> Image.Image:
    grey = array.ndim == 2
    colour = array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.dtype != np.uint8 or not (grey or colour) or not array.size:
        got = f"{array.dtype} of {' x '.join(map(str, array.shape)) or 'no size'}"
        raise ClearheadError(
            f"an array must be uint8 of height x width, or with 1, 3 or 4 channels last, not {got}."
        )
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)


# ---- sound: A sound becomes log-mel frames, the ones that Whisper reads, at any rate, window and number of bands (L6.4).

# samples a second of a file; at other rates a small file would become a huge sound
MIN_FILE_SAMPLE_RATE = 1_000
MAX_FILE_SAMPLE_RATE = 400_000
BLOCK_SAMPLES = 1 << 16  # samples that are mixed at once, however many channels they have


def log_mel(
    samples: Float[Tensor, "*batch sample"], config: MelSpectrogram
) -> Float[Tensor, "batch mel frame"]:
    """How loud each band of pitches is, frame by frame, in bels, squeezed to about −1 … 1.

    Sounds are cut, or filled with silence, to `frames × hop` samples. Whisper's frames are louder near the microphone;
    those that become patches are all made equally loud: their loudest is 1.
    """
    length = config.n_frames * config.hop_length
    if samples.dim() not in (1, 2) or not samples.is_floating_point():
        got = f"{str(samples.dtype).removeprefix('torch.')} of {samples.dim()} dimensions"
        raise ClearheadError(
            f"sound must be floats from -1 to 1, samples or batch x samples, not {got}."
        )
    if length <= config.n_fft // 2:  # the ends are mirrored under half a window
        raise ClearheadError(
            f"{length} samples (frames x hop) are too few for a window of {config.n_fft}."
        )
    samples = F.pad(samples.float(), (0, length - samples.shape[-1])).view(
        -1, length
    )  # a negative pad cuts
    window = torch.hann_window(config.n_fft, device=samples.device)
    waves = torch.stft(samples, config.n_fft, config.hop_length, window=window, return_complex=True)
    power = waves[..., : config.n_frames].abs().square()
    bels = (mel_filter_bank(config).to(power) @ power).clamp(min=1e-10).log10()
    loudest = bels.amax((1, 2), keepdim=True)
    middle = loudest - 4 if isinstance(config, Spectrogram) else -4
    return (bels.maximum(loudest - 8) - middle) / 4


def mel_filter_bank(config: MelSpectrogram) -> Float[Tensor, "mel frequency"]:
    """Triangles over the frequencies, evenly spaced in mels, each of area one (Slaney)."""
    frequencies = (
        torch.arange(config.n_fft // 2 + 1, dtype=torch.float64) * config.sample_rate / config.n_fft
    )
    corners = _mel_to_hertz(
        torch.linspace(
            0, _hertz_to_mel(config.sample_rate / 2), config.n_mels + 2, dtype=torch.float64
        )
    )
    left = corners[:-2, None]
    middle = corners[1:-1, None]
    right = corners[2:, None]
    rising = (frequencies - left) / (middle - left)
    falling = (right - frequencies) / (right - middle)
    return (rising.minimum(falling).clamp(min=0) * 2 / (right - left)).float()


# Slaney's scale: three mels every 200 Hz up to 1000 Hz, from there on 27 mels for each factor of 6.4.
def _hertz_to_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000, 6.4)


def _mel_to_hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def read_audio(path: str | Path, config: MelSpectrogram) -> Float[Tensor, " sample"]:
    """The samples of a sound file, its channels mixed, at the source's rate; of a long one what is heard, and a second.

    So its end rings where nothing is heard, and what a file unfolds to is bounded.
    """
    import soundfile  # type: ignore[import-untyped] # only files need libsndfile

    try:
        with Path(path).open("rb") as file, soundfile.SoundFile(file) as opened:
            rate = opened.samplerate
            if not MIN_FILE_SAMPLE_RATE <= rate <= MAX_FILE_SAMPLE_RATE:
                right = f"it must have {MIN_FILE_SAMPLE_RATE:,} to {MAX_FILE_SAMPLE_RATE:,}"
                raise ClearheadError(f"{path} has {rate:,} samples a second; {right}.")
            heard = (
                math.ceil(config.n_frames * config.hop_length * rate / config.sample_rate) + rate
            )
            sizes = [
                min(BLOCK_SAMPLES, heard - at) for at in range(0, heard, BLOCK_SAMPLES)
            ]  # beyond the end, nothing is read
            blocks = (opened.read(size, dtype="float32", always_2d=True) for size in sizes)
            mixed = torch.cat([torch.from_numpy(block).mean(1) for block in blocks])
    except OSError as error:
        raise cannot_read(path, error) from None
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: headerless .raw
        why = getattr(error, "error_string", error)
        raise ClearheadError(
            f"{path} is not a sound; a WAV, FLAC, OGG or MP3 file is needed ({why})."
        ) from None
    if not len(mixed) or not bool(mixed.isfinite().all()):
        raise ClearheadError(f"{path} has no samples, or some that are no numbers.")
    return resample(mixed, rate, config.sample_rate)


def audio_duration(path: str | Path) -> float:
    """The seconds of a sound file that `read` reads, all of it."""
    import soundfile

    return float(soundfile.info(str(path)).duration)


def resample(
    samples: Float[Tensor, " old_sample"], old_rate: int, new_rate: int
) -> Float[Tensor, " new_sample"]:
    """The same wave at another rate: its spectrum cut off, or continued with zeros, at the new highest frequency."""
    if old_rate == new_rate:
        return samples
    seconds = (
        len(samples) // old_rate + 2
    )  # whole ones, and a silent one lest the end ring into the beginning
    spectrum = torch.fft.rfft(samples, seconds * old_rate)
    wave: Tensor = torch.fft.irfft(spectrum, seconds * new_rate) * (new_rate / old_rate)
    return wave[: math.ceil(len(samples) * new_rate / old_rate)]


# ---- dense: Pictures and sounds, as numbers or as files that hold them, become what the network reads.

MAX_MEAN_BRIGHTNESS = 2.0  # deviations of a point, above the mean of what a model expects, that a whole picture may have
SILENCE_LEVEL = 1e-4  # of full loudness (-80 dB): rooms in which nobody speaks are louder


def read_media(x: object, config: c.Images | c.Audio | c.Spectrogram) -> tuple[Tensor, bool]:
    """Pictures as channels × height × width and sound as samples, one or a batch; or files of them."""
    if not isinstance(x, Tensor):
        files: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
        single = not isinstance(x, list | tuple)
        if not files:
            raise ClearheadError(f"at least one file of {config.kind} is needed.")
        if isinstance(config, c.Images):
            seen = read_images(files, config)
            _warn_first(
                _image_warning(file, picture, config)
                for file, picture in zip(files, seen, strict=True)
            )
            return seen, single
        if not all(isinstance(file, str | Path) for file in files):
            kind = next(type(file).__name__ for file in files if not isinstance(file, str | Path))
            raise ClearheadError(
                f"{config.kind} must be a tensor of samples or the name of a file, not {kind}."
            )
        heard = list[Tensor]()
        doubts = list[str]()
        for file in files:
            samples = read_audio(file, config)
            heard.append(log_mel(samples, config))
            doubts.append(_audio_warning(file, samples, config))
        _warn_first(doubts)
        return torch.cat(heard), single
    one = 3 if isinstance(config, c.Images) else 1
    if not x.is_floating_point() or x.dim() not in (one, one + 1):
        sizes = f"{one} dimensions, or {one + 1} for a batch"
        raise ClearheadError(
            f"{config.kind} must be floating-point numbers of {sizes}, not {x.dim()}-D {x.dtype}."
        )
    if not x.numel() or not bool(x.isfinite().all()):
        raise ClearheadError(
            f"the tensor of {config.kind} is empty, or holds values that are no finite numbers."
        )
    single = x.dim() == one
    x = x[None] if single else x
    return x if isinstance(config, c.Images) else log_mel(x.float(), config), single


def _warn_first(doubts: Iterable[str]) -> None:
    """Of many, one tells enough."""
    for doubt in filter(None, doubts):
        warn(doubt)
        return


def _image_warning(file: object, image: Tensor, config: c.Images) -> str:
    """Whether nothing is to be seen, or it is far brighter than those that the model learned from."""
    name = file if isinstance(file, str | Path) else "the picture"
    if bool((image == image[:, :1, :1]).all()):
        return f"{name} is of one colour: there is nothing to see, whatever the answer."
    if image.mean() > MAX_MEAN_BRIGHTNESS:
        bright = f"{name} is far brighter than what this model expects (about {config.mean[0]:.2f} of white)"
        return f"{bright}; what it reads may have to be light on dark."
    return ""


def _audio_warning(file: str | Path, samples: Tensor, config: c.MelSpectrogram) -> str:
    """Whether its end is not heard, or nothing is to be heard in what is."""
    heard = samples[: config.n_frames * config.hop_length]
    silent = bool(heard.std(correction=0) < SILENCE_LEVEL)
    whole, part = (
        f"{seconds:.1f} s" for seconds in (audio_duration(file), len(heard) / config.sample_rate)
    )
    if whole != part and len(samples) > len(heard):
        end = (
            ", and that is silent: there is nothing to hear, whatever the answer" if silent else ""
        )
        return f"{file} lasts {whole}; only its first {part} is heard{end}."
    return f"{file} is silent: there is nothing to hear, whatever the answer." if silent else ""
