"""What is asked of an evaluation: a model, data, and how."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clearhead import config as c
from clearhead.config.model import DataConfig
from clearhead.data.batch import DataReport
from clearhead.errors import ClearheadError, check_int, check_type, suggest
from clearhead.evaluate.metrics import Evaluation
from clearhead.lens.activations import check_model
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- task: What is asked of an evaluation: a model, data, and how.


@dataclass(frozen=True)
class EvaluationTask:
    model: "Model"
    paths: tuple[str, ...]
    data: DataConfig  # which columns are read
    report: DataReport
    stride: int
    num_beams: int
    seed: int

    @property
    def tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            why = (
                self.model.no_tokenizer_reason
                or "this model has no tokenizer, so it cannot read text."
            )
            raise ClearheadError(f"{why.removesuffix('.')}; there is nothing to be evaluated.")
        return self.model.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.model.net.parameters()).device

    def require_examples(self, found: int, what: str) -> None:
        if not found:
            raise ClearheadError(f"there is no {what} in {', '.join(self.paths)} to evaluate on.")


# ---- evaluation: How good a model is on data: its head decides what is measured.

COLUMN_OPTIONS = (
    "text_column",
    "text_pair_column",
    "label_column",
    "source_column",
    "target_column",
    "on_error",
)


def evaluate(
    model: "Model",
    data: str | Path | Sequence[str | Path],
    *,
    stride: int = 0,
    num_beams: int = 5,
    seed: int = 0,
    **columns: object,
) -> Evaluation:
    """The figures of a model on files of the kind that it is trained on.

    A language model reads long texts in windows as long as its context, each `stride` tokens after the one before
    (0 = half a context). Translations are searched with `beam`. What is hidden from a masked-word model, and the
    intervals, follow from `seed`. Columns are options of `data`: field, second, label, sides, broken; what is not
    given is as the model was trained with.
    """
    check_model(model)
    check_type(data, str | Path | Sequence, "the name of a file, or a list of them,")
    paths = tuple(map(str, [data] if isinstance(data, str | Path) else data))
    if not paths:
        raise ClearheadError("there is nothing to evaluate on; give a file.")
    for name in columns:
        if name not in COLUMN_OPTIONS:
            raise ClearheadError(
                f"{name} is not an option of an evaluation; {suggest(name, COLUMN_OPTIONS)}"
            )
        if name not in (taken := (*_columns(model.config.model), "on_error")):
            takes = ", ".join(f"data.{each}" for each in taken)
            raise ClearheadError(
                f"data.{name} has no part in evaluating this model, which takes {takes}."
            )
    known = {"on_error": "fail", **columns}
    read = model.config.replace(**{f"data.{name}": value for name, value in known.items()}).data
    _check_options(model, stride, num_beams, seed)
    model.net.eval()
    report = DataReport(read.on_error)
    found = _measured(EvaluationTask(model, paths, read, report, stride, num_beams, seed))
    left_out = [str(report)] if report.skipped else []
    return replace(found, notes=[*report.messages, *left_out], data=paths)


def _columns(m: c.ModelConfig) -> tuple[str, ...]:
    """Which of them there are in what a model is evaluated on."""
    match m:
        case c.ModelConfig(architecture=c.EncoderDecoder()):
            return ("source_column", "target_column")
        case c.ModelConfig(head=c.LMHead() | c.MLMHead()):
            return ("text_column",)
        case c.ModelConfig(input=c.Tokens()):
            return "text_column", "text_pair_column", "label_column"
    return ("label_column",)


def _measured(task: EvaluationTask) -> Evaluation:
    from clearhead.evaluate.classification import evaluate_classifier, evaluate_regression
    from clearhead.evaluate.language import evaluate_language_model, evaluate_masked_lm
    from clearhead.evaluate.translation import evaluate_translation

    match task.model.config.model:
        case c.ModelConfig(architecture=c.EncoderDecoder()):
            return evaluate_translation(task)
        case c.ModelConfig(head=c.LMHead()):
            return evaluate_language_model(task)
        case c.ModelConfig(head=c.MLMHead()):
            return evaluate_masked_lm(task)
        case c.ModelConfig(head=c.ClassificationHead()):
            return evaluate_classifier(task)
        case c.ModelConfig(head=c.RegressionHead()):
            return evaluate_regression(task)
    raise ClearheadError(
        "this model has no head, so nothing that it answers can be right or wrong."
    )


def _check_options(model: "Model", stride: int, beam: int, seed: int) -> None:
    m = model.config.model
    if stride and (
        not isinstance(m.head, c.LMHead) or isinstance(m.architecture, c.EncoderDecoder)
    ):
        raise ClearheadError("stride is for language models, which read long texts in windows.")
    if type(stride) is not int or not 0 <= stride <= m.context_length:
        raise ClearheadError(
            f"stride = {stride!r} must be a whole number from 0 to the context of {m.context_length}."
        )
    check_int("beam", beam, 1)
    check_int("seed", seed)
