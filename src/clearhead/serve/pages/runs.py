"""Runs: what the page asks a model to do with a text, by an id that the same question always gets."""

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.generate import chat
from clearhead.lens.logit_lens import answers
from clearhead.lens.parts import asked_at
from clearhead.serve.limits import Limits
from clearhead.serve.pages import uploads
from clearhead.serve.pages.asked import UPLOADS
from clearhead.serve.pages.edits import Edited, read
from clearhead.serve.pages.kept import Kept
from clearhead.serve.pages.loaded import loaded
from clearhead.serve.pages.pieces import pieces
from clearhead.serve.pages.terms import finite
from clearhead.serve.pages.trace import ENCODER, Edits, Gone, Trace
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Ids
from clearhead.serve.shelf import Held

MOST_BYTES = 1 << 30  # of runs that are kept
MOST_AGAIN = 256 << 20  # of values that were computed again
TOP = 10
OWN = 96  # tokens of a target that the model writes itself
BEAM = 4  # texts that a translator follows at once, unless it is told otherwise


class RunRequest(Edited):
    """What to read, and what to change on the way."""

    text: str | None = None
    ids: Ids | None = None
    messages: list[dict[str, str]] | None = None
    source: str | None = None
    picture: str | None = Field(default=None, description="a picture in base64")
    sound: str | None = Field(default=None, description="a sound in base64")

    def id(self, held: Held) -> str:
        """The same for the same question to the same weights."""
        return hashlib.sha256(f"{loaded(held)} {self.model_dump_json()}".encode()).hexdigest()[:20]

    def without_uploads(self) -> Self:
        """Only that there were some: they may be large, and what was read of them is kept elsewhere."""
        return self.model_copy(update={name: "" for name in UPLOADS if getattr(self, name) is not None})

    def given(self, model: Model) -> dict[str, Any]:
        """As `model.watch` takes it."""
        m = model.config.model
        reads = m.reads
        found: dict[str, Any] = {"source": self.source or None} if isinstance(m.shape, c.EncoderDecoder) else {}
        if self.picture is not None:
            found["pictures"] = uploads.picture(self.picture)
        if self.sound is not None and isinstance(reads, c.Mel):
            found["sound"] = uploads.sound(self.sound, reads)
        if self.messages is not None:
            return {"x": chat.encode(model.config.use.chat, self.messages, model.tokenizer), **found}
        x: object = self.text if self.ids is None else self.ids
        if x is None and isinstance(m.shape, c.EncoderDecoder):
            x = written(model, found)
        return {"x": x or None if found else x, **found}


@dataclass(frozen=True)
class Run:
    """A request, what was read of it, the trace of that, and how long it took."""

    id: str
    request: RunRequest
    read: dict[str, Any]
    trace: Trace
    swapped: dict[str, Tensor]  # values of another text
    path: str  # of the model
    milliseconds: float

    @property
    def nbytes(self) -> int:
        values = [value for value in (*self.read.values(), *self.swapped.values()) if isinstance(value, Tensor)]
        return self.trace.nbytes + sum(value.untyped_storage().nbytes() for value in values) + self.request.size

    def given(self) -> dict[str, Any]:
        """For functions of the lens: `lens.atlas(model, **run.given())`, edits included."""
        return {**self.read, **({"edits": self.trace.edits} if self.trace.edits else {})}

    def place(self, at: int = -1) -> int:
        """The token that is asked about; of −1, the one that holds the answer: the first gap, or else the last."""
        given = {name: value for name, value in self.read.items() if name != "x"}
        return asked_at(self.trace.model, None if at == -1 else at, self.read["x"], given)

    def told(self) -> dict[str, Any]:
        """What the page learns of it at once."""
        trace, model, at = self.trace, self.trace.model, self.place()
        return {
            "id": self.id,
            "tokens": tokens(model, trace.batch.ids, trace, source=False),
            "source": None if trace.batch.source is None else tokens(model, trace.batch.source, trace, source=True),
            "names": {
                path: {"shape": trace.shape(path), "formula": name.formula, "sentence": name.sentence}
                for path, name in trace.table.items()
            },
            "gap": at if at >= 0 else None,
            "top": likeliest(model, trace.logits(at), TOP),
            "milliseconds": round(self.milliseconds, 2),
        }


class Runs:
    """The runs that are kept, and values of theirs that were computed again."""

    def __init__(self, longest: int = Limits.context) -> None:
        self.longest = longest  # tokens of a text: what a head says of it costs their square
        self._runs: Kept[Run] = Kept(MOST_BYTES, lambda run: run.nbytes)
        self._values: Kept[Tensor] = Kept(MOST_AGAIN, lambda value: value.untyped_storage().nbytes())

    def make(self, held: Held, request: RunRequest) -> Run:
        """The run of a request: the one that is kept, or a new one."""
        name = request.id(held)
        found = self._runs.get(name)
        if found is not None and found.trace.loaded(held.model):
            return found
        swapped = self._swapped(held, request, request.source)
        start = time.perf_counter()
        given = request.given(held.model)
        batch = held.model._batch(**given)
        self._check(batch)
        trace = Trace(held.model, batch, read(request.edits, swapped))
        taken, path = 1000 * (time.perf_counter() - start), held.path or held.name
        return self._runs.put(
            name, Run(name, request.without_uploads(), as_read(batch, given), trace, swapped, path, taken)
        )

    def _check(self, batch: Batch) -> None:
        for side in (batch.ids, batch.source):
            if side is not None and not side.is_floating_point() and side.shape[1] > self.longest:
                raise Refused(
                    f"{side.shape[1]:,} tokens are more than the {self.longest:,} of a text that is shown here."
                )

    def edits(self, held: Held, asked: Edited, source: str | None = None) -> Edits:
        """The changes that a question asks for, as `model.logits` takes them."""
        return read(asked.edits, self._swapped(held, asked, source))

    def _swapped(self, held: Held, asked: Edited, source: str | None) -> dict[str, Tensor]:
        """What the other text has where values are swapped, with the batch as first dimension."""
        if not asked.swaps:
            return {}
        if not asked.against:
            raise ClearheadError("to swap a value in, give the other text it comes from (against).")
        return {name: self._other(held, asked, source, name).value(name)[None] for name in asked.swaps}

    def _other(self, held: Held, asked: Edited, source: str | None, name: str) -> Trace:
        """The run of the other text: as the source, where the value is the encoder's."""
        encoder, start = name.startswith(ENCODER), list(held.model.config.use.start)
        sides: dict[str, Any] = (
            {"ids": start, "source": asked.against} if encoder else {"text": asked.against, "source": source}
        )
        return self.make(held, RunRequest(model=asked.model, **sides)).trace

    def get(self, name: str) -> Run:
        found = self._runs.get(name)
        if found is None:
            raise Gone(f"run {name!r:.30} is no longer kept; ask for it again.")
        return found

    def values(self, run: Run, names: Iterable[str]) -> dict[str, Tensor]:
        """Values of one block of a run; what was computed again stays at hand for the next look."""
        names = list(names)
        found = {name: self._values.get(f"{run.id} {name}") for name in names}
        missing = [name for name in names if found[name] is None]
        for name, value in (run.trace.values(missing) if missing else {}).items():
            found[name] = self._values.put(f"{run.id} {name}", value)
        return {name: value for name, value in found.items() if value is not None}


def as_read(batch: Batch, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, such that `model.watch` neither cuts nor unpacks nor writes it again."""
    sides = {"x": batch.ids, "source": batch.source}
    found: dict[str, Any] = {"x": None}
    for name, side in sides.items():
        if side is not None and not side.is_floating_point():
            found[name] = side[0].tolist()
        elif side is not None and "pictures" in given:
            found["pictures"] = side[0]
    return {**found, **({"sound": given["sound"]} if "sound" in given else {})}


def written(model: Model, given: dict[str, Any]) -> list[int]:
    """What an encoder-decoder makes of its source itself: a target to look at where none was given."""
    use = model.config.use
    room = min(OWN, model.config.model.context - len(use.start))
    best = model.translate(given["source"], beam=BEAM, max_tokens=room, sound=given.get("sound"))[0].tokens
    return [*use.start, *(token for token in best if token not in use.stop)]


def tokens(model: Model, ids: Tensor | None, trace: Trace, source: bool) -> list[dict[str, Any]]:
    """Each token for people to read; patches have numbers."""
    assert ids is not None
    if ids.is_floating_point():
        count = trace.streams["encoder.embed" if source else "embed"].shape[1]
        return [{"id": None, "text": str(i), "special": False} for i in range(count)]
    tokenizer = model.tokenizers[source]
    return pieces(tokenizer, ids[0].tolist())


def likeliest(model: Model, logits: Tensor, top: int) -> list[dict[str, Any]]:
    """The best answers with their probabilities; of a head that gives a number, the number."""
    config = model.config
    if isinstance(config.model.head, c.Hidden):
        return []
    if isinstance(config.model.head, c.Number):
        return [{"id": 0, "text": "number", "logit": finite(logits[0]), "prob": None, "logprob": None}]
    logits = torch.atleast_2d(logits)[-1].float().cpu()
    logprobs = logits.log_softmax(dim=-1)
    best = logits.topk(min(top, len(logits))).indices.tolist()
    names = answers(config, model.tokenizer, best)
    return [
        {
            "id": i,
            "text": text,
            "logit": finite(logits[i]),
            "prob": finite(logprobs[i].exp()),
            "logprob": finite(logprobs[i]),
        }
        for i, text in zip(best, names, strict=True)
    ]
