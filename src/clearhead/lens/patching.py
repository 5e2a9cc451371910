"""Activation patching: replace parts of a run by those of another run, one at a time."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from clearhead.lens.ablation import (
    EditEffects,
    LogitMetric,
    ablation,
    answer_row,
    edited_names,
    evaluate_metric,
)
from clearhead.lens.activation_cache import single_text
from clearhead.lens.argument_checks import answer_position, check_model
from clearhead.lens.edits import replace
from clearhead.lens.logit_target import AnswerToken, logit_target

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.argument_checks import ModelInputs


def patching(
    model: "Model",
    x: "TextInput | None",
    patch_from: "TextInput | ModelInputs",
    names: str | Sequence[str] = "blocks.*.resid_pre",
    *,
    split_by: str | Sequence[str] = "position",
    token: AnswerToken = None,
    against: AnswerToken = None,
    position: int | None = None,
    metric: LogitMetric | None = None,
    source: "TextInput | None" = None,
    images: "MediaInput | None" = None,
    audio: "MediaInput | None" = None,
) -> EditEffects:
    """Activation patching: replace a value in a run of `x` by that of another run, one at a time.

    Both runs need the same number of tokens. `patch_from` is a text, or {"x": …, "source": …} where
    the runs differ in more than the text. The metric is that of `ablation`; the default token is
    the top prediction of the run that is patched from.
    """
    check_model(model)
    paths = edited_names(model, names)
    if isinstance(patch_from, dict):
        cache = model.watch(**patch_from, names=[*paths, "logits"])
    else:
        cache = model.watch(
            patch_from, [*paths, "logits"], source=source, images=images, audio=audio
        )
    logits = single_text(cache["logits"])
    position = answer_position(model.config, model.make_batch(x, source, images, audio), position)
    target = logit_target(model, logits, token, against, position)
    effects = ablation(
        model,
        x,
        paths,
        split_by=split_by,
        make_edit=partial(replace, cache),
        token=target.answer,
        against=target.against,
        position=position,
        metric=metric,
        source=source,
        images=images,
        audio=audio,
    )
    patch_from_baseline = float(
        evaluate_metric(metric or target.select, answer_row(logits, target))
    )
    return dataclasses.replace(
        effects,
        patch_from_baseline=patch_from_baseline,
        note=f"{effects.note}; in the run patched from: {patch_from_baseline:.4f}",
    )
