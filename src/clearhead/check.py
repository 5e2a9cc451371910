"""What a configuration must not ask for, each with the sentence that says why."""

import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from clearhead import reader
from clearhead import variants as c
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.config import ModelConfig, Use


WRITTEN = ("start", "stop", "never", "never_first", "pad", "mask")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def model(m: "ModelConfig") -> None:
    """Raises the first thing that cannot be."""
    for mistake in _mistakes(m):
        raise ClearheadError(mistake)


def ranges(value: Any, path: str) -> None:
    """Raises the first value that is out of its range."""
    for mistake in _ranges(value, path):
        raise ClearheadError(mistake)


def use(u: "Use", m: "ModelConfig") -> None:
    """Ids must be in the vocabulary that they are read from or written to, and every class may have a name."""
    ranges(u, "use")
    both = m.shape if isinstance(m.shape, c.EncoderDecoder) else None
    read = both.vocabulary or m.vocabulary if both else m.vocabulary
    for name, size in {"begin": read, "end": read, **dict.fromkeys(WRITTEN, m.vocabulary)}.items():
        for i in getattr(u, name):
            if not 0 <= i < size:
                raise ClearheadError(f"use.{name} = {i} is no token; the vocabulary has {size}.")
    classes = m.head.classes if isinstance(m.head, c.Classes) else 0
    if u.labels and len(u.labels) != classes:
        raise ClearheadError(f"use.labels names {len(u.labels)} classes, but the model has {classes}.")


def _mistakes(m: "ModelConfig") -> Iterator[str]:
    yield from _ranges(m, "model")
    yield from _attention(m)
    yield from _positions(m)
    yield from _shape_and_head(m)
    yield from _input(m.input, m.vocabulary, m.context, "model")
    if isinstance(m.shape, c.EncoderDecoder):
        shared = isinstance(m.shape.input, c.Tokens) and not m.shape.vocabulary
        vocabulary = m.vocabulary if shared else m.shape.vocabulary
        yield from _input(m.shape.input, vocabulary, m.shape.context, "model.shape")


def _ranges(value: Any, path: str) -> Iterator[str]:
    hints = _hints(type(value))  # type: ignore[arg-type]
    for f in fields(value):
        item, where = getattr(value, f.name), f"{path}.{f.name}"
        if is_dataclass(item):
            yield from _ranges(item, where)
            continue
        item = reader.read_field(hints[f.name], item, where)
        least, below, most = (f.metadata[name] for name in ("least", "below", "most"))
        if isinstance(item, tuple):
            if not all(math.isfinite(number) for number in item if isinstance(number, float)):
                yield f"{where} = {list(item)} must be finite numbers."
        elif most is not None:
            if not least <= item <= most:
                yield f"{where} = {item} must be a share from {least} to {most}."
        elif below is not None:
            if not least <= item < below:
                yield f"{where} = {item} must be at least {least} and less than {below}."
        elif type(item) is int and item < least:
            yield f"{where} = {item} is too small; it must be at least {least}."
        elif isinstance(item, float) and not (0 < item < math.inf or item == least):
            yield f"{where} = {item} must be a finite, positive number{'' if least else ', or 0'}."


def _attention(m: "ModelConfig") -> Iterator[str]:
    a = m.attention
    if not a.head_width and m.width % a.heads:
        middle = min(a.heads, m.width)
        near = next(n for far in range(middle) for n in (middle - far, middle + far) if m.width % n == 0)
        choose = f"choose model.attention.heads among its divisors, such as {near}, or give model.attention.head_width"
        yield f"model.width = {m.width} does not split into {a.heads} heads; {choose}."
    if a.heads % m.kv_heads:
        yield f"model.attention.heads = {a.heads} cannot share {m.kv_heads} kv_heads evenly."


def _positions(m: "ModelConfig") -> Iterator[str]:
    match m.position:
        case c.Sinusoidal() if m.width % 2:
            yield f"model.width = {m.width} is odd; sinusoidal positions need pairs of sine and cosine."
        case c.Rotary(width=width):
            if (width or m.head_width) % 2:
                yield f"rotary positions turn pairs of dimensions, so {width or m.head_width} dimensions cannot turn."
            if width > m.head_width:
                yield f"model.position.width = {width} is more than the head's {m.head_width} dimensions."
            s = m.position.scaling
            if isinstance(s, c.Llama3) and s.low >= s.high:
                yield f"model.position.scaling.low = {s.low} must be less than high = {s.high}."
        case c.Relative(buckets=buckets, distance=distance):
            if buckets % 4:
                yield f"model.position.buckets = {buckets} must be a multiple of 4: two directions, near and far."
            if distance <= buckets:
                yield f"model.position.distance = {distance} must be more than the {buckets} buckets."


def _shape_and_head(m: "ModelConfig") -> Iterator[str]:
    match m.shape, m.head:
        case c.Encoder(), c.Language():
            yield "an encoder sees the word it would have to predict; use head masked-word, or shape decoder."
        case ((c.Decoder() | c.EncoderDecoder()), c.MaskedWord()):
            yield "a masked-word head reads both sides of the gap; it needs shape encoder."
        case c.EncoderDecoder(), (c.Classes() | c.Number()):
            yield f"an encoder-decoder writes text; head {m.head.kind} needs shape encoder or decoder."
        case c.Decoder(), (c.Classes(pooling="first") | c.Number(pooling="first")):
            yield "the first token of a decoder has seen nothing yet; use pooling mean."
    if not isinstance(m.input, c.Tokens):
        if not isinstance(m.shape, c.Encoder):
            yield f"a decoder reads the tokens it writes; {m.input.kind} belong in an encoder, or in shape.input."
        if isinstance(m.head, c.MaskedWord):
            yield f"a masked-word head needs words; the input is {m.input.kind}."
    if isinstance(m.head, c.Language | c.MaskedWord) and not m.vocabulary:
        yield f"head {m.head.kind} needs model.vocabulary, which is 0."


def _input(source: c.Input, vocabulary: int, context: int, path: str) -> Iterator[str]:
    match source:
        case c.Tokens():
            if not vocabulary:
                yield f"{path}.vocabulary = 0, but the input is tokens; say how many different ones there are."
            return
        case c.Pictures():
            if source.size % source.patch:
                yield f"{path}.input.size = {source.size} is not a whole number of patches of {source.patch}."
            for name, values in (("mean", source.mean), ("deviation", source.deviation)):
                if len(values) not in (1, source.channels):
                    yield f"{path}.input.{name} needs one number, or one for each of {source.channels} colours."
            if not all(value > 0 for value in source.deviation):
                yield f"{path}.input.deviation = {source.deviation} must be positive numbers."
        case c.Spectrogram() if source.mels % source.patch_mels or source.frames % source.patch_frames:
            yield (
                f"{path}.input: {source.mels} mels x {source.frames} frames are not whole patches of "
                f"{source.patch_mels} x {source.patch_frames}."
            )
    if vocabulary:
        yield f"{path}.vocabulary = {vocabulary}, but {source.kind} has no vocabulary; it must be 0."
    if context != (needed := c.tokens_of(source)):
        yield f"{path}.context = {context}, but this input becomes {needed} tokens; write {needed}."
