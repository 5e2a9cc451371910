"""llama.cpp's .gguf files: decoders of the Llama, Qwen and GPT-2 families, with their tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGUFValueType
from torch import Tensor

from clearhead import config as c
from clearhead.config.parse import ConfigDict
from clearhead.config.serialize import dataclass_to_dict, diff_trees
from clearhead.errors import ClearheadError, reraise_as, suggest
from clearhead.model.positions import Rotary, inverse_frequencies
from clearhead.tokenizers.gguf import read_gguf_tokenizer, write_gguf_tokenizer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.families.gguf import GGUF_FAMILIES, ROPE_FACTORS
from clearhead.weights.gguf_file import GGUFFile
from clearhead.weights.huggingface import inline_special_tokens
from clearhead.weights.mapping import (
    ModelFamily,
    check_attribute,
    match_family,
    read_attributes,
    read_weights,
    write_weights,
)
from clearhead.weights.tensors import Placement, load_weights, meta_model

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
    file_type = file.metadata.get("general.type", "model")
    if file_type != "model":
        raise ClearheadError(
            f"{file.path} has general.type = {file_type!r:.80}; clearhead reads whole models only."
        )
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
    if isinstance(m.position.scaling, c.LinearScaling) and m.position.scaling.factor != 1:
        raise ClearheadError(
            f"{file.path} has both {ROPE_FACTORS} and rope.scaling.factor; clearhead supports one"
            " of them."
        )
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
