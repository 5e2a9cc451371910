"""All heads of a run: thumbnails of their patterns, and scores of what they do; one layer at a time."""

import re
from typing import Any, Literal

import torch
from fastapi import APIRouter, Response
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.errors import ClearheadError
from clearhead.lens.activations import (
    AttentionKind,
    attention_path,
    check_layer,
    check_token,
    num_layers,
    token_labels,
)
from clearhead.lens.attention import HEAD_SCORES, score_heads
from clearhead.lens.circuits import detach_weight, unembedding_matrix
from clearhead.lens.residual import residual_norms
from clearhead.lens.view import Axis, View
from clearhead.model.heads import LMHead
from clearhead.model.transformer import Block
from clearhead.serve.explorer.explain import explain_value
from clearhead.serve.explorer.runs import Run, RunRequest, Trace, describe_trace_tokens
from clearhead.serve.explorer.serialize import npy_response, view_to_dict
from clearhead.serve.explorer.service import ExplorerService

# ---- heads: All heads of a run: thumbnails of their patterns, and scores of what they do; one layer at a time.

MAX_THUMBNAIL_SIZE = 48  # rows and columns of a thumbnail


def pattern_thumbnails(run: Run, part: AttentionKind) -> tuple[Tensor, int]:
    """layer × head × row × column in 256 steps, and how many tokens a cell is; the largest weight of each stays.

    So a thumbnail hides no line that a head draws.
    """
    found = []
    factor = 1
    for layer in range(num_layers(run.trace.config, part)):
        pattern = run.trace.value(f"{attention_path(part, layer)}.pattern").float()
        factor = -(-max(pattern.shape[-2:]) // MAX_THUMBNAIL_SIZE)
        small = F.max_pool2d(pattern[:, None], factor, ceil_mode=True)[:, 0]
        found.append((small.nan_to_num(0) * 255).round().to(torch.uint8).cpu())
    return torch.stack(found), factor


def head_scores(run: Run, part: AttentionKind) -> View:
    """score × layer × head, as `lens.atlas` has them, without ever holding all patterns at once."""
    trace = run.trace
    read, source = (
        tuple(token["text"] for token in describe_trace_tokens(trace.model, ids, trace, of_source))
        if ids is not None
        else ()
        for ids, of_source in ((trace.batch.inputs, False), (trace.batch.source, True))
    )
    sides = {"attention": (read, read), "cross": (read, source), "encoder": (source, source)}[part]
    paths = [attention_path(part, layer) for layer in range(num_layers(trace.config, part))]
    visible = trace.value(f"{paths[0]}.masked")[0].cpu() > -torch.inf  # all heads see alike
    return score_heads(
        (trace.value(f"{path}.pattern").float().cpu() for path in paths), sides, visible, part
    )


# ---- blocks: Inside one block, for one token (L4): what its norms do, which neurons answer, and how the stream is summed.

# the strongest, and what each of them writes
NUM_TOP_NEURONS = 12
NUM_TOP_WORDS = 3

JSONDict = dict[str, Any]


def block_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["page"])

    @router.get("/{run}/block")
    async def block(run: str, layer: int = 0, token: int = -1, encoder: bool = False) -> JSONDict:
        return await desk.submit(lambda: describe_block(desk.runs.get(run), layer, token, encoder))

    return router


def describe_block(run: Run, layer: int, token: int, encoder: bool) -> JSONDict:
    """The stream and what is added to it, the norms with their operands, and the neurons; each a row of numbers."""
    trace = run.trace
    layer = check_layer(layer, num_layers(trace.config, "encoder" if encoder else "attention"))
    path = f"{'encoder.' if encoder else ''}blocks.{layer}"
    names = [
        name
        for name in trace.activations
        if name.startswith(f"{path}.") and trace.activations[name].shape.endswith("width")
    ]
    found = trace.values(names)
    at = check_token(token, len(found[names[0]]))
    rows = {
        name.removeprefix(f"{path}."): value[at].detach().float().cpu()
        for name, value in found.items()
    }
    stack = trace.model.net.encoder if encoder else trace.model.net
    assert stack is not None
    block: Block = stack.blocks[layer]  # type: ignore[assignment]
    parts = [part for part in ("attn", "cross", "ffn") if f"{part}.out" in rows]
    streams = [("pre", "attn.out", "mid"), ("cross.out", "crossed"), ("ffn.out", "post")]
    shown = [name for group in streams for name in group if name in rows]
    return {
        "path": path,
        "token": at,
        "stream": view_to_dict(
            _rows(
                {name: rows[name] for name in shown},
                "dimension",
                "the stream, and what is added to it",
            )
        ),
        "norms": [
            _norm(rows, part, block.get_submodule(f"{part}_norm"), trace.config.norm_position)
            for part in parts
        ],
        "neurons": _neurons(rows, block, trace, encoder),
    }


def _rows(rows: dict[str, Tensor], counted: str, title: str) -> View:
    values = torch.stack([*rows.values()])
    return View(
        values,
        (Axis.from_labels("value", list(rows)), Axis.from_labels(counted, values.shape[1])),
        title,
        "value",
        signed=True,
    )


def _norm(rows: dict[str, Tensor], part: str, norm: nn.Module, wiring: str) -> JSONDict:
    """γ (x − μ)/σ + β step by step; a norm of squares takes no mean and adds nothing (L4.3)."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    before, after = {"attn": ("pre", "mid"), "cross": ("mid", "crossed")}.get(part, ("", "post"))
    before = before or ("crossed" if "crossed" in rows else "mid")
    x = rows[before] if wiring == "pre" else rows[before] + rows[f"{part}.out"]
    mean = x.mean() if isinstance(norm, nn.LayerNorm) else torch.tensor(0.0)
    eps = norm.eps or 0.0
    deviation = ((x - mean).square().mean() + eps).sqrt()
    steps = {"x": x, "(x − μ) / σ": (x - mean) / deviation, "γ": detach_weight(norm.weight)}
    if (shift := getattr(norm, "bias", None)) is not None:
        steps["β"] = detach_weight(shift)
    name = f"{part}.in" if wiring == "pre" else after
    return {
        "part": part,
        "reads": before if wiring == "pre" else f"{before} + {part}.out",
        "name": name,
        "centred": isinstance(norm, nn.LayerNorm),
        "mean": float(mean),
        "deviation": float(deviation),
        "eps": eps,
        "view": view_to_dict(
            _rows({**steps, "out": rows[name]}, "dimension", "the norm, step by step")
        ),
    }


def _neurons(rows: dict[str, Tensor], block: Block, trace: Trace, encoder: bool) -> JSONDict:
    """The neurons before and after their activation, and those that write most: |post| · |row of W_2|."""
    shown = {name: rows[f"ffn.{name}"] for name in ("pre", "gate", "post") if f"ffn.{name}" in rows}
    out = detach_weight(block.ffn.down.weight).mT  # neuron width
    post = shown["post"]
    lengths = post.abs() * out.norm(dim=1)
    best = lengths.topk(min(NUM_TOP_NEURONS, len(lengths))).indices.tolist()
    words = _words(trace, post[best, None] * out[best]) if not encoder else [[]] * len(best)
    return {
        "view": view_to_dict(_rows(shown, "neuron", "neurons before and after their activation")),
        "active": float((post != 0).float().mean()),
        "positive": float((shown["pre"] > 0).float().mean()),
        "top": [
            {"neuron": i, "value": float(post[i]), "length": float(lengths[i]), "words": said}
            for i, said in zip(best, words, strict=True)
        ],
    }


def _words(trace: Trace, written: Tensor) -> list[list[str]]:
    """The tokens whose logits gain most from each row, were it all that the head reads."""
    net = trace.model.net
    if type(net.head) is not LMHead:  # others have more between the stream and the logits
        return [[]] * len(written)
    found = (written @ unembedding_matrix(net).mT).topk(NUM_TOP_WORDS).indices.tolist()
    return [token_labels(trace.model.tokenizer, row) for row in found]


# ---- tensors: /api/runs: a text goes through a model, and every number of it can be asked for.


def tensor_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["page"])

    @router.post("")
    async def run(request: RunRequest) -> dict[str, Any]:
        """Read a text, with edits or without; the answer has its tokens and what can be asked about it."""
        return await desk.submit((await desk.run(request)).to_dict)

    @router.get("/{run}/tensor/{name}")
    async def tensor(
        run: str,
        name: str,
        head: int | None = None,
        rows: str = "",
        cols: str = "",
        dtype: Literal["f4", "f2"] = "f4",
    ) -> Response:
        """One value, or a window of its last two dimensions, as .npy."""

        def answer() -> Response:
            kept = desk.runs.get(run)
            value = kept.trace.select_head(desk.runs.values(kept, [name])[name], head, name)
            return npy_response(slice_window(value, rows, cols), dtype)

        return await desk.submit(answer)

    @router.get("/{run}/atlas")
    async def atlas(run: str, part: AttentionKind = "attention") -> Response:
        """Every head's pattern, layer × head × query × key, in 256 steps, pooled to at most 48 × 48."""

        def answer() -> Response:
            small, factor = pattern_thumbnails(desk.runs.get(run), part)
            return npy_response(small, "u1", **{"X-Pooled": str(factor)})

        return await desk.submit(answer)

    @router.get("/{run}/heads")
    async def scores(run: str, part: AttentionKind = "attention") -> dict[str, Any]:
        """What each head does, as scores with their definitions."""

        def answer() -> dict[str, Any]:
            found = head_scores(desk.runs.get(run), part)
            return {
                "scores": {kind: HEAD_SCORES[kind][0] for kind in found.axes[0].labels},
                "view": view_to_dict(found),
            }

        return await desk.submit(answer)

    @router.get("/{run}/residual")
    async def stream(run: str, encoder: bool = False) -> dict[str, Any]:
        """How long the stream is after each part, and what each part adds."""

        def answer() -> dict[str, Any]:
            kept = desk.runs.get(run)
            return view_to_dict(
                residual_norms(kept.trace.model, encoder=encoder, **kept.lens_inputs())
            )

        return await desk.submit(answer)

    @router.get("/{run}/why")
    async def why(run: str, name: str, index: str = "") -> dict[str, Any]:
        """The arithmetic behind one number, with its operands, and the Python that prints it."""
        return await desk.submit(
            lambda: explain_value(desk.runs, desk.runs.get(run), name, parse_ints(index))
        )

    @router.get("/{run}/logits")
    async def logits(run: str, at: int = -1) -> Response:
        """What the model answers at a token, all of the vocabulary."""

        def answer() -> Response:
            kept = desk.runs.get(run)
            return npy_response(kept.trace.logits(kept.resolve_token(at)))

        return await desk.submit(answer)

    return router


def parse_ints(written: str) -> list[int]:
    try:
        return [int(part) for part in written.split(",") if part.strip()]
    except ValueError:
        raise ClearheadError(f"index={written!r:.40} must be whole numbers, as 1,5,3.") from None


def slice_window(value: Tensor, rows: str, cols: str) -> Tensor:
    """`rows` and `cols` are a:b, of the last two dimensions."""
    for written, dim in ((rows, -2), (cols, -1)):
        if not written:
            continue
        if value.dim() < -dim or not re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", written):
            raise ClearheadError(f"{written!r:.40} is no window; write it as 0:256.")
        start, stop = (min(int(end), value.shape[dim]) for end in written.split(":"))
        value = value.narrow(dim, start, max(0, stop - start))
    return value
