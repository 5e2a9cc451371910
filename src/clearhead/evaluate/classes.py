"""A model that tells classes: how often it is right, how far it can be trusted when it is sure, what it mixes up."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead import config as c
from clearhead.evaluate import formulas
from clearhead.evaluate.cases import Case, answers, read_cases, unit_of
from clearhead.evaluate.figures import Counts, Evaluation, figures
from clearhead.evaluate.task import Task
from clearhead.lens.view import Axis, View

BINS = 10  # of confidence, all as wide
FEW = 24  # classes that a sentence can name


def tell_classes(task: Task) -> Evaluation:
    head = task.model.config.model.head
    assert isinstance(head, c.Classes)
    names = task.model.config.use.labels or tuple(map(str, range(head.classes)))
    cases, numbers = _numbered(task, read_cases(task), names)
    told = Told(names, np.array(numbers), answers(task, cases).log_softmax(dim=-1).numpy())
    rows = zip(cases, told.best.tolist(), told.sure.tolist(), told.losses.tolist(), strict=True)
    each = [
        case.told(predicted=names[best], probability=sure, right=names[best] == case.truth, loss=loss)
        for case, best, sure, loss in rows
    ]
    found = figures(told.how(), told.values, len(cases), unit_of(task), task.seed, ("accuracy",))
    return Evaluation(found, each, told.views(np.ones(len(cases))))


def _numbered(task: Task, cases: list[Case], names: Sequence[str]) -> tuple[list[Case], list[int]]:
    """The cases whose class the model knows by its name, or by its number where no name is one."""
    known = {name: i for i, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        known |= {str(i): i for i in range(len(names))}
    classes = ", ".join(names) if len(names) <= FEW else f"its {len(names)} classes"
    kept = []
    for case in cases:
        if (number := known.get(str(case.truth))) is None:
            task.report.skip(f"{case.where} ({case.truth!r:.40})", f"the model knows no such label, only {classes}")
        else:
            kept.append((case._replace(truth=names[number]), number))
    task.refuse_nothing(len(kept), "row with a class of the model's")
    return [case for case, _ in kept], [number for _, number in kept]


class Told:
    """What is true of each case, what was told, and how surely."""

    def __init__(self, names: Sequence[str], true: NDArray[np.int64], log_probs: NDArray[np.float64]) -> None:
        self.names, self.best, self.sure = names, log_probs.argmax(axis=1), np.exp(log_probs.max(axis=1))
        self.losses = -log_probs[np.arange(len(true)), true]
        self.right = (self.best == true).astype(np.float64)
        self._cell = true * len(names) + self.best

    def table(self, counts: Counts) -> formulas.Numbers:
        """How often each class, down, was taken for each, across."""
        return formulas.totals(self._cell, counts, len(self.names) ** 2).reshape(len(self.names), -1)

    def how(self) -> dict[str, str]:
        two = len(self.names) == 2
        return {
            "accuracy": "share of answers that are right",
            **({"f1": f"2 TP / (2 TP + FP + FN) of {self.names[1]}"} if two else {}),
            "macro f1": "mean over classes of 2 TP / (2 TP + FP + FN)",
            "matthews": "correlation of true and predicted classes",
            "calibration error": f"mean distance of confidence and accuracy in {BINS} equal bins (ECE)",
            "loss": "−log p of the true class, in nats",
        }

    def values(self, counts: Counts) -> list[float]:
        """In the order of `how`."""
        table = self.table(counts)
        f1 = formulas.f1_scores(table)
        return [
            formulas.accuracy(table),
            *([float(f1[1])] if len(f1) == 2 else []),
            float(np.nanmean(f1)),
            formulas.matthews(table),
            formulas.calibration_error(self.sure, self.right, counts, BINS),
            float(counts @ self.losses / counts.sum()),
        ]

    def views(self, counts: Counts) -> dict[str, View]:
        table = self.table(counts)
        return {
            "confusion": _confusion(table, self.names),
            "classes": _by_class(table, self.names),
            "reliability": _reliability(self.sure, self.right, counts),
        }


def _confusion(table: formulas.Numbers, names: Sequence[str]) -> View:
    axes = Axis.of("true", names), Axis.of("predicted", names)
    return View(
        torch.from_numpy(table), axes, "What is taken for what", "rows", note="true classes down, predicted across"
    )


def _by_class(table: formulas.Numbers, names: Sequence[str]) -> View:
    columns = {
        "share": table.sum(axis=1) / table.sum(),
        "precision": formulas.precision(table),
        "recall": formulas.recall(table),
        "f1": formulas.f1_scores(table),
    }
    axes = Axis.of("class", names), Axis.of("of the class", tuple(columns))
    values = torch.from_numpy(np.stack([*columns.values()], axis=1))
    return View(
        values, axes, "Each class", "value", most=1.0, note="precision: of what was predicted; recall: of what is true"
    )


def _reliability(sure: formulas.Numbers, right: formulas.Numbers, counts: Counts) -> View:
    n, confidence, accuracy = formulas.reliability(sure, right, counts, BINS)
    bins = [f"{i / BINS:.1f}–{(i + 1) / BINS:.1f}" for i in range(BINS)]
    values = torch.from_numpy(np.stack([n / n.sum(), confidence, accuracy], axis=1))
    axes = Axis.of("confidence", bins), Axis.of("of the bin", ("share of answers", "confidence", "accuracy"))
    note = "where confidence is more than accuracy, the model is surer than it should be"
    return View(values, axes, "How far confidence can be trusted", "value", most=1.0, note=note)
