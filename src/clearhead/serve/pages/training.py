"""How a model came to be: the film that `train --microscope` left beside it, and the curve of its loss."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from clearhead.errors import ClearheadError
from clearhead.files import json_lines
from clearhead.lens.attention import KIND
from clearhead.lens.film import FOLDER, INDEX, read_film
from clearhead.lens.parts import Part
from clearhead.lens.view import Axis, View
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.wire import sent
from clearhead.train.checkpoint import STEPS
from clearhead.train.curve import thin
from clearhead.train.diagnosis import points
from clearhead.train.report import LOG

Wire = dict[str, Any]


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api/models/{name}/training", tags=["page"])

    async def run(name: str) -> Path:
        async with desk.using(name) as held:
            return run_of(held.path)

    @router.get("")
    async def told(name: str) -> Wire:
        """The curve, and what the film shows, if there is one."""
        return await desk.work(story, await run(name))

    @router.get("/attention")
    async def attention(name: str, step: int, probe: int = 0, part: Part = "attention") -> Wire:
        return await desk.work(patterns, await run(name), step, probe, part)

    @router.get("/lens")
    async def lens(name: str, step: int, probe: int = 0) -> Wire:
        return await desk.work(answers, await run(name), step, probe)

    @router.get("/embeddings")
    async def embeddings(name: str, step: int, source: bool = False) -> Wire:
        return await desk.work(plane, await run(name), step, source)

    return router


def run_of(path: str) -> Path:
    """The folder of the run that a model is of: out itself, or a checkpoint: out/best, out/steps/00000200."""
    model = Path(path)
    for folder in (model, model.parent, model.resolve().parent.parent):
        if path and model.is_dir() and (folder / LOG).is_file():
            return folder
    raise ClearheadError("nothing is known of this model's training; open a checkpoint in the folder of its run.")


def step_of(path: str) -> int | None:
    """The step that a model is the checkpoint of, if it is one."""
    folder = Path(path).resolve()
    return int(folder.name) if path and folder.parent.name == STEPS and folder.name.isdigit() else None


def watched(path: str) -> bool:
    """Whether the run of a model left a film."""
    try:
        return (run_of(path) / FOLDER / INDEX).is_file()
    except ClearheadError:
        return False


def story(run: Path) -> Wire:
    lines = json_lines(run / LOG)
    curve = {key: [list(point) for point in thin(points(lines, key))] for key in ("loss", "valid", "accuracy")}
    return {"curve": curve, "film": _film(run) if (run / FOLDER / INDEX).is_file() else None}


def _film(run: Path) -> Wire:
    film = read_film(run)
    return {
        "steps": film.steps,
        "losses": film.losses,
        "parts": film.parts,
        "embeddings": film.embedded,
        "probes": [vars(probe) for probe in film.probes],
    }


def patterns(run: Path, step: int, probe: int, part: Part) -> Wire:
    """All heads at one step: layer × head × query × key."""
    film = read_film(run)
    values, shown = film.attention(step, probe, part), film.probes[probe]
    queries = shown.source_tokens if part == "encoder" else shown.tokens
    keys = shown.tokens if part == "attention" else shown.source_tokens
    layers, heads = (Axis.of(word, size) for word, size in zip(("layer", "head"), values.shape, strict=False))
    axes = layers, heads, Axis.of("query", queries), Axis.of("key", keys)
    return sent(View(values, axes, f"{KIND[part]}step {step:,}", "pattern", most=1.0))


def answers(run: Path, step: int, probe: int) -> Wire:
    """What the model would have answered at that step, layer by layer."""
    return sent(read_film(run).lens(step, probe))


def plane(run: Path, step: int, source: bool) -> Wire:
    """Every token in a plane that is turned as little as may be from step to step."""
    found = read_film(run).embeddings(step, source)
    axes = Axis.of("token", found.all_tokens), Axis.of("direction", ("x", "y"))
    return sent(View(found.plane, axes, f"embeddings at step {step:,}", "place", signed=True))
