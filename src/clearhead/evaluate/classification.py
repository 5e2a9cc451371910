"""Texts, pictures or sounds of which it is known what they are; and what a model answers."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.data.media import normalize_media
from clearhead.errors import ClearheadError
from clearhead.evaluate import metrics as formulas
from clearhead.evaluate.evaluate import EvaluationTask
from clearhead.evaluate.metrics import (
    Evaluation,
    SampleWeights,
    bootstrap_metrics,
    pearson,
    spearman,
)
from clearhead.generate.tasks import check_finite, max_classification_tokens
from clearhead.hooks import NO_HOOKS
from clearhead.lens.view import Axis, View
from clearhead.progress import progress_bar
from clearhead.train.datasets import read_labeled_rows, read_media

# ---- cases: Texts, pictures or sounds of which it is known what they are; and what a model answers.

EVALUATION_BLOCK = 256  # that are judged before the bar moves on


class Example(NamedTuple):
    """Something to be judged, and what is true of it."""

    location: str
    input: Any  # a text, a pair of texts, or what the file of a picture or a sound holds
    label: str | float
    num_tokens: int = 0  # of a text; pictures and sounds are all alike

    def to_dict(self, **answers: object) -> dict[str, Any]:
        """The case with what was answered; pictures and sounds are told by where they are."""
        what = {} if isinstance(self.input, Tensor) else {"input": self.input}
        return {"where": self.location, **what, "truth": self.label, **answers}


def example_unit(task: EvaluationTask) -> str:
    return {"tokens": "rows", "images": "images"}.get(task.model.config.model.input.kind, "sounds")


def read_examples(task: EvaluationTask) -> list[Example]:
    source = task.model.config.model.input
    if isinstance(source, c.Tokens):
        cases = list(_rows(task))
    else:
        things = read_media(task.data, task.report, task.paths, source)
        cases = [
            Example(*case)
            for case in zip(things.locations, things.data, things.labels, strict=True)
        ]
    task.require_examples(len(cases), "row with a label")
    return cases


def _rows(task: EvaluationTask) -> Iterator[Example]:
    """The rows of tables; one that will be cut, or for which there are no tokens, is told."""
    model = task.model
    report = task.report
    most = max_classification_tokens(task.model.config)
    for row in read_labeled_rows(
        task.data, report, task.paths, isinstance(model.config.model.head, c.RegressionHead)
    ):
        what = row.text if row.text_pair is None else (row.text, row.text_pair)
        try:
            (ids,) = model.encode_texts([what], allow_overflow=True)
        except ClearheadError as error:
            report.skip(row.location, str(error).removesuffix("."))
            continue
        if len(ids) > most:
            report.record(row.location, f"a text was cut to {most} tokens")
        yield Example(row.location, what, row.label, len(ids))


@torch.no_grad()
def predict_logits(task: EvaluationTask, cases: Sequence[Example]) -> Tensor:
    """The logits of each case; for a number, that number."""
    model = task.model
    net = task.model.net
    order = sorted(range(len(cases)), key=lambda i: -cases[i].num_tokens)
    blocks = [
        order[start : start + EVALUATION_BLOCK] for start in range(0, len(order), EVALUATION_BLOCK)
    ]
    found = []
    for some in progress_bar(blocks, len(cases), example_unit(task), len):
        batch = _batch(task, [cases[i] for i in some])
        found.append(
            batch.map_chunks(
                lambda part: net.compute_logits(
                    model.run_batch(part, NO_HOOKS), part.segment_ids
                ).double()
            ).cpu()
        )
    logits = torch.cat(found)[torch.tensor(order).argsort()]
    check_finite(logits)
    return logits


def _batch(task: EvaluationTask, some: list[Example]) -> Batch:
    model = task.model
    source = task.model.config.model.input
    given = [case.input for case in some]
    if not isinstance(source, c.Tokens):
        numbers = normalize_media(torch.stack(given), source)
        return Batch(
            numbers.to(next(model.net.parameters())), media_tokens=c.num_input_tokens(source)
        )
    return model.make_batch(given, max_length=max_classification_tokens(model.config))


# ---- classes: A model that tells classes: how often it is right, how far it can be trusted when it is sure, what it mixes up.

CALIBRATION_BINS = 10  # of confidence, all as wide
MAX_LISTED_CLASSES = 24  # classes that a sentence can name


def evaluate_classifier(task: EvaluationTask) -> Evaluation:
    head = task.model.config.model.head
    assert isinstance(head, c.ClassificationHead)
    names = task.model.config.inference.labels or tuple(map(str, range(head.num_labels)))
    cases, numbers = _numbered(task, read_examples(task), names)
    told = ClassPredictions(
        names, np.array(numbers), predict_logits(task, cases).log_softmax(dim=-1).numpy()
    )
    rows = zip(
        cases, told.predicted.tolist(), told.confidence.tolist(), told.losses.tolist(), strict=True
    )
    each = [
        case.to_dict(
            predicted=names[best], probability=sure, right=names[best] == case.label, loss=loss
        )
        for case, best, sure, loss in rows
    ]
    found = bootstrap_metrics(
        told.descriptions(), told.metrics, len(cases), example_unit(task), task.seed, ("accuracy",)
    )
    return Evaluation(found, each, told.views(np.ones(len(cases))))


def _numbered(
    task: EvaluationTask, cases: list[Example], names: Sequence[str]
) -> tuple[list[Example], list[int]]:
    """The cases whose class the model knows by its name, or by its number where no name is one."""
    known = {name: i for i, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        known |= {str(i): i for i in range(len(names))}
    classes = ", ".join(names) if len(names) <= MAX_LISTED_CLASSES else f"its {len(names)} classes"
    kept = []
    for case in cases:
        if (number := known.get(str(case.label))) is None:
            task.report.skip(
                f"{case.location} ({case.label!r:.40})",
                f"the model knows no such label, only {classes}",
            )
        else:
            kept.append((case._replace(label=names[number]), number))
    task.require_examples(len(kept), "row with a class of the model's")
    return [case for case, _ in kept], [number for _, number in kept]


class ClassPredictions:
    """What is true of each case, what was told, and how surely."""

    def __init__(
        self, names: Sequence[str], true: NDArray[np.int64], log_probs: NDArray[np.float64]
    ) -> None:
        self.names = names
        self.predicted = log_probs.argmax(axis=1)
        self.confidence = np.exp(log_probs.max(axis=1))
        self.losses = -log_probs[np.arange(len(true)), true]
        self.correct = (self.predicted == true).astype(np.float64)
        self._cell = true * len(names) + self.predicted

    def confusion_matrix(self, counts: SampleWeights) -> formulas.FloatArray:
        """How often each class, down, was taken for each, across."""
        return formulas.weighted_bincount(self._cell, counts, len(self.names) ** 2).reshape(
            len(self.names), -1
        )

    def descriptions(self) -> dict[str, str]:
        two = len(self.names) == 2
        return {
            "accuracy": "share of answers that are right",
            **({"f1": f"2 TP / (2 TP + FP + FN) of {self.names[1]}"} if two else {}),
            "macro f1": "mean over classes of 2 TP / (2 TP + FP + FN)",
            "matthews": "correlation of true and predicted classes",
            "calibration error": f"mean distance of confidence and accuracy in {CALIBRATION_BINS} equal bins (ECE)",
            "loss": "−log p of the true class, in nats",
        }

    def metrics(self, counts: SampleWeights) -> list[float]:
        """In the order of `how`."""
        table = self.confusion_matrix(counts)
        f1 = formulas.f1_scores(table)
        return [
            formulas.accuracy(table),
            *([float(f1[1])] if len(f1) == 2 else []),
            float(np.nanmean(f1)),
            formulas.matthews_correlation(table),
            formulas.expected_calibration_error(
                self.confidence, self.correct, counts, CALIBRATION_BINS
            ),
            float(counts @ self.losses / counts.sum()),
        ]

    def views(self, counts: SampleWeights) -> dict[str, View]:
        table = self.confusion_matrix(counts)
        return {
            "confusion": _confusion(table, self.names),
            "classes": _by_class(table, self.names),
            "reliability": _reliability(self.confidence, self.correct, counts),
        }


def _confusion(table: formulas.FloatArray, names: Sequence[str]) -> View:
    axes = Axis.from_labels("true", names), Axis.from_labels("predicted", names)
    return View(
        torch.from_numpy(table),
        axes,
        "What is taken for what",
        "rows",
        note="true classes down, predicted across",
    )


def _by_class(table: formulas.FloatArray, names: Sequence[str]) -> View:
    columns = {
        "share": table.sum(axis=1) / table.sum(),
        "precision": formulas.precision(table),
        "recall": formulas.recall(table),
        "f1": formulas.f1_scores(table),
    }
    axes = Axis.from_labels("class", names), Axis.from_labels("of the class", tuple(columns))
    values = torch.from_numpy(np.stack([*columns.values()], axis=1))
    return View(
        values,
        axes,
        "Each class",
        "value",
        vmax=1.0,
        note="precision: of what was predicted; recall: of what is true",
    )


def _reliability(
    sure: formulas.FloatArray, right: formulas.FloatArray, counts: SampleWeights
) -> View:
    n, confidence, accuracy = formulas.reliability_bins(sure, right, counts, CALIBRATION_BINS)
    bins = [
        f"{i / CALIBRATION_BINS:.1f}–{(i + 1) / CALIBRATION_BINS:.1f}"
        for i in range(CALIBRATION_BINS)
    ]
    values = torch.from_numpy(np.stack([n / n.sum(), confidence, accuracy], axis=1))
    axes = (
        Axis.from_labels("confidence", bins),
        Axis.from_labels("of the bin", ("share of answers", "confidence", "accuracy")),
    )
    note = "where confidence is more than accuracy, the model is surer than it should be"
    return View(values, axes, "How far confidence can be trusted", "value", vmax=1.0, note=note)


# ---- numbers: A model that tells a number of a text: how it goes along with the true one.

REGRESSION_METRICS = {
    "pearson": "correlation of true and predicted numbers",
    "spearman": "correlation of their ranks",
    "error": "root of the mean squared difference",
}


def evaluate_regression(task: EvaluationTask) -> Evaluation:
    cases = read_examples(task)
    true = np.array([case.label for case in cases], np.float64)
    told = predict_logits(task, cases)[:, 0].numpy()

    def statistics(counts: SampleWeights) -> Sequence[float]:
        error = math.sqrt(counts @ (told - true) ** 2 / counts.sum())
        return [pearson(told, true, counts), spearman(told, true, counts), error]

    each = [
        case.to_dict(predicted=number) for case, number in zip(cases, told.tolist(), strict=True)
    ]
    return Evaluation(
        bootstrap_metrics(
            REGRESSION_METRICS, statistics, len(cases), example_unit(task), task.seed
        ),
        each,
    )
