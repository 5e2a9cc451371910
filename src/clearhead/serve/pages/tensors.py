"""/api/runs: a text goes through a model, and every number of it can be asked for."""

import re
from typing import Any, Literal

from fastapi import APIRouter, Response
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.lens.atlas import SCORES
from clearhead.lens.parts import Part
from clearhead.lens.residual import residual
from clearhead.serve.pages import heads
from clearhead.serve.pages import why as reasons
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.runs import RunRequest
from clearhead.serve.pages.wire import npy, sent


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["page"])

    @router.post("")
    async def run(request: RunRequest) -> dict[str, Any]:
        """Read a text, with edits or without; the answer has its tokens and what can be asked about it."""
        return await desk.work((await desk.run(request)).told)

    @router.get("/{run}/tensor/{name}")
    async def tensor(
        run: str, name: str, head: int | None = None, rows: str = "", cols: str = "", dtype: Literal["f4", "f2"] = "f4"
    ) -> Response:
        """One value, or a window of its last two dimensions, as .npy."""

        def answer() -> Response:
            kept = desk.runs.get(run)
            value = kept.trace.of_head(desk.runs.values(kept, [name])[name], head, name)
            return npy(window(value, rows, cols), dtype)

        return await desk.work(answer)

    @router.get("/{run}/atlas")
    async def atlas(run: str, part: Part = "attention") -> Response:
        """Every head's pattern, layer × head × query × key, in 256 steps, pooled to at most 48 × 48."""

        def answer() -> Response:
            small, factor = heads.thumbnails(desk.runs.get(run), part)
            return npy(small, "u1", **{"X-Pooled": str(factor)})

        return await desk.work(answer)

    @router.get("/{run}/heads")
    async def scores(run: str, part: Part = "attention") -> dict[str, Any]:
        """What each head does, as scores with their definitions."""

        def answer() -> dict[str, Any]:
            found = heads.scores(desk.runs.get(run), part)
            return {"scores": {kind: SCORES[kind][0] for kind in found.axes[0].labels}, "view": sent(found)}

        return await desk.work(answer)

    @router.get("/{run}/residual")
    async def stream(run: str, encoder: bool = False) -> dict[str, Any]:
        """How long the stream is after each part, and what each part adds."""

        def answer() -> dict[str, Any]:
            kept = desk.runs.get(run)
            return sent(residual(kept.trace.model, encoder=encoder, **kept.given()))

        return await desk.work(answer)

    @router.get("/{run}/why")
    async def why(run: str, name: str, index: str = "") -> dict[str, Any]:
        """The arithmetic behind one number, with its operands, and the Python that prints it."""
        return await desk.work(lambda: reasons.why(desk.runs, desk.runs.get(run), name, whole_numbers(index)))

    @router.get("/{run}/logits")
    async def logits(run: str, at: int = -1) -> Response:
        """What the model answers at a token, all of the vocabulary."""

        def answer() -> Response:
            kept = desk.runs.get(run)
            return npy(kept.trace.logits(kept.place(at)))

        return await desk.work(answer)

    return router


def whole_numbers(written: str) -> list[int]:
    try:
        return [int(part) for part in written.split(",") if part.strip()]
    except ValueError:
        raise ClearheadError(f"index={written!r:.40} must be whole numbers, as 1,5,3.") from None


def window(value: Tensor, rows: str, cols: str) -> Tensor:
    """`rows` and `cols` are a:b, of the last two dimensions."""
    for written, dim in ((rows, -2), (cols, -1)):
        if not written:
            continue
        if value.dim() < -dim or not re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", written):
            raise ClearheadError(f"{written!r:.40} is no window; write it as 0:256.")
        start, stop = (min(int(end), value.shape[dim]) for end in written.split(":"))
        value = value.narrow(dim, start, max(0, stop - start))
    return value
