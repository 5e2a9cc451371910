"""Models as folders: `clearhead.json`, `model.safetensors` and tokenizers. No pickle anywhere."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.config.model import Config, EncoderDecoder, ModelConfig, parameters_by_part
from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError, cannot_read, suggest
from clearhead.io import atomic_folder, is_temporary, write_json
from clearhead.model.int8 import quantize
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.tokenizers.huggingface import PretrainedTokenizer, with_post_processor
from clearhead.tokenizers.tokenizer import TOKENIZER_FILE, Tokenizer

CONFIG_FILE = "clearhead.json"
HF_CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
EXPORT_FILE = "clearhead_export.json"  # marks a folder that clearhead exported

# Every file that some export format writes. A folder with any other file is never replaced.
MODEL_FILES = {
    "1_Pooling", "chat_template.jinja", "clearhead.json", "clearhead_export.json", "config.json",
    "decoder_model.onnx", "decoder_model.onnx.data", "encoder_model.onnx",
    "encoder_model.onnx.data", "generation_config.json", "model.bin", "model.gguf", "model.onnx",
    "model.onnx.data", "model.safetensors", "modules.json", "onnx_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "shared_vocabulary.json",
    "source_tokenizer.json", "source_vocabulary.json", "special_tokens_map.json",
    "target_tokenizer.json", "target_vocabulary.json", "tokenizer.json", "tokenizer_config.json",
    "vocabulary.json",
}  # fmt: skip

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
STORED = "stored"  # keep every tensor in its stored dtype
INT8 = "int8"  # quantize matrices after loading them as float32
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
MAX_PARAMETERS = 2**60  # more overflow the sizes of torch's tensors


@dataclass(eq=False)
class Checkpoint:
    """A network with its configuration and tokenizers, as it is loaded and saved."""

    net: Transformer
    config: Config
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None  # if the source has a tokenizer of its own
    no_tokenizer_reason: str = ""  # why the model cannot read text, if it has no tokenizer

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """The tokenizers of the target and of the source; usually the same."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer


# --- clearhead's own format
def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write clearhead's own format into an existing folder."""
    parameters = {n: p.detach().contiguous() for n, p in checkpoint.net.named_parameters()}
    save_file(parameters, folder / WEIGHTS_FILE)
    write_json(folder / CONFIG_FILE, checkpoint.config.to_dict(), 1)
    save_tokenizers(folder, checkpoint)


def save_tokenizers(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the tokenizers into an existing folder."""
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save(folder / TOKENIZER_FILE)
    if checkpoint.source_tokenizer is not None:
        checkpoint.source_tokenizer.save(folder / SOURCE_TOKENIZER_FILE)


def export_tokenizers(folder: Path, checkpoint: Checkpoint) -> None:
    """Save tokenizers and chat template for engines that have no format of their own for them.

    The input tokenizer gets a post-processor that adds the model's special tokens.
    """
    save_tokenizers(folder, checkpoint)
    inference = checkpoint.config.inference
    if input_tokenizer := checkpoint.tokenizers[1]:
        name = SOURCE_TOKENIZER_FILE if checkpoint.source_tokenizer else TOKENIZER_FILE
        with_post_processor(input_tokenizer, inference).save(folder / name)
    if inference.chat_template:
        (folder / CHAT_TEMPLATE_FILE).write_text(inference.chat_template, encoding="utf-8")


def load_checkpoint(folder: Path, placement: "Placement") -> Checkpoint:
    """Read clearhead's own format."""
    config = Config.read(folder / CONFIG_FILE)
    reader = SafetensorsReader([folder / WEIGHTS_FILE])
    tensors = ((name, reader.get_tensor(name)) for name in reader.shapes)
    net = meta_model(config.model, len(reader.shapes))
    load_weights(net, tensors, placement, str(folder / WEIGHTS_FILE))
    pretrained = load_checkpoint_tokenizers(folder)
    return Checkpoint(net, config, pretrained.tokenizer, pretrained.source_tokenizer)


def load_checkpoint_tokenizers(folder: Path) -> PretrainedTokenizer:
    """Read the tokenizers and special tokens of clearhead's own format, without its weights."""
    inference = Config.read(folder / CONFIG_FILE).inference
    tokenizer, source_tokenizer = (
        Tokenizer.load(path) if path.exists() else None
        for path in (folder / TOKENIZER_FILE, folder / SOURCE_TOKENIZER_FILE)
    )
    return PretrainedTokenizer(
        tokenizer,
        source_tokenizer,
        inference.bos_tokens,
        inference.sep_tokens,
        inference.chat_template,
        missing_reason=f"{folder} has no {TOKENIZER_FILE}.",
    )


# --- replacing a model's folder
@contextmanager
def atomic_model_folder(folder: str | Path, format: str = "clearhead") -> Iterator[Path]:
    """Yield a temporary folder that atomically replaces the model in `folder` on success."""
    folder = Path(folder).resolve()
    try:
        check_replaceable(folder, format)
        with atomic_folder(folder) as new:
            yield new
            if format != "clearhead":
                marker = new / EXPORT_FILE
                inference = read_config_file(marker) if marker.is_file() else {}
                write_json(marker, {"format": format, **inference})
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClearheadError(f"cannot save to {folder}: {reason}.") from None


def check_replaceable(folder: Path, format: str = "clearhead") -> None:
    """Refuse to replace anything but a model that clearhead saved in the same format."""
    for path in (folder, *folder.absolute().parents):
        if path.exists() and not path.is_dir():
            raise ClearheadError(f"{path} is a file. Choose another folder for the model.")
    paths = folder.iterdir() if folder.exists() else ()
    names = {path.name for path in paths if not is_temporary(path)}
    if foreign := names - MODEL_FILES:
        raise ClearheadError(
            f"{folder} contains {min(foreign)}, which is not a model file. Choose another folder."
        )
    if names and export_format(folder) != format:
        old = export_format(folder) or "foreign"
        raise ClearheadError(
            f"{folder} contains a model in {old} format and would be replaced by one in"
            f" {format} format. Choose another folder."
        )


def export_format(folder: Path) -> str:
    """The format in which clearhead saved a folder; empty if it did not."""
    if (folder / CONFIG_FILE).is_file():
        return "clearhead"
    try:
        return str(read_config_file(folder / EXPORT_FILE)["format"])
    except (ClearheadError, KeyError):
        return ""


# --- tensors
class SafetensorsReader:
    """Reads tensors by name from one or more safetensors files.

    Tensors are read into memory, not mapped, so that the files may be replaced or truncated while
    a model is in use.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.paths = files
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._entries: dict[str, dict[str, Any]] = {}  # of the header: dtype and position
        for file in files:
            with open_safetensors(file) as tensors:  # checks the header
                for name in tensors.keys():  # noqa: SIM118 - not a dictionary
                    if name in self.files:
                        first = self.files[name].name
                        raise ClearheadError(f"both {first} and {file.name} contain {name}.")
                    self.files[name] = file
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())
            self._entries |= _read_header(file)

    def get_tensor(self, name: str) -> Tensor:
        if name not in self.files:
            raise ClearheadError(f"{', '.join(map(str, self.paths))} has no tensor {name}.")
        file = self.files[name]
        entry = self._entries[name]
        dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ClearheadError(f"{file}: {name} has the unsupported dtype {entry['dtype']}.")
        start, end = entry["data_offsets"]
        data = torch.empty(end - start, dtype=torch.uint8)
        try:
            with file.open("rb") as content:
                content.seek(start)
                num_read = content.readinto(data.numpy().data)
        except OSError as error:
            raise cannot_read(file, error) from None
        if num_read < len(data):
            raise ClearheadError(f"{file} was truncated while it was read.")
        return data.view(dtype).reshape(self.shapes[name])


def _read_header(file: Path) -> dict[str, dict[str, Any]]:
    """The entry of each tensor in a valid file, with positions from the start of the file."""
    try:
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(size))
    except OSError as error:
        raise cannot_read(file, error) from None
    header.pop("__metadata__", None)
    for entry in header.values():
        entry["data_offsets"] = [8 + size + offset for offset in entry["data_offsets"]]
    return dict(header)


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise ClearheadError(
            f"cannot read {file} as safetensors: {error}. The download may be incomplete."
        ) from None


@dataclass(frozen=True)
class Placement:
    """The device and dtype that weights are loaded to; dtype None keeps the stored one."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    min_dtype: torch.dtype | None = None  # promote narrower stored dtypes to this one
    int8: bool = False  # quantize matrices after loading

    @classmethod
    def from_names(cls, device: str | torch.device, dtype: str | torch.dtype) -> Self:
        """Parse the names of a device and a dtype.

        The default device is CUDA if available. The default dtype is the stored one on CUDA, and
        float32 on a CPU, which is slower at 16 bits.
        """
        device = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        name = str(dtype or "").removeprefix("torch.")
        if name and name not in (known := [*DTYPES, STORED, INT8]):
            raise ClearheadError(f"unknown dtype {name!r}; {suggest(name, known)}")
        try:
            device_type = torch.empty(0, device=device).device.type
        except (RuntimeError, AssertionError):
            raise ClearheadError(f"device {device!r} is not available; use cpu.") from None
        if device_type == "meta":
            raise ClearheadError("device 'meta' cannot hold weights; use cpu or cuda.")
        if name == INT8:
            if device_type != "cpu":
                raise ClearheadError(
                    f"int8 runs on CPUs only, not on {device}; use device cpu or dtype bfloat16."
                )
            return cls(device, torch.float32, int8=True)
        min_dtype = torch.float32 if device_type == "cpu" and not name else None
        return cls(device, DTYPES.get(name), min_dtype)

    def place(self, tensor: Tensor) -> Tensor:
        """The tensor on this device in this dtype."""
        dtype = self.dtype or tensor.dtype
        if self.dtype is None and self.min_dtype is not None:
            dtype = torch.promote_types(tensor.dtype, self.min_dtype)
        return tensor.to(self.device, dtype).contiguous()


def meta_model(m: ModelConfig, tensor_count: int) -> Transformer:
    """Build the network on the meta device; a file needs at least one tensor per layer."""
    layers = m.n_layers
    if isinstance(m.architecture, EncoderDecoder):
        layers += m.architecture.encoder_layers
    if layers > tensor_count:
        raise ClearheadError(
            f"the configuration asks for {layers:,} layers, but the checkpoint has only"
            f" {tensor_count:,} tensors."
        )
    if sum(parameters_by_part(m).values()) > MAX_PARAMETERS:
        raise ClearheadError("the configuration asks for tensors that no memory can hold.")
    return build_transformer(m, seed=None)


def load_weights(
    net: Transformer, tensors: Iterable[tuple[str, Tensor]], placement: Placement, source: str
) -> Transformer:
    """Fill every parameter; missing, unexpected, misshapen and non-finite tensors are errors.

    Tensors arrive one at a time, so at most one exists twice. `source` names them in errors.
    """
    parameters = dict(net.named_parameters())
    state: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name not in parameters:
            raise ClearheadError(
                f"{source}: unexpected tensor {name}, which the model does not have;"
                f" {suggest(name, parameters)}"
            )
        if tensor.shape != parameters[name].shape:
            raise ClearheadError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, but the model expects"
                f" {tuple(parameters[name].shape)}."
            )
        if tensor.dtype not in DTYPES.values():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ClearheadError(
                f"{source}: {name} is stored as {dtype}; supported: {', '.join(DTYPES)}."
            )
        if not all(bound.isfinite() for bound in tensor.aminmax()):
            raise ClearheadError(f"{source}: {name} contains NaN or infinity.")
        state[name] = placement.place(tensor)
    if missing := [name for name in parameters if name not in state]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ClearheadError(f"{source}: missing tensor {missing[0]}{more}.")
    net.load_state_dict(state, strict=False, assign=True)  # tied matrices are stored once
    for parameter in net.parameters():
        parameter.requires_grad_()
    if placement.int8:
        quantize(net)
    return net.eval()
