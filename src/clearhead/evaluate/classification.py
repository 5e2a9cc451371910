"""Evaluate classifiers and regression models on labeled texts, images and recordings."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch
from clearhead.data.media_dataset import normalize_media
from clearhead.errors import ClearheadError
from clearhead.evaluate.evaluate import EvaluationTask
from clearhead.evaluate.metrics import (
    FloatArray,
    SampleWeights,
    accuracy,
    expected_calibration_error,
    f1_scores,
    matthews_correlation,
    pearson,
    precision,
    recall,
    reliability_bins,
    spearman,
    weighted_bincount,
)
from clearhead.evaluate.results import Evaluation, bootstrap_metrics
from clearhead.generate.tasks import check_finite, max_classification_tokens
from clearhead.hooks import NO_HOOKS
from clearhead.lens.view import View, label_axes
from clearhead.progress_bar import progress_bar
from clearhead.train.training_data import read_labeled_rows, read_media

PROGRESS_BLOCK = 256  # examples between updates of the progress bar
CALIBRATION_BINS = 10
MAX_LISTED_CLASSES = 24  # in an error message
REGRESSION_METRICS = {
    "pearson": "correlation of labels and predictions",
    "spearman": "rank correlation of labels and predictions",
    "rmse": "root mean squared error",
}


# --- examples
class Example(NamedTuple):
    """A labeled text, pair of texts, image or recording."""

    location: str
    input: Any  # a text, a pair of texts, or the contents of a media file
    label: str | float
    num_tokens: int = 0  # of a text

    def to_dict(self, **predictions: object) -> dict[str, Any]:
        """The example and its predictions as JSON values, without the contents of media files."""
        text = {} if isinstance(self.input, Tensor) else {"input": self.input}
        return {"location": self.location, **text, "label": self.label, **predictions}


def example_unit(task: EvaluationTask) -> str:
    """What the examples are called: rows, images or recordings."""
    units = {"tokens": "rows", "images": "images"}
    return units.get(task.model.config.model.input.kind, "recordings")


def read_examples(task: EvaluationTask) -> list[Example]:
    """Read the labeled examples of the files."""
    model_input = task.model.config.model.input
    if isinstance(model_input, c.Tokens):
        examples = list(_read_texts(task))
    else:
        media = read_media(task.data, task.report, task.paths, model_input)
        examples = [
            Example(location, data, label)
            for location, data, label in zip(media.locations, media.data, media.labels, strict=True)
        ]
    task.require_examples(len(examples), "row with a label")
    return examples


def _read_texts(task: EvaluationTask) -> Iterator[Example]:
    model = task.model
    report = task.report
    max_tokens = max_classification_tokens(model.config)
    is_regression = isinstance(model.config.model.head, c.RegressionHead)
    for row in read_labeled_rows(task.data, report, task.paths, is_regression):
        text = row.text if row.text_pair is None else (row.text, row.text_pair)
        try:
            (ids,) = model.encode_texts([text], allow_overflow=True)
        except ClearheadError as error:
            report.skip(row.location, str(error).removesuffix("."))
            continue
        if len(ids) > max_tokens:
            report.record(row.location, f"a text was truncated to {max_tokens} tokens")
        yield Example(row.location, text, row.label, len(ids))


@torch.no_grad()
def predict_logits(task: EvaluationTask, examples: Sequence[Example]) -> Tensor:
    """The logits of each example, in fp64."""
    model = task.model

    def compute_logits(chunk: Batch) -> Tensor:
        hidden = model.run_batch(chunk, NO_HOOKS)
        return model.net.compute_logits(hidden, chunk.segment_ids).double()

    longest_first = sorted(range(len(examples)), key=lambda i: -examples[i].num_tokens)
    blocks = [
        longest_first[start : start + PROGRESS_BLOCK]
        for start in range(0, len(examples), PROGRESS_BLOCK)
    ]
    logits = []
    for indices in progress_bar(blocks, len(examples), example_unit(task), len):
        batch = _make_batch(task, [examples[i] for i in indices])
        logits.append(batch.map_chunks(compute_logits).cpu())
    in_order = torch.cat(logits)[torch.tensor(longest_first).argsort()]
    check_finite(in_order)
    return in_order


def _make_batch(task: EvaluationTask, examples: list[Example]) -> Batch:
    model = task.model
    model_input = model.config.model.input
    inputs = [example.input for example in examples]
    if isinstance(model_input, c.Tokens):
        return model.make_batch(inputs, max_length=max_classification_tokens(model.config))
    values = normalize_media(torch.stack(inputs), model_input)
    return Batch(
        values.to(next(model.net.parameters())), media_tokens=c.num_input_tokens(model_input)
    )


# --- classification
def evaluate_classifier(task: EvaluationTask) -> Evaluation:
    """Accuracy, F1, Matthews correlation, calibration error and loss, with a confusion matrix."""
    head = task.model.config.model.head
    assert isinstance(head, c.ClassificationHead)
    names = task.model.config.inference.labels or tuple(map(str, range(head.num_labels)))
    examples, labels = _match_labels(task, read_examples(task), names)
    logprobs = predict_logits(task, examples).log_softmax(dim=-1).numpy()
    predictions = ClassPredictions(names, np.array(labels), logprobs)
    results = []
    for i, example in enumerate(examples):
        predicted = names[predictions.predicted[i]]
        results.append(
            example.to_dict(
                predicted=predicted,
                probability=float(predictions.confidence[i]),
                correct=predicted == example.label,
                loss=float(predictions.losses[i]),
            )
        )
    metrics = bootstrap_metrics(
        predictions.descriptions(),
        predictions.metrics,
        len(examples),
        example_unit(task),
        task.seed,
        ("accuracy",),
    )
    return Evaluation(metrics, results, predictions.views(np.ones(len(examples))))


def _match_labels(
    task: EvaluationTask, examples: list[Example], names: Sequence[str]
) -> tuple[list[Example], list[int]]:
    """The examples whose label is a class name or, if no name is a number, a class index."""
    classes = {name: i for i, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        classes |= {str(i): i for i in range(len(names))}
    listed = ", ".join(names) if len(names) <= MAX_LISTED_CLASSES else f"{len(names)} labels"
    matched = []
    labels = []
    for example in examples:
        index = classes.get(str(example.label))
        if index is None:
            location = f"{example.location} ({example.label!r:.40})"
            task.report.skip(location, f"the label is unknown; the model has {listed}")
        else:
            matched.append(example._replace(label=names[index]))
            labels.append(index)
    task.require_examples(len(matched), "row with a label of the model")
    return matched, labels


class ClassPredictions:
    """True and predicted classes with confidences, and the metrics of any weighting of them."""

    def __init__(
        self, names: Sequence[str], labels: NDArray[np.int64], logprobs: NDArray[np.float64]
    ) -> None:
        self.names = names
        self.predicted = logprobs.argmax(axis=1)
        self.confidence = np.exp(logprobs.max(axis=1))
        self.losses = -logprobs[np.arange(len(labels)), labels]
        self.correct = (self.predicted == labels).astype(np.float64)
        self._cell = labels * len(names) + self.predicted

    def confusion_matrix(self, weights: SampleWeights) -> FloatArray:
        """Counts of true classes (rows) × predicted classes (columns)."""
        n = len(self.names)
        return weighted_bincount(self._cell, weights, n**2).reshape(n, n)

    def descriptions(self) -> dict[str, str]:
        """The names of the metrics and their formulas."""
        is_binary = len(self.names) == 2
        f1 = {"f1": f"2 TP / (2 TP + FP + FN) of {self.names[1]}"} if is_binary else {}
        return {
            "accuracy": "fraction of correct predictions",
            **f1,
            "macro_f1": "mean over classes of 2 TP / (2 TP + FP + FN)",
            "matthews_correlation": "correlation of true and predicted classes",
            "calibration_error": "mean difference of confidence and accuracy in "
            f"{CALIBRATION_BINS} bins (ECE)",
            "loss": "−log p of the true class, in nats",
        }

    def metrics(self, weights: SampleWeights) -> list[float]:
        """The values, in the order of `descriptions`."""
        matrix = self.confusion_matrix(weights)
        f1 = f1_scores(matrix)
        return [
            accuracy(matrix),
            *([float(f1[1])] if len(f1) == 2 else []),
            float(np.nanmean(f1)),
            matthews_correlation(matrix),
            expected_calibration_error(self.confidence, self.correct, weights, CALIBRATION_BINS),
            float(weights @ self.losses / weights.sum()),
        ]

    def views(self, weights: SampleWeights) -> dict[str, View]:
        """The confusion matrix, metrics per class, and a reliability diagram."""
        matrix = self.confusion_matrix(weights)
        return {
            "confusion_matrix": _confusion_view(matrix, self.names),
            "per_class": _per_class_view(matrix, self.names),
            "reliability": _reliability_view(self.confidence, self.correct, weights),
        }


def _confusion_view(matrix: FloatArray, names: Sequence[str]) -> View:
    axes = label_axes({"true": names, "predicted": names})
    return View(
        torch.from_numpy(matrix),
        axes,
        "Confusion matrix",
        "rows",
        note="rows: true classes, columns: predicted classes",
    )


def _per_class_view(matrix: FloatArray, names: Sequence[str]) -> View:
    columns = {
        "fraction": matrix.sum(axis=1) / matrix.sum(),
        "precision": precision(matrix),
        "recall": recall(matrix),
        "f1": f1_scores(matrix),
    }
    axes = label_axes({"class": names, "metric": tuple(columns)})
    values = torch.from_numpy(np.stack([*columns.values()], axis=1))
    return View(values, axes, "Metrics per class", "value", vmax=1.0)


def _reliability_view(confidence: FloatArray, correct: FloatArray, weights: SampleWeights) -> View:
    n, mean_confidence, bin_accuracy = reliability_bins(
        confidence, correct, weights, CALIBRATION_BINS
    )
    bins = [
        f"{i / CALIBRATION_BINS:.1f}–{(i + 1) / CALIBRATION_BINS:.1f}"
        for i in range(CALIBRATION_BINS)
    ]
    columns = ("fraction", "confidence", "accuracy")
    values = torch.from_numpy(np.stack([n / n.sum(), mean_confidence, bin_accuracy], axis=1))
    axes = label_axes({"confidence": bins, "of the bin": columns})
    note = "confidence above accuracy means that the model is overconfident"
    return View(values, axes, "Reliability diagram", "value", vmax=1.0, note=note)


# --- regression
def evaluate_regression(task: EvaluationTask) -> Evaluation:
    """Pearson and Spearman correlation, and root mean squared error."""
    examples = read_examples(task)
    labels = np.array([example.label for example in examples], np.float64)
    predicted = predict_logits(task, examples)[:, 0].numpy()

    def statistics(weights: SampleWeights) -> Sequence[float]:
        rmse = math.sqrt(weights @ (predicted - labels) ** 2 / weights.sum())
        return [pearson(predicted, labels, weights), spearman(predicted, labels, weights), rmse]

    results = [
        example.to_dict(predicted=value)
        for example, value in zip(examples, predicted.tolist(), strict=True)
    ]
    metrics = bootstrap_metrics(
        REGRESSION_METRICS, statistics, len(examples), example_unit(task), task.seed
    )
    return Evaluation(metrics, results)
