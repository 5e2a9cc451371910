"""--dotted.flags: any option of a configuration, on the command line."""

import typer

from clearhead.errors import ClearheadError

MODEL = typer.Argument(
    help="A clearhead or Hugging Face folder, a .gguf file, a name that was fetched, or owner/name on the hub.",
    show_default=False,
)

DOTTED = {"allow_extra_args": True, "ignore_unknown_options": True}  # for the commands that take them


def dotted(words: list[str]) -> dict[str, object]:
    """{"model.position": "rotary"} of `--model.position=rotary` or `--model.position rotary`; several values follow on.

    `--data.train a.en a.de` is a list of two.
    """
    found: dict[str, object] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            dotted_form = f"--model.{key.strip('-')}={value or '…'}"
            raise ClearheadError(f"{word!r} is not an option; an option of the model is written {dotted_form}.")
        values = [value] if equals else []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if not values:
            raise ClearheadError(f"{word} needs a value.")
        found[key] = values if len(values) > 1 else values[0]
    return found
