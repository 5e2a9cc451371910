"""Evaluate a model on data; its head decides which metrics are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clearhead import config as c
from clearhead.config.training import DataConfig
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError, check_int, check_type
from clearhead.evaluate.results import Evaluation
from clearhead.lens.argument_checks import check_model
from clearhead.model.transformer import eval_mode
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model


@dataclass(frozen=True)
class EvaluationTask:
    """A model, files, and how to evaluate the model on them."""

    model: "Model"
    paths: tuple[str, ...]
    data: DataConfig  # the columns to read
    report: DataReport
    stride: int
    num_beams: int
    seed: int

    @property
    def tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            reason = self.model.no_tokenizer_reason or "this model has no tokenizer."
            raise ClearheadError(f"text cannot be evaluated: {reason}")
        return self.model.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.model.net.parameters()).device

    def require_examples(self, count: int, kind: str) -> None:
        """Raise if there is nothing to evaluate on."""
        if not count:
            raise ClearheadError(f"found no {kind} in {', '.join(self.paths)}.")


def evaluate(
    model: "Model",
    data: str | Path | Sequence[str | Path],
    *,
    stride: int = 0,
    num_beams: int = 5,
    seed: int = 0,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    on_error: str = "fail",
) -> Evaluation:
    """Evaluate a model on one or more files of the kind it is trained on.

    A language model reads long texts in windows of its context length, `stride` tokens apart (0 =
    half the context). `seed` determines masked words and confidence intervals. Columns default to
    those used in training.

        result = clearhead.evaluate(model, "test.txt")
        result.value("bits_per_byte"), result["loss"].low, result["loss"].high
        print(result)
    """
    check_model(model)
    check_type(data, str | Path | Sequence, "a file name or a list of them")
    paths = tuple(map(str, [data] if isinstance(data, str | Path) else data))
    if not paths:
        raise ClearheadError("pass at least one file to evaluate on.")
    columns = {
        "text_column": text_column,
        "text_pair_column": text_pair_column,
        "label_column": label_column,
        "source_column": source_column,
        "target_column": target_column,
    }
    supported = _supported_columns(model.config.model)
    options: dict[str, object] = {"data.on_error": on_error}
    for name, value in columns.items():
        if value is None:
            continue
        if name not in supported:
            raise ClearheadError(
                f"{name} does not apply to this model; it uses {', '.join(supported)}."
            )
        options[f"data.{name}"] = value
    data_config = model.config.replace(**options).data
    _check_options(model, stride, num_beams, seed)
    report = DataReport(data_config.on_error)
    task = EvaluationTask(model, paths, data_config, report, stride, num_beams, seed)
    with eval_mode(model.net):
        result = _evaluate_head(task)
    skipped = [str(report)] if report.skipped else []
    return replace(result, notes=[*report.messages, *skipped], data=paths)


def _supported_columns(m: c.ModelConfig) -> tuple[str, ...]:
    match m:
        case c.ModelConfig(architecture=c.EncoderDecoder()):
            return ("source_column", "target_column")
        case c.ModelConfig(head=c.LMHead() | c.MLMHead()):
            return ("text_column",)
        case c.ModelConfig(input=c.Tokens()):
            return ("text_column", "text_pair_column", "label_column")
    return ("label_column",)


def _evaluate_head(task: EvaluationTask) -> Evaluation:
    # These modules import this one; sacrebleu is only loaded for translation.
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
    raise ClearheadError("a model without a head has no output to evaluate.")


def _check_options(model: "Model", stride: int, num_beams: int, seed: int) -> None:
    m = model.config.model
    is_language_model = isinstance(m.head, c.LMHead) and isinstance(m.architecture, c.Decoder)
    if stride and not is_language_model:
        raise ClearheadError("stride applies to decoder language models only.")
    check_int("stride", stride, 0, m.context_length)
    check_int("num_beams", num_beams, 1)
    check_int("seed", seed)
