"""Which published family computes the same as a model of ours; or why none does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from clearhead import config as c
from clearhead import reader
from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build
from clearhead.weights import fields
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.families.family import Family

Expressed = tuple[Family, str, dict[str, Any], Checkpoint]


def expressed(model: Checkpoint, families: tuple[Family, ...], where: str) -> Expressed:
    """The family, its architecture, its attributes, and the model with what the family wants written out."""
    m = model.config.model
    tried = []
    for wider in (with_all_biases(m), m):
        for family in families:
            apart = list(_apart(family, wider))
            reasons = apart or list(_lost(family, wider))
            tried.append((bool(apart), len(reasons), wider is not m, family, wider, reasons))
    *_, family, wider, reasons = min(tried, key=lambda t: t[:3])
    if reasons:
        raise ClearheadError(
            f"{where} has no model that computes the same; the nearest is {family.name}, but {reasons[0]}."
        )
    same = model if wider is m else widened(model, wider)
    return family, next(architectures(family, wider)), fields.write(family.fields, wider), same


def _apart(family: Family, m: c.ModelConfig) -> Iterator[str]:
    """The larger parts that a family has of another kind."""
    for option in ("shape", "input", "position", "norm"):
        here, there = getattr(m, option).kind, getattr(family.base, option).kind
        if here != there:
            yield f"its {option} is {there}, not {here}"
    if next(architectures(family, m), None) is None:
        alike = [reader.tree(head) for head in family.heads.values() if head.kind == m.head.kind]
        found = [d for other in alike[:1] for d in fields.apart(reader.tree(m.head), other, "head.")]
        wanted = [
            f"its {option} is {there!r}, not {here!r}" for option, here, there in found if option != "head.classes"
        ]
        yield wanted[0] if wanted else f"it has no head {m.head.kind}"


def _lost(family: Family, m: c.ModelConfig) -> Iterator[str]:
    """What does not come back when a model is written as this family and read again."""
    try:
        written = fields.write(family.fields, m)
        back = fields.read(family.fields, replace(family.base, head=m.head), written)
    except fields.Inexpressible as reason:
        yield str(reason)
    except ClearheadError as error:
        yield str(error).rstrip(".")
    else:
        for option, here, there in fields.differences(m, back):
            yield f"its {option} is {there!r}, not {here!r}"


def architectures(family: Family, m: c.ModelConfig) -> Iterator[str]:
    """Those with the model's head; how many classes, and whether it is tied, are attributes."""
    for name, head in family.heads.items():
        if isinstance(m.head, c.Number) and isinstance(head, c.Classes):
            head = c.Number(pooling=head.pooling, pooler=head.pooler)
        if isinstance(m.head, c.Classes) and isinstance(head, c.Classes):
            head = replace(head, classes=m.head.classes)
        if isinstance(m.head, c.Language) and isinstance(head, c.Language):
            head = replace(head, tied=m.head.tied, scaled=m.head.scaled)
        if m.head == head:
            yield name


def with_all_biases(m: c.ModelConfig) -> c.ModelConfig:
    """The same model with the biases it does without, which are then zero."""
    norm = replace(m.norm, bias=True) if isinstance(m.norm, c.LayerNorm) else m.norm
    head = (
        replace(m.head, bias=True)
        if isinstance(m.shape, c.EncoderDecoder) and isinstance(m.head, c.Language)
        else m.head
    )
    whisper = isinstance(m.shape, c.EncoderDecoder) and not isinstance(m.shape.input, c.Tokens)
    bias: tuple[Any, ...] = ("q", "v", "out") if whisper else ("q", "k", "v", "out")
    return replace(m, attention=replace(m.attention, bias=bias), ffn=replace(m.ffn, bias=True), norm=norm, head=head)


def widened(model: Checkpoint, wider: c.ModelConfig) -> Checkpoint:
    """The same network with zeros where the wider model has a bias."""
    net, like = build(wider, seed=None), next(model.net.parameters())
    held = dict(model.net.named_parameters())
    state = {n: held[n] if n in held else torch.zeros(p.shape).to(like) for n, p in net.named_parameters()}
    net.load_state_dict(state, strict=False, assign=True)
    return replace(model, net=net.eval(), config=Config(wider, model.config.use))
