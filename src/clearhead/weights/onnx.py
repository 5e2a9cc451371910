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
from clearhead.files import write_json
from clearhead.model import masks
from clearhead.model.block import CrossBlock
from clearhead.model.caches import FRESH, Fresh, Frozen, KeysValues, Make
from clearhead.model.heads import LanguageHead
from clearhead.model.masks import EVERYTHING, Mask
from clearhead.model.positions import NOWHERE
from clearhead.model.transformer import Transformer, build
from clearhead.tap import SILENT
from clearhead.weights.checkpoint import Checkpoint, Home, fill

CONFIG = "onnx_config.json"
LARGE = 1_500_000_000  # bytes; no ONNX file holds more than 2 GB

Shape = tuple[int | str, ...]  # a size that may vary has a name
EXAMPLE = {"batch": 3, "tokens": 2, "past": 4, "past_and_tokens": 6, "source": 5}  # sizes to trace with
Stepped = tuple[Tensor, list[KeysValues]]


def write(folder: Path, model: Checkpoint) -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ClearheadError(f"writing ONNX needs the package {package}; pip install 'clearhead[onnx]'.")
    weights = ((name, p.detach()) for name, p in model.net.named_parameters())
    net = fill(build(model.config.model, seed=None), weights, Home("cpu", torch.float32), "the model")
    for file in _files(model.config.model):
        _export(net, file, folder)
    write_json(folder / CONFIG, model.config.tree(), 1)
    model.save_tokenizers_for_engines(folder)


# ---------------------------------------------------------------- what a file computes
class Past(Fresh):
    """Keys and values as values: handed in with the old tokens, handed out with the new ones too."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.held = keys, values

    def __call__(self, make: Make, *args: object) -> KeysValues:
        keys, values = make(*args)
        self.held = torch.cat((self.held[0], keys), dim=2), torch.cat((self.held[1], values), dim=2)
        return self.held


class Given(Frozen):
    """Keys and values of a source that another file has read."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.kept = keys, values


def read_row(net: Transformer, x: Tensor, real: Tensor | None = None, kinds: Tensor | None = None) -> Tensor:
    """All of it at once; `real` is the attention mask."""
    at = None if real is None else _count(real)
    return _predict(net, net.run(x, at, real, kinds, SILENT), real)


def read_source(net: Transformer, x: Tensor, real: Tensor | None = None) -> Stepped:
    """The encoder's output, and the keys and values that each layer of the decoder makes of it."""
    assert net.encoder is not None
    at = None if real is None else _count(real)
    encoded = net.encoder.run(x, at, real, None, SILENT)
    crosses = [block.cross for block in net.blocks if isinstance(block, CrossBlock)]
    return encoded, [cross.keys_values(encoded, NOWHERE, SILENT) for cross in crosses]


def step(net: Transformer, ids: Tensor, real: Tensor, at: Tensor, *past: Tensor) -> Stepped:
    return _step(net, ids, real, at, [(Past(*past[i : i + 2]), FRESH) for i in range(0, len(past), 2)], EVERYTHING)


def step_from_source(net: Transformer, ids: Tensor, *given: Tensor) -> Stepped:
    n = 4 * len(net.blocks)
    caches = [(Past(*given[i : i + 2]), Given(*given[i + 2 : i + 4])) for i in range(0, n, 4)]
    real = ids.new_ones(ids.shape[0], given[0].shape[2] + ids.shape[1])
    source_mask = masks.across(torch.ones_like(ids), *given[n:]) if given[n:] else EVERYTHING
    return _step(net, ids, real, _count(real)[:, given[0].shape[2] :], caches, source_mask)


def _step(
    net: Transformer,
    ids: Tensor,
    real: Tensor,
    at: Tensor,
    caches: Sequence[tuple[Past, Fresh | Frozen]],
    source_mask: Mask,
) -> Stepped:
    """`Stack.run`, with keys wherever padding has put them."""
    keys, x = _count(real), net.embed(ids)
    mask = Mask(allowed=masks.between(at, keys, causal=True, window=net.window) & real.bool()[:, None, None])
    hidden = net.through(x, at, keys, mask, caches, SILENT, x, source_mask)  # nobody reads x as the source
    return _predict(net, hidden, None), [own.held for own, _ in caches]


def _count(real: Tensor) -> Tensor:
    """Positions of the real tokens; padding stands where one of them does, so it sees something and is no NaN."""
    return (real.cumsum(dim=1) - 1).clamp(min=0)


def _predict(net: Transformer, hidden: Tensor, real: Tensor | None) -> Tensor:
    head = net.head
    if isinstance(head, LanguageHead):  # not by `unembed`, which lays out its rows for torch
        return F.linear(head.read(hidden), head.unembed.weight, head.bias)
    return net.predict(hidden, real)


# ---------------------------------------------------------------- which files there are
@dataclass(frozen=True)
class File:
    """A function of the network and of these inputs, in this order."""

    name: str
    compute: Callable[..., Any]
    inputs: dict[str, Shape]
    outputs: list[str]


def _files(m: c.ModelConfig) -> Iterator[File]:
    result = "last_hidden_state" if isinstance(m.head, c.Hidden) else "logits"
    ids: dict[str, Shape] = {"input_ids": ("batch", "tokens")}
    if isinstance(m.shape, c.EncoderDecoder):
        text = isinstance(m.shape.input, c.Tokens)
        source = "source" if text else m.shape.context
        past = _pairs(m, "past_key_values", {"decoder.": "past", "encoder.": source})
        padding: dict[str, Shape] = {"encoder_attention_mask": ("batch", "source")} if text else {}
        reads = {name: shape for name, shape in _row(m.shape.input).items() if name != "token_type_ids"}
        made = _pairs(m, "present", {"encoder.": source})
        yield File("encoder_model.onnx", read_source, reads, ["last_hidden_state", *made])
        made = _pairs(m, "present", {"decoder.": "past"})
        yield File("decoder_model.onnx", step_from_source, ids | past | padding, [result, *made])
    elif isinstance(m.shape, c.Decoder) and isinstance(m.head, c.Language):
        stand: dict[str, Shape] = {"attention_mask": ("batch", "past_and_tokens"), "position_ids": ("batch", "tokens")}
        past, made = (_pairs(m, name, {"": "past"}) for name in ("past_key_values", "present"))
        yield File("model.onnx", step, ids | stand | past, [result, *made])
    else:
        yield File("model.onnx", read_row, _row(m.input), [result])


def _pairs(m: c.ModelConfig, name: str, sides: dict[str, int | str]) -> dict[str, Shape]:
    """Keys and values of each layer, and how many tokens they are of."""
    return {
        f"{name}.{i}.{side}{what}": ("batch", m.kv_heads, tokens, m.head_width)
        for i in range(m.layers)
        for side, tokens in sides.items()
        for what in ("key", "value")
    }


def _row(source: c.Input) -> dict[str, Shape]:
    match source:
        case c.Tokens():
            names = ["input_ids", "attention_mask", *(["token_type_ids"] if source.kinds else [])]
            return dict.fromkeys(names, ("batch", "tokens"))
        case c.Pictures():
            return {"pixel_values": ("batch", source.channels, source.size, source.size)}
        case c.Mel():
            return {"input_features": ("batch", source.mels, source.frames)}


# ---------------------------------------------------------------- how a file is made
class _Traced(nn.Module):
    """The module that the exporter wants."""

    def __init__(self, net: Transformer, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.compute = net, compute

    def forward(self, *given: Tensor) -> Any:
        return self.compute(self.net, *given)


def _export(net: Transformer, file: File, folder: Path) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    sizes = [[EXAMPLE[n] if isinstance(n, str) else n for n in shape] for shape in file.inputs.values()]
    whole = [name.endswith(("_ids", "_mask")) for name in file.inputs]
    given = [torch.ones(size, dtype=torch.long if w else torch.float32) for size, w in zip(sizes, whole, strict=True)]
    vary = [{i: n for i, n in enumerate(shape) if isinstance(n, str)} for shape in file.inputs.values()]
    with _quiet(), torch.no_grad():
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
        program.save(folder / file.name, external_data=sum(p.nbytes for p in net.parameters()) >= LARGE)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells its own story in warnings and in the log."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
