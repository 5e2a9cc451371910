"""The table of every visible value: its path, shape, formula and one sentence.

Plots, pages and tests read this table; a value that is not in it has no name.
"""

import difflib
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, NonFiniteError, check_type, suggest
from clearhead.hooks import matches
from clearhead.lens.view import Axis, View
from clearhead.model.attention import Attention
from clearhead.model.inputs import TokenEmbedding
from clearhead.model.transformer import Stack, Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- names: The table of every visible value: its path, shape, formula and one sentence.


@dataclass(frozen=True)
class ActivationInfo:
    name: str
    shape: str  # words: batch token key head kv_head d_head width d_ff vocabulary outputs; batch|1 where rows share
    formula: str
    description: str


RESIDUAL_SHAPE = "batch token width"

EMBED_ACTIVATIONS = (
    ActivationInfo("embed", RESIDUAL_SHAPE, "E[w]", "what the tokens are, wherever they stand"),
    ActivationInfo(
        "pos_embed", "batch|1 token width", "P[i]", "where the tokens stand, whatever they are"
    ),
    ActivationInfo("full_embed", RESIDUAL_SHAPE, "E[w] + P[i]", "the start of the residual stream"),
)
ATTENTION_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "what the queries are made of"),
    ActivationInfo(
        "q",
        "batch head token d_head",
        "h W_Q",
        "what each token asks, normalised where there is QK-norm",
    ),
    ActivationInfo(
        "k", "batch kv_head key d_head", "s W_K", "what each token answers to, normalised likewise"
    ),
    ActivationInfo("v", "batch kv_head key d_head", "s W_V", "what each token passes on"),
    ActivationInfo(
        "rot_q",
        "batch head token d_head",
        "R_i q",
        "queries, turned by their position where positions are rotary",
    ),
    ActivationInfo(
        "rot_k",
        "batch kv_head key d_head",
        "R_j k",
        "keys, turned by their position where positions are rotary",
    ),
    ActivationInfo(
        "scores", "batch head token key", "q kᵀ / √d_k + bias", "how well each key fits each query"
    ),
    ActivationInfo(
        "masked_scores",
        "batch head token key",
        "scores + M",
        "the same, −∞ where a query may not look",
    ),
    ActivationInfo(
        "pattern",
        "batch head token key",
        "softmax(masked)",
        "how much each query takes from each key; rows add up to 1",
    ),
    ActivationInfo("z", "batch head token d_head", "pattern · v", "what each head has gathered"),
    ActivationInfo("out", RESIDUAL_SHAPE, "concat(z) W_O", "what attention adds to the stream"),
)
FFN_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "what the neurons read"),
    ActivationInfo("up", "batch token d_ff", "h W_1 + b_1", "the neurons before their activation"),
    ActivationInfo("post", "batch token d_ff", "f(up)", "the neurons after it"),
    ActivationInfo(
        "out", RESIDUAL_SHAPE, "post W_2 + b_2", "what the feed-forward layer adds to the stream"
    ),
)
GATED_FFN_ACTIVATIONS = (
    FFN_ACTIVATIONS[0],
    ActivationInfo("gate", "batch token d_ff", "h W_G", "the gate before its activation"),
    ActivationInfo("up", "batch token d_ff", "h W_1", "what the activated gate is multiplied with"),
    ActivationInfo(
        "post", "batch token d_ff", "f(gate) ⊙ up", "the neurons after activation and gate"
    ),
    FFN_ACTIVATIONS[3],
)


@lru_cache(maxsize=32)
def activation_table(m: c.ModelConfig) -> Mapping[str, ActivationInfo]:
    """Every value of such a model, in the order in which it comes to be."""
    found: list[ActivationInfo] = []
    if isinstance(m.architecture, c.EncoderDecoder):
        found += [
            replace(n, name=f"encoder.{n.name}")
            for n in _stack(m, m.architecture.encoder_layers, cross=False)
        ]
    found += _stack(m, m.n_layers, cross=isinstance(m.architecture, c.EncoderDecoder))
    pooled = isinstance(m.head, c.ClassificationHead | c.RegressionHead)
    if not isinstance(m.head, c.NoHead):
        shape = "batch outputs" if pooled else "batch token vocabulary"
        found.append(
            ActivationInfo(
                "logits",
                shape,
                "norm · Eᵀ" if not pooled else "pooled W",
                "the answer, before softmax",
            )
        )
    return MappingProxyType({name.name: name for name in found})


def _stack(m: c.ModelConfig, layers: int, cross: bool) -> Iterator[ActivationInfo]:
    added = isinstance(m.position, c.Learned | c.Sinusoidal)
    yield from (n for n in EMBED_ACTIVATIONS if added or n.name != "pos_embed")
    for i in range(layers):
        block = f"blocks.{i}"
        yield ActivationInfo(
            f"{block}.resid_pre", RESIDUAL_SHAPE, "x", "the residual stream as it enters the block"
        )
        yield from _with_prefix(f"{block}.attn", ATTENTION_ACTIVATIONS)
        yield ActivationInfo(
            f"{block}.resid_mid", RESIDUAL_SHAPE, "x + attention", "the stream after attention"
        )
        if cross:
            yield from _with_prefix(f"{block}.cross_attn", ATTENTION_ACTIVATIONS)
            yield ActivationInfo(
                f"{block}.resid_cross",
                RESIDUAL_SHAPE,
                "mid + cross-attention",
                "the stream after looking at the source",
            )
        yield from _with_prefix(
            f"{block}.ffn", GATED_FFN_ACTIVATIONS if m.ffn.is_gated else FFN_ACTIVATIONS
        )
        yield ActivationInfo(
            f"{block}.resid_post",
            RESIDUAL_SHAPE,
            "mid + feed-forward",
            "the stream as it leaves the block",
        )
    yield ActivationInfo(
        "final_norm",
        RESIDUAL_SHAPE,
        "norm(x)",
        "the stream at the end, normalised where the wiring is pre",
    )


def _with_prefix(path: str, table: tuple[ActivationInfo, ...]) -> Iterator[ActivationInfo]:
    return (replace(n, name=f"{path}.{n.name}") for n in table)


@lru_cache(maxsize=1024)
def matching_names(m: c.ModelConfig, pattern: str) -> tuple[str, ...]:
    """The paths that a pattern means in such a model; none is a mistake."""
    found = tuple(path for path in activation_table(m) if matches(pattern, path))
    if not found:
        raise ClearheadError(
            f"{pattern!r} names no value of this model; {_suggest_name(pattern, activation_table(m))}"
        )
    return found


def _suggest_name(pattern: str, known: Iterable[str]) -> str:
    """What to write instead: with its star where the pattern has one, and with its layer where it has that."""
    every = list(dict.fromkeys(re.sub(r"\d+", "*", path) for path in known))
    starred = re.sub(r"\d+", "*", pattern)
    layers = [
        int(n)
        for path in known
        for n in re.findall(r"\d+", path)
        if re.sub(r"\d+", "*", path) == starred
    ]
    if layers:
        return f"there it has layers 0 to {max(layers)}."
    ends = {path.rpartition(".")[2]: path for path in every}
    close = difflib.get_close_matches(starred, [*every, *ends], n=1, cutoff=0.6)
    if not close:
        return f"known: {', '.join(every)}"
    path = ends.get(close[0], close[0])
    layer = re.search(r"\d+", pattern)
    return f"did you mean {path.replace('*', layer.group(0)) if layer else path!r}?"


# ---- given: Arguments by name: those that functions of the lens hand on to `model.watch`, and those that nobody knows.

READ = ("source", "images", "audio")
HANDED_ON = {
    "read": READ,
    "given": (*READ, "edits"),
}  # by the name of the parameter that gathers them

P = ParamSpec("P")
R = TypeVar("R")


def check_model(model: object) -> None:
    if not hasattr(model, "net"):
        raise ClearheadError(
            f"a model is needed, not {type(model).__name__}; clearhead.load gives one."
        )


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Refuses what is no model, and arguments that neither the function nor what it hands on to has."""
    taken = signature(function).parameters.values()
    known = [
        name
        for p in taken
        for name in (HANDED_ON[p.name] if p.kind is Parameter.VAR_KEYWORD else [p.name])
    ]

    @wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                raise ClearheadError(f"{function.__name__} has no {name!r}; {suggest(name, known)}")
        if known[0] == "model":
            check_model(args[0] if args else named.get("model"))
        return function(*args, **named)

    return checked


# ---- parts: Where to look: the attention of which stack, which layer, head and token, and what rows and columns are called.


S = TypeVar("S", bound=Mapping[str, Tensor])
AttentionKind = Literal["attention", "cross", "encoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = ("attention", "cross", "encoder")
ATTENTION_PATHS = {
    "attention": "blocks.{}.attn",
    "cross": "blocks.{}.cross_attn",
    "encoder": "encoder.blocks.{}.attn",
}


def attention_kinds(m: c.ModelConfig) -> tuple[AttentionKind, ...]:
    """Which attention a model has."""
    return ATTENTION_KINDS if isinstance(m.architecture, c.EncoderDecoder) else ATTENTION_KINDS[:1]


def num_layers(m: c.ModelConfig, kind: str) -> int:
    """How many layers have that attention: to the text itself, to its source (cross), or of the source (encoder)."""
    if kind not in ATTENTION_KINDS:
        raise ClearheadError(f"there is no part {kind!r}; {suggest(str(kind), ATTENTION_KINDS)}")
    if kind not in attention_kinds(m):
        raise ClearheadError(
            f"{kind} is a part of encoder-decoders; this model is of shape {m.architecture.kind}."
        )
    return (
        m.architecture.encoder_layers
        if kind == "encoder" and isinstance(m.architecture, c.EncoderDecoder)
        else m.n_layers
    )


def attention_path(kind: str, layer: int) -> str:
    """The path of its values."""
    return ATTENTION_PATHS[kind].format(layer)


def attention_module(net: Transformer, part: str, layer: int) -> Attention:
    """The attention itself, with its matrices."""
    stack = net.encoder if part == "encoder" and net.encoder is not None else net
    found: Attention = stack.get_submodule(attention_path(part, layer).removeprefix("encoder."))  # type: ignore[assignment]
    return found


def check_layer(layer: int, layers: int) -> int:
    return check_index(layer, layers, "layer", "this model")


def check_head(head: int, heads: int) -> int:
    return check_index(head, heads, "head", "this layer")


def check_token(token: int, tokens: int) -> int:
    return check_index(token, tokens, "token", "the text")


def check_index(number: int, count: int, what: str, where: str) -> int:
    """Which of so many, counted from 0, or from the end below 0."""
    if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
        raise ClearheadError(f"there is no {what} {number}; {where} has {what}s 0 to {count - 1}.")
    return number % count


def answer_position(model: "Model", at: int | None, x: Any, given: dict[str, Any]) -> int:
    """The place of the token that is asked about: the last, or the first that is hidden where words are."""
    if at is not None:
        if isinstance(at, bool) or not isinstance(at, int):
            raise ClearheadError(f"at = {at!r} must be the number of a token.")
        return at
    if not isinstance(model.config.model.head, c.MLMHead):
        return -1
    ids = (
        model.make_batch(x, **{name: value for name, value in given.items() if name != "edits"})
        .inputs[0]
        .tolist()
    )
    return next(
        (place for place, token in enumerate(ids) if token in model.config.inference.mask_token), -1
    )


def check_top(top: int) -> int:
    """How many of the best are wanted."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ClearheadError(f"top = {top!r} must be at least 1, and whole.")
    return top


def query_key_labels(
    seen: "ActivationCache", part: str, shape: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """Names for queries and keys: the tokens, or numbers where patches and paddings have none."""
    own = (seen.tokens, shape[0])
    source = (seen.source_tokens, shape[0])
    sides = {
        "attention": (own, (seen.tokens, shape[1])),
        "cross": (own, (seen.source_tokens, shape[1])),
        "encoder": (source, (seen.source_tokens, shape[1])),
    }[part]
    down, across = ([*names, *map(str, range(len(names), size))] for names, size in sides)
    return down, across


def single_text(value: Tensor) -> Tensor:
    """The value of the one text there is."""
    if len(value) != 1:
        raise ClearheadError(f"this looks at one text at a time, not at {len(value)}.")
    return value[0].detach().float().cpu()


def check_no_nan(seen: S) -> S:
    """What was seen, unless some of it is no number."""
    for name, value in seen.items():
        if bool(value.isnan().any()):
            raise NonFiniteError(f"the values of {name}")
    return seen


def watch_single_text(
    model: "Model", x: Any, names: Any, given: dict[str, Any]
) -> "ActivationCache":
    """What a model did with one text (or source=, pictures=, sound=), unless some of it is no number."""
    seen = check_no_nan(model.watch(x, names, **given))
    for value in seen.values():
        single_text(value[..., :0])
    return seen


# ---- seen: What one run had inside: values by name, with the tokens they belong to.

LabelFactory = Callable[[], list[str]]
KEY_SHAPE = "batch kv_head key d_head"  # the shape of what has a row for each key


class NotCachedError(ClearheadError, KeyError):
    """A value was asked for that nobody watched."""

    __str__ = Exception.__str__  # a KeyError would quote the sentence


class ActivationCache(Mapping[str, Tensor]):
    """A mapping name → tensor; `tokens` label the first text, `source_tokens` its source. Draws itself in notebooks.

    `whole` tells whether values are as the model had them, not parts that somebody selected. `segments`, of the texts
    and of their sources, are 0 where there is padding, and None where there is none.
    """

    def __init__(
        self, values: dict[str, Tensor], m: c.ModelConfig, tokens: LabelFactory, source_tokens: LabelFactory, whole: bool,
        segment_ids: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:  # fmt: skip
        self._values = values
        self.config = m
        self.is_complete = whole
        self._segments = segment_ids
        # made when asked for: a GPU would be waited for
        self._tokens = tokens
        self._source_tokens = source_tokens

    @cached_property
    def tokens(self) -> list[str]:
        """The first text's tokens, for people to read."""
        return self._tokens()

    @cached_property
    def source_tokens(self) -> list[str]:
        """The same of its source, where there is one."""
        return self._source_tokens()

    def token_mask(self, name: str) -> Tensor | None:
        """Which tokens of each text, or of its source, a value has that are no padding; None where all are."""
        of_source = name.startswith("encoder.") or (
            ".cross_attn." in name and activation_table(self.config)[name].shape == KEY_SHAPE
        )
        segment_ids = self._segments[of_source]
        return None if segment_ids is None else segment_ids != 0

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            raise NotCachedError(f"{name!r} was not watched; {suggest(name, self._values)}")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        table = activation_table(self.config)
        return [
            (name, " × ".join(map(str, value.shape)), table[name].formula, table[name].description)
            for name, value in self.items()
        ]

    def __repr__(self) -> str:
        return "\n".join(
            f"{name:<34} {shape:<20} {sentence}" for name, shape, _, sentence in self._rows()
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._rows()
        )
        table = f"<table><tr><th>name</th><th>shape</th><th>formula</th><th>what it is</th></tr>{rows}</table>"
        return "".join(self._figures()) + table

    def _figures(self) -> Iterator[str]:
        """The heads of each layer whose pattern was watched."""
        for part in attention_kinds(self.config) if self.is_complete else ():
            for layer in range(num_layers(self.config, part)):
                if f"{attention_path(part, layer)}.pattern" in self:
                    from clearhead.lens.attention import cached_attention

                    yield cached_attention(self, layer, kind=part)._repr_html_()


def first_text_labels(
    ids: Tensor | None, segment_ids: Tensor | None, tokenizer: Tokenizer | None
) -> list[str]:
    """The first text's tokens, for people to read."""
    if ids is None or ids.is_floating_point():
        return []
    first = (ids[0] if segment_ids is None else ids[0][segment_ids[0] != 0]).tolist()
    return token_labels(tokenizer, first)


# ---- pieces: A text as the model gets it: its tokens and their numbers.


@check_arguments
def tokens(model: "Model", text: Any) -> View:
    """Each token and its id, with all that stands around a text."""
    m = model.config.model
    reads = m.main_input
    both = isinstance(m.architecture, c.EncoderDecoder)
    if not isinstance(reads, c.Tokens):
        raise ClearheadError(
            f"this model reads {reads.kind}, not text; only text has tokens to show."
        )
    target = (
        None if model.config.inference.decoder_start_tokens else [0]
    )  # which no source is cut by
    batch = model.make_batch(target, source=text) if both else model.make_batch(text)
    read = batch.inputs if batch.source is None else batch.source
    if len(read) != 1:
        raise ClearheadError(f"this looks at one text at a time, not at {len(read)}.")
    ids = read[0].tolist()
    words = tuple(token_labels(model.tokenizers[1], ids)), tuple(map(str, ids))
    axes = Axis.from_labels("what", ("token", "id")), Axis.from_labels("place", len(ids))
    return View(
        torch.tensor([ids, ids]), axes, f"{len(ids)} tokens", "id", vmax=float("inf"), words=words
    )


def output_labels(config: c.Config, tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """What the outputs of a model's head are called."""
    if isinstance(config.model.head, c.ClassificationHead):
        return [
            config.inference.labels[i] if i < len(config.inference.labels) else str(i) for i in ids
        ]
    if isinstance(config.model.head, c.RegressionHead):
        return [REGRESSION_LABEL for _ in ids]
    return token_labels(tokenizer, ids)


def token_labels(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """Each token for people to read; its number where it has no name."""

    def label(i: int) -> str:
        try:
            return tokenizer.to_str_tokens([i])[0] if tokenizer else str(i)
        except ClearheadError:  # models have room for more tokens than their tokenizer knows
            return str(i)

    return [label(i) for i in ids]


REGRESSION_LABEL = "number"  # what the one output of a head that gives a number is called


class InputSide:
    """The side of a model that reads: its tokenizer, its embedding matrix, and what stands around a text."""

    def __init__(self, model: "Model") -> None:
        check_type(getattr(model, "net", model), Transformer, "a model")
        self.model = model
        use = model.config.inference
        encoder = model.net.encoder
        words = encoder is not None and isinstance(encoder.embed, TokenEmbedding)
        self.stack: Stack = encoder if encoder is not None and words else model.net
        self.is_encoder = self.stack is not model.net
        tokenizer = model.tokenizers[self.is_encoder]
        if not isinstance(self.stack.embed, TokenEmbedding):
            raise ClearheadError("this model reads no words, so it has no vectors of them.")
        if tokenizer is None:
            raise ClearheadError("this model has no tokenizer, so it knows no words; give it one.")
        self.tokenizer: Tokenizer = tokenizer
        self.embedding = self.stack.embed.tokens.weight.detach()
        self.bos_tokens, self.sep_tokens = (
            (use.bos_tokens, use.sep_tokens) if self.is_encoder or encoder is None else ((), ())
        )
        self.mask_token = next(iter(use.mask_token), None)  # the token of a gap

    def encode_word(self, word: str) -> list[int]:
        """The tokens of a word as it stands within a text: after a space, where tokens hold it."""
        if not word.strip():
            raise ClearheadError("the word is empty; give at least one letter.")
        ids = self.tokenizer.encode(f" {word.strip()}" if self.tokenizer.has_space_prefix else word)
        special = {i: name for name, i in self.tokenizer.special_tokens.items()}
        if not ids or (unknown := [special[i] for i in ids if i in special]):
            raise ClearheadError(
                f"{word!r} becomes {unknown[0] if ids else 'nothing'} here; it has no tokens."
            )
        return ids

    def to_str_tokens(self, ids: list[int]) -> tuple[str, ...]:
        return tuple(token_labels(self.tokenizer, ids))

    def resid_name(self, layer: int) -> str:
        """The name of the residual stream after a layer."""
        return f"{'encoder.' if self.is_encoder else ''}blocks.{check_layer(layer, len(self.stack.blocks))}.resid_post"

    def watch(self, rows: list[list[int]], names: list[str]) -> "ActivationCache":
        """What the pass over some rows of ids had inside."""
        if not self.is_encoder:
            return check_no_nan(self.model.watch(rows, names))
        target = [list(self.model.config.inference.decoder_start_tokens) or [0]] * len(
            rows
        )  # which no encoder sees
        return check_no_nan(self.model.watch(target, names, source=rows))
