"""Export to ONNX, under the names of Hugging Face's optimum, for onnxruntime and other engines.

| model                 | file                 | inputs                                        | outputs               |
|-----------------------|----------------------|-----------------------------------------------|-----------------------|
| decoder, lm head      | `model.onnx`         | input_ids, attention_mask, position_ids,      | logits,               |
|                       |                      | past_key_values.{i}.key, .value               | present.{i}.key …     |
| encoder, or a decoder | `model.onnx`         | input_ids, attention_mask, token_type_ids (if | logits, or without    |
| with another head     |                      | the model has any); or pixel_values; or       | a head                |
|                       |                      | input_features (log-mel, mels × frames)       | last_hidden_state     |
| encoder-decoder       | `encoder_model.onnx` | the same, but no token_type_ids               | last_hidden_state,    |
|                       |                      |                                               | present.{i}.encoder.… |
|                       | `decoder_model.onnx` | input_ids, past_key_values.{i}.decoder.… and  | logits,               |
|                       |                      | .encoder.…, encoder_attention_mask (of text)  | present.{i}.decoder.… |

Batch, token and past sizes are dynamic. With a past of 0 tokens a decoder reads a prompt; with the
`present` of one call as the past of the next, it takes a step. attention_mask is 1 for each real
token, past ones included; padding may be on either side, and position_ids count real tokens:
cumsum(attention_mask) − 1. The rows of an encoder-decoder's output all start together, so they
need neither. The encoder's file also computes the keys and values of cross-attention, once.
A head that pools the first token reads the first of each row, so pad on the right.

Weights are written as float32, inside the file, or beside it (`….onnx.data`) from 1.5 GB on.
"""  # noqa: E501

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS
from clearhead.io import write_json
from clearhead.model.attention import NO_MASK, Mask, cross_attention_mask, distance_mask
from clearhead.model.heads import LMHead
from clearhead.model.kv_cache import NO_CACHE, ComputeKV, CrossKVCache, KeysValues, NoCache
from clearhead.model.positions import NO_POSITION
from clearhead.model.transformer import CrossAttentionBlock, Transformer, build_transformer
from clearhead.weights.checkpoint import Checkpoint, export_tokenizers
from clearhead.weights.tensors import Placement, load_weights

ONNX_CONFIG_FILE = "onnx_config.json"
EXTERNAL_DATA_BYTES = 1_500_000_000  # protobuf limits an ONNX file to 2 GB

DynamicShape = tuple[int | str, ...]  # dynamic sizes have names
TRACE_SIZES = {"batch": 3, "tokens": 2, "past": 4, "past_and_tokens": 6, "source": 5}
StepOutput = tuple[Tensor, list[KeysValues]]


def save_onnx(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the model's ONNX files into an empty folder."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ClearheadError(
                f"export to ONNX requires the package {package}; run pip install 'clearhead[onnx]'."
            )
    config = checkpoint.config
    parameters = ((name, p.detach()) for name, p in checkpoint.net.named_parameters())
    net = build_transformer(config.model, seed=None)
    load_weights(net, parameters, Placement("cpu", torch.float32), "the model")
    for file in _onnx_files(config.model):
        _export(net, file, folder)
    write_json(folder / ONNX_CONFIG_FILE, config.to_dict(), 1)
    export_tokenizers(folder, checkpoint)


# --- the functions of the files
class PastKeyValues(NoCache):
    """Keys and values as function arguments and results: past in, past and new out."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys_values = keys, values

    def __call__(self, compute: ComputeKV, *args: object) -> KeysValues:
        past_keys, past_values = self.keys_values
        keys, values = compute(*args)
        keys = torch.cat((past_keys, keys), dim=2)
        values = torch.cat((past_values, values), dim=2)
        self.keys_values = keys, values
        return keys, values


class EncoderKeyValues(CrossKVCache):
    """Keys and values of the source, computed by the encoder's file."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys_values = keys, values


def forward_sequence(
    net: Transformer,
    x: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> Tensor:
    """One pass over whole inputs."""
    position_ids = None if attention_mask is None else _position_ids(attention_mask)
    hidden = net.run(x, position_ids, attention_mask, token_type_ids, NO_HOOKS)
    return _logits(net, hidden, attention_mask)


def encode_source(net: Transformer, x: Tensor, attention_mask: Tensor | None = None) -> StepOutput:
    """The encoder's output, and the keys and values that each decoder layer computes from it."""
    assert net.encoder is not None
    position_ids = None if attention_mask is None else _position_ids(attention_mask)
    encoder_output = net.encoder.run(x, position_ids, attention_mask, None, NO_HOOKS)
    layers = [block.cross_attn for block in net.blocks if isinstance(block, CrossAttentionBlock)]
    return encoder_output, [
        layer.project_kv(encoder_output, NO_POSITION, NO_HOOKS) for layer in layers
    ]


def decode_step(
    net: Transformer, ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
) -> StepOutput:
    """A prompt or a step of a decoder."""
    caches = [(PastKeyValues(*past[i : i + 2]), NO_CACHE) for i in range(0, len(past), 2)]
    return _decode_step(net, ids, attention_mask, position_ids, caches, NO_MASK)


def decode_step_with_source(net: Transformer, ids: Tensor, *inputs: Tensor) -> StepOutput:
    """A prompt or a step of an encoder-decoder's decoder.

    `inputs` are each layer's own keys and values and those of the source, then perhaps its mask.
    """
    n = 4 * len(net.blocks)
    caches = [
        (PastKeyValues(*inputs[i : i + 2]), EncoderKeyValues(*inputs[i + 2 : i + 4]))
        for i in range(0, n, 4)
    ]
    past_length = inputs[0].shape[2]
    attention_mask = ids.new_ones(ids.shape[0], past_length + ids.shape[1])
    position_ids = _position_ids(attention_mask)[:, past_length:]
    encoder_mask = NO_MASK
    if inputs[n:]:
        encoder_mask = cross_attention_mask(torch.ones_like(ids), *inputs[n:])
    return _decode_step(net, ids, attention_mask, position_ids, caches, encoder_mask)


def _decode_step(
    net: Transformer,
    ids: Tensor,
    attention_mask: Tensor,
    position_ids: Tensor,
    caches: Sequence[tuple[PastKeyValues, NoCache | CrossKVCache]],
    encoder_mask: Mask,
) -> StepOutput:
    """`Stack.run` with keys at any position, because of padding."""
    key_positions = _position_ids(attention_mask)
    x = net.embed(ids)
    allowed = distance_mask(position_ids, key_positions, is_causal=True, window=net.sliding_window)
    mask = Mask(allowed=allowed & attention_mask.bool()[:, None, None])
    # x stands in for the encoder's output, which the cross-attention caches replace
    hidden = net.run_blocks(x, position_ids, key_positions, mask, caches, NO_HOOKS, x, encoder_mask)
    return _logits(net, hidden, None), [own.keys_values for own, _ in caches]


def _position_ids(attention_mask: Tensor) -> Tensor:
    """Positions of real tokens; padding shares one, so that it attends to something (no NaN)."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def _logits(net: Transformer, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    head = net.head
    if isinstance(head, LMHead):  # the exporter cannot trace the head's own matrix product
        return F.linear(head.transform(hidden), head.unembed.weight, head.bias)
    return net.compute_logits(hidden, attention_mask)


# --- the files of a model
@dataclass(frozen=True)
class OnnxFile:
    """A function of the network and of named inputs, in this order."""

    name: str
    compute: Callable[..., Any]
    inputs: dict[str, DynamicShape]
    outputs: list[str]


def _onnx_files(m: c.ModelConfig) -> Iterator[OnnxFile]:
    result = "last_hidden_state" if isinstance(m.head, c.NoHead) else "logits"
    ids: dict[str, DynamicShape] = {"input_ids": ("batch", "tokens")}
    if isinstance(m.architecture, c.EncoderDecoder):
        is_text = isinstance(m.architecture.source_input, c.Tokens)
        source_length = "source" if is_text else m.architecture.source_context_length
        encoder_inputs = _input_shapes(m.architecture.source_input)
        encoder_inputs.pop("token_type_ids", None)
        encoder_kv = _key_value_shapes(m, "present", {"encoder.": source_length})
        encoder_outputs = ["last_hidden_state", *encoder_kv]
        yield OnnxFile("encoder_model.onnx", encode_source, encoder_inputs, encoder_outputs)
        past = {"decoder.": "past", "encoder.": source_length}
        decoder_inputs = ids | _key_value_shapes(m, "past_key_values", past)
        if is_text:
            decoder_inputs["encoder_attention_mask"] = ("batch", "source")
        decoder_outputs = [result, *_key_value_shapes(m, "present", {"decoder.": "past"})]
        yield OnnxFile(
            "decoder_model.onnx", decode_step_with_source, decoder_inputs, decoder_outputs
        )
    elif isinstance(m.architecture, c.Decoder) and isinstance(m.head, c.LMHead):
        inputs = {
            **ids,
            "attention_mask": ("batch", "past_and_tokens"),
            "position_ids": ("batch", "tokens"),
            **_key_value_shapes(m, "past_key_values", {"": "past"}),
        }
        outputs = [result, *_key_value_shapes(m, "present", {"": "past"})]
        yield OnnxFile("model.onnx", decode_step, inputs, outputs)
    else:
        yield OnnxFile("model.onnx", forward_sequence, _input_shapes(m.input), [result])


def _key_value_shapes(
    m: c.ModelConfig, name: str, lengths: dict[str, int | str]
) -> dict[str, DynamicShape]:
    """Keys and values of each layer, for each side with its number of tokens."""
    return {
        f"{name}.{i}.{side}{part}": ("batch", m.n_kv_heads, length, m.d_head)
        for i in range(m.n_layers)
        for side, length in lengths.items()
        for part in ("key", "value")
    }


def _input_shapes(source: c.Input) -> dict[str, DynamicShape]:
    match source:
        case c.Tokens():
            names = ["input_ids", "attention_mask"]
            if source.token_types:
                names.append("token_type_ids")
            return dict.fromkeys(names, ("batch", "tokens"))
        case c.Images():
            size = source.image_size
            return {"pixel_values": ("batch", source.num_channels, size, size)}
        case c.MelSpectrogram():
            return {"input_features": ("batch", source.n_mels, source.n_frames)}


# --- tracing
class _TracedFunction(nn.Module):
    """A function as the module that the exporter requires."""

    def __init__(self, net: Transformer, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.net = net
        self.compute = compute

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(self.net, *inputs)


def _export(net: Transformer, file: OnnxFile, folder: Path) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    examples = []
    dynamic_shapes = []
    for name, shape in file.inputs.items():
        size = [TRACE_SIZES[n] if isinstance(n, str) else n for n in shape]
        is_integer = name.endswith(("_ids", "_mask"))
        examples.append(torch.ones(size, dtype=torch.long if is_integer else torch.float32))
        dynamic_shapes.append({i: n for i, n in enumerate(shape) if isinstance(n, str)})
    with _silence_exporter(), torch.no_grad():
        program = torch.onnx.export(
            _TracedFunction(net, file.compute).eval(),
            tuple(examples),
            input_names=list(file.inputs),
            output_names=file.outputs,
            dynamic_shapes=(tuple(dynamic_shapes),),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        ClearMetadataAndDocStringPass()(program.model)  # stack traces of the tracing
        weight_bytes = sum(p.nbytes for p in net.parameters())
        is_large = weight_bytes >= EXTERNAL_DATA_BYTES
        program.save(folder / file.name, external_data=is_large)


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the exporter's warnings and log messages."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
