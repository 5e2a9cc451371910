"""Declare the options of a configuration, with their help texts."""

import dataclasses
from typing import Any


def option(
    help_text: str, default: Any, ge: int = 1, lt: int | None = None, le: int | None = None
) -> Any:
    """A dataclass field with a default, a help text, and the bounds of its numbers."""
    metadata = {"help": help_text, "ge": ge, "lt": lt, "le": le}
    return dataclasses.field(default=default, metadata=metadata)


def kind(help_text: str, name: str) -> Any:
    """The tag of one class of a tagged union."""
    return dataclasses.field(default=name, metadata=option(help_text, name).metadata, kw_only=True)
