"""Configurations as dictionaries and TOML, and the differences of two."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from clearhead.config.parse import ConfigDict, join_path


def dataclass_to_dict(value: Any) -> ConfigDict:
    """Nested dictionaries that JSON can store and `dataclass_from_dict` reads."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def dataclass_to_toml(value: Any) -> str:
    """TOML with a comment per option; it reads back to the same value."""
    return "\n".join(_toml_lines(value, "")).strip() + "\n"


def _toml_lines(value: Any, path: str) -> Iterator[str]:
    kind_first = sorted(dataclasses.fields(value), key=lambda field: field.name != "kind")
    fields = [(field, getattr(value, field.name)) for field in kind_first]
    if path:
        yield f"\n[{path}]"
    for field, item in fields:
        if not dataclasses.is_dataclass(item):
            line = f"{field.name} = {format_toml_value(item)}"
            yield f"{line:<28} # {field.metadata['help']}"
    for field, item in fields:
        if dataclasses.is_dataclass(item):
            yield from _toml_lines(item, join_path(path, field.name))


def format_toml_value(value: object) -> str:
    """Format a value as TOML on one line."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    if isinstance(value, Mapping):
        items = (f"{name} = {format_toml_value(item)}" for name, item in value.items())
        return "{" + ", ".join(items) + "}"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # the only character that JSON but not TOML allows as is


def diff_trees(a: ConfigDict, b: ConfigDict, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Options that differ, as (path, value in a, value in b); a missing option is None."""
    if a.get("kind") != b.get("kind"):
        yield path.rstrip("."), a.get("kind"), b.get("kind")
        return
    for key in a | b:
        left = a.get(key)
        right = b.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from diff_trees(left, right, f"{path}{key}.")
        elif left != right:
            yield path + key, left, right
