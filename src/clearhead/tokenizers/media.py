"""Convert images to normalized pixels and audio to log-mel frames, as models read them (L6.4)."""

import math
import re
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from clearhead.config.model import Audio, Images, MelSpectrogram, Spectrogram
from clearhead.errors import DATA_ERRORS, ClearheadError, cannot_read, check_type, warn

# --- images
ImageInput = str | Path | Image.Image | NDArray[np.uint8]
# Raised by Pillow's decoders for invalid files.
IMAGE_ERRORS: tuple[type[BaseException], ...] = (
    *DATA_ERRORS,
    SyntaxError,
    Image.DecompressionBombError,
)
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # PostScript runs a program
MAX_IMAGE_PIXELS = 50_000_000  # a small file could decompress to gigabytes
# Markers that end a JPEG (D9) or start a segment; others may stand within compressed data.
JPEG_MARKER = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")
JPEG_START_OF_SCAN = 0xDA
JPEG_END = 0xD9
ARITHMETIC_JPEG = {0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}  # slow to decode, and in no browser
MAX_JPEG_SCANS = 100
# Passes over one channel of the most pixels allowed: a progressive JPEG usually has 12.
MAX_JPEG_PASSES = 16
ORIENTATIONS = {  # of a camera, in EXIF
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
MAX_MEAN_BRIGHTNESS = 2.0  # standard deviations above the mean that a model expects


def read_image(image_input: ImageInput, config: Images) -> Float[Tensor, "channel height width"]:
    """A normalized image, as a model reads it."""
    return normalize_pixels(read_pixels(image_input, config), config)


def read_pixels(image_input: ImageInput, config: Images) -> UInt8[Tensor, "channel height width"]:
    """The pixels of an image: upright, transparency on white, resized to a square."""
    if config.num_channels not in (1, 3):
        raise ClearheadError(
            f"model.input.num_channels must be 1 (gray) or 3 (color), got {config.num_channels}."
        )
    size = (config.image_size, config.image_size)
    image = _upright_image(image_input)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if config.num_channels == 1 else "RGB")
    image = image.resize(size, Image.Resampling[config.resample.upper()])
    pixels = torch.from_numpy(np.array(image)).view(*size, config.num_channels)
    return pixels.permute(2, 0, 1).contiguous()


def normalize_pixels(
    pixels: UInt8[Tensor, "*batch channel height width"], config: Images
) -> Float[Tensor, "*batch channel height width"]:
    """Pixels relative to the mean and standard deviation that the model expects."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (config.mean, config.std))
    return (pixels / 255 - mean) / std


def open_image(
    file: str | Path | BinaryIO,
    name: object,
    *,
    formats: tuple[str, ...] = IMAGE_FORMATS,
    max_pixels: int = MAX_IMAGE_PIXELS,
) -> Image.Image:
    """Open an image file; other formats and too many pixels are rejected before it is decoded."""
    try:
        image = Image.open(file, formats=formats)
    except UnidentifiedImageError:
        supported = ", ".join(formats)
        raise ClearheadError(
            f"{name} is not an image in a supported format ({supported})."
        ) from None
    except IMAGE_ERRORS as error:
        raise cannot_read(name, cast(Exception, error)) from None
    if image.width * image.height > max_pixels:
        raise ClearheadError(
            f"{name} is too large: {image.width} × {image.height} pixels; at most "
            f"{max_pixels:,} pixels are allowed."
        )
    if image.format in ("JPEG", "MPO"):
        _check_jpeg(image, name, max_pixels)
    return image


def _check_jpeg(image: ImageFile.ImageFile, name: object, max_pixels: int) -> None:
    """Raise if a JPEG takes long to decode: every scan passes over the whole image.

    Segments are found as libjpeg finds them.
    """
    file = cast(IO[bytes], image.fp)  # it is open until the image is decoded
    offset = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(offset)
    scans = 0
    passes = 0  # over one channel
    position = 0
    while (marker := JPEG_MARKER.search(content, position)) and marker[1][0] != JPEG_END:
        segment = content[marker.end() : marker.end() + 3]
        if marker[1][0] in ARITHMETIC_JPEG:
            raise ClearheadError(
                f"{name} is a JPEG with arithmetic coding, which is not supported; save it again."
            )
        if marker[1][0] == JPEG_START_OF_SCAN:
            scans += 1
            passes += sum(segment[2:])
        position = marker.end() + max(2, int.from_bytes(segment[:2], "big"))
    if scans > MAX_JPEG_SCANS:
        raise ClearheadError(
            f"{name} has {scans} scans; at most {MAX_JPEG_SCANS} are allowed in a JPEG."
        )
    if passes * image.width * image.height > MAX_JPEG_PASSES * max_pixels:
        raise ClearheadError(
            f"{name} has too many scans ({scans}) for an image of {image.width} × {image.height}"
            " pixels; save it as a baseline JPEG."
        )


def _upright_image(image_input: ImageInput) -> Image.Image:
    if isinstance(image_input, np.ndarray):
        return _image_from_array(image_input)
    check_type(image_input, str | Path | Image.Image, "an image: a path, a PIL image or an array")
    if isinstance(image_input, Image.Image):
        name = "the image"
        image = image_input
    else:
        name = str(image_input)
        image = open_image(image_input, name)
    try:
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation)
        if orientation in ORIENTATIONS:  # `exif_transpose` would also write all tags again
            image = image.transpose(ORIENTATIONS[orientation])
    except IMAGE_ERRORS as error:
        raise cannot_read(name, cast(Exception, error)) from None
    if image.mode[0] in "IF":  # Pillow would turn all but the darkest pixels white
        raise ClearheadError(
            f"{name} has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits."
        )
    return image


def _image_from_array(array: NDArray[np.uint8]) -> Image.Image:
    is_gray = array.ndim == 2
    has_channels = array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.dtype != np.uint8 or not (is_gray or has_channels) or not array.size:
        raise ClearheadError(
            "an image array must be uint8 of shape [height, width] or [height, width, channels] "
            f"with 1, 3 or 4 channels, got {array.dtype} of shape {array.shape}."
        )
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)


# --- audio
# At other rates a small file could decode to a huge signal.
MIN_FILE_SAMPLE_RATE = 1_000
MAX_FILE_SAMPLE_RATE = 400_000
BLOCK_SAMPLES = 1 << 16  # decoded and mixed to mono at a time
MAX_SAMPLE = 1e12  # where full scale is 1; the power of larger ones would be infinite
SILENCE_LEVEL = 1e-4  # of full scale (-80 dB); room noise is louder


def log_mel(
    samples: Float[Tensor, "*batch sample"], config: MelSpectrogram
) -> Float[Tensor, "batch mel frame"]:
    """Log-mel frames in bels, scaled to about -1 … 1, as in Whisper.

    Audio is truncated or zero-padded to `n_frames * hop_length` samples. Frames that become patches
    (Spectrogram) are normalized to a maximum of 1; Whisper's frames keep their loudness.
    """
    num_samples = config.n_frames * config.hop_length
    if samples.dim() not in (1, 2) or not samples.is_floating_point():
        raise ClearheadError(
            "audio must be a float tensor of shape [sample] or [batch, sample], "
            f"got {samples.dim()}-D {samples.dtype}."
        )
    if num_samples <= config.n_fft // 2:  # the ends are reflected by half a window
        raise ClearheadError(
            f"{num_samples} samples (n_frames x hop_length) are too few for n_fft = {config.n_fft}."
        )
    padding = num_samples - samples.shape[-1]  # negative: truncate
    samples = F.pad(samples.float(), (0, padding)).view(-1, num_samples)
    window = torch.hann_window(config.n_fft, device=samples.device)
    stft = torch.stft(samples, config.n_fft, config.hop_length, window=window, return_complex=True)
    power = stft[..., : config.n_frames].abs().square()
    bels = (mel_filter_bank(config).to(power) @ power).clamp(min=1e-10).log10()
    loudest = bels.amax((1, 2), keepdim=True)
    middle = loudest - 4 if isinstance(config, Spectrogram) else -4
    return (bels.maximum(loudest - 8) - middle) / 4


def mel_filter_bank(config: MelSpectrogram) -> Float[Tensor, "mel frequency"]:
    """Triangular filters, evenly spaced on the mel scale, each with area one (Slaney)."""
    bins = torch.arange(config.n_fft // 2 + 1, dtype=torch.float64)
    frequencies = bins * config.sample_rate / config.n_fft
    max_mel = _hertz_to_mel(config.sample_rate / 2)
    corners = _mel_to_hertz(torch.linspace(0, max_mel, config.n_mels + 2, dtype=torch.float64))
    left = corners[:-2, None]
    middle = corners[1:-1, None]
    right = corners[2:, None]
    rising = (frequencies - left) / (middle - left)
    falling = (right - frequencies) / (right - middle)
    return (rising.minimum(falling).clamp(min=0) * 2 / (right - left)).float()


# Slaney's scale: 3 mels per 200 Hz up to 1000 Hz, then 27 mels per factor of 6.4.
def _hertz_to_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000, 6.4)


def _mel_to_hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def read_audio(path: str | Path, config: MelSpectrogram) -> Float[Tensor, " sample"]:
    """The samples of an audio file, mixed to mono and resampled to the model's rate.

    At most one second more than the model reads is decoded: it bounds the memory, and ringing at
    the end of the resampled signal stays outside of what the model reads.
    """
    import soundfile  # type: ignore[import-untyped] # only files need libsndfile

    try:
        with Path(path).open("rb") as file, soundfile.SoundFile(file) as audio:
            sample_rate = audio.samplerate
            if not MIN_FILE_SAMPLE_RATE <= sample_rate <= MAX_FILE_SAMPLE_RATE:
                raise ClearheadError(
                    f"{path} must have a sample rate of {MIN_FILE_SAMPLE_RATE:,} to "
                    f"{MAX_FILE_SAMPLE_RATE:,} Hz, got {sample_rate:,}."
                )
            model_samples = config.n_frames * config.hop_length
            max_samples = math.ceil(model_samples * sample_rate / config.sample_rate) + sample_rate
            blocks = []
            for start in range(0, max_samples, BLOCK_SAMPLES):
                size = min(BLOCK_SAMPLES, max_samples - start)
                block = audio.read(size, dtype="float32", always_2d=True)  # empty after the end
                blocks.append(block.mean(1))  # torch would wait for its threads
            samples = torch.from_numpy(np.concatenate(blocks))
    except OSError as error:
        raise cannot_read(path, error) from None
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: headerless .raw
        reason = getattr(error, "error_string", error)
        raise ClearheadError(
            f"{path} is not an audio file in a supported format "
            f"(WAV, FLAC, OGG or MP3): {str(reason).removesuffix('.')}."
        ) from None
    if not len(samples) or not bool((samples.abs() < MAX_SAMPLE).all()):
        raise ClearheadError(f"{path} is empty or contains NaN, infinite or huge samples.")
    return resample(samples, sample_rate, config.sample_rate)


def audio_duration(path: str | Path) -> float:
    """The duration of an audio file in seconds."""
    import soundfile

    return float(soundfile.info(str(path)).duration)


def resample(
    samples: Float[Tensor, " old_sample"], old_rate: int, new_rate: int
) -> Float[Tensor, " new_sample"]:
    """Resample by truncating or zero-padding the spectrum."""
    if old_rate == new_rate:
        return samples
    # Whole seconds, and a silent one so that the end does not ring into the beginning.
    seconds = len(samples) // old_rate + 2
    spectrum = torch.fft.rfft(samples, seconds * old_rate)
    resampled: Tensor = torch.fft.irfft(spectrum, seconds * new_rate) * (new_rate / old_rate)
    return resampled[: math.ceil(len(samples) * new_rate / old_rate)]


# --- model input
def input_name(config: Images | Audio | Spectrogram) -> str:
    """The argument that takes a model's input: "images" or "audio"."""
    return "images" if isinstance(config, Images) else "audio"


def read_media(x: object, config: Images | Audio | Spectrogram) -> tuple[Tensor, bool]:
    """A batch of images or mel frames from tensors or files, and whether `x` was a single input.

    Tensors are normalized images [channel, height, width] or samples [sample], or batches of them.
    """
    if isinstance(x, Tensor):
        return _read_tensor(x, config)
    is_single = not isinstance(x, list | tuple)
    files: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
    if not files:
        raise ClearheadError(f"the list of {input_name(config)} is empty; pass at least one file.")
    batch = []
    warnings = []
    for file in files:
        if isinstance(config, Images):
            values = read_image(file, config)
            warnings.append(_image_warning(file, values, config))
        else:
            check_type(file, str | Path, "audio: a tensor of samples or a path")
            samples = read_audio(file, config)
            values = log_mel(samples, config)[0]
            warnings.append(_audio_warning(file, samples, config))
        batch.append(values)
    if first := next(filter(None, warnings), None):  # one of many similar warnings
        warn(first)
    return torch.stack(batch), is_single


def _read_tensor(x: Tensor, config: Images | Audio | Spectrogram) -> tuple[Tensor, bool]:
    medium = input_name(config)
    num_dims = 3 if isinstance(config, Images) else 1
    if not x.is_floating_point() or x.dim() not in (num_dims, num_dims + 1):
        raise ClearheadError(
            f"{medium} must be a float tensor with {num_dims} dimensions, "
            f"or {num_dims + 1} for a batch, got {x.dim()}-D {x.dtype}."
        )
    if not x.numel() or not bool(x.isfinite().all()):
        raise ClearheadError(f"the {medium} tensor is empty or contains NaN or infinity.")
    is_single = x.dim() == num_dims
    x = x[None] if is_single else x
    return x if isinstance(config, Images) else log_mel(x.float(), config), is_single


def _image_warning(file: object, image: Tensor, config: Images) -> str:
    """A warning if the image is blank, or much brighter than the model's training data."""
    name = file if isinstance(file, str | Path) else "the image"
    if bool((image == image[:, :1, :1]).all()):
        return f"{name} is blank (a single color); the result is meaningless."
    if image.mean() > MAX_MEAN_BRIGHTNESS:
        return (
            f"{name} is much brighter than this model expects (mean {config.mean[0]:.2f} of "
            "white); it may need light strokes on a dark background."
        )
    return ""


def _audio_warning(file: str | Path, samples: Tensor, config: MelSpectrogram) -> str:
    """A warning if the audio is silent, or longer than the model reads."""
    read_samples = samples[: config.n_frames * config.hop_length]
    is_silent = bool(read_samples.std(correction=0) < SILENCE_LEVEL)
    duration = f"{audio_duration(file):.1f} s"
    read_duration = f"{len(read_samples) / config.sample_rate:.1f} s"
    if duration != read_duration and len(samples) > len(read_samples):
        silence = ", which is silent; the result is meaningless" if is_silent else ""
        return f"{file} lasts {duration}; only the first {read_duration} is read{silence}."
    return f"{file} is silent; the result is meaningless." if is_silent else ""
