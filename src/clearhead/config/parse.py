"""One strict reader and one writer for frozen dataclasses: TOML, JSON and --dotted.flags.

A union of dataclasses is a tagged value: its `kind` picks the class, and the kind's name alone is short for
its defaults (`position = "rotary"`). Unknown keys and values are errors that offer the nearest name.
"""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from clearhead.errors import ClearheadError, cannot_read, check_type, suggest

T = TypeVar("T")
ConfigDict = dict[str, Any]


def dataclass_from_dict(cls: type[T], value: object, path: str = "") -> T:
    """A `cls` out of plain nested values; `path` is where we are, for the error's sentence."""
    if not isinstance(value, Mapping):
        raise ClearheadError(f"{path or 'the configuration'} must be a table, not {value!r:.60}.")
    hints = typing.get_type_hints(cls)
    for key in value:
        if key not in hints:
            elsewhere = [
                f"did you mean {_join_path(path, found)!r}?"
                for found in _options_one_level_down(hints, str(key))
            ]
            raise ClearheadError(
                f"{_join_path(path, key)} is not an option; {(elsewhere or [suggest(str(key), hints)])[0]}"
            )
    return cls(
        **{key: parse_field(hints[key], item, _join_path(path, key)) for key, item in value.items()}
    )


def _options_one_level_down(hints: Mapping[str, Any], key: str) -> Iterator[str]:
    """Where options of that name stand one level further down."""
    for name, hint in hints.items():
        for cls in typing.get_args(hint) or (hint,):
            if dataclasses.is_dataclass(cls) and key in typing.get_type_hints(cls):
                yield f"{name}.{key}"


def parse_field(hint: Any, value: object, path: str) -> Any:
    """One value, held to its type."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return _parse_tagged(typing.get_args(hint), value, path)
    if origin is Literal:
        choices = typing.get_args(hint)
        if not isinstance(value, str) or value not in choices:
            raise ClearheadError(
                f"{path} = {value!r:.60} is not a choice; {suggest(str(value), choices)}"
            )
        return value
    if origin is tuple:
        if isinstance(value, str) and typing.get_args(hint)[0] is str:  # one text is a list of one
            value = [value]
        if not isinstance(value, list | tuple):
            raise ClearheadError(f"{path} must be a list, not {value!r:.60}.")
        return tuple(parse_field(typing.get_args(hint)[0], item, path) for item in value)
    if dataclasses.is_dataclass(hint):
        return dataclass_from_dict(typing.cast("type[Any]", hint), value, path)
    if hint in (int, float) and isinstance(value, int) and abs(value) >= 2**63:
        raise ClearheadError(f"{path} is too large a whole number; it must be less than 2^63.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and type(value) is int:  # a column may be a number
        return str(value)
    if type(value) is not hint:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ClearheadError(f"{path} must be {names[hint]}, not {value!r:.60}.")
    return value


def _parse_tagged(classes: tuple[type, ...], value: object, path: str) -> Any:
    by_kind = {typing.get_args(typing.get_type_hints(c)["kind"])[0]: c for c in classes}
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ClearheadError(f"{path} needs a kind; known: {', '.join(by_kind)}")
    if table["kind"] not in by_kind:
        raise ClearheadError(
            f"{path} = {table['kind']!r:.60} is not a kind; {suggest(str(table['kind']), by_kind)}"
        )
    return dataclass_from_dict(by_kind[table["kind"]], table, path)


def _join_path(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def dataclass_to_dict(value: Any) -> ConfigDict:
    """The plain nested values of a dataclass: what `read` takes, what JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def read_config_file(path: str | Path) -> ConfigDict:
    """The plain values in a .toml or .json file."""
    check_type(path, str | Path, "the name of a file")
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        loaded = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise cannot_read(path, error) from None
    except (ValueError, RecursionError) as error:  # text that is no UTF-8, too, is a ValueError
        raise ClearheadError(
            f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}."
        ) from None
    if not isinstance(loaded, dict):
        raise ClearheadError(f"{path} must hold a table of options.")
    return loaded


def apply_overrides(base: ConfigDict, changes: Mapping[str, object]) -> ConfigDict:
    """`base` with dotted keys replaced: {"model.position.kind": "rotary"}; text from flags is read as TOML.

    A new kind starts from its own defaults: the options of the old kind do not belong to it. An option that only one
    section below has may be written without that section: model.n_heads is model.attention.n_heads.
    """
    result: ConfigDict = json.loads(json.dumps(base))
    full = {dotted: _expand_short_path(base, dotted) for dotted in changes}
    for dotted, name in full.items():
        if name != dotted and name in changes:
            raise ClearheadError(
                f"{dotted} is short for {name}, which is given too; leave one out."
            )
    for dotted, value in sorted(
        ((full[dotted], value) for dotted, value in changes.items()), key=_outer_first
    ):
        *parents, last = dotted.split(".")
        table = result
        for depth, key in enumerate(parents):
            inner = table.get(key)
            if isinstance(inner, str):  # `position = "rotary"` is short for its table
                inner = table[key] = {"kind": inner}
            if (
                key not in table and "kind" in table
            ):  # an option of a kind that is new here; `read` knows if it has it
                inner = table[key] = {}
            if not isinstance(inner, dict):
                where = ".".join(parents[: depth + 1])
                why = (
                    "has no options below it."
                    if key in table
                    else f"is not an option; {suggest(key, table)}"
                )
                raise ClearheadError(f"{where} {why}")
            table = inner
        value = (
            [parse_flag_value(item) for item in value]
            if isinstance(value, list)
            else parse_flag_value(value)
        )
        old = table.get(last)
        if last == "kind" and table.get("kind") != value:
            table.clear()
        if isinstance(value, str) and isinstance(old, dict):
            table[last] = old if old.get("kind") == value else {"kind": value}
        else:
            table[last] = value
    return result


def _expand_short_path(base: ConfigDict, dotted: str) -> str:
    """With the section that was left out, where only one has the option."""
    *parents, last = dotted.split(".")
    table: Any = base
    for key in parents:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last in table:
        return dotted
    holders = [name for name, inner in table.items() if isinstance(inner, dict) and last in inner]
    return ".".join([*parents, *holders, last]) if len(holders) == 1 else dotted


def _outer_first(change: tuple[str, object]) -> tuple[int, bool]:
    """A kind before its options, whatever the order they were written in."""
    key = change[0]
    return key.removesuffix(".kind").count("."), not key.endswith(".kind")


def parse_flag_value(text: object) -> object:
    """What a flag's text means: a TOML value where it is one and nothing else (no date, no comment), else the text."""
    if not isinstance(text, str):
        return text
    try:
        found = tomllib.loads(f"x = [{text}]")[
            "x"
        ]  # in brackets, where a comment or a second line would not end
    except (ValueError, RecursionError):  # ValueError: no TOML, or a number of thousands of digits
        return text
    return (
        found[0]
        if len(found) == 1 and isinstance(found[0], bool | int | float | str | list | dict)
        else text
    )


def dataclass_to_toml(value: Any) -> str:
    """Commented TOML that reads back to the same value."""
    return "\n".join(_toml_lines(value, "")).strip() + "\n"


def _toml_lines(value: Any, path: str) -> Iterator[str]:
    fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
    plain = [
        (f"{f.name} = {_toml_value(v)}", f) for f, v in fields if not dataclasses.is_dataclass(v)
    ]
    if path:
        yield f"\n[{path}]"
    for line, f in plain:
        yield f"{line:<28} # {f.metadata['say']}"
    for f, v in fields:
        if dataclasses.is_dataclass(v):
            yield from _toml_lines(v, _join_path(path, f.name))


def _toml_value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    text = json.dumps(
        value, ensure_ascii=False
    )  # TOML writes strings, numbers and booleans as JSON does, except
    return text.replace("\x7f", "\\u007f")


def option(
    sentence: str, default: Any, ge: int = 1, lt: int | None = None, le: int | None = None
) -> Any:
    """A field with its default, the sentence that explains it wherever it is printed, and what its numbers must be."""
    return dataclasses.field(
        default=default, metadata={"say": sentence, "least": ge, "below": lt, "most": le}
    )


def kind(sentence: str, name: str) -> Any:
    """The tag of a variant."""
    return dataclasses.field(default=name, metadata=option(sentence, name).metadata, kw_only=True)
