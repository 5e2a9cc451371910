"""Read tensors of weight files and place them in a network."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.config.model import EncoderDecoder, ModelConfig, parameters_by_part
from clearhead.errors import ClearheadError, cannot_read, suggest
from clearhead.model.int8 import quantize
from clearhead.model.transformer import Transformer, build_transformer

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
INT8 = "int8"  # quantize matrices after loading them as float32
STORED = "stored"  # keep every tensor in its stored dtype
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
MAX_PARAMETERS = 2**60  # more overflow the sizes of torch's tensors


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
