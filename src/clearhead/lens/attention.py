"""Attention: patterns, softmax step by step, scores of what heads do, attention between words."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, check_type, suggest
from clearhead.hooks import Selector, select_all
from clearhead.lens.activation_cache import (
    ActivationCache,
    query_key_labels,
    single_text,
    watch_single_text,
)
from clearhead.lens.argument_checks import (
    check_head,
    check_layer,
    check_model,
    check_token,
    check_top_k,
)
from clearhead.lens.circuits import output_matrices
from clearhead.lens.hook_points import AttentionKind, attention_module, attention_path, num_layers
from clearhead.lens.softmax import shifted_exponentials
from clearhead.lens.text_stack import TextStack
from clearhead.lens.view import Row, View, label_axes
from clearhead.lens.word_in_context import locate_words
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, VISIBLE_WHITESPACE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.edits import Edits

AttentionActivation = Literal["pattern", "scores", "masked_scores"]
ATTENTION_ACTIVATIONS: tuple[AttentionActivation, ...] = get_args(AttentionActivation)
ATTENTION_NOTES = {
    "pattern": "weight of each key (column) for each query (row); each row sums to 1",
    "scores": "q·k / √d plus the position bias, before the mask",
    "masked_scores": "attention scores, −∞ at masked positions",
    "norm": "norm of what a query (row) receives from a key (column): weight × |v W_O|",
}
CROSS_ATTENTION_NOTE = "; a row belongs to the token that was read, and predicts the next one"
KIND_PREFIXES = {"attention": "", "cross": "cross-attention, ", "encoder": "encoder, "}
MIN_LINE_OPACITY = 0.02  # a fainter line would be invisible


@dataclass(frozen=True, eq=False, repr=False)
class AttentionView(View):
    """Patterns, layer × head × query × key, without the dimensions that were selected from."""

    def line_view(self, position: int | None = None) -> "AttentionLines":
        """The pattern of a single head as lines from queries to keys; or from one query."""
        if len(self.axes) != 2:
            raise ClearheadError("line_view needs a single head; select it with layer= and head=.")
        values = self.values
        if position is not None:
            query = check_token(position, len(values))
            values = torch.zeros_like(values)
            values[query] = self.values[query]
        shared = {field.name: getattr(self, field.name) for field in fields(View)}
        return AttentionLines(**{**shared, "values": values})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SimpleAttention(AttentionView):
    """The weights α, query × key, with what they come from and what they give."""

    scores: View  # the dot products, −∞ where the mask is
    outputs: Tensor  # the weighted sums a, token × d_model


@dataclass(frozen=True, eq=False, repr=False)
class AttentionLines(View):
    """The pattern of a head, drawn as lines whose opacity is the weight."""

    def visible_lines(self) -> list[tuple[int, int, float]]:
        """Query, key and opacity of each line that can be seen."""
        opacity = (self.values / self.color_limit).clamp(0, 1)
        return [
            (int(i), int(j), float(opacity[i, j]))
            for i, j in (opacity > MIN_LINE_OPACITY).nonzero()
        ]

    def figure(self, dark: bool = False) -> "Figure":
        from clearhead.lens.render.matplotlib import render_lines_figure

        return render_lines_figure(self, dark)

    def _repr_html_(self) -> str:
        from clearhead.lens.render.html import render_lines_html

        return render_lines_html(self)


def attention(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind = "attention",
    activation: AttentionActivation = "pattern",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> AttentionView:
    """Attention patterns: of one head, one layer, one head in all layers, or all heads.

    `kind` is "attention", "cross" (a decoder attends to its source) or "encoder". Negative layers
    and heads count from the end. Keeps in memory only what is selected.
    """
    check_model(model)
    if activation not in ATTENTION_ACTIVATIONS:
        hint = suggest(str(activation), ATTENTION_ACTIVATIONS)
        raise ClearheadError(f"attention has no activation {activation!r}; {hint}")
    m = model.config.model
    layer, head = _check_layer_and_head(m, kind, layer, head)
    heads = slice(None) if head is None else head
    names = [f"{attention_path(kind, i)}.{activation}" for i in _layers(m, kind, layer)]
    select: dict[str, Selector] = dict.fromkeys(names, lambda value: value[:, heads])
    cache = watch_single_text(model, select, x, source, images, audio, edits)
    patterns = [single_text(cache[name]) for name in names]
    return _attention_view(cache, patterns, layer, head, kind, activation)


def simple_attention(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    layer: int | None = None,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> SimpleAttention:
    """The simplest attention, without queries, keys and values: scores are x_i · x_j (L3.2).

    x are the token embeddings, or, with `layer`, the residual stream after that layer. A causal
    model's tokens attend to themselves and those before, an encoder's to all. `outputs` are the
    sums a_i = Σ α_ij x_j.
    """
    check_model(model)
    if kind == "cross":
        raise ClearheadError(
            'simple_attention needs a single stack: kind="attention" or kind="encoder".'
        )
    n_layers = num_layers(model.config.model, kind)
    prefix = "encoder." if kind == "encoder" else ""
    name = f"{prefix}embed"
    if layer is not None:
        layer = check_layer(layer, n_layers)
        name = f"{prefix}blocks.{layer}.resid_post"
    cache = watch_single_text(model, [name], x, source, images, audio, edits)
    vectors = single_text(cache[name])  # token d_model
    labels, _ = query_key_labels(cache, kind, (len(vectors), len(vectors)))
    return attend_without_projections(model, vectors, labels, kind, layer)


def attend_without_projections(
    model: "Model",
    vectors: Tensor,
    labels: Sequence[str],
    kind: AttentionKind,
    layer: int | None = None,
) -> SimpleAttention:
    """`simple_attention` of token × d_model: the embeddings, or the stream after a layer."""
    scores = vectors @ vectors.mT
    is_causal = kind == "attention" and model.net.is_causal
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    pattern = scores.softmax(dim=-1)
    axes = label_axes({"query": labels, "key": labels})
    of = "embeddings" if layer is None else f"residual stream after layer {layer}"
    title = f"{KIND_PREFIXES[kind]}simplest attention, {of}"
    keys_note = "j ≤ i" if is_causal else "all j"
    return SimpleAttention(
        pattern,
        axes,
        title,
        "pattern",
        vmax=1.0,
        note=f"softmax of x_i · x_j over {keys_note}; no queries, keys or values; rows sum to 1",
        scores=View(scores, axes, title, "score", signed=True, note="x_i · x_j"),
        outputs=pattern @ vectors,
    )


def cached_attention(
    cache: ActivationCache,
    layer: int,
    head: int | None = None,
    kind: AttentionKind = "attention",
) -> AttentionView:
    """The patterns of a layer or of one head, for the first text of `model.watch`'s result."""
    check_type(cache, ActivationCache, "the result of model.watch")
    layer = check_layer(layer, num_layers(cache.config, kind))
    name = f"{attention_path(kind, layer)}.pattern"
    if name not in cache or not cache.is_complete:
        raise ClearheadError(f"{name} was only partly recorded; call watch without a selector.")
    pattern = cache[name][0].detach().float().cpu()
    if head is not None:
        head = check_head(head, len(pattern))
        pattern = pattern[head]
    return _attention_view(cache, [pattern], layer, head, kind, "pattern")


def _check_layer_and_head(
    m: c.ModelConfig, kind: AttentionKind, layer: int | None, head: int | None
) -> tuple[int | None, int | None]:
    """Both as numbers from 0; None stands for all."""
    n_layers = num_layers(m, kind)
    return (
        None if layer is None else check_layer(layer, n_layers),
        None if head is None else check_head(head, m.attention.n_heads),
    )


def _layers(m: c.ModelConfig, kind: AttentionKind, layer: int | None) -> Sequence[int]:
    return range(num_layers(m, kind)) if layer is None else [layer]


def _attention_view(
    cache: ActivationCache,
    values: list[Tensor],
    layer: int | None,
    head: int | None,
    kind: str,
    value_name: str,
) -> AttentionView:
    """`values` are those of each layer: (head ×) query × key."""
    queries, keys = query_key_labels(cache, kind, (values[0].shape[-2], values[0].shape[-1]))
    axes: dict[str, Sequence[str] | int] = {}
    selected = []
    if layer is None:
        axes["layer"] = len(values)
    else:
        selected.append(f"layer {layer}")
    if head is None:
        axes["head"] = values[0].shape[0]
    else:
        selected.append(f"head {head}")
    return AttentionView(
        torch.stack(values) if layer is None else values[0],
        label_axes({**axes, "query": queries, "key": keys}),
        f"{KIND_PREFIXES[kind]}{', '.join(selected) or 'all heads'}",
        value_name,
        signed=value_name in ("scores", "masked_scores"),
        vmax=1.0 if value_name == "pattern" else None,
        note=ATTENTION_NOTES[value_name] + (CROSS_ATTENTION_NOTE if kind == "cross" else ""),
    )


def softmax_steps(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    layer: int,
    head: int,
    position: int = -1,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> View:
    """How one row of a pattern is computed: scores, mask, exponentials, softmax (L3.3, L3.5)."""
    check_model(model)
    m = model.config.model
    layer = check_layer(layer, num_layers(m, kind))
    head = check_head(head, m.attention.n_heads)
    path = attention_path(kind, layer)
    names = [f"{path}.{activation}" for activation in ("scores", "masked_scores", "pattern")]
    select: dict[str, Selector] = dict.fromkeys(names, lambda value: value[:, head])
    cache = watch_single_text(model, select, x, source, images, audio, edits)
    matrices = [single_text(cache[name]) for name in names]  # query key
    queries, keys = query_key_labels(cache, kind, (matrices[0].shape[0], matrices[0].shape[1]))
    position = check_token(position, len(queries))
    scores, masked_scores, pattern = (matrix[position] for matrix in matrices)
    exponentials = shifted_exponentials(masked_scores)
    return View(
        torch.stack((scores, masked_scores, exponentials, pattern)),
        label_axes({"step": ("scores", "masked", "exp", "softmax"), "key": keys}),
        f"{KIND_PREFIXES[kind]}layer {layer}, head {head}, query {queries[position]} "
        f"(token {position})",
        "value",
        signed=True,
        note="softmax = exp(masked − max) / sum of the row",
    )


def value_weighted_attention(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> AttentionView:
    """Norm-based attention (Kobayashi et al., 2020): weight of a key × norm of its v W_O."""
    check_model(model)
    m = model.config.model
    layer, head = _check_layer_and_head(m, kind, layer, head)
    layers = _layers(m, kind, layer)
    paths = [attention_path(kind, i) for i in layers]
    names = [f"{path}.{name}" for path in paths for name in ("pattern", "v")]
    cache = watch_single_text(model, names, x, source, images, audio, edits)
    weighted = []
    for i, path in zip(layers, paths, strict=True):
        pattern = single_text(cache[f"{path}.pattern"])  # head query key
        v = single_text(cache[f"{path}.v"])  # kv_head key d_head
        v = v.repeat_interleave(len(pattern) // len(v), dim=0)
        outputs = v @ output_matrices(attention_module(model.net, kind, i)).mT
        by_head = pattern * outputs.norm(dim=-1)[:, None]
        weighted.append(by_head if head is None else by_head[head])
    return _attention_view(cache, weighted, layer, head, kind, "norm")


def head_output_norms(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> View:
    """The norm of each head's output z W_O, layer × head × token."""
    check_model(model)
    paths = [attention_path(kind, i) for i in range(num_layers(model.config.model, kind))]
    names = [f"{path}.z" for path in paths]
    cache = watch_single_text(model, names, x, source, images, audio, edits)
    norms = []
    for i, name in enumerate(names):
        outputs = (
            single_text(cache[name]) @ output_matrices(attention_module(model.net, kind, i)).mT
        )
        norms.append(outputs.norm(dim=-1))
    values = torch.stack(norms)
    labels, _ = query_key_labels(cache, kind, (values.shape[2], values.shape[2]))
    return View(
        values,
        label_axes({"layer": len(paths), "head": values.shape[1], "token": labels}),
        f"{KIND_PREFIXES[kind]}output norms of heads",
        "norm",
        note="|z W_O|: norm of what a head adds to the residual stream at a token",
    )


def rollout(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> View:
    """Attention rollout (Abnar and Zuidema, 2020): how much of each token reaches each position.

    For each layer, half its heads' mean pattern and half the identity (the residual connection),
    multiplied from the first layer up.
    """
    check_model(model)
    if kind == "cross":
        raise ClearheadError('rollout needs a single stack: kind="attention" or kind="encoder".')
    paths = [attention_path(kind, i) for i in range(num_layers(model.config.model, kind))]
    names = [f"{path}.pattern" for path in paths]
    select: dict[str, Selector] = dict.fromkeys(names, lambda value: value.mean(dim=1))
    cache = watch_single_text(model, select, x, source, images, audio, edits)
    by_layer: list[Tensor] = []
    for name in names:
        pattern = single_text(cache[name])
        mixed = (pattern + torch.eye(len(pattern))) / 2
        by_layer.append(mixed @ by_layer[-1] if by_layer else mixed)
    values = torch.stack(by_layer)
    queries, keys = query_key_labels(cache, kind, (values.shape[1], values.shape[2]))
    return View(
        values,
        label_axes({"layer": len(paths), "query": queries, "key": keys}),
        f"{KIND_PREFIXES[kind]}rollout",
        "fraction",
        vmax=1.0,
        note="½ (mean pattern + identity), multiplied from the first layer up; rows sum to 1",
    )


@dataclass(frozen=True)
class LayerPatterns:
    """The patterns of a layer with their tokens: the input of a head score."""

    pattern: Tensor  # head query key
    query_tokens: Sequence[str]
    key_tokens: Sequence[str]
    attention_mask: Tensor  # query key: true where the key is not masked
    is_other_token: Tensor  # query key: true where query and key are not the same position

    @property
    def distance(self) -> Tensor:
        """query × key: how many positions the key lies before the query."""
        return torch.arange(len(self.query_tokens))[:, None] - torch.arange(len(self.key_tokens))

    @property
    def same_token(self) -> Tensor:
        """query × key: whether both are the same token."""
        return torch.tensor(
            [[query == key for key in self.key_tokens] for query in self.query_tokens]
        )

    def mean_weight(self, selected: Tensor) -> Tensor:
        """The mean weight on selected keys, over queries that have one; NaN if none has."""
        selected = selected & self.attention_mask
        has_key = selected.any(dim=-1)
        return (self.pattern * selected).sum(dim=-1)[..., has_key].mean(dim=-1)


def _entropy(layer: LayerPatterns) -> Tensor:
    entropy = -torch.special.xlogy(layer.pattern, layer.pattern).sum(dim=-1)
    max_entropy = layer.attention_mask.sum(dim=-1).float().log()
    return (entropy / max_entropy)[..., max_entropy > 0].mean(dim=-1)


def _first_token(layer: LayerPatterns) -> Tensor:
    return layer.mean_weight((torch.arange(len(layer.key_tokens)) == 0) & layer.is_other_token)


def _induction(layer: LayerPatterns) -> Tensor:
    follows_same_token = torch.zeros_like(layer.attention_mask)
    follows_same_token[:, 1:] = layer.same_token[:, :-1]
    return layer.mean_weight(follows_same_token & (layer.distance >= 0))


def _punctuation(layer: LayerPatterns) -> Tensor:
    keys = torch.tensor([_is_punctuation(key) for key in layer.key_tokens])
    return layer.mean_weight(keys.expand_as(layer.attention_mask))


def _is_punctuation(token: str) -> bool:
    whitespace = "".join(VISIBLE_WHITESPACE.values())
    return bool(token.strip(whitespace)) and not any(letter.isalnum() for letter in token)


def _relative_position(layer: LayerPatterns) -> Tensor:
    """1 − residual variance / variance, where each weight is predicted by its distance's mean."""
    distances = layer.distance[layer.attention_mask]
    weights = layer.pattern[..., layer.attention_mask]  # head cell
    groups = distances - distances.min()
    sums = weights.new_zeros(*weights.shape[:-1], int(groups.max()) + 1)
    means = (sums.index_add(-1, groups, weights) / torch.bincount(groups))[..., groups]
    variance = (weights - weights.mean(dim=-1, keepdim=True)).square().sum(dim=-1)
    return 1 - (weights - means).square().sum(dim=-1) / variance


HEAD_SCORES: dict[str, tuple[str, Callable[[LayerPatterns], Tensor]]] = {
    "entropy": (
        "entropy of a row / maximum: 0 attends to one key, 1 to all keys equally",
        _entropy,
    ),
    "previous_token": (
        "mean weight on the previous token",
        lambda layer: layer.mean_weight(layer.distance == 1),
    ),
    "next_token": (
        "mean weight on the next token",
        lambda layer: layer.mean_weight(layer.distance == -1),
    ),
    "self": (
        "mean weight of a token on itself",
        lambda layer: layer.mean_weight(layer.distance == 0),
    ),
    "first_token": ("mean weight of other tokens on the first token", _first_token),
    "duplicate_token": (
        "mean weight on other occurrences of the same token",
        lambda layer: layer.mean_weight(layer.same_token & layer.is_other_token),
    ),
    "induction": (
        "mean weight on the token that followed an earlier occurrence of the same token",
        _induction,
    ),
    "punctuation": ("mean weight on punctuation", _punctuation),
    "relative_position": (
        "fraction of the pattern's variance explained by the distance of key and query",
        _relative_position,
    ),
}
# where queries and keys are tokens of different texts
CROSS_ATTENTION_SCORES: tuple[str, ...] = (
    "entropy",
    "first_token",
    "duplicate_token",
    "punctuation",
    "relative_position",
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadScores(View):
    """name × layer × head, without scores that this text cannot show (no token occurs twice)."""

    patterns: View

    def terminal(self) -> "Text":
        """The heads with the highest value of each score."""
        return self.best().terminal()

    def best(self, top_k: int = 5) -> View:
        """The heads (layer.head) with the highest value of each score."""
        names = self.axes[0].labels
        ranked = [self._ranked(name, top_k) for name in names]
        values = torch.tensor([[value for value, _, _ in row] for row in ranked])
        return View(
            values,
            label_axes({"name": names, "rank": [str(n + 1) for n in range(values.shape[1])]}),
            f"{self.title}: top heads (layer.head) of each score",
            "score",
            vmax=1.0,
            words=tuple(tuple(f"{i}.{j}" for _, i, j in row) for row in ranked),
            note=self.note.replace("; ", "\n"),
            word_suffix=":",
        )

    def table(self) -> list[Row]:
        """A row for each head, with all its scores."""
        names = self.axes[0].labels
        return [
            {"layer": i, "head": j, **dict(zip(names, scores, strict=True))}
            for i, heads in enumerate(self.values.permute(1, 2, 0).tolist())
            for j, scores in enumerate(heads)
        ]

    def patterns_by(self, score: str, top_k: int = 12) -> View:
        """The patterns of the heads with the highest value of a score, best first."""
        ranked = self._ranked(score, top_k)
        labels = [f"{i}.{j}  {value:.2f}" for value, i, j in ranked]
        return View(
            torch.stack([self.patterns.values[i, j] for _, i, j in ranked]),
            (*label_axes({"head": labels}), *self.patterns.axes[2:]),
            f"heads by {score}",
            "pattern",
            vmax=1.0,
            note=f"{score}: {HEAD_SCORES[score][0]}",
        )

    def ranking(self, score: str, top_k: int = 20) -> View:
        """The heads with the highest value of a score, as bars."""
        ranked = self._ranked(score, top_k)
        return View(
            torch.tensor([value for value, _, _ in ranked]),
            label_axes({"head": [f"{i}.{j}" for _, i, j in ranked]}),
            f"heads by {score}",
            score,
            note=f"{score}: {HEAD_SCORES[score][0]}",
        )

    def _ranked(self, score: str, top_k: int) -> list[tuple[float, int, int]]:
        """Value, layer and head, highest first."""
        names = self.axes[0].labels
        if score not in HEAD_SCORES:
            raise ClearheadError(f"there is no head score {score!r}; {suggest(str(score), names)}")
        if score not in names:
            raise ClearheadError(
                f"this text cannot show {score!r} ({HEAD_SCORES[score][0]}); try a longer one."
            )
        heads = [
            (float(value), i, j)
            for i, row in enumerate(self.values[names.index(score)])
            for j, value in enumerate(row)
        ]
        return sorted(heads, key=lambda head: -head[0])[: check_top_k(top_k)]


def head_scores(
    model: "Model",
    x: "TextInput | None" = None,
    *,
    kind: AttentionKind = "attention",
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
    edits: "Edits | None" = None,
) -> HeadScores:
    """Scores that identify head types: previous-token heads, induction heads, …"""
    check_model(model)
    paths = [attention_path(kind, i) for i in range(num_layers(model.config.model, kind))]
    masked_scores = f"{paths[0]}.masked_scores"
    select: dict[str, Selector] = {f"{path}.pattern": select_all for path in paths}
    select[masked_scores] = lambda value: value[:, 0]  # the mask is the same for all
    cache = watch_single_text(model, select, x, source, images, audio, edits)
    patterns = [single_text(cache[f"{path}.pattern"]) for path in paths]
    attention_mask = single_text(cache[masked_scores]) > -torch.inf
    view = _attention_view(cache, patterns, None, None, kind, "pattern")
    _, _, queries, keys = (axis.labels for axis in view.axes)
    scores = score_heads(patterns, queries, keys, attention_mask, kind)
    return HeadScores(**vars(scores), patterns=view)


def score_heads(
    patterns: Iterable[Tensor],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    attention_mask: Tensor,
    kind: AttentionKind,
) -> View:
    """score × layer × head, from an iterable over layers, so that one pattern is held at a time.

    `attention_mask`, query × key, is false where a key is masked.
    """
    names = CROSS_ATTENTION_SCORES if kind == "cross" else tuple(HEAD_SCORES)
    if kind == "cross":
        is_other_token = torch.ones_like(attention_mask)
    else:
        is_other_token = ~torch.eye(len(attention_mask), dtype=torch.bool)
    by_layer = []
    for pattern in patterns:
        layer = LayerPatterns(pattern, query_tokens, key_tokens, attention_mask, is_other_token)
        by_layer.append(torch.stack([HEAD_SCORES[name][1](layer) for name in names]))
    values = torch.stack(by_layer, dim=1)
    defined = [n for n, scores in enumerate(values) if bool(scores.isfinite().all())]
    names = tuple(names[n] for n in defined)
    return View(
        values[defined],
        label_axes({"name": names, "layer": values.shape[1], "head": values.shape[2]}),
        f"{KIND_PREFIXES[kind]}head scores",
        "score",
        vmax=1.0,
        note="; ".join(f"{name}: {HEAD_SCORES[name][0]}" for name in names),
    )


WORD_PATTERN = rf"{re.escape(MASK_PLACEHOLDER)}|\w+(?:['’]\w+)*"
OTHER_RANKS = ("top other", "second", "third")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WordAttention(View):
    """layer × head × word: how much one word attends to each word of the text."""

    word_index: int  # of the word that attends

    def find_heads(self, word: str, top_k: int = 8) -> View:
        """The heads (layer.head) that attend most to a word, and to what else they attend."""
        labels = self.axes[-1].labels
        is_word = torch.tensor([label.casefold() == str(word).casefold() for label in labels])
        if not is_word.any():
            raise ClearheadError(
                f"{word!r} is not in the text; {suggest(str(word), dict.fromkeys(labels))}"
            )
        weights = self.values.flatten(0, 1)  # head word
        on_word = weights[:, is_word].sum(dim=-1)
        first = int(is_word.nonzero()[0])
        if not on_word.any() and first > self.word_index:
            query = labels[self.word_index]
            raise ClearheadError(
                f"{query!r} cannot attend to {labels[first]!r}, which comes later; a decoder "
                f"attends to earlier words only. Ask how {labels[first]!r} attends to {query!r}."
            )
        heads = on_word.topk(min(check_top_k(top_k), len(weights))).indices
        other_words = [label for label, same in zip(labels, is_word, strict=True) if not same]
        others = weights[heads][:, ~is_word].topk(min(len(OTHER_RANKS), len(other_words)))
        n_heads = self.values.shape[1]
        return View(
            torch.cat((on_word[heads][:, None], others.values), dim=1),
            label_axes(
                {
                    "head": [f"{i // n_heads}.{i % n_heads}" for i in heads.tolist()],
                    "rank": (word, *OTHER_RANKS[: others.values.shape[1]]),
                }
            ),
            f"{self.title}: heads (layer.head) that attend most to {word!r}",
            self.value_name,
            vmax=1.0,
            words=tuple((word, *(other_words[i] for i in row)) for row in others.indices.tolist()),
            note=self.note,
            word_suffix=":",
        )


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text start and end; [MASK] is a word."""
    return [match.span() for match in re.finditer(WORD_PATTERN, text)]


def word_attention(model: "Model", word: str, text: str) -> WordAttention:
    """How much a word attends to each word of a text (L3.6), however they are split into tokens.

    The query is the word's last token, which has read the whole word; the weights of a key word's
    tokens are added. Attention to tokens outside words (BOS, spaces) is left out. Of several
    occurrences the last one is the query. In an encoder-decoder it is the encoder's attention.
    `.find_heads("fluffy")` ranks the heads that attend to a word.
    """
    check_model(model)
    text_stack = TextStack(model)
    check_type(word, str, "a word")
    check_type(text, str, "a text")
    words = [
        (text[slice(*word.char_span)], word.word_positions)
        for word in locate_words(text_stack, text, word_spans(text))
    ]
    occurrences = [i for i, (name, _) in enumerate(words) if name.casefold() == word.casefold()]
    if not occurrences:
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {suggest(word, dict(words))}")
    word_index = occurrences[-1]
    query = words[word_index][1][-1]
    if text_stack.is_encoder:
        patterns = attention(model, "", source=text, kind="encoder")
    else:
        patterns = attention(model, text)
    row = patterns.values[:, :, query]  # layer head key
    values = torch.stack([row[..., positions].sum(dim=-1) for _, positions in words], dim=-1)
    return WordAttention(
        values,
        label_axes(
            {"layer": values.shape[0], "head": values.shape[1], "word": [name for name, _ in words]}
        ),
        f"attention of {word!r}" + (", in the encoder" if model.net.encoder is not None else ""),
        "weight",
        vmax=1.0,
        note="from the last token of the word to all tokens of the other word",
        word_index=word_index,
    )
