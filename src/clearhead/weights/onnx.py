"""A model as ONNX files, which onnxruntime and other engines run, under the names that Hugging Face's optimum uses.

| model                 | file                 | inputs                                        | outputs               |
|-----------------------|----------------------|-----------------------------------------------|-----------------------|
| decoder of language   | `model.onnx`         | input_ids, attention_mask, position_ids,      | logits,               |
|                       |                      | past_key_values.{i}.key, .value               | present.{i}.key …     |
| encoder, or a decoder | `model.onnx`         | input_ids, attention_mask, token_type_ids (if | logits, or without    |
| with another head     |                      | sentences have kinds); or pixel_values; or    | a head                |
|                       |                      | input_features (log-mel, bands × frames)      | last_hidden_state     |
| encoder-decoder       | `encoder_model.onnx` | the same, but no token_type_ids               | last_hidden_state,    |
|                       |                      |                                               | present.{i}.encoder.… |
|                       | `decoder_model.onnx` | input_ids, past_key_values.{i}.decoder.… and  | logits,               |
|                       |                      | .encoder.…, encoder_attention_mask (of text)  | present.{i}.decoder.… |

Batch, tokens and past may have any size. With a past of 0 tokens a decoder reads a prompt; handed the `present` of
one call as the past of the next, it takes a step. attention_mask is 1 for each real token, of the past too; padding
may stand on either side, and position_ids count what is real: cumsum(attention_mask) − 1. The rows of what an
encoder-decoder writes all begin together, so they have neither. What its cross-attention reads stays the same while
a text is written, so the encoder's file makes those keys and values, once, and no step does it again.
A head that pools the first token reads the first of the row: there, padding belongs on the right.

Weights are written as float32, whatever they were: inside the file, or from 1.5 GB on beside it (`….onnx.data`).
"""

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
from clearhead.weights.checkpoint import Checkpoint, Placement, load_weights

ONNX_CONFIG_FILE = "onnx_config.json"
EXTERNAL_DATA_BYTES = 1_500_000_000  # bytes; no ONNX file holds more than 2 GB

DynamicShape = tuple[int | str, ...]  # a size that may vary has a name
TRACE_SIZES = {
    "batch": 3,
    "tokens": 2,
    "past": 4,
    "past_and_tokens": 6,
    "source": 5,
}  # sizes to trace with
StepOutput = tuple[Tensor, list[KeysValues]]


def save_onnx(folder: Path, model: Checkpoint) -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ClearheadError(
                f"writing ONNX needs the package {package}; pip install 'clearhead[onnx]'."
            )
    weights = ((name, p.detach()) for name, p in model.net.named_parameters())
    net = load_weights(
        build_transformer(model.config.model, seed=None),
        weights,
        Placement("cpu", torch.float32),
        "the model",
    )
    for file in _onnx_files(model.config.model):
        _export(net, file, folder)
    write_json(folder / ONNX_CONFIG_FILE, model.config.to_dict(), 1)
    model.export_tokenizers(folder)


# ---------------------------------------------------------------- what a file computes
class PastKeyValues(NoCache):
    """Keys and values as values: handed in with the old tokens, handed out with the new ones too."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.key_values = keys, values

    def __call__(self, make: ComputeKV, *args: object) -> KeysValues:
        keys, values = make(*args)
        self.key_values = (
            torch.cat((self.key_values[0], keys), dim=2),
            torch.cat((self.key_values[1], values), dim=2),
        )
        return self.key_values


class EncoderKeyValues(CrossKVCache):
    """Keys and values of a source that another file has read."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys_values = keys, values


def forward_sequence(
    net: Transformer, x: Tensor, real: Tensor | None = None, kinds: Tensor | None = None
) -> Tensor:
    """All of it at once; `real` is the attention mask."""
    at = None if real is None else _position_ids(real)
    return _predict(net, net.run(x, at, real, kinds, NO_HOOKS), real)


def encode_source(net: Transformer, x: Tensor, real: Tensor | None = None) -> StepOutput:
    """The encoder's output, and the keys and values that each layer of the decoder makes of it."""
    assert net.encoder is not None
    at = None if real is None else _position_ids(real)
    encoded = net.encoder.run(x, at, real, None, NO_HOOKS)
    crosses = [block.cross_attn for block in net.blocks if isinstance(block, CrossAttentionBlock)]
    return encoded, [cross.project_kv(encoded, NO_POSITION, NO_HOOKS) for cross in crosses]


def decode_step(
    net: Transformer, ids: Tensor, real: Tensor, at: Tensor, *past: Tensor
) -> StepOutput:
    return _decode_step(
        net,
        ids,
        real,
        at,
        [(PastKeyValues(*past[i : i + 2]), NO_CACHE) for i in range(0, len(past), 2)],
        NO_MASK,
    )


def decode_step_with_source(net: Transformer, ids: Tensor, *given: Tensor) -> StepOutput:
    n = 4 * len(net.blocks)
    caches = [
        (PastKeyValues(*given[i : i + 2]), EncoderKeyValues(*given[i + 2 : i + 4]))
        for i in range(0, n, 4)
    ]
    real = ids.new_ones(ids.shape[0], given[0].shape[2] + ids.shape[1])
    source_mask = cross_attention_mask(torch.ones_like(ids), *given[n:]) if given[n:] else NO_MASK
    return _decode_step(
        net, ids, real, _position_ids(real)[:, given[0].shape[2] :], caches, source_mask
    )


def _decode_step(
    net: Transformer,
    ids: Tensor,
    real: Tensor,
    at: Tensor,
    caches: Sequence[tuple[PastKeyValues, NoCache | CrossKVCache]],
    source_mask: Mask,
) -> StepOutput:
    """`Stack.run`, with keys wherever padding has put them."""
    keys = _position_ids(real)
    x = net.embed(ids)
    mask = Mask(
        allowed=distance_mask(at, keys, is_causal=True, window=net.sliding_window)
        & real.bool()[:, None, None]
    )
    hidden = net.run_blocks(
        x, at, keys, mask, caches, NO_HOOKS, x, source_mask
    )  # nobody reads x as the source
    return _predict(net, hidden, None), [own.key_values for own, _ in caches]


def _position_ids(real: Tensor) -> Tensor:
    """Positions of the real tokens; padding stands where one of them does, so it sees something and is no NaN."""
    return (real.cumsum(dim=1) - 1).clamp(min=0)


def _predict(net: Transformer, hidden: Tensor, real: Tensor | None) -> Tensor:
    head = net.head
    if isinstance(head, LMHead):  # not by `unembed`, which lays out its rows for torch
        return F.linear(head.transform(hidden), head.unembed.weight, head.bias)
    return net.compute_logits(hidden, real)


# ---------------------------------------------------------------- which files there are
@dataclass(frozen=True)
class OnnxFile:
    """A function of the network and of these inputs, in this order."""

    name: str
    compute: Callable[..., Any]
    inputs: dict[str, DynamicShape]
    outputs: list[str]


def _onnx_files(m: c.ModelConfig) -> Iterator[OnnxFile]:
    result = "last_hidden_state" if isinstance(m.head, c.NoHead) else "logits"
    ids: dict[str, DynamicShape] = {"input_ids": ("batch", "tokens")}
    if isinstance(m.architecture, c.EncoderDecoder):
        text = isinstance(m.architecture.source_input, c.Tokens)
        source = "source" if text else m.architecture.source_context_length
        past = _key_value_shapes(m, "past_key_values", {"decoder.": "past", "encoder.": source})
        padding: dict[str, DynamicShape] = (
            {"encoder_attention_mask": ("batch", "source")} if text else {}
        )
        reads = {
            name: shape
            for name, shape in _input_shapes(m.architecture.source_input).items()
            if name != "token_type_ids"
        }
        made = _key_value_shapes(m, "present", {"encoder.": source})
        yield OnnxFile("encoder_model.onnx", encode_source, reads, ["last_hidden_state", *made])
        made = _key_value_shapes(m, "present", {"decoder.": "past"})
        yield OnnxFile(
            "decoder_model.onnx", decode_step_with_source, ids | past | padding, [result, *made]
        )
    elif isinstance(m.architecture, c.Decoder) and isinstance(m.head, c.LMHead):
        stand: dict[str, DynamicShape] = {
            "attention_mask": ("batch", "past_and_tokens"),
            "position_ids": ("batch", "tokens"),
        }
        past, made = (
            _key_value_shapes(m, name, {"": "past"}) for name in ("past_key_values", "present")
        )
        yield OnnxFile("model.onnx", decode_step, ids | stand | past, [result, *made])
    else:
        yield OnnxFile("model.onnx", forward_sequence, _input_shapes(m.input), [result])


def _key_value_shapes(
    m: c.ModelConfig, name: str, sides: dict[str, int | str]
) -> dict[str, DynamicShape]:
    """Keys and values of each layer, and how many tokens they are of."""
    return {
        f"{name}.{i}.{side}{what}": ("batch", m.n_kv_heads, tokens, m.d_head)
        for i in range(m.n_layers)
        for side, tokens in sides.items()
        for what in ("key", "value")
    }


def _input_shapes(source: c.Input) -> dict[str, DynamicShape]:
    match source:
        case c.Tokens():
            names = [
                "input_ids",
                "attention_mask",
                *(["token_type_ids"] if source.token_types else []),
            ]
            return dict.fromkeys(names, ("batch", "tokens"))
        case c.Images():
            return {
                "pixel_values": ("batch", source.num_channels, source.image_size, source.image_size)
            }
        case c.MelSpectrogram():
            return {"input_features": ("batch", source.n_mels, source.n_frames)}


# ---------------------------------------------------------------- how a file is made
class _Traced(nn.Module):
    """The module that the exporter wants."""

    def __init__(self, net: Transformer, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.net = net
        self.compute = compute

    def forward(self, *given: Tensor) -> Any:
        return self.compute(self.net, *given)


def _export(net: Transformer, file: OnnxFile, folder: Path) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    sizes = [
        [TRACE_SIZES[n] if isinstance(n, str) else n for n in shape]
        for shape in file.inputs.values()
    ]
    whole = [name.endswith(("_ids", "_mask")) for name in file.inputs]
    given = [
        torch.ones(size, dtype=torch.long if w else torch.float32)
        for size, w in zip(sizes, whole, strict=True)
    ]
    vary = [
        {i: n for i, n in enumerate(shape) if isinstance(n, str)} for shape in file.inputs.values()
    ]
    with _silence_exporter(), torch.no_grad():
        program = torch.onnx.export(
            _Traced(net, file.compute).eval(),
            tuple(given),
            input_names=list(file.inputs),
            output_names=file.outputs,
            dynamic_shapes=(tuple(vary),),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        ClearMetadataAndDocStringPass()(program.model)  # what it was traced from, line by line
        program.save(
            folder / file.name,
            external_data=sum(p.nbytes for p in net.parameters()) >= EXTERNAL_DATA_BYTES,
        )


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """The exporter tells its own story in warnings and in the log."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
