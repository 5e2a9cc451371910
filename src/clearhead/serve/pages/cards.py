"""/api/models: what a model is, and which views it has something to show in."""

from typing import Any

from fastapi import APIRouter

from clearhead import config as c
from clearhead.api import Model
from clearhead.lens.logit_lens import answers
from clearhead.serve.pages import training
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.examples import examples, file_of
from clearhead.serve.pages.loaded import loaded
from clearhead.serve.shelf import Held


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api/models", tags=["page"])

    @router.get("")
    async def models() -> list[dict[str, Any]]:
        """The models that are here by name, and the card of those that are loaded."""
        loaded = desk.shelf.held
        return [card(loaded[name]) if name in loaded else {"name": name} for name in desk.shelf.names]

    @router.get("/{name}")
    async def model(name: str) -> dict[str, Any]:
        """What a model is."""
        async with desk.using(name) as held:
            return card(held)

    @router.get("/{name}/vocabulary")
    async def vocabulary(name: str) -> list[str]:
        """The text of every answer that the head can give, by id."""
        async with desk.using(name) as held:
            m = held.model.config.model
            outputs = m.head.classes if isinstance(m.head, c.Classes) else m.vocabulary
            return await desk.work(answers, held.model.config, held.model.tokenizer, range(outputs))

    return router


def card(held: Held) -> dict[str, Any]:
    model = held.model
    m, use = model.config.model, model.config.use
    both = m.shape if isinstance(m.shape, c.EncoderDecoder) else None
    reads = m.reads
    return {
        "name": held.name,
        "path": held.path,
        "loaded": loaded(held),  # other weights under the same name have another
        "kind": model.kind,
        "layers": m.layers,
        "encoder_layers": both.layers if both else 0,
        "heads": m.attention.heads,
        "kv_heads": m.kv_heads,
        "width": m.width,
        "d_head": m.head_width,
        "ffn_width": m.ffn_width,
        "vocabulary": m.vocabulary,
        "parameters": model.parameters,
        "context": m.context,
        "device": next(model.net.parameters()).device.type,
        "step": training.step_of(held.path),
        "position": m.position.kind,
        "norm": m.norm.kind,
        "wiring": m.wiring,
        "activation": m.ffn.activation,
        "gated": m.ffn.gated,
        "window": m.attention.window,
        "scaled": m.attention.scaled,
        "tied": getattr(m.head, "tied", isinstance(m.head, c.MaskedWord)),
        "head": m.head.kind,
        "labels": list(use.labels),
        "mask": list(use.mask),
        "chat": bool(use.chat) and model.tokenizer is not None,
        "text": isinstance(reads, c.Tokens) and model.tokenizer is not None,
        "pictures": isinstance(reads, c.Pictures),
        "sound": isinstance(reads, c.Mel),
        "microscope": training.watched(held.path),
        "views": views(model),
        "examples": examples(model) | {"file": file_of(held.path)},
    }


def views(model: Model) -> list[str]:
    """The views that have something to show of such a model, in the order of the rail."""
    m, use = model.config.model, model.config.use
    both = isinstance(m.shape, c.EncoderDecoder)
    reads = m.reads
    text = isinstance(reads, c.Tokens)
    words = isinstance(m.input, c.Tokens) and model.tokenizer is not None
    language = isinstance(m.head, c.Language)
    shown = {
        "machine": True,
        "tokens": text,
        "position": True,
        "attention": True,
        "block": True,
        "predict": language and not both and model.kind == "decoder",
        "lens": not isinstance(m.head, c.Hidden),
        "vectors": words,
        "translate": both,
        "classify": text and isinstance(m.head, c.Classes | c.Number),
        "fill": bool(use.mask) and isinstance(m.head, c.MaskedWord),
        "chat": bool(use.chat) and words,
        "patches": not text,
        "compare": True,
        "tour": True,
    }
    return [view for view, here in shown.items() if here]
