"""--dotted.flags: any option of a configuration, on the command line."""

from collections.abc import Iterator

import typer

from clearhead.errors import ClearheadError, nearest

MODEL = typer.Argument(
    help="A bundled or fetched name, a clearhead or Hugging Face folder, a .gguf file, or owner/name on the hub.",
    show_default=False,
)

DTYPE = typer.Option("", help="float32, bfloat16 …, or int8 on a CPU; else as the device likes it.", show_default=False)
ENGINE = typer.Option("", help="Let ctranslate2 or onnxruntime do the work, where installed.", show_default=False)

OVERFLOW = typer.Option(
    "refuse", help="refuse, or slide: where the context is full, its newer half is read anew, and it goes on."
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
            raise ClearheadError(f"{word!r} is not an option; {_in_full(key.strip('-'), value or '…')}")
        _check_section(key)
        values = [value] if equals else []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if not values:
            raise ClearheadError(f"{word} needs a value.")
        found[key] = values if len(values) > 1 else values[0]
    return found


def _check_section(key: str) -> None:
    """Refuses a key that begins with no section and, as attention.heads may, with no option of the model."""
    from clearhead.config import Config

    tree = Config().tree()
    first, _, rest = key.partition(".")
    known = [*tree, *tree["model"]]
    if first not in known:
        raise ClearheadError(f"--{key} is not an option; {nearest(key, [f'{name}.{rest}' for name in known])}")


def _in_full(name: str, value: str) -> str:
    """The end of a sentence: how the option of that name is written, whatever its section."""
    from clearhead.config import Config

    same = [path for path in _paths(Config().tree()) if path.endswith(f".{name}")]
    if same:
        return f"did you mean --{min(same, key=lambda path: path.count('.'))}={value}?"
    return "options are written with their section, as in --train.steps=100."


def _paths(tree: dict[str, object], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield before + name
        if isinstance(value, dict):
            yield from _paths(value, f"{before}{name}.")
