"""Texts, pictures or sounds of which it is known what they are; and what a model answers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch
from clearhead.data.pictured import floats
from clearhead.errors import ClearheadError
from clearhead.evaluate.task import Task
from clearhead.generate.answers import check_numbers, judged_tokens
from clearhead.lens.progress import shown
from clearhead.tap import SILENT
from clearhead.train.lessons import read_rows, read_things

SOME = 256  # that are judged before the bar moves on


class Case(NamedTuple):
    """Something to be judged, and what is true of it."""

    where: str
    what: Any  # a text, a pair of texts, or what the file of a picture or a sound holds
    truth: str | float
    tokens: int = 0  # of a text; pictures and sounds are all alike

    def told(self, **answers: object) -> dict[str, Any]:
        """The case with what was answered; pictures and sounds are told by where they are."""
        what = {} if isinstance(self.what, Tensor) else {"input": self.what}
        return {"where": self.where, **what, "truth": self.truth, **answers}


def unit_of(task: Task) -> str:
    return {"tokens": "rows", "pictures": "pictures"}.get(task.model.config.model.input.kind, "sounds")


def read_cases(task: Task) -> list[Case]:
    source = task.model.config.model.input
    if isinstance(source, c.Tokens):
        cases = list(_rows(task))
    else:
        things = read_things(task.data, task.report, task.paths, source)
        cases = [Case(*case) for case in zip(things.where, things.data, things.labels, strict=True)]
    task.refuse_nothing(len(cases), "row with a label")
    return cases


def _rows(task: Task) -> Iterator[Case]:
    """The rows of tables; one that will be cut, or for which there are no tokens, is told."""
    model, report, most = task.model, task.report, judged_tokens(task.model.config)
    for row in read_rows(task.data, report, task.paths, isinstance(model.config.model.head, c.Number)):
        what = row.text if row.second is None else (row.text, row.second)
        try:
            (ids,) = model._rows([what], endless=True)
        except ClearheadError as error:
            report.skip(row.where, str(error).removesuffix("."))
            continue
        if len(ids) > most:
            report.note(row.where, f"a text was cut to {most} tokens")
        yield Case(row.where, what, row.label, len(ids))


@torch.no_grad()
def answers(task: Task, cases: Sequence[Case]) -> Tensor:
    """The logits of each case; for a number, that number."""
    model, net = task.model, task.model.net
    order = sorted(range(len(cases)), key=lambda i: -cases[i].tokens)
    blocks = [order[start : start + SOME] for start in range(0, len(order), SOME)]
    found = []
    for some in shown(blocks, len(cases), unit_of(task), len):
        batch = _batch(task, [cases[i] for i in some])
        found.append(batch.each(lambda part: net.predict(model._run(part, SILENT), part.segments).double()).cpu())
    logits = torch.cat(found)[torch.tensor(order).argsort()]
    check_numbers(logits)
    return logits


def _batch(task: Task, some: list[Case]) -> Batch:
    model, source, given = task.model, task.model.config.model.input, [case.what for case in some]
    if not isinstance(source, c.Tokens):
        numbers = floats(torch.stack(given), source)
        return Batch(numbers.to(next(model.net.parameters())), dense=c.tokens_of(source))
    return model._batch(given, longest=judged_tokens(model.config))
