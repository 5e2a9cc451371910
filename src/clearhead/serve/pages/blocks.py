"""Inside one block, for one token (L4): what its norms do, which neurons answer, and how the stream is summed."""

from typing import Any

import torch
from fastapi import APIRouter
from torch import Tensor, nn

from clearhead.lens.logit_lens import token_labels
from clearhead.lens.matrices import plain, unembedding
from clearhead.lens.parts import check_layer, check_token, layers_of
from clearhead.lens.view import Axis, View
from clearhead.model.block import Block
from clearhead.model.heads import LanguageHead
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.runs import Run
from clearhead.serve.pages.trace import Trace
from clearhead.serve.pages.wire import sent

NEURONS, WORDS = 12, 3  # the strongest, and what each of them writes

Wire = dict[str, Any]


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["page"])

    @router.get("/{run}/block")
    async def block(run: str, layer: int = 0, token: int = -1, encoder: bool = False) -> Wire:
        return await desk.work(lambda: inside(desk.runs.get(run), layer, token, encoder))

    return router


def inside(run: Run, layer: int, token: int, encoder: bool) -> Wire:
    """The stream and what is added to it, the norms with their operands, and the neurons; each a row of numbers."""
    trace = run.trace
    layer = check_layer(layer, layers_of(trace.config, "encoder" if encoder else "attention"))
    path = f"{'encoder.' if encoder else ''}blocks.{layer}"
    names = [name for name in trace.table if name.startswith(f"{path}.") and trace.table[name].shape.endswith("width")]
    found = trace.values(names)
    at = check_token(token, len(found[names[0]]))
    rows = {name.removeprefix(f"{path}."): value[at].detach().float().cpu() for name, value in found.items()}
    stack = trace.model.net.encoder if encoder else trace.model.net
    assert stack is not None
    block: Block = stack.blocks[layer]  # type: ignore[assignment]
    parts = [part for part in ("attn", "cross", "ffn") if f"{part}.out" in rows]
    streams = [("pre", "attn.out", "mid"), ("cross.out", "crossed"), ("ffn.out", "post")]
    shown = [name for group in streams for name in group if name in rows]
    return {
        "path": path,
        "token": at,
        "stream": sent(_rows({name: rows[name] for name in shown}, "dimension", "the stream, and what is added to it")),
        "norms": [_norm(rows, part, block.get_submodule(f"{part}_norm"), trace.config.wiring) for part in parts],
        "neurons": _neurons(rows, block, trace, encoder),
    }


def _rows(rows: dict[str, Tensor], counted: str, title: str) -> View:
    values = torch.stack([*rows.values()])
    return View(values, (Axis.of("value", list(rows)), Axis.of(counted, values.shape[1])), title, "value", signed=True)


def _norm(rows: dict[str, Tensor], part: str, norm: nn.Module, wiring: str) -> Wire:
    """γ (x − μ)/σ + β step by step; a norm of squares takes no mean and adds nothing (L4.3)."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    before, after = {"attn": ("pre", "mid"), "cross": ("mid", "crossed")}.get(part, ("", "post"))
    before = before or ("crossed" if "crossed" in rows else "mid")
    x = rows[before] if wiring == "pre" else rows[before] + rows[f"{part}.out"]
    mean = x.mean() if isinstance(norm, nn.LayerNorm) else torch.tensor(0.0)
    eps = norm.eps or 0.0
    deviation = ((x - mean).square().mean() + eps).sqrt()
    steps = {"x": x, "(x − μ) / σ": (x - mean) / deviation, "γ": plain(norm.weight)}
    if (shift := getattr(norm, "bias", None)) is not None:
        steps["β"] = plain(shift)
    name = f"{part}.in" if wiring == "pre" else after
    return {
        "part": part,
        "reads": before if wiring == "pre" else f"{before} + {part}.out",
        "name": name,
        "centred": isinstance(norm, nn.LayerNorm),
        "mean": float(mean),
        "deviation": float(deviation),
        "eps": eps,
        "view": sent(_rows({**steps, "out": rows[name]}, "dimension", "the norm, step by step")),
    }


def _neurons(rows: dict[str, Tensor], block: Block, trace: Trace, encoder: bool) -> Wire:
    """The neurons before and after their activation, and those that write most: |post| · |row of W_2|."""
    shown = {name: rows[f"ffn.{name}"] for name in ("pre", "gate", "post") if f"ffn.{name}" in rows}
    out = plain(block.ffn.down.weight).mT  # neuron width
    post = shown["post"]
    lengths = post.abs() * out.norm(dim=1)
    best = lengths.topk(min(NEURONS, len(lengths))).indices.tolist()
    words = _words(trace, post[best, None] * out[best]) if not encoder else [[]] * len(best)
    return {
        "view": sent(_rows(shown, "neuron", "neurons before and after their activation")),
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
    if type(net.head) is not LanguageHead:  # others have more between the stream and the logits
        return [[]] * len(written)
    found = (written @ unembedding(net).mT).topk(WORDS).indices.tolist()
    return [token_labels(trace.model.tokenizer, row) for row in found]
