"""What lies in a .gguf file: values by name, and tensors that are dequantised as they are read.

The head of the file is read here, with every length held against the size of the file; the `gguf` package knows the
numbers of the formats and how each is quantised. (Its own reader takes seconds for the vocabulary alone.)
"""

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from clearhead import config as c
from clearhead.config.model import Config, InferenceConfig
from clearhead.config.parse import dataclass_to_dict
from clearhead.errors import ClearheadError, cannot_read, reraise_as, suggest
from clearhead.model.positions import Rotary, inverse_frequencies
from clearhead.tokenizers.gguf import read_gguf_tokenizer, write_gguf_tokenizer
from clearhead.weights.checkpoint import Checkpoint, Placement, load_weights, meta_model
from clearhead.weights.families.gguf import GGUF_FAMILIES, ROPE_FACTORS
from clearhead.weights.huggingface import inline_special_tokens
from clearhead.weights.mapping import (
    ConfigDict,
    ModelFamily,
    diff_trees,
    match_family,
    read_attributes,
    read_weights,
    write_weights,
)

# ---- gguf_file: What lies in a .gguf file: values by name, and tensors that are dequantised as they are read.

SCALAR_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING_TYPE = 8
ARRAY_TYPE = 9
DEQUANTIZE_ROWS = (
    512  # rows of a matrix that are dequantised at a time, so that little is there twice
)


class GGUFFile:
    """Values in `values`; tensors by name, of the shapes torch would give them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._tensors: dict[str, tuple[gguf.GGMLQuantizationType, int]] = {}
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self._read_head(_Cursor(data, path))
        except OSError as error:
            raise cannot_read(path, error) from None
        except ValueError as error:
            if isinstance(error, ClearheadError):
                raise
            raise ClearheadError(f"{path} is empty or is no .gguf file ({error}).") from None

    def _read_head(self, at: "_Cursor") -> None:
        if at.take(4) != b"GGUF":
            raise ClearheadError(f"{self.path} is no .gguf file: it does not begin with GGUF.")
        (version,) = at.numbers("I")
        if version not in (2, 3):
            raise ClearheadError(
                f"{self.path} is of GGUF version {version}; clearhead reads 2 and 3."
            )
        tensors, values = at.numbers("QQ")
        for _ in range(values):
            name = at.text()
            self.metadata[name] = at.value()
        infos = [self._read_info(at) for _ in range(tensors)]
        step = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(step, int) or step < 1:
            raise ClearheadError(f"{self.path}: general.alignment = {step!r} is no length.")
        start = -(-at.place // step) * step
        for name, kind, offset in infos:
            size = self._bytes(name, kind)
            if start + offset + size > len(at.data):
                raise ClearheadError(
                    f"{self.path} ends before {name} does; the download may be incomplete."
                )
            self._tensors[name] = (kind, start + offset)

    def _read_info(self, at: "_Cursor") -> tuple[str, gguf.GGMLQuantizationType, int]:
        name = at.text()
        (dimensions,) = at.numbers("I")
        if dimensions > 4:
            raise ClearheadError(f"{self.path}: {name} has {dimensions} dimensions.")
        sizes = at.numbers("Q" * dimensions)
        kind, offset = at.numbers("IQ")
        if name in self.shapes:
            raise ClearheadError(f"{self.path} holds {name} twice.")
        self.shapes[name] = tuple(reversed(sizes))
        try:
            return name, gguf.GGMLQuantizationType(kind), offset
        except ValueError:
            raise ClearheadError(
                f"{self.path}: {name} is of type {kind}, which is not known."
            ) from None

    def _bytes(self, name: str, kind: gguf.GGMLQuantizationType) -> int:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = self.shapes[name]
        if not shape or shape[-1] % block:
            raise ClearheadError(
                f"{self.path}: rows of {name}, {shape}, are no whole blocks of {block}."
            )
        return math.prod(shape) // block * size

    def get_tensor(self, name: str) -> Tensor:
        """As 16 or 32 bits where it is stored so, else dequantised to 32."""
        kind, offset = self._tensors[name]
        shape = self.shapes[name]
        size = self._bytes(name, kind)
        mapped = np.memmap(
            self.path, np.uint8, "c", offset, (math.prod(shape[:-1]), size // math.prod(shape[:-1]))
        )
        stored = mapped.view(np.ndarray)  # what remembers its file is slow to cut
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(kind.name)
        if plain is not None:
            return torch.from_numpy(stored).view(plain).reshape(shape)
        room = mmap.mmap(
            -1, 4 * math.prod(shape), access=mmap.ACCESS_COPY
        )  # not among the many small pieces that dequantising leaves behind
        whole = torch.frombuffer(room, dtype=torch.float32).view(-1, shape[-1])
        try:
            for row in range(0, len(whole), DEQUANTIZE_ROWS):
                whole[row : row + DEQUANTIZE_ROWS] = torch.from_numpy(
                    gguf.dequantize(stored[row : row + DEQUANTIZE_ROWS], kind)
                )
        except NotImplementedError:
            raise ClearheadError(
                f"{self.path}: {name} is stored as {kind.name}, which cannot be read here."
            ) from None
        return whole.reshape(shape)


class _Cursor:
    """A place in the file, which never leaves it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.place = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ClearheadError(f"{self.path} ends too early; it is no whole .gguf file.")
        self.place += count
        return self.data[self.place - count : self.place]

    def numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        (length,) = self.numbers("Q")
        return self.take(length).decode(errors="replace")

    def value(self) -> Any:
        (kind,) = self.numbers("I")
        if kind != ARRAY_TYPE:
            return self._one(kind)()
        kind, count = self.numbers("IQ")
        if kind in SCALAR_FORMATS:
            form = np.dtype(SCALAR_FORMATS[kind]).newbyteorder("<")
            return np.frombuffer(self.take(count * form.itemsize), form).tolist()
        if count > len(self.data) - self.place:  # each takes a byte at least
            raise ClearheadError(f"{self.path} ends too early; it is no whole .gguf file.")
        one = self._one(kind)
        return [one() for _ in range(count)]

    def _one(self, kind: int) -> Callable[[], Any]:
        if kind == STRING_TYPE:
            return self.text
        if kind not in SCALAR_FORMATS:
            raise ClearheadError(f"{self.path} holds a value of type {kind}, which is not known.")
        return lambda: self.numbers(SCALAR_FORMATS[kind])[0]


# ---- gguf: The .gguf files of llama.cpp, in and out: decoders of the Llama, Qwen and GPT-2 kinds, with their tokenizer.

GGUF_FILE = "model.gguf"
END_ROLES = ("eos", "eot", "eom")  # where a text, a turn, a message ends
TOKEN_ID_KEYS = {role: f"tokenizer.ggml.{role}_token_id" for role in ("bos", *END_ROLES)} | {
    "pad": "tokenizer.ggml.padding_token_id"
}


def load_gguf(path: Path, home: Placement) -> Checkpoint:
    with reraise_as(f"{path} cannot be understood"):
        return _load_gguf(path, home)


def _load_gguf(path: Path, home: Placement) -> Checkpoint:
    file = GGUFFile(path)
    kind = file.metadata.get("general.architecture")
    if kind not in GGUF_FAMILIES:
        raise ClearheadError(
            f"{path} holds a {kind!r}, which is not read from .gguf; {suggest(str(kind), GGUF_FAMILIES)}"
        )
    if file.metadata.get("split.count", 1) > 1:
        raise ClearheadError(
            f"{path} is one part of several; llama.cpp's gguf-split --merge joins them."
        )
    family = GGUF_FAMILIES[kind]
    theirs = {
        name.removeprefix(f"{kind}."): _shortest_float(v)
        for name, v in file.metadata.items()
        if name.startswith(f"{kind}.")
    }
    theirs.setdefault("vocab_size", file.shapes.get("token_embd.weight", (0,))[0])
    m = read_attributes(family.attributes, _infer_from_tensors(family.base, file), theirs)
    m = _infer_rope_scaling(m, file)
    words = read_gguf_tokenizer(file.metadata)
    for name in ("tokens", "merges", "scores", "token_type"):  # long, and in the tokenizer now
        file.metadata.pop(f"tokenizer.ggml.{name}", None)
    roles = {
        role: file.metadata[key] for role, key in TOKEN_ID_KEYS.items() if key in file.metadata
    }
    use = InferenceConfig(
        bos_tokens=words.bos_tokens,
        sep_tokens=words.sep_tokens,
        eos_tokens=tuple(dict.fromkeys(roles[role] for role in END_ROLES if role in roles)),
        pad_token=(roles["pad"],) if "pad" in roles else (),
        chat_template=inline_special_tokens(
            file.metadata.get("tokenizer.chat_template", ""), words.tokenizer, roles
        ),
    )
    net = meta_model(m, len(file.shapes))
    load_weights(net, read_weights(family.weight_map(m), file, net, m, str(path)), home, str(path))
    return Checkpoint(
        net, Config(m, use), words.tokenizer, no_tokenizer_reason=words.missing_reason
    )


def _shortest_float(value: Any) -> Any:
    """Decimal fractions as they were meant: 1e-05, not the 32 bits nearest to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _infer_from_tensors(base: c.ModelConfig, file: GGUFFile) -> c.ModelConfig:
    """What shows in the tensors only: biases, and an unembedding of its own."""
    names: dict[str, Any] = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "out"}
    bias = tuple(ours for theirs, ours in names.items() if f"blk.0.{theirs}.bias" in file.shapes)
    if "blk.0.attn_qkv.bias" in file.shapes:
        bias = ("q", "k", "v", *bias)
    head = c.LMHead(tie_embeddings="output.weight" not in file.shapes)
    wide = replace(base.ffn, bias="blk.0.ffn_down.bias" in file.shapes)
    return replace(base, attention=replace(base.attention, bias=bias), ffn=wide, head=head)


def rope_factors(m: c.ModelConfig) -> Tensor:
    """How much slower each pair turns than it would without scaling."""
    assert isinstance(m.position, c.Rotary)
    here = torch.device("cpu")
    plain = inverse_frequencies(m.d_head, m.position.theta, here)
    return plain / Rotary(m.d_head, m.position.theta, m.position.scaling).frequencies(here)


def _infer_rope_scaling(m: c.ModelConfig, file: GGUFFile) -> c.ModelConfig:
    """Llama 3's scaling from its factors; files of others do not say what they were made of."""
    if ROPE_FACTORS not in file.shapes or not isinstance(m.position, c.Rotary):
        return m
    found = file.get_tensor(ROPE_FACTORS).float()
    if not isinstance(m.position.scaling, c.Llama3Scaling):
        m = replace(
            m,
            position=replace(
                m.position, scaling=c.Llama3Scaling(factor=round(float(found.max()), 4))
            ),
        )
    made = rope_factors(m)
    if found.shape != made.shape or not torch.allclose(found, made, rtol=1e-4):
        raise ClearheadError(
            f"{file.path}: {ROPE_FACTORS} slows rotations in a way that is not Llama 3's."
        )
    return m


def save_gguf(folder: Path, model: Checkpoint) -> None:
    """One file, `model.gguf`, in the numbers of the model; vectors always in 32 bits, as llama.cpp wants them."""
    family, _, theirs, model = match_family(model, tuple(GGUF_FAMILIES.values()), "llama.cpp")
    m = model.config.model
    use = model.config.inference
    values: ConfigDict = {
        f"{family.name}.{name}": value for name, value in theirs.items() if value is not None
    }
    values["general.name"] = "clearhead"
    if model.tokenizer is not None:
        values |= {
            f"tokenizer.ggml.{name}": v
            for name, v in write_gguf_tokenizer(model.tokenizer, m.vocab_size).items()
        }
    else:
        values["tokenizer.ggml.model"] = "none"
    values |= _special_token_metadata(use)
    if use.chat_template:
        values["tokenizer.chat_template"] = use.chat_template
    writer = gguf.GGUFWriter(folder / GGUF_FILE, family.name)
    for name, value in values.items():
        _add_metadata(writer, name, value)
    for name, tensor in _tensors(family, model):
        _add_tensor(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _special_token_metadata(use: InferenceConfig) -> ConfigDict:
    """What stands around texts; llama.cpp has a place for one token before and after, and for three that end."""
    if len(use.bos_tokens) > 1 or use.sep_tokens not in ((), use.eos_tokens[:1]):
        raise ClearheadError(
            f"llama.cpp puts one token around a text at most, not {use.bos_tokens} and {use.sep_tokens}."
        )
    if len(use.eos_tokens) > len(END_ROLES):
        raise ClearheadError(
            f"llama.cpp stops at {len(END_ROLES)} tokens at most, not at {len(use.eos_tokens)}: {use.eos_tokens}."
        )
    kept = {name: getattr(use, name) for name in ("begin", "end", "stop", "pad", "chat")}
    for option, here, _ in diff_trees(
        dataclass_to_dict(use), dataclass_to_dict(InferenceConfig(**kept)), "use."
    ):
        raise ClearheadError(f"llama.cpp's files have no place for {option} = {here!r}.")
    said: ConfigDict = {
        "tokenizer.ggml.add_bos_token": bool(use.bos_tokens),
        "tokenizer.ggml.add_eos_token": bool(use.sep_tokens),
    }
    ids = {
        "bos": use.bos_tokens,
        "pad": use.pad_token,
        **{role: use.eos_tokens[i:] for i, role in enumerate(END_ROLES)},
    }
    return said | {TOKEN_ID_KEYS[role]: some[0] for role, some in ids.items() if some}


def _tensors(family: ModelFamily, model: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    m = model.config.model
    yield from write_weights(family.weight_map(m), model.net, m, "")
    if isinstance(m.position, c.Rotary) and isinstance(m.position.scaling, c.Llama3Scaling):
        yield ROPE_FACTORS, rope_factors(m)


def _add_metadata(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list():
            writer.add_array(name, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
    tensor = (
        tensor.cpu().float() if tensor.dim() == 1 or tensor.dtype == torch.float64 else tensor.cpu()
    )
    if tensor.dtype == torch.bfloat16:
        writer.add_tensor(
            name, tensor.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16
        )
    else:
        writer.add_tensor(name, tensor.numpy())
