"""llama.cpp's .gguf files: decoders of the Llama, Qwen and GPT-2 families, with their tokenizer."""

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGUFValueType
from torch import Tensor

from clearhead import config as c
from clearhead.config.parse import ConfigDict, dataclass_to_dict, diff_trees
from clearhead.errors import ClearheadError, cannot_read, reraise_as, suggest
from clearhead.model.positions import Rotary, inverse_frequencies
from clearhead.tokenizers.gguf import read_gguf_tokenizer, write_gguf_tokenizer
from clearhead.weights.checkpoint import Checkpoint, Placement, load_weights, meta_model
from clearhead.weights.families.gguf import GGUF_FAMILIES, ROPE_FACTORS
from clearhead.weights.huggingface import inline_special_tokens
from clearhead.weights.mapping import (
    ModelFamily,
    check_attribute,
    match_family,
    read_attributes,
    read_weights,
    write_weights,
)

GGUF_FILE = "model.gguf"
END_ROLES = ("eos", "eot", "eom")  # end of sequence, turn, message
TOKEN_ID_KEYS = {
    **{role: f"tokenizer.ggml.{role}_token_id" for role in ("bos", *END_ROLES)},
    "pad": "tokenizer.ggml.padding_token_id",
}
VALUE_TYPES = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
    list: GGUFValueType.ARRAY,
}
# Large metadata that is dropped once the tokenizer is built.
TOKENIZER_LISTS = ("tokens", "merges", "scores", "token_type")


def load_gguf(path: Path, placement: Placement) -> Checkpoint:
    """Load a .gguf file; quantized tensors are dequantized."""
    with reraise_as(f"cannot read {path}"):
        file = GGUFFile(path)
        family = _find_family(file)
        m = _read_model_config(file, family)
        pretrained = read_gguf_tokenizer(file.metadata)
        for name in TOKENIZER_LISTS:
            file.metadata.pop(f"tokenizer.ggml.{name}", None)
        token_ids = {
            role: file.metadata[key] for role, key in TOKEN_ID_KEYS.items() if key in file.metadata
        }
        eos_tokens = [token_ids[role] for role in END_ROLES if role in token_ids]
        inference = c.InferenceConfig(
            bos_tokens=pretrained.bos_tokens,
            sep_tokens=pretrained.sep_tokens,
            eos_tokens=tuple(dict.fromkeys(eos_tokens)),
            pad_token=(token_ids["pad"],) if "pad" in token_ids else (),
            chat_template=inline_special_tokens(
                file.metadata.get("tokenizer.chat_template", ""), pretrained.tokenizer, token_ids
            ),
        )
        config = c.Config(m, inference)
    net = meta_model(m, len(file.shapes))
    load_weights(
        net, read_weights(family.weight_map(m), file, net, m, str(path)), placement, str(path)
    )
    return Checkpoint(
        net, config, pretrained.tokenizer, no_tokenizer_reason=pretrained.missing_reason
    )


def _find_family(file: "GGUFFile") -> ModelFamily:
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in GGUF_FAMILIES:
        raise ClearheadError(
            f"{file.path}: GGUF architecture {architecture!r} is not supported;"
            f" {suggest(str(architecture), GGUF_FAMILIES)}"
        )
    if check_attribute("split.count", file.metadata.get("split.count"), int, 1) > 1:
        raise ClearheadError(
            f"{file.path} is one of several parts; join them with llama.cpp's gguf-split --merge."
        )
    return GGUF_FAMILIES[architecture]


def _read_model_config(file: "GGUFFile", family: ModelFamily) -> c.ModelConfig:
    prefix = f"{family.name}."
    attributes = {
        name.removeprefix(prefix): _shortest_float(value)
        for name, value in file.metadata.items()
        if name.startswith(prefix)
    }
    attributes.setdefault("vocab_size", file.shapes.get("token_embd.weight", (0,))[0])
    base = _infer_from_tensors(family.base, file)
    return _infer_rope_scaling(read_attributes(family.attributes, base, attributes), file)


def _shortest_float(value: Any) -> Any:
    """A float32 as the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _infer_from_tensors(base: c.ModelConfig, file: "GGUFFile") -> c.ModelConfig:
    """Infer options that are not in the metadata: biases and tied embeddings."""
    bias: tuple[Literal["q", "k", "v", "out"], ...] = ("q", "k", "v", "out")
    layers = {"q": ("q", "qkv"), "k": ("k", "qkv"), "v": ("v", "qkv"), "out": ("output",)}
    has_bias = {
        name: any(f"blk.0.attn_{layer}.bias" in file.shapes for layer in layers[name])
        for name in bias
    }
    return replace(
        base,
        attention=replace(base.attention, bias=tuple(name for name in bias if has_bias[name])),
        ffn=replace(base.ffn, bias="blk.0.ffn_down.bias" in file.shapes),
        head=c.LMHead(tie_embeddings="output.weight" not in file.shapes),
    )


def rope_factors(m: c.ModelConfig) -> Tensor:
    """The factor by which RoPE scaling slows down each rotary pair."""
    assert isinstance(m.position, c.Rotary)
    device = torch.device("cpu")
    unscaled = inverse_frequencies(m.d_head, m.position.theta, device)
    scaled = Rotary(m.d_head, m.position.theta, m.position.scaling).frequencies(device)
    return unscaled / scaled


def _infer_rope_scaling(m: c.ModelConfig, file: "GGUFFile") -> c.ModelConfig:
    """Infer Llama 3's scaling from its factors; other programs do not store its parameters."""
    if ROPE_FACTORS not in file.shapes or not isinstance(m.position, c.Rotary):
        return m
    factors = file.get_tensor(ROPE_FACTORS).float()
    if not isinstance(m.position.scaling, c.Llama3Scaling):
        scaling = c.Llama3Scaling(factor=round(float(factors.max()), 4))
        m = replace(m, position=replace(m.position, scaling=scaling))
    expected = rope_factors(m)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-4):
        raise ClearheadError(f"{file.path}: {ROPE_FACTORS} is not Llama 3's RoPE scaling.")
    return m


# --- saving
def save_gguf(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `model.gguf` in the model's dtype; vectors in float32, as llama.cpp requires."""
    match = match_family(checkpoint, tuple(GGUF_FAMILIES.values()), "the GGUF format")
    family = match.family
    checkpoint = match.checkpoint
    m = checkpoint.config.model
    inference = checkpoint.config.inference
    metadata: ConfigDict = {"general.name": "clearhead"}
    for name, value in match.attributes.items():
        if value is not None:
            metadata[f"{family.name}.{name}"] = value
    if checkpoint.tokenizer is None:
        metadata["tokenizer.ggml.model"] = "none"
    else:
        tokenizer = write_gguf_tokenizer(checkpoint.tokenizer, m.vocab_size)
        metadata |= {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}
    metadata |= _special_token_metadata(inference)
    if inference.chat_template:
        metadata["tokenizer.chat_template"] = inference.chat_template
    writer = gguf.GGUFWriter(folder / GGUF_FILE, family.name)
    for name, value in metadata.items():
        if value != []:  # GGUF has no empty arrays
            writer.add_key_value(name, value, VALUE_TYPES[type(value)])
    for name, tensor in write_weights(family.weight_map(m), checkpoint.net, m, ""):
        _add_tensor(writer, name, tensor)
    if isinstance(m.position, c.Rotary) and isinstance(m.position.scaling, c.Llama3Scaling):
        _add_tensor(writer, ROPE_FACTORS, rope_factors(m))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _special_token_metadata(inference: c.InferenceConfig) -> ConfigDict:
    """llama.cpp can add one token before and one after a text, and stop at three tokens."""
    bos = inference.bos_tokens
    sep = inference.sep_tokens
    eos = inference.eos_tokens
    if len(bos) > 1 or sep not in ((), eos[:1]):
        raise ClearheadError(
            "the GGUF format has one bos token and one eos token around a text, not"
            f" inference.bos_tokens = {bos} and inference.sep_tokens = {sep}."
        )
    if len(eos) > len(END_ROLES):
        raise ClearheadError(
            f"the GGUF format has at most {len(END_ROLES)} tokens that end generation, not"
            f" inference.eos_tokens = {eos}."
        )
    expressible = c.InferenceConfig(
        bos_tokens=bos,
        sep_tokens=sep,
        eos_tokens=eos,
        pad_token=inference.pad_token,
        chat_template=inference.chat_template,
    )
    for option, value, _ in diff_trees(
        dataclass_to_dict(inference), dataclass_to_dict(expressible), "inference."
    ):
        raise ClearheadError(f"the GGUF format cannot express {option} = {value!r}.")
    ids = {"bos": bos, "pad": inference.pad_token}
    ids |= {role: eos[i : i + 1] for i, role in enumerate(END_ROLES)}
    return {
        "tokenizer.ggml.add_bos_token": bool(bos),
        "tokenizer.ggml.add_eos_token": bool(sep),
        **{TOKEN_ID_KEYS[role]: tokens[0] for role, tokens in ids.items() if tokens},
    }


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
    tensor = tensor.cpu()
    if tensor.dim() == 1 or tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.dtype == torch.bfloat16:
        bf16 = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, tensor.view(torch.uint8).numpy(), raw_dtype=bf16)
    else:
        writer.add_tensor(name, tensor.numpy())


# --- the file
# The struct format of each GGUF value type; 8 is a string and 9 an array.
SCALAR_FORMATS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
DEQUANTIZE_ROWS = 512  # rows of a matrix dequantized at a time, to bound temporary memory


class GGUFFile:
    """Metadata and lazily read tensors of a .gguf file.

    The header is parsed here, with every length checked against the size of the file, because the
    reader of the `gguf` package takes seconds for a vocabulary. That package dequantizes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # as in torch
        self._tensors: dict[str, tuple[gguf.GGMLQuantizationType, int]] = {}  # type and offset
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self._read_header(_Cursor(data, path))
        except OSError as error:
            raise cannot_read(path, error) from None

    def _read_header(self, cursor: "_Cursor") -> None:
        if cursor.take(4) != b"GGUF":
            raise ClearheadError(f"{self.path} is not a .gguf file: it does not start with GGUF.")
        (version,) = cursor.unpack("I")
        if version not in (2, 3):
            raise ClearheadError(
                f"{self.path} has GGUF version {version}; clearhead reads versions 2 and 3."
            )
        tensor_count, value_count = cursor.unpack("QQ")
        for _ in range(value_count):
            name = cursor.string()
            self.metadata[name] = cursor.value()
        infos = [self._read_tensor_info(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ClearheadError(
                f"{self.path}: general.alignment must be a positive integer, got {alignment!r}."
            )
        start = -(-cursor.position // alignment) * alignment
        end = start  # of the previous tensor
        for name, dtype, offset in sorted(infos, key=lambda info: info[2]):
            if start + offset < end:
                raise ClearheadError(f"{self.path}: {name} overlaps another tensor.")
            end = start + offset + self._byte_size(name, dtype)
            if end > len(cursor.data):
                raise ClearheadError(
                    f"{self.path} ends within {name}. The download may be incomplete."
                )
            self._tensors[name] = (dtype, start + offset)

    def _read_tensor_info(self, cursor: "_Cursor") -> tuple[str, gguf.GGMLQuantizationType, int]:
        name = cursor.string()
        (n_dims,) = cursor.unpack("I")
        if n_dims > 4:
            raise ClearheadError(f"{self.path}: {name} has {n_dims} dimensions; at most 4 can be.")
        sizes = cursor.unpack("Q" * n_dims)
        type_id, offset = cursor.unpack("IQ")
        if name in self.shapes:
            raise ClearheadError(f"{self.path} contains {name} twice.")
        self.shapes[name] = tuple(reversed(sizes))
        try:
            return name, gguf.GGMLQuantizationType(type_id), offset
        except ValueError:
            raise ClearheadError(
                f"{self.path}: {name} has the unknown tensor type {type_id}."
            ) from None

    def _byte_size(self, name: str, dtype: gguf.GGMLQuantizationType) -> int:
        block, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
        shape = self.shapes[name]
        if not shape or 0 in shape or shape[-1] % block:
            raise ClearheadError(
                f"{self.path}: the rows of {name}, of shape {shape}, are not a multiple of the"
                f" block size {block}."
            )
        return math.prod(shape) // block * block_bytes

    def get_tensor(self, name: str) -> Tensor:
        """The tensor in its dtype if it is a float, else dequantized to float32."""
        dtype, offset = self._tensors[name]
        shape = self.shapes[name]
        n_rows = math.prod(shape[:-1])
        row_bytes = self._byte_size(name, dtype) // n_rows
        memmap = np.memmap(self.path, np.uint8, "c", offset, (n_rows, row_bytes))
        data = memmap.view(np.ndarray)  # slicing a memmap is slow
        float_dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        if dtype.name in float_dtypes:
            return torch.from_numpy(data).view(float_dtypes[dtype.name]).reshape(shape)
        # memory of its own, apart from the heap that dequantizing fragments
        buffer = mmap.mmap(-1, 4 * math.prod(shape), access=mmap.ACCESS_COPY)
        tensor = torch.frombuffer(buffer, dtype=torch.float32).view(-1, shape[-1])
        try:
            for row in range(0, len(tensor), DEQUANTIZE_ROWS):
                rows = slice(row, row + DEQUANTIZE_ROWS)
                tensor[rows] = torch.from_numpy(gguf.dequantize(data[rows], dtype))
        except NotImplementedError:
            raise ClearheadError(
                f"{self.path}: {name} is stored as {dtype.name}, which cannot be dequantized here."
            ) from None
        return tensor.reshape(shape)


class _Cursor:
    """Reads the header value by value, never past the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def take(self, count: int) -> bytes:
        self._check_remaining(count)
        self.position += count
        return self.data[self.position - count : self.position]

    def unpack(self, format: str) -> tuple[Any, ...]:
        format = f"<{format}"
        return struct.unpack(format, self.take(struct.calcsize(format)))

    def string(self) -> str:
        (length,) = self.unpack("Q")
        return self.take(length).decode(errors="replace")

    def value(self) -> Any:
        (type_id,) = self.unpack("I")
        if type_id != GGUFValueType.ARRAY:
            return self._scalar_reader(type_id)()
        type_id, count = self.unpack("IQ")
        if type_id in SCALAR_FORMATS:
            dtype = np.dtype(SCALAR_FORMATS[type_id]).newbyteorder("<")
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        self._check_remaining(count)  # every element takes at least a byte
        read = self._scalar_reader(type_id)
        return [read() for _ in range(count)]

    def _scalar_reader(self, type_id: int) -> Callable[[], Any]:
        if type_id == GGUFValueType.STRING:
            return self.string
        if type_id not in SCALAR_FORMATS:
            raise ClearheadError(f"{self.path} contains a value of the unknown type {type_id}.")
        return lambda: self.unpack(SCALAR_FORMATS[type_id])[0]

    def _check_remaining(self, count: int) -> None:
        if count > len(self.data) - self.position:
            raise ClearheadError(
                f"{self.path} ends within its header. The download may be incomplete."
            )
