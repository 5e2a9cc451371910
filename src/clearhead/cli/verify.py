"""`clearhead verify`: check the invariants of a Transformer on a model."""

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from clearhead.evaluate.invariants import InvariantResult


def verify(
    context: typer.Context,
    model: str = typer.Argument(
        metavar="MODEL",
        help="Any model, or the name of a preset (with random weights).",
        show_default=False,
    ),
    against: str = typer.Option(
        None,
        metavar="transformers",
        help="Instead compare logits, tokens and chat prompts of a Hugging Face folder with those"
        " of this library.",
        show_default=False,
    ),
) -> None:
    """Check the invariants of a Transformer on a model.

    For example, cached decoding must equal the full forward pass. Prints the largest difference for
    each, and exits with status 1 if one is too large. If the model has a card, as the bundled ones
    do, its weights must also have the sha256 of the card. Options such as --model.position=rotary
    change a preset.
    """
    from clearhead.api import load, new
    from clearhead.cli.common import echo, parse_config_flags
    from clearhead.config.presets import presets
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.against_transformers import compare_with_transformers
    from clearhead.evaluate.invariants import iter_invariants
    from clearhead.weights.load import resolve_model

    changes = parse_config_flags(context.args)
    is_preset = model in presets
    if changes and not is_preset:
        raise ClearheadError(f"{model} is a saved model; only presets can be changed.")
    if against not in (None, "transformers"):
        raise ClearheadError(f"--against must be transformers, got {against!r}.")
    subject = new(presets[model].replace(**changes)) if is_preset else load(model)
    echo(f"{model}: {subject!r}{' with random weights' if is_preset else ''}\n")
    passed = 0
    failed = 0
    skipped = 0
    results = compare_with_transformers(subject, model) if against else iter_invariants(subject)
    if not (is_preset or against):
        results = chain(_check_sha256(resolve_model(model)), results)
    for result in results:
        echo(str(result))
        if result.difference is None:
            skipped += 1
        elif result.passed:
            passed += 1
        else:
            failed += 1
    echo(f"\n{passed} passed, {failed} failed, {skipped} not applicable.")
    if failed:
        raise typer.Exit(1)


def _check_sha256(folder: Path) -> "Iterator[InvariantResult]":
    """Whether the weights are those that the card of the model describes, if it has one."""
    from clearhead.evaluate.invariants import InvariantResult
    from clearhead.weights.model_cards import weights_match_card

    is_equal = weights_match_card(folder)
    if is_equal is not None:
        note = "" if is_equal else "the weights are damaged or were trained further"
        yield InvariantResult(
            "weights have the sha256 of the card", 0.0 if is_equal else math.inf, 0.0, note
        )
