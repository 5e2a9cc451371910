"""The table of every visible value: its path, shape, formula and one sentence.

Plots, pages and tests read this table; a value that is not in it has no name.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.tap import means


@dataclass(frozen=True)
class Name:
    path: str
    shape: (
        str  # words: batch token key head kv_head d_head width ffn_width vocabulary outputs; batch|1 where rows share
    )
    formula: str
    sentence: str


STREAM = "batch token width"

EMBED = (
    Name("embed.tokens", STREAM, "E[w]", "what the tokens are, wherever they stand"),
    Name("embed.positions", "batch|1 token width", "P[i]", "where the tokens stand, whatever they are"),
    Name("embed", STREAM, "E[w] + P[i]", "the start of the residual stream"),
)
ATTENTION = (
    Name("in", STREAM, "h", "what the queries are made of"),
    Name("q", "batch head token d_head", "h W_Q", "what each token asks, normalised where there is QK-norm"),
    Name("k", "batch kv_head key d_head", "s W_K", "what each token answers to, normalised likewise"),
    Name("v", "batch kv_head key d_head", "s W_V", "what each token passes on"),
    Name(
        "q_turned", "batch head token d_head", "R_i q", "queries, turned by their position where positions are rotary"
    ),
    Name("k_turned", "batch kv_head key d_head", "R_j k", "keys, turned by their position where positions are rotary"),
    Name("scores", "batch head token key", "q kᵀ / √d_k + bias", "how well each key fits each query"),
    Name("masked", "batch head token key", "scores + M", "the same, −∞ where a query may not look"),
    Name(
        "pattern",
        "batch head token key",
        "softmax(masked)",
        "how much each query takes from each key; rows add up to 1",
    ),
    Name("z", "batch head token d_head", "pattern · v", "what each head has gathered"),
    Name("out", STREAM, "concat(z) W_O", "what attention adds to the stream"),
)
FEED_FORWARD = (
    Name("in", STREAM, "h", "what the neurons read"),
    Name("pre", "batch token ffn_width", "h W_1 + b_1", "the neurons before their activation"),
    Name("post", "batch token ffn_width", "f(pre)", "the neurons after it"),
    Name("out", STREAM, "post W_2 + b_2", "what the feed-forward layer adds to the stream"),
)
GATED = (
    *FEED_FORWARD[:2],
    Name("gate", "batch token ffn_width", "h W_G", "what each neuron is multiplied with"),
    Name("post", "batch token ffn_width", "f(pre) ⊙ gate", "the neurons after activation and gate"),
    FEED_FORWARD[3],
)


@lru_cache(maxsize=32)
def names(m: c.ModelConfig) -> Mapping[str, Name]:
    """Every value of such a model, in the order in which it comes to be."""
    found: list[Name] = []
    if isinstance(m.shape, c.EncoderDecoder):
        found += [replace(n, path=f"encoder.{n.path}") for n in _stack(m, m.shape.layers, cross=False)]
    found += _stack(m, m.layers, cross=isinstance(m.shape, c.EncoderDecoder))
    pooled = isinstance(m.head, c.Classes | c.Number)
    if not isinstance(m.head, c.Hidden):
        shape = "batch outputs" if pooled else "batch token vocabulary"
        found.append(Name("logits", shape, "norm · Eᵀ" if not pooled else "pooled W", "the answer, before softmax"))
    return MappingProxyType({name.path: name for name in found})


def _stack(m: c.ModelConfig, layers: int, cross: bool) -> Iterator[Name]:
    added = isinstance(m.position, c.Learned | c.Sinusoidal)
    yield from (n for n in EMBED if added or n.path != "embed.positions")
    for i in range(layers):
        block = f"blocks.{i}"
        yield Name(f"{block}.pre", STREAM, "x", "the residual stream as it enters the block")
        yield from _below(f"{block}.attn", ATTENTION)
        yield Name(f"{block}.mid", STREAM, "x + attention", "the stream after attention")
        if cross:
            yield from _below(f"{block}.cross", ATTENTION)
            yield Name(f"{block}.crossed", STREAM, "mid + cross-attention", "the stream after looking at the source")
        yield from _below(f"{block}.ffn", GATED if m.ffn.gated else FEED_FORWARD)
        yield Name(f"{block}.post", STREAM, "mid + feed-forward", "the stream as it leaves the block")
    yield Name("norm", STREAM, "norm(x)", "the stream at the end, normalised where the wiring is pre")


def _below(path: str, table: tuple[Name, ...]) -> Iterator[Name]:
    return (replace(n, path=f"{path}.{n.path}") for n in table)


@lru_cache(maxsize=1024)
def matching(m: c.ModelConfig, pattern: str) -> tuple[str, ...]:
    """The paths that a pattern means in such a model; none is a mistake."""
    found = tuple(path for path in names(m) if means(pattern, path))
    if not found:
        raise ClearheadError(f"{pattern!r} names no value of this model; {_hint(pattern, names(m))}")
    return found


def _hint(pattern: str, known: Iterable[str]) -> str:
    """What to write instead: with its star where the pattern has one, and with its layer where it has that."""
    every = list(dict.fromkeys(re.sub(r"\d+", "*", path) for path in known))
    starred = re.sub(r"\d+", "*", pattern)
    layers = [int(n) for path in known for n in re.findall(r"\d+", path) if re.sub(r"\d+", "*", path) == starred]
    if layers:
        return f"there it has layers 0 to {max(layers)}."
    ends = {path.rpartition(".")[2]: path for path in every}
    close = difflib.get_close_matches(starred, [*every, *ends], n=1, cutoff=0.6)
    if not close:
        return f"known: {', '.join(every)}"
    path, layer = ends.get(close[0], close[0]), re.search(r"\d+", pattern)
    return f"did you mean {path.replace('*', layer.group(0)) if layer else path!r}?"
