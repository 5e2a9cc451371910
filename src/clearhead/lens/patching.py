"""Activation patching: replace parts of a run by those of another run, one at a time."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError
from clearhead.lens.ablation import (
    EditEffects,
    LogitMetric,
    ablation,
    answer_row,
    edited_names,
    evaluate_metric,
)
from clearhead.lens.activation_cache import ActivationCache, single_text
from clearhead.lens.argument_checks import answer_position, check_model
from clearhead.lens.edits import replace
from clearhead.lens.hook_points import is_source_activation
from clearhead.lens.logit_target import AnswerToken, logit_target
from clearhead.lens.tokens import first_text_labels

if TYPE_CHECKING:
    from clearhead.api import MediaInput, Model, TextInput
    from clearhead.lens.argument_checks import ModelInputs

MAX_SHOWN_TOKENS = 12


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
    batch = model.make_batch(x, source, images, audio)
    _check_equal_lengths(model, paths, batch, cache)
    position = answer_position(model.config, batch, position)
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


def _check_equal_lengths(
    model: "Model", names: list[str], batch: Batch, cache: ActivationCache
) -> None:
    """Raise, with the tokens, if the runs differ in length where values are patched."""
    target = first_text_labels(batch.inputs, batch.segment_ids, model.tokenizers[0])
    source = first_text_labels(batch.source, batch.source_segment_ids, model.tokenizers[1])
    for name in names:
        is_source = is_source_activation(model.config.model, name)
        ours, others = (source, cache.source_tokens) if is_source else (target, cache.tokens)
        if len(ours) != len(others):
            raise ClearheadError(
                "both runs need the same number of tokens, got "
                f"{_show_tokens(ours)} and {_show_tokens(others)}."
            )


def _show_tokens(labels: list[str]) -> str:
    shown = " ".join([*labels[:MAX_SHOWN_TOKENS], *["…"] * (len(labels) > MAX_SHOWN_TOKENS)])
    return f"{len(labels)} ({shown})"
