"""The .gguf files of llama.cpp, in and out: decoders of the Llama, Qwen and GPT-2 kinds, with their tokenizer.

Rotations that are scaled as Llama 3's are stored as one factor for each pair.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from clearhead import config as c
from clearhead import reader
from clearhead.config import Config, Use
from clearhead.errors import ClearheadError, nearest, understood
from clearhead.model.positions import Rotary, wave_rates
from clearhead.tokens import ggml
from clearhead.weights import fields, rules
from clearhead.weights.around import self_contained
from clearhead.weights.checkpoint import Checkpoint, Home, fill, promised
from clearhead.weights.express import expressed
from clearhead.weights.families.family import Family
from clearhead.weights.families.ggml import FACTORS, KINDS
from clearhead.weights.fields import Tree
from clearhead.weights.gguf_file import GgufFile

FILE = "model.gguf"
STOPS = ("eos", "eot", "eom")  # where a text, a turn, a message ends
ROLES = {role: f"tokenizer.ggml.{role}_token_id" for role in ("bos", *STOPS)} | {
    "pad": "tokenizer.ggml.padding_token_id"
}


def read(path: Path, home: Home) -> Checkpoint:
    with understood(f"{path} cannot be understood"):
        return _read(path, home)


def _read(path: Path, home: Home) -> Checkpoint:
    file = GgufFile(path)
    kind = file.values.get("general.architecture")
    if kind not in KINDS:
        raise ClearheadError(f"{path} holds a {kind!r}, which is not read from .gguf; {nearest(str(kind), KINDS)}")
    if file.values.get("split.count", 1) > 1:
        raise ClearheadError(f"{path} is one part of several; llama.cpp's gguf-split --merge joins them.")
    family = KINDS[kind]
    theirs = {
        name.removeprefix(f"{kind}."): _short(v) for name, v in file.values.items() if name.startswith(f"{kind}.")
    }
    theirs.setdefault("vocab_size", file.shapes.get("token_embd.weight", (0,))[0])
    m = fields.read(family.fields, _seen(family.base, file), theirs)
    m = _unscaled(m, file)
    words = ggml.read(file.values)
    for name in ("tokens", "merges", "scores", "token_type"):  # long, and in the tokenizer now
        file.values.pop(f"tokenizer.ggml.{name}", None)
    roles = {role: file.values[key] for role, key in ROLES.items() if key in file.values}
    use = Use(
        begin=words.begin,
        end=words.end,
        stop=tuple(dict.fromkeys(roles[role] for role in STOPS if role in roles)),
        pad=(roles["pad"],) if "pad" in roles else (),
        chat=self_contained(file.values.get("tokenizer.chat_template", ""), words.tokenizer, roles),
    )
    net = promised(m, len(file.shapes))
    fill(net, rules.read(family.table(m), file, net, m, str(path)), home, str(path))
    return Checkpoint(net, Config(m, use), words.tokenizer, why=words.why)


def _short(value: Any) -> Any:
    """Decimal fractions as they were meant: 1e-05, not the 32 bits nearest to it."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _seen(base: c.ModelConfig, file: GgufFile) -> c.ModelConfig:
    """What shows in the tensors only: biases, and an unembedding of its own."""
    names: dict[str, Any] = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "out"}
    bias = tuple(ours for theirs, ours in names.items() if f"blk.0.{theirs}.bias" in file.shapes)
    if "blk.0.attn_qkv.bias" in file.shapes:
        bias = ("q", "k", "v", *bias)
    head = c.Language(tied="output.weight" not in file.shapes)
    wide = replace(base.ffn, bias="blk.0.ffn_down.bias" in file.shapes)
    return replace(base, attention=replace(base.attention, bias=bias), ffn=wide, head=head)


def factors(m: c.ModelConfig) -> Tensor:
    """How much slower each pair turns than it would without scaling."""
    assert isinstance(m.position, c.Rotary)
    here = torch.device("cpu")
    plain = wave_rates(m.head_width, m.position.theta, here)
    return plain / Rotary(m.head_width, m.position.theta, m.position.scaling).rates(here)


def _unscaled(m: c.ModelConfig, file: GgufFile) -> c.ModelConfig:
    """Llama 3's scaling from its factors; files of others do not say what they were made of."""
    if FACTORS not in file.shapes or not isinstance(m.position, c.Rotary):
        return m
    found = file.read(FACTORS).float()
    if not isinstance(m.position.scaling, c.Llama3):
        m = replace(m, position=replace(m.position, scaling=c.Llama3(factor=round(float(found.max()), 4))))
    made = factors(m)
    if found.shape != made.shape or not torch.allclose(found, made, rtol=1e-4):
        raise ClearheadError(f"{file.path}: {FACTORS} slows rotations in a way that is not Llama 3's.")
    return m


def write(folder: Path, model: Checkpoint) -> None:
    """One file, `model.gguf`, in the numbers of the model; vectors always in 32 bits, as llama.cpp wants them."""
    family, _, theirs, model = expressed(model, tuple(KINDS.values()), "llama.cpp")
    m, use = model.config.model, model.config.use
    values: Tree = {f"{family.name}.{name}": value for name, value in theirs.items() if value is not None}
    values["general.name"] = "clearhead"
    if model.tokenizer is not None:
        values |= {f"tokenizer.ggml.{name}": v for name, v in ggml.write(model.tokenizer, m.vocabulary).items()}
    else:
        values["tokenizer.ggml.model"] = "none"
    values |= _ends(use)
    if use.chat:
        values["tokenizer.chat_template"] = use.chat
    writer = gguf.GGUFWriter(folder / FILE, family.name)
    for name, value in values.items():
        _add(writer, name, value)
    for name, tensor in _tensors(family, model):
        _add_tensor(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _ends(use: Use) -> Tree:
    """What stands around texts; llama.cpp has a place for one token before and after, and for three that end."""
    if len(use.begin) > 1 or use.end not in ((), use.stop[:1]):
        raise ClearheadError(f"llama.cpp puts one token around a text at most, not {use.begin} and {use.end}.")
    if len(use.stop) > len(STOPS):
        raise ClearheadError(f"llama.cpp stops at {len(STOPS)} tokens at most, not at {len(use.stop)}: {use.stop}.")
    kept = {name: getattr(use, name) for name in ("begin", "end", "stop", "pad", "chat")}
    for option, here, _ in fields.apart(reader.tree(use), reader.tree(Use(**kept)), "use."):
        raise ClearheadError(f"llama.cpp's files have no place for {option} = {here!r}.")
    said: Tree = {"tokenizer.ggml.add_bos_token": bool(use.begin), "tokenizer.ggml.add_eos_token": bool(use.end)}
    ids = {"bos": use.begin, "pad": use.pad, **{role: use.stop[i:] for i, role in enumerate(STOPS)}}
    return said | {ROLES[role]: some[0] for role, some in ids.items() if some}


def _tensors(family: Family, model: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    m = model.config.model
    yield from rules.write(family.table(m), model.net, m, "")
    if isinstance(m.position, c.Rotary) and isinstance(m.position.scaling, c.Llama3):
        yield FACTORS, factors(m)


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
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
    tensor = tensor.cpu().float() if tensor.dim() == 1 or tensor.dtype == torch.float64 else tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        writer.add_tensor(name, tensor.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())
