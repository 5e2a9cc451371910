"""What is varied: options with several values each, and every combination of them as a configuration with a name."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.train.begin import changed
from clearhead.train.lessons import check_length

Vary = Mapping[str, str | Sequence[object]]  # an option, and its values as a list or as text with commas
OPEN, CLOSE = "[{", "]}"


@dataclass(frozen=True)
class Variant:
    """One combination of values, as a configuration."""

    name: str
    config: Config


def written(vary: Vary) -> tuple[str, ...]:
    """["model.position=none,rotary"]: the same as text, which `variants` reads."""
    return tuple(
        f"{option.replace('__', '.')}={values if isinstance(values, str) else ','.join(map(_text, values))}"
        for option, values in vary.items()
    )


def variants(base: Config, vary: Sequence[str]) -> list[Variant]:
    """All combinations, the first option changing slowest; each is checked as if it were to be trained."""
    grid = dict(_option(text) for text in vary)
    if len(grid) < len(vary):
        raise ClearheadError(f"--vary {_twice([text.partition('=')[0] for text in vary])} is given twice.")
    short, found = _short(list(grid)), list[Variant]()
    called = {option: dict(zip(values, map(_plain, _apart(values)), strict=True)) for option, values in grid.items()}
    for values in itertools.product(*grid.values()):
        pairs = dict(zip(grid, values, strict=True))
        name = ",".join(f"{short[option]}={called[option][value]}" for option, value in pairs.items()) or "base"
        try:
            found.append(Variant(name, changed(base, pairs)))
            check_length(found[-1].config)
        except ClearheadError as error:
            raise ClearheadError(f"{name}: {error}" if len(grid) > 1 else str(error)) from None
    for kind, each in (("called", [v.name for v in found]), ("the same configuration,", [v.config for v in found])):
        if twice := _twice(each):
            name = next(v.name for v in found if twice in (v.name, v.config))
            raise ClearheadError(f"two variants are {kind} {name}; every one of them must be another.")
    return found


def _option(text: str) -> tuple[str, list[str]]:
    option, _, values = text.partition("=")
    if not values:
        raise ClearheadError(f"--vary {text} names no values; write them as in model.position=learned,rotary.")
    if option in ("train.seed", "seed"):
        raise ClearheadError("seeds are not varied like options, for runs are paired by them; use --seeds.")
    return option, list(_split(values))


def _split(text: str) -> Iterator[str]:
    """At commas, but not inside of quotes, lists and tables."""
    depth, quote, start = 0, "", 0
    for i, letter in enumerate(text):
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
        else:
            depth += (letter in OPEN) - (letter in CLOSE)
    yield text[start:].strip()


def _text(value: object, inside: bool = False) -> str:
    """A value as TOML has it; a text that needs no quotes stays as it is."""
    match value:
        case str():
            return json.dumps(value) if inside or re.search(r"[,\[\]{}\"']", value) else value
        case Mapping():
            return "{" + ", ".join(f"{name} = {_text(item, True)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_text(item, True) for item in value) + "]"
        case _:
            return json.dumps(value)


def _short(options: list[str]) -> dict[str, str]:
    """The end of each option's name that no other has: heads for model.attention.heads."""
    ends = {option: [".".join(option.split(".")[-n:]) for n in range(1, option.count(".") + 2)] for option in options}
    return {
        option: next(
            end for end in ends[option] if sum(end in others for others in ends.values()) == 1 or end == option
        )
        for option in options
    }


def _apart(values: list[str]) -> list[str]:
    """Of paths only the parts in which they differ: learned and rotary of runs/learned/best and runs/rotary/best."""
    parts = [value.split("/") for value in values]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1 < len(parts):
            parts = [part[1:] if end == 0 else part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def _plain(value: str) -> str:
    """A value as part of the name of a folder."""
    return re.sub(r"[^\w.,=+-]+", "-", re.sub(r"[\s\"']|^{kind *= *", "", value)).strip("-") or "empty"


def _twice(found: Sequence[Any]) -> Any:
    return next((each for i, each in enumerate(found) if each in found[:i]), None)
