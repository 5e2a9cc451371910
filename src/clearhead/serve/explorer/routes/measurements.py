"""What a model does on many sentences with controls, measured once per model."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from fastapi import APIRouter
from torch import Tensor

from clearhead.api import Model
from clearhead.lens.head_contrast import (
    attention_in_steps,
    contrast_statistics,
    rank_heads,
    read_contrast,
)
from clearhead.lens.word_in_context import context
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.example_inputs import MOLE_CONTROLS, MOLE_SENSES
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.serialize import finite_or_none, view_to_dict
from clearhead.serve.registry import LoadedModel

MAX_MEASUREMENTS = 256  # kept
ContrastName = Literal["adjectives", "it", "pronouns"]
# What stands in the controls of a bundled contrast, in turn.
CONTROL_KINDS = {"adjectives": ("nouns", "verbs", "adverbs")}
CONTRAST_NAMES: tuple[str, ...] = get_args(ContrastName)


class Measurements:
    """Results by weights and name; requests for the same measurement share it."""

    def __init__(self, executor: ExplorerExecutor) -> None:
        self._executor = executor
        self._tasks: dict[tuple[str, str], asyncio.Task[JSONDict]] = {}

    async def get(
        self,
        loaded_model: LoadedModel,
        name: str,
        measure: Callable[..., Iterator[JSONDict | None]],
        *arguments: object,
    ) -> JSONDict:
        key = (loaded_model.fingerprint, name)
        if key not in self._tasks:
            while len(self._tasks) >= MAX_MEASUREMENTS:
                self._tasks.pop(next(iter(self._tasks)))
            call = self._executor.run_steps(measure(loaded_model.model, *arguments))
            task = asyncio.create_task(call)
            task.add_done_callback(lambda finished: self._forget_failure(key, finished))
            self._tasks[key] = task
        return await asyncio.shield(self._tasks[key])

    def _forget_failure(self, key: tuple[str, str], finished: asyncio.Task[Any]) -> None:
        if finished.cancelled() or finished.exception():
            self._tasks.pop(key, None)


def measurement_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/models", tags=["page"])
    measurements = Measurements(executor)

    @router.get("/{name}/contrasts/{contrast}")
    async def contrast(name: str, contrast: ContrastName) -> JSONDict:
        """The heads that do something, found on half of the sentences, measured on the others."""
        async with executor.use_model(name) as loaded_model:
            return await measurements.get(loaded_model, contrast, measure_heads, contrast)

    @router.get("/{name}/senses")
    async def senses(name: str) -> JSONDict:
        """How similar "mole" is within a meaning and between meanings."""
        async with executor.use_model(name) as loaded_model:
            return await measurements.get(loaded_model, "senses", measure_senses)

    return router


def measure_heads(model: Model, contrast: str) -> Iterator[JSONDict | None]:
    """The best heads, and the statistics of the first one for each kind of control.

    They come after a None for each step in which the texts are read.
    """
    weights = []
    examples = [example for pair in read_contrast(contrast) for example in pair]
    for part in attention_in_steps(model, examples):
        weights.append(part)
        yield None
    view = rank_heads(torch.cat(weights), contrast)
    kinds = CONTROL_KINDS.get(contrast, ())
    first = len(examples) // 2 - view.num_pairs
    by_control = []
    for i, kind in enumerate(kinds):
        statistics = contrast_statistics(
            view.measured[(i - first) % len(kinds) :: len(kinds), :, 0]
        )
        by_control.append({"kind": kind, "statistics": _numbers(statistics)})
    yield {
        "view": view_to_dict(view),
        "heads": view.heads,
        "num_pairs": view.num_pairs,
        "has_clear_effect": view.has_clear_effect,
        "by_control": by_control,
    }


def measure_senses(model: Model) -> Iterator[JSONDict | None]:
    """How the vectors of "mole" after the last layer separate by sense, and those of controls.

    `excess` has the statistics of "mole" minus those of a control in the same sentences. The
    result comes after a None for each word.
    """
    senses = [sense for sense, texts in MOLE_SENSES.items() for _ in texts]
    texts = [text for texts in MOLE_SENSES.values() for text in texts]
    mole = context(model, "mole", texts)
    controls = []
    for word in MOLE_CONTROLS:
        control = context(model, word, [text.replace("mole", word) for text in texts])
        yield None
        excess = replace(mole, values=mole.values - control.values)
        controls.append(
            {
                "word": word,
                "statistics": _numbers(control.by_sense(senses).values[-1]),
                "excess": _numbers(excess.by_sense(senses).values[-1]),
            }
        )
    yield {
        "senses": list(MOLE_SENSES),
        "num_sentences": len(texts),
        "word": "mole",
        "statistics": _numbers(mole.by_sense(senses).values[-1]),
        "controls": controls,
    }


def _numbers(statistics: Tensor) -> list[float | None]:
    return [finite_or_none(value) for value in statistics.tolist()]
