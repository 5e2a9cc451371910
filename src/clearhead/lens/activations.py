"""Activations: the table of all hook points, the cache of `model.watch`, argument checks.

Plots, the web page, docs and tests read the table; a value that is not in it has no name.
"""

import difflib
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, NonFiniteError, check_int, check_type, suggest
from clearhead.hooks import Selector, matches
from clearhead.lens.view import View, label_axes
from clearhead.model.attention import Attention
from clearhead.model.inputs import TokenEmbedding
from clearhead.model.transformer import Stack, Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Edits, MediaInput, Model, TextInput

AttentionKind = Literal["attention", "cross", "encoder"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = ("attention", "cross", "encoder")
ATTENTION_PATHS = {
    "attention": "blocks.{}.attn",
    "cross": "blocks.{}.cross_attn",
    "encoder": "encoder.blocks.{}.attn",
}
REGRESSION_LABEL = "number"  # the label of a regression head's only output
CacheT = TypeVar("CacheT", bound=Mapping[str, Tensor])


class ModelInputs(TypedDict, total=False):
    """What a model reads: keyword arguments of `model.watch`."""

    x: "TextInput | None"
    source: "TextInput | None"
    images: "MediaInput | None"
    audio: "MediaInput | None"


@dataclass(frozen=True)
class ActivationInfo:
    """A hook point: its name, shape (in words), formula and a short description.

    Words of a shape: batch seq query key head kv_head d_head d_model d_ff vocab_size num_labels;
    `batch|1` where all rows may share one.
    """

    name: str
    shape: str
    formula: str
    description: str


RESIDUAL_SHAPE = "batch seq d_model"
NEURON_SHAPE = "batch seq d_ff"
QUERY_SHAPE = "batch head query d_head"
KEY_SHAPE = "batch kv_head key d_head"
SCORE_SHAPE = "batch head query key"

EMBED_ACTIVATIONS = (
    ActivationInfo("embed", RESIDUAL_SHAPE, "E[w]", "token embeddings"),
    ActivationInfo("pos_embed", "batch|1 seq d_model", "P[i]", "position embeddings"),
    ActivationInfo("full_embed", RESIDUAL_SHAPE, "E[w] + P[i]", "start of the residual stream"),
)
ATTENTION_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "input of the query projection"),
    ActivationInfo("q", QUERY_SHAPE, "h W_Q", "queries, after QK-norm if the model has it"),
    ActivationInfo("k", KEY_SHAPE, "s W_K", "keys, after QK-norm if the model has it"),
    ActivationInfo("v", KEY_SHAPE, "s W_V", "values"),
    ActivationInfo("rot_q", QUERY_SHAPE, "R_i q", "queries after the rotary embedding, if any"),
    ActivationInfo("rot_k", KEY_SHAPE, "R_j k", "keys after the rotary embedding, if any"),
    ActivationInfo("scores", SCORE_SHAPE, "q kᵀ / √d_k + bias", "attention scores before the mask"),
    ActivationInfo(
        "masked_scores", SCORE_SHAPE, "scores + M", "attention scores, −∞ at masked positions"
    ),
    ActivationInfo(
        "pattern", SCORE_SHAPE, "softmax(masked_scores)", "attention weights; each row sums to 1"
    ),
    ActivationInfo("z", QUERY_SHAPE, "pattern · v", "output of each head, before W_O"),
    ActivationInfo("out", RESIDUAL_SHAPE, "concat(z) W_O", "output of the attention layer"),
)
FFN_ACTIVATIONS = (
    ActivationInfo("in", RESIDUAL_SHAPE, "h", "input of the feed-forward layer"),
    ActivationInfo("up", NEURON_SHAPE, "h W_1 + b_1", "neurons before the activation function"),
    ActivationInfo("post", NEURON_SHAPE, "f(up)", "neurons after the activation function"),
    ActivationInfo("out", RESIDUAL_SHAPE, "post W_2 + b_2", "output of the feed-forward layer"),
)
GATED_FFN_ACTIVATIONS = (
    FFN_ACTIVATIONS[0],
    ActivationInfo("gate", NEURON_SHAPE, "h W_G", "gate before the activation function"),
    ActivationInfo("up", NEURON_SHAPE, "h W_1", "the branch that the gate multiplies"),
    ActivationInfo("post", NEURON_SHAPE, "f(gate) ⊙ up", "neurons after activation and gate"),
    FFN_ACTIVATIONS[3],
)


@lru_cache(maxsize=32)
def activation_table(m: c.ModelConfig) -> Mapping[str, ActivationInfo]:
    """All hook points of a model by name, in the order in which they are computed."""
    is_encoder_decoder = isinstance(m.architecture, c.EncoderDecoder)
    infos: list[ActivationInfo] = []
    if isinstance(m.architecture, c.EncoderDecoder):
        encoder = _stack_activations(m, m.architecture.encoder_layers, has_cross=False)
        infos += _with_prefix("encoder", encoder)
    infos += _stack_activations(m, m.n_layers, has_cross=is_encoder_decoder)
    if has_pooled_head(m):
        infos.append(
            ActivationInfo("logits", "batch num_labels", "pooled W", "logits, or the prediction")
        )
    elif not isinstance(m.head, c.NoHead):
        infos.append(
            ActivationInfo(
                "logits", "batch seq vocab_size", "final_norm · Eᵀ", "logits, before softmax"
            )
        )
    return MappingProxyType({info.name: info for info in infos})


def _stack_activations(
    m: c.ModelConfig, n_layers: int, has_cross: bool
) -> Iterator[ActivationInfo]:
    has_pos_embed = isinstance(m.position, c.Learned | c.Sinusoidal)
    yield from (info for info in EMBED_ACTIVATIONS if has_pos_embed or info.name != "pos_embed")
    for i in range(n_layers):
        yield from _with_prefix(f"blocks.{i}", _block_activations(m, has_cross))
    yield ActivationInfo(
        "final_norm", RESIDUAL_SHAPE, "norm(x)", "final hidden states (normalized with pre-norm)"
    )


def _block_activations(m: c.ModelConfig, has_cross: bool) -> Iterator[ActivationInfo]:
    yield ActivationInfo("resid_pre", RESIDUAL_SHAPE, "x", "residual stream entering the block")
    yield from _with_prefix("attn", ATTENTION_ACTIVATIONS)
    yield ActivationInfo(
        "resid_mid", RESIDUAL_SHAPE, "resid_pre + attn.out", "residual stream after attention"
    )
    if has_cross:
        yield from _with_prefix("cross_attn", ATTENTION_ACTIVATIONS)
        yield ActivationInfo(
            "resid_cross",
            RESIDUAL_SHAPE,
            "resid_mid + cross_attn.out",
            "residual stream after cross-attention",
        )
    yield from _with_prefix("ffn", GATED_FFN_ACTIVATIONS if m.ffn.is_gated else FFN_ACTIVATIONS)
    before_ffn = "resid_cross" if has_cross else "resid_mid"
    yield ActivationInfo(
        "resid_post", RESIDUAL_SHAPE, f"{before_ffn} + ffn.out", "residual stream leaving the block"
    )


def _with_prefix(prefix: str, infos: Iterable[ActivationInfo]) -> Iterator[ActivationInfo]:
    return (replace(info, name=f"{prefix}.{info.name}") for info in infos)


@lru_cache(maxsize=1024)
def matching_names(m: c.ModelConfig, pattern: str) -> tuple[str, ...]:
    """The activations that a pattern such as `blocks.*.attn.z` matches; none is an error."""
    check_type(pattern, str, "names of activations")
    table = activation_table(m)
    names = tuple(name for name in table if matches(pattern, name))
    if not names:
        raise ClearheadError(
            f"{pattern!r} matches no activation of this model; {_suggest_name(pattern, table)}"
        )
    return names


def _suggest_name(pattern: str, known: Iterable[str]) -> str:
    """The nearest name, with a star or a layer number like the pattern."""
    layers: dict[str, list[int]] = {}  # by name, with a star for the layer
    for name in known:
        numbers = layers.setdefault(_star_numbers(name), [])
        numbers += map(int, re.findall(r"\d+", name))
    starred = _star_numbers(pattern)
    if layers.get(starred):
        return f"its layers are 0 to {max(layers[starred])}."
    last_parts = {name.rpartition(".")[2]: name for name in layers}
    close = difflib.get_close_matches(starred, [*layers, *last_parts], n=1, cutoff=0.6)
    if not close:
        return f"known: {', '.join(layers)}"
    name = last_parts.get(close[0], close[0])
    layer = re.search(r"\d+", pattern)
    return f"did you mean {name.replace('*', layer.group(0)) if layer else name!r}?"


def _star_numbers(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def has_pooled_head(m: c.ModelConfig) -> bool:
    """Whether the head gives one row of outputs for a whole text."""
    return isinstance(m.head, c.ClassificationHead | c.RegressionHead)


def attention_kinds(m: c.ModelConfig) -> tuple[AttentionKind, ...]:
    """Self-attention; in an encoder-decoder also cross-attention and the encoder's."""
    return ATTENTION_KINDS if isinstance(m.architecture, c.EncoderDecoder) else ATTENTION_KINDS[:1]


def num_layers(m: c.ModelConfig, kind: str) -> int:
    """The number of layers with this kind of attention."""
    if kind not in ATTENTION_KINDS:
        raise ClearheadError(
            f"there is no attention kind {kind!r}; {suggest(str(kind), ATTENTION_KINDS)}"
        )
    if kind not in attention_kinds(m):
        raise ClearheadError(
            f"kind={kind!r} needs an encoder-decoder; this model is a {m.architecture.kind}."
        )
    if kind == "encoder" and isinstance(m.architecture, c.EncoderDecoder):
        return m.architecture.encoder_layers
    return m.n_layers


def attention_path(kind: str, layer: int) -> str:
    """The prefix of an attention layer's activations, such as `blocks.0.attn`."""
    return ATTENTION_PATHS[kind].format(layer)


def attention_module(net: Transformer, kind: str, layer: int) -> Attention:
    """The attention layer of this kind."""
    stack = net.encoder if kind == "encoder" and net.encoder is not None else net
    module = stack.get_submodule(attention_path(kind, layer).removeprefix("encoder."))
    assert isinstance(module, Attention)
    return module


def check_model(model: object) -> None:
    """Raise unless this is a model."""
    if not hasattr(model, "net"):
        raise ClearheadError(
            f"expected a model, got {type(model).__name__}; clearhead.load returns one."
        )


def check_layer(layer: int, count: int) -> int:
    return check_index(layer, count, "layer", "this model")


def check_head(head: int, count: int) -> int:
    return check_index(head, count, "head", "this layer")


def check_token(position: int, count: int) -> int:
    return check_index(position, count, "token", "the text")


def check_index(index: object, count: int, noun: str, owner: str) -> int:
    """A valid index as a number from 0; negative ones count from the end."""
    if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
        raise ClearheadError(f"there is no {noun} {index!r}; {owner} has {noun}s 0 to {count - 1}.")
    return index % count


def check_top_k(top_k: int) -> int:
    """Raise unless `top_k` is a positive integer."""
    check_int("top_k", top_k, minimum=1)
    return top_k


def answer_position(config: c.Config, batch: Batch, position: int | None = None) -> int:
    """The given position; by default that of the first mask token, or the last."""
    if position is not None:
        if type(position) is not int:
            raise ClearheadError(f"position must be an integer, got {position!r}.")
        return position
    if not isinstance(config.model.head, c.MLMHead):
        return -1
    mask_token = config.inference.mask_token
    ids = batch.inputs[0].tolist()
    return next((i for i, token in enumerate(ids) if token in mask_token), -1)


class NotCachedError(ClearheadError, KeyError):
    """An activation that was not watched."""

    __str__ = Exception.__str__  # a KeyError would print the repr of the message


class ActivationCache(Mapping[str, Tensor]):
    """Activations of one run by name. Draws itself in notebooks.

    `batch` is the input of the run. `is_complete` tells whether whole values were recorded rather
    than selected parts of them.
    """

    def __init__(
        self,
        values: dict[str, Tensor],
        config: c.ModelConfig,
        batch: Batch,
        tokenizers: tuple[Tokenizer | None, Tokenizer | None],
        is_complete: bool,
    ) -> None:
        self._values = values
        self._tokenizers = tokenizers
        self.config = config
        self.batch = batch
        self.is_complete = is_complete

    @cached_property  # not computed earlier, because it waits for the GPU
    def tokens(self) -> list[str]:
        """The first text's tokens."""
        return first_text_labels(self.batch.inputs, self.batch.segment_ids, self._tokenizers[0])

    @cached_property
    def source_tokens(self) -> list[str]:
        """The tokens of the first text's source; empty without one."""
        batch = self.batch
        return first_text_labels(batch.source, batch.source_segment_ids, self._tokenizers[1])

    def token_mask(self, name: str) -> Tensor | None:
        """Boolean, text × token: false at padding; None if nothing is padded."""
        is_source = is_source_activation(self.config, name)
        segment_ids = self.batch.source_segment_ids if is_source else self.batch.segment_ids
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
            f"{name:<34} {shape:<20} {description}" for name, shape, _, description in self._rows()
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._rows()
        )
        header = "<tr><th>name</th><th>shape</th><th>formula</th><th>description</th></tr>"
        return f"{''.join(self._pattern_figures())}<table>{header}{rows}</table>"

    def _pattern_figures(self) -> Iterator[str]:
        """The heads of each layer whose pattern was watched."""
        from clearhead.lens.attention import cached_attention  # it imports this module

        for kind in attention_kinds(self.config) if self.is_complete else ():
            for layer in range(num_layers(self.config, kind)):
                if f"{attention_path(kind, layer)}.pattern" in self:
                    yield cached_attention(self, layer, kind=kind)._repr_html_()


def is_source_activation(m: c.ModelConfig, name: str) -> bool:
    """Whether the tokens of an activation are those of the source."""
    is_by_key = activation_table(m)[name].shape == KEY_SHAPE
    return name.startswith("encoder.") or (is_by_key and ".cross_attn." in name)


def query_key_labels(
    cache: ActivationCache, kind: str, shape: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """Labels of queries and keys: tokens, and numbers for patches and padding."""
    queries = cache.source_tokens if kind == "encoder" else cache.tokens
    keys = cache.tokens if kind == "attention" else cache.source_tokens
    return _numbered_after(queries, shape[0]), _numbered_after(keys, shape[1])


def _numbered_after(labels: list[str], size: int) -> list[str]:
    return [*labels, *map(str, range(len(labels), size))]


def single_text(value: Tensor) -> Tensor:
    """The only text of a batch, in float32 on the CPU."""
    check_single_text(value)
    return value[0].detach().float().cpu()


def check_single_text(batch: Tensor) -> None:
    if len(batch) != 1:
        raise ClearheadError(f"this function takes one text at a time, got {len(batch)}.")


def check_no_nan(cache: CacheT) -> CacheT:
    """The activations themselves; raises if one of them contains NaN."""
    for name, value in cache.items():
        if bool(value.isnan().any()):
            raise NonFiniteError(f"the values of {name}")
    return cache


def watch_single_text(
    model: "Model",
    names: Iterable[str] | Mapping[str, Selector],
    x: "TextInput | None",
    source: "TextInput | None",
    images: "MediaInput | None",
    audio: "MediaInput | None",
    edits: "Edits | None",
) -> ActivationCache:
    """`model.watch` of one text, which must not give NaN."""
    cache = model.watch(x, names, source=source, images=images, audio=audio, edits=edits)
    for value in check_no_nan(cache).values():
        check_single_text(value)
    return cache


def tokens(model: "Model", text: "TextInput") -> View:
    """The tokens of a text and their ids, as the model reads it: with special tokens around it."""
    check_model(model)
    m = model.config.model
    if not isinstance(m.main_input, c.Tokens):
        raise ClearheadError(f"this model reads {m.main_input.kind}, not text; it has no tokens.")
    if isinstance(m.architecture, c.EncoderDecoder):
        target = None if model.config.inference.decoder_start_tokens else [0]
        batch = model.make_batch(target, source=text)
    else:
        batch = model.make_batch(text)
    inputs = batch.inputs if batch.source is None else batch.source
    check_single_text(inputs)
    ids = inputs[0].tolist()
    words = tuple(token_labels(model.tokenizers[1], ids)), tuple(map(str, ids))
    return View(
        torch.tensor([ids, ids]),
        label_axes({"row": ("token", "id"), "position": len(ids)}),
        title=f"{len(ids)} tokens",
        value_name="id",
        vmax=float("inf"),
        words=words,
    )


def first_text_labels(
    ids: Tensor | None, segment_ids: Tensor | None, tokenizer: Tokenizer | None
) -> list[str]:
    """The labels of the first text's tokens, without padding; empty for images and audio."""
    if ids is None or ids.is_floating_point():
        return []
    first = ids[0] if segment_ids is None else ids[0][segment_ids[0] != 0]
    return token_labels(tokenizer, first.tolist())


def output_labels(config: c.Config, tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """The labels of a head's outputs: class names, or tokens."""
    labels = config.inference.labels
    if isinstance(config.model.head, c.ClassificationHead):
        return [labels[i] if i < len(labels) else str(i) for i in ids]
    if isinstance(config.model.head, c.RegressionHead):
        return [REGRESSION_LABEL for _ in ids]
    return token_labels(tokenizer, ids)


def token_labels(tokenizer: Tokenizer | None, ids: Iterable[int]) -> list[str]:
    """Printable tokens; the id where the tokenizer has no token for it."""

    def label(i: int) -> str:
        try:
            return tokenizer.to_str_tokens([i])[0] if tokenizer else str(i)
        except ClearheadError:  # models may have more rows than their tokenizer has tokens
            return str(i)

    return [label(i) for i in ids]


class InputSide:
    """The stack of a model that reads text: its tokenizer, embedding matrix and special tokens.

    That is the encoder of an encoder-decoder that translates text, and otherwise the only stack.
    """

    def __init__(self, model: "Model") -> None:
        check_type(getattr(model, "net", model), Transformer, "a model")
        self.model = model
        encoder = model.net.encoder
        encoder_reads_text = encoder is not None and isinstance(encoder.embed, TokenEmbedding)
        self.stack: Stack = encoder if encoder is not None and encoder_reads_text else model.net
        self.is_encoder = self.stack is not model.net
        tokenizer = model.tokenizers[self.is_encoder]
        if not isinstance(self.stack.embed, TokenEmbedding):
            raise ClearheadError("this model does not read text; it has no word vectors.")
        if tokenizer is None:
            raise ClearheadError("this model has no tokenizer, so words cannot be looked up.")
        self.tokenizer: Tokenizer = tokenizer
        self.embedding = self.stack.embed.tokens.weight.detach()
        inference = model.config.inference
        has_special_tokens = self.is_encoder or encoder is None
        self.bos_tokens = inference.bos_tokens if has_special_tokens else ()
        self.sep_tokens = inference.sep_tokens if has_special_tokens else ()
        self.mask_token = next(iter(inference.mask_token), None)
        self.prefix = "encoder." if self.is_encoder else ""  # of its activations

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word inside a text: with the leading space, if tokens contain it."""
        if not word.strip():
            raise ClearheadError("the word is empty.")
        ids = self.tokenizer.encode(f" {word.strip()}" if self.tokenizer.has_space_prefix else word)
        if not ids:
            raise ClearheadError(f"{word!r} has no tokens.")
        for name, i in self.tokenizer.special_tokens.items():
            if i in ids:
                raise ClearheadError(f"{word!r} has no tokens; the tokenizer maps it to {name}.")
        return ids

    def to_str_tokens(self, ids: list[int]) -> tuple[str, ...]:
        return tuple(token_labels(self.tokenizer, ids))

    def resid_name(self, layer: int) -> str:
        """The name of the residual stream after a layer."""
        layer = check_layer(layer, len(self.stack.blocks))
        return f"{self.prefix}blocks.{layer}.resid_post"

    def watch(self, rows: list[list[int]], names: list[str]) -> ActivationCache:
        """Activations of this stack for rows of token ids."""
        if not self.is_encoder:
            return check_no_nan(self.model.watch(rows, names))
        # the encoder does not depend on the target, but the model needs one
        target = list(self.model.config.inference.decoder_start_tokens) or [0]
        return check_no_nan(self.model.watch([target] * len(rows), names, source=rows))
