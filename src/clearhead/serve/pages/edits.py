"""Causal clicks: edits as the page writes them, as functions that change a run, and as Python to copy."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.lens.edits import Change, ablate, in_turn, replace, scale
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.trace import Edits

MOST = 64  # edits of one run


class Edit(BaseModel):
    """Switch off a value (or set it to its mean), scale it, or swap in that of another text: of one head, one token."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200)
    op: Literal["ablate", "mean", "scale", "swap"] = "ablate"
    head: int | None = None
    token: int | None = None
    by: float = Field(0.0, allow_inf_nan=False)  # what `scale` multiplies with

    @field_validator("name")
    @classmethod
    def one_value(cls, name: str) -> str:
        if "*" in name:
            raise ClearheadError(f"an edit changes one value; {name!r:.60} may name several.")
        return name

    def change(self, swapped: Mapping[str, Tensor]) -> Change:
        match self.op:
            case "ablate":
                return ablate(self.head, self.token)
            case "mean":
                return ablate(self.head, self.token, mean=True)
            case "scale":
                return scale(self.by, self.head, self.token)
            case "swap":
                return replace(swapped, self.head, self.token)

    def python(self) -> str:
        where = [f"{word}={n}" for word, n in (("head", self.head), ("token", self.token)) if n is not None]
        first = {"ablate": [], "mean": [], "scale": [repr(self.by)], "swap": ["with_=other"]}[self.op]
        last = ["mean=True"] if self.op == "mean" else []
        verb = {"mean": "ablate", "swap": "replace"}.get(self.op, self.op)
        return f"ch.{verb}({', '.join([*first, *where, *last])})"


class Edited(Asked):
    """A question about a model that may be changed on the way."""

    edits: list[Edit] = Field(default=[], max_length=MOST)
    against: str = Field(default="", description="the text whose values `swap` takes")

    @property
    def swaps(self) -> set[str]:
        """The values that are taken from the other text."""
        return {edit.name for edit in self.edits if edit.op == "swap"}


def read(edits: list[Edit], swapped: Mapping[str, Tensor]) -> Edits:
    """For `model.logits(edits=…)`: several changes of one value follow each other."""
    grouped: dict[str, list[Change]] = {}
    for edit in edits:
        grouped.setdefault(edit.name, []).append(edit.change(swapped))
    return {name: in_turn(changes) for name, changes in grouped.items()}


def python(edits: list[Edit]) -> str:
    """`{"blocks.2.attn.z": ch.ablate(head=3)}`, as `edits=` takes it."""
    grouped: dict[str, list[str]] = {}
    for edit in edits:
        grouped.setdefault(edit.name, []).append(edit.python())
    return "{" + ", ".join(f'"{name}": {_nested(name, written)}' for name, written in grouped.items()) + "}"


def _nested(name: str, written: list[str]) -> str:
    if len(written) == 1:
        return written[0]
    inner = "value"
    for change in written:
        inner = f'{change}({inner}, "{name}")'
    return f"lambda value: {inner}"
