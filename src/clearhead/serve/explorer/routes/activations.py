"""Runs and their tensors: activations, attention patterns, blocks, logit lens, attribution."""

import re
from typing import Literal

import torch
from fastapi import APIRouter, Response
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NoHooks
from clearhead.lens.argument_checks import check_layer, check_token
from clearhead.lens.attention import (
    HEAD_SCORES,
    SimpleAttention,
    attend_without_projections,
    score_heads,
)
from clearhead.lens.circuits import detach_weight, unembedding_matrix
from clearhead.lens.hook_points import AttentionKind, attention_path, num_layers
from clearhead.lens.logit_attribution import attribution
from clearhead.lens.logit_lens import RESIDUAL_STREAMS, LogitLens, apply_head
from clearhead.lens.residual_norms import residual_norms
from clearhead.lens.tokens import output_labels, token_labels
from clearhead.lens.view import View, label_axes
from clearhead.model.heads import LMHead
from clearhead.model.transformer import Block
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.explain import explain_value
from clearhead.serve.explorer.forward_passes import (
    ENCODER_PREFIX,
    Run,
    Trace,
    describe_trace_tokens,
)
from clearhead.serve.explorer.requests import RunRequest
from clearhead.serve.explorer.serialize import finite_or_none, npy_response, view_to_dict

MAX_WINDOW_VALUES = 1 << 22  # of a tensor in one response
MAX_THUMBNAIL_SIZE = 48  # rows and columns
NUM_TOP_NEURONS = 12
NUM_TOP_WORDS = 3  # per neuron
LENS_TOP_K = 8  # predictions per layer
LENS_MAX_TOKENS = 16  # columns with room for words
STREAM_ORDER = (
    "resid_pre",
    "attn.out",
    "resid_mid",
    "cross_attn.out",
    "resid_cross",
    "ffn.out",
    "resid_post",
)
EMPTY_WORDS: list[str] = []


def activation_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["page"])
    runs = executor.runs

    @router.post("")
    async def create_run(request: RunRequest) -> JSONDict:
        """Run a model on an input; the response has tokens, activations and top answers."""
        return await executor.submit((await executor.run(request)).to_dict)

    @router.get("/{run_id}/tensor/{name}")
    async def tensor(
        run_id: str,
        name: str,
        head: int | None = None,
        rows: str = "",
        cols: str = "",
        dtype: Literal["f4", "f2"] = "f4",
    ) -> Response:
        """An activation, or a window of its last two dimensions, as .npy."""

        def respond() -> Response:
            run = runs.get(run_id)
            value = run.trace.select_head(runs.values(run, [name])[name], head, name)
            window = slice_window(value, rows, cols)
            check_num_values(name, window.numel(), " Use rows=START:STOP or cols=START:STOP.")
            return npy_response(window, dtype)

        return await executor.submit(respond)

    @router.get("/{run_id}/patterns")
    async def patterns(run_id: str, part: AttentionKind = "attention") -> Response:
        """Thumbnails of all patterns: layer × head × query × key as bytes, max-pooled."""

        def respond() -> Response:
            thumbnails, factor = pattern_thumbnails(runs.get(run_id), part)
            return npy_response(thumbnails, "u1", **{"X-Pooled": str(factor)})

        return await executor.submit(respond)

    @router.get("/{run_id}/head-scores")
    async def scores(run_id: str, part: AttentionKind = "attention") -> JSONDict:
        """Scores of all heads with their definitions."""

        def respond() -> JSONDict:
            view = head_scores(runs.get(run_id), part)
            definitions = {name: HEAD_SCORES[name][0] for name in view.axes[0].labels}
            return {"scores": definitions, "view": view_to_dict(view)}

        return await executor.submit(respond)

    @router.get("/{run_id}/simple-attention")
    async def simplest(run_id: str, part: AttentionKind = "attention") -> JSONDict:
        """Attention of the embeddings to each other, without queries, keys and values."""

        def respond() -> JSONDict:
            view = simple_attention(runs.get(run_id), part)
            return {"scores": view_to_dict(view.scores), "pattern": view_to_dict(view)}

        return await executor.submit(respond)

    @router.get("/{run_id}/residual")
    async def residual(run_id: str, encoder: bool = False) -> JSONDict:
        """Norms of the residual stream and of each component's output."""

        def respond() -> JSONDict:
            run = runs.get(run_id)
            view = residual_norms(run.trace.model, encoder=encoder, **run.lens_inputs())
            return view_to_dict(view)

        return await executor.submit(respond)

    @router.get("/{run_id}/block")
    async def block(
        run_id: str, layer: int = 0, token: int = -1, encoder: bool = False
    ) -> JSONDict:
        """Residual stream, norms and neurons of one token in one block."""
        return await executor.submit(
            lambda: describe_block(runs.get(run_id), layer, token, is_encoder=encoder)
        )

    @router.get("/{run_id}/explain")
    async def explain(run_id: str, name: str, index: str = "") -> JSONDict:
        """The arithmetic behind one number, and Python code that prints it."""
        return await executor.submit(
            lambda: explain_value(runs, runs.get(run_id), name, parse_ints(index))
        )

    @router.get("/{run_id}/logits")
    async def logits(run_id: str, token: int = -1) -> Response:
        """All logits at one token."""

        def respond() -> Response:
            run = runs.get(run_id)
            return npy_response(run.trace.logits(run.resolve_token(token)))

        return await executor.submit(respond)

    @router.get("/{run_id}/lens")
    async def lens(run_id: str, token: int = -1) -> JSONDict:
        """Top predictions of all layers at all tokens, and details at one token."""
        return await executor.submit(run_logit_lens, runs.get(run_id), token)

    @router.get("/{run_id}/attribution")
    async def attribute(
        run_id: str, answer: int | None = None, contrast: int | None = None, token: int = -1
    ) -> JSONDict:
        """Contributions of components and heads to a logit, or to a logit difference."""
        return await executor.submit(run_attribution, runs.get(run_id), answer, contrast, token)

    return router


def check_num_values(name: str, num_values: int, hint: str = "") -> None:
    """Raise an error for more values than one response has."""
    if num_values > MAX_WINDOW_VALUES:
        raise ClearheadError(
            f"{name} has {num_values:,} values here; the page sends at most "
            f"{MAX_WINDOW_VALUES:,} at once.{hint}"
        )


def parse_ints(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ClearheadError(f"index must be integers like 1,5,3, got {text!r:.40}.") from None


def slice_window(value: Tensor, rows: str, cols: str) -> Tensor:
    """Slice the last two dimensions; `rows` and `cols` are START:STOP or empty."""
    for window, dim in ((rows, -2), (cols, -1)):
        if not window:
            continue
        if value.dim() < -dim or not re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", window):
            raise ClearheadError(f"Invalid window {window!r:.40}; use START:STOP like 0:256.")
        start, stop = (min(int(end), value.shape[dim]) for end in window.split(":"))
        value = value.narrow(dim, start, max(0, stop - start))
    return value


def pattern_thumbnails(run: Run, part: AttentionKind) -> tuple[Tensor, int]:
    """All patterns as layer × head × row × column bytes, max-pooled by the returned factor.

    Max-pooling keeps every line that a head draws.
    """
    layers = []
    factor = 1
    for layer in range(num_layers(run.trace.config, part)):
        pattern = run.trace.value(f"{attention_path(part, layer)}.pattern").float()
        factor = -(-max(pattern.shape[-2:]) // MAX_THUMBNAIL_SIZE)
        pooled = F.max_pool2d(pattern[:, None], factor, ceil_mode=True)[:, 0]
        layers.append((pooled.nan_to_num(0) * 255).round().to(torch.uint8).cpu())
    return torch.stack(layers), factor


def head_scores(run: Run, part: AttentionKind) -> View:
    """score × layer × head, one layer at a time to save memory."""
    trace = run.trace
    batch = trace.batch

    def labels(ids: Tensor | None, is_source: bool) -> tuple[str, ...]:
        if ids is None:
            return ()
        tokens = describe_trace_tokens(trace.model, ids, trace, is_source)
        return tuple(token["text"] for token in tokens)

    target = labels(batch.inputs, is_source=False)
    source = labels(batch.source, is_source=True)
    sides = {"attention": (target, target), "cross": (target, source), "encoder": (source, source)}
    paths = [attention_path(part, layer) for layer in range(num_layers(trace.config, part))]
    attention_mask = trace.value(f"{paths[0]}.masked_scores")[0].cpu() > -torch.inf
    patterns = (trace.value(f"{path}.pattern").float().cpu() for path in paths)
    return score_heads(patterns, *sides[part], attention_mask, part)


def simple_attention(run: Run, part: AttentionKind) -> SimpleAttention:
    """Attention of the embeddings of a run to each other."""
    trace = run.trace
    if part == "cross":
        raise ClearheadError("Attention without weights needs one text: attention or encoder.")
    num_layers(trace.config, part)  # raises if there is no encoder
    is_source = part == "encoder"
    name = f"{ENCODER_PREFIX}embed" if is_source else "embed"
    length = trace.shape(name)[0]
    check_num_values("Attention", length * length)
    ids = trace.batch.source if is_source else trace.batch.inputs
    tokens = describe_trace_tokens(trace.model, ids, trace, is_source)
    labels = [token["text"] for token in tokens]
    vectors = trace.value(name).float().cpu()
    return attend_without_projections(trace.model, vectors, labels, part)


def describe_block(run: Run, layer: int, token: int, is_encoder: bool) -> JSONDict:
    """Residual stream, norms with operands, and neurons of one token in one block."""
    trace = run.trace
    layer = check_layer(layer, num_layers(trace.config, "encoder" if is_encoder else "attention"))
    path = f"{ENCODER_PREFIX if is_encoder else ''}blocks.{layer}"
    names = [
        name
        for name, info in trace.activations.items()
        if name.startswith(f"{path}.") and info.shape.endswith(("d_model", "d_ff"))
    ]
    values = trace.values(names)
    position = check_token(token, len(values[names[0]]))
    vectors = {
        name.removeprefix(f"{path}."): value[position].detach().float().cpu()
        for name, value in values.items()
    }
    stack = trace.stack(path)
    block: Block = stack.blocks[layer]  # type: ignore[assignment]
    stream = {name: vectors[name] for name in STREAM_ORDER if name in vectors}
    title = "residual stream and what is added to it"
    sublayers = [name for name in ("attn", "cross_attn", "ffn") if f"{name}.out" in vectors]
    is_pre_norm = trace.config.norm_position == "pre"
    return {
        "path": path,
        "token": position,
        "residual": view_to_dict(_vectors_view(stream, "dimension", title)),
        "norms": [
            _describe_norm(vectors, name, block.get_submodule(f"{name}_norm"), is_pre_norm)
            for name in sublayers
        ],
        "neurons": _describe_neurons(vectors, block, trace, is_encoder),
    }


def _vectors_view(vectors: dict[str, Tensor], index_name: str, title: str) -> View:
    values = torch.stack([*vectors.values()])
    axes = label_axes({"vector": list(vectors), index_name: values.shape[1]})
    return View(values, axes, title, "value", signed=True)


def _describe_norm(
    vectors: dict[str, Tensor], sublayer: str, norm: nn.Module, is_pre_norm: bool
) -> JSONDict:
    """γ (x − μ)/σ + β step by step; RMSNorm has no mean and no β (L4.3)."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    before_ffn = "resid_cross" if "resid_cross" in vectors else "resid_mid"
    input_name, output_name = {
        "attn": ("resid_pre", "resid_mid"),
        "cross_attn": ("resid_mid", "resid_cross"),
        "ffn": (before_ffn, "resid_post"),
    }[sublayer]
    x = vectors[input_name]
    if is_pre_norm:
        output_name = f"{sublayer}.in"
    else:
        x = x + vectors[f"{sublayer}.out"]
        input_name = f"{input_name} + {sublayer}.out"
    is_centered = isinstance(norm, nn.LayerNorm)
    mean = x.mean() if is_centered else torch.tensor(0.0)
    eps = norm.eps or 0.0
    std = ((x - mean).square().mean() + eps).sqrt()
    steps = {"x": x, "(x − μ) / σ": (x - mean) / std, "γ": detach_weight(norm.weight)}
    bias = getattr(norm, "bias", None)
    if bias is not None:
        steps["β"] = detach_weight(bias)
    steps["out"] = vectors[output_name]
    return {
        "part": sublayer,
        "input": input_name,
        "name": output_name,
        "is_centered": is_centered,
        "mean": float(mean),
        "std": float(std),
        "eps": eps,
        "view": view_to_dict(_vectors_view(steps, "dimension", "the norm, step by step")),
    }


def _describe_neurons(
    vectors: dict[str, Tensor], block: Block, trace: Trace, is_encoder: bool
) -> JSONDict:
    """Neurons before and after their activation; top neurons by |post| · ‖row of W_down‖."""
    names = [name for name in ("gate", "up", "post") if f"ffn.{name}" in vectors]
    neurons = {name: vectors[f"ffn.{name}"] for name in names}
    before = neurons.get("gate", neurons["up"])  # input of the activation
    post = neurons["post"]
    down = detach_weight(block.ffn.down.weight).mT  # neuron d_model
    norms = post.abs() * down.norm(dim=1)
    top = norms.topk(min(NUM_TOP_NEURONS, len(norms))).indices.tolist()
    if is_encoder:
        words = [EMPTY_WORDS] * len(top)
    else:
        words = _top_words(trace, post[top, None] * down[top])
    return {
        "view": view_to_dict(_vectors_view(neurons, "neuron", "neuron activations")),
        "alone_difference": _difference_alone(vectors, block, trace),
        "active_fraction": float((post != 0).float().mean()),
        "positive_fraction": float((before > 0).float().mean()),
        "top": [
            {"neuron": i, "value": float(post[i]), "norm": float(norms[i]), "words": neuron_words}
            for i, neuron_words in zip(top, words, strict=True)
        ],
    }


def _difference_alone(vectors: dict[str, Tensor], block: Block, trace: Trace) -> float | None:
    """The largest difference of ffn.out if the layer gets this token without the others."""
    parameter = next(trace.model.net.parameters())
    with torch.no_grad():
        token = vectors["ffn.in"].to(parameter)
        alone = block.ffn(token[None, None], NoHooks())[0, 0].float().cpu()
    return finite_or_none(float((alone - vectors["ffn.out"]).abs().max()))


def _top_words(trace: Trace, outputs: Tensor) -> list[list[str]]:
    """The tokens whose logits each vector raises most, as if it was the final hidden state."""
    net = trace.model.net
    if type(net.head) is not LMHead:  # other heads transform the hidden state first
        return [EMPTY_WORDS] * len(outputs)
    top = (outputs @ unembedding_matrix(net).mT).topk(NUM_TOP_WORDS).indices.tolist()
    return [token_labels(trace.model.tokenizer, ids) for ids in top]


def run_logit_lens(run: Run, token: int) -> JSONDict:
    """Logit lens over the residual stream of a run; of a long text, around one token."""
    trace = run.trace
    model = trace.model
    if isinstance(trace.config.head, c.NoHead):
        raise ClearheadError("The logit lens needs a model with a head.")
    tokens = describe_trace_tokens(model, trace.batch.inputs, trace, is_source=False)
    num_tokens = len(tokens)
    start = 0
    if trace.is_pooled:  # one prediction for the whole text
        labels = ["whole input"]
        column = 0
        window = slice(None)
    else:
        position = check_token(run.resolve_token(token), num_tokens)
        start = max(0, min(position - LENS_MAX_TOKENS // 2, num_tokens - LENS_MAX_TOKENS))
        window = slice(start, start + LENS_MAX_TOKENS)
        labels = [token["text"] for token in tokens[window]]
        column = position - start
    residuals = {name: value[:, window] for name, value in trace.residuals.items()}
    residuals[RESIDUAL_STREAMS[0]] = residuals["full_embed"]
    with torch.no_grad():
        ids, probabilities = apply_head(model.net, residuals, None, LENS_TOP_K)

    def label(output: int) -> str:
        return output_labels(model.config, model.tokenizer, [output])[0]

    lens_view = LogitLens.from_top_k(
        labels, ids[0].cpu(), probabilities[0].cpu(), label, trace.config.head
    )
    layers = [
        [(word, finite_or_none(probability)) for word, probability in predictions]
        for predictions in lens_view.top_predictions(column)
    ]
    return {
        "view": view_to_dict(lens_view),
        "start": start,
        "token": column,
        "num_tokens": num_tokens,
        "is_pooled": trace.is_pooled,
        "layers": layers,
    }


def run_attribution(run: Run, answer: int | None, contrast: int | None, token: int) -> JSONDict:
    """Attribution of a logit, or of a logit difference, to components and heads."""
    view = attribution(
        run.trace.model,
        token=answer,
        against=contrast,
        position=run.resolve_token(token),
        **run.lens_inputs(),
    )
    heads = {part: view_to_dict(view.by_head(part)) for part in view.layer_contributions[0]}
    return {
        "view": view_to_dict(view),
        "heads": heads,
        "total": finite_or_none(view.total),
        "answer": view.target.answer,
    }
