"""--dotted.flags: any option of a configuration, on the command line."""

import typer

from clearhead.errors import ClearheadError

MODEL = typer.Argument(
    help="A clearhead or Hugging Face folder, a .gguf file, a name that was fetched, or owner/name on the hub.",
    show_default=False,
)

DOTTED = {"allow_extra_args": True, "ignore_unknown_options": True}  # for the commands that take them


def dotted(words: list[str]) -> dict[str, object]:
    """{"model.position": "rotary"} of `--model.position=rotary` or `--model.position rotary`."""
    found: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            dotted_form = f"--model.{key.strip('-')}={value or '…'}"
            raise ClearheadError(f"{word!r} is not an option; an option of the model is written {dotted_form}.")
        if not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ClearheadError(f"{word} needs a value.")
        found[key] = value
    return found
