"""`clearhead softmax`: from typed logits to probabilities."""

import re
from pathlib import Path

import typer

from clearhead.cli.common import VIEW_OUTPUT_OPTION, show_or_save
from clearhead.errors import ClearheadError


def softmax(
    logits: str = typer.Argument(
        metavar="LOGITS",
        help='Numbers, with or without names: "6 -5 4" or "cat=6 dog=-5"; -inf is a masked one.',
        show_default=False,
    ),
    temperature: list[float] = typer.Option(
        [1.0], help="Divides the logits; 0 is greedy decoding. May be repeated."
    ),
    output: Path = VIEW_OUTPUT_OPTION,
) -> None:
    """Turn logits into probabilities, step by step.

    probability = e^(logit / T) / sum of e^(logit / T). A low T favors the largest logit, a high T
    evens out the probabilities.
    """
    from clearhead import lens
    from clearhead.lens.view import check_output_path

    if output is not None:
        check_output_path(output)
    show_or_save(lens.softmax(_parse_logits(logits), temperature), output)


def _parse_logits(text: str) -> dict[str, float]:
    """The logits by name; those without a name have their index."""
    if (comma := re.search(r"\d,\d", text)) and re.search(r"[\s;]", text.strip()):
        raise ClearheadError(
            f"the comma in {comma[0]!r} may be a decimal one; write 1.5, or a space after it."
        )
    logits: dict[str, float] = {}
    for i, part in enumerate(filter(None, re.split(r"[\s,;]+", text))):
        name, equals, number = part.rpartition("=")
        name = name if equals else str(i)
        if name in logits:
            raise ClearheadError(f"there are two logits named {name!r}.")
        try:
            logits[name] = float(number.replace("−", "-"))
        except ValueError:
            raise ClearheadError(
                f'{part!r} is not a logit; write numbers, as in "6 -5 4" or "cat=6 dog=-5".'
            ) from None
    return logits
