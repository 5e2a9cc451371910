"""How good a model is on data: its head decides what is measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead import config as c
from clearhead.data.packed import Report
from clearhead.errors import ClearheadError, check_kind, check_whole, nearest
from clearhead.evaluate.classes import tell_classes
from clearhead.evaluate.figures import Evaluation
from clearhead.evaluate.masked import find_hidden
from clearhead.evaluate.numbers import tell_numbers
from clearhead.evaluate.task import Task
from clearhead.evaluate.texts import surprise
from clearhead.evaluate.translations import compare_translations
from clearhead.lens.given import check_model

if TYPE_CHECKING:
    from clearhead.api import Model

COLUMNS = ("field", "second", "label", "sides", "broken")


def evaluate(
    model: "Model",
    data: str | Path | Sequence[str | Path],
    *,
    stride: int = 0,
    beam: int = 5,
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
    check_kind(data, str | Path | Sequence, "the name of a file, or a list of them,")
    paths = tuple(map(str, [data] if isinstance(data, str | Path) else data))
    if not paths:
        raise ClearheadError("there is nothing to evaluate on; give a file.")
    for name in columns:
        if name not in COLUMNS:
            raise ClearheadError(f"{name} is not an option of an evaluation; {nearest(name, COLUMNS)}")
        if name not in (taken := (*_columns(model.config.model), "broken")):
            takes = ", ".join(f"data.{each}" for each in taken)
            raise ClearheadError(f"data.{name} has no part in evaluating this model, which takes {takes}.")
    known = {"broken": "refuse", **columns}
    read = model.config.change(**{f"data.{name}": value for name, value in known.items()}).data
    _check_options(model, stride, beam, seed)
    model.net.eval()
    report = Report(read.broken)
    found = _measured(Task(model, paths, read, report, stride, beam, seed))
    left_out = [str(report)] if report.skipped else []
    return replace(found, notes=[*report.told, *left_out], data=paths)


def _columns(m: c.ModelConfig) -> tuple[str, ...]:
    """Which of them there are in what a model is evaluated on."""
    match m:
        case c.ModelConfig(shape=c.EncoderDecoder()):
            return ("sides",)
        case c.ModelConfig(head=c.Language() | c.MaskedWord()):
            return ("field",)
        case c.ModelConfig(input=c.Tokens()):
            return "field", "second", "label"
    return ("label",)


def _measured(task: Task) -> Evaluation:
    match task.model.config.model:
        case c.ModelConfig(shape=c.EncoderDecoder()):
            return compare_translations(task)
        case c.ModelConfig(head=c.Language()):
            return surprise(task)
        case c.ModelConfig(head=c.MaskedWord()):
            return find_hidden(task)
        case c.ModelConfig(head=c.Classes()):
            return tell_classes(task)
        case c.ModelConfig(head=c.Number()):
            return tell_numbers(task)
    raise ClearheadError("this model has no head, so nothing that it answers can be right or wrong.")


def _check_options(model: "Model", stride: int, beam: int, seed: int) -> None:
    m = model.config.model
    if stride and (not isinstance(m.head, c.Language) or isinstance(m.shape, c.EncoderDecoder)):
        raise ClearheadError("stride is for language models, which read long texts in windows.")
    if type(stride) is not int or not 0 <= stride <= m.context:
        raise ClearheadError(f"stride = {stride!r} must be a whole number from 0 to the context of {m.context}.")
    check_whole("beam", beam, 1)
    check_whole("seed", seed)
