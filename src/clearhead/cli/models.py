"""`clearhead models`: the models that are here, and what is known about each."""

import dataclasses
import json
from collections.abc import Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.weights.bundled import Card

Name = typer.Argument(None, help="Print the card of this bundled model.", show_default=False)
AsJson = typer.Option(False, "--json", help="As JSON.")


def models(name: str | None = Name, as_json: bool = AsJson) -> None:
    """List the models that are here, or tell all of one.

    What it learned from, how good it is, where it fails, and how it was made.
    """
    from rich.console import Console

    from clearhead.weights import bundled, hub

    console = Console(highlight=False, markup=False)
    cards = {each: bundled.card(each) for each in ([name] if name else bundled.names())}
    fetched = {} if name else hub.fetched()
    if as_json:
        told = {each: dataclasses.asdict(card) for each, card in cards.items()}
        typer.echo(json.dumps(told[name] if name else {"bundled": told, "fetched": fetched}, ensure_ascii=False))
    elif name:
        show_card(console, name, cards[name])
    else:
        show_all(console, cards, fetched)


def show_all(console: "Console", cards: dict[str, "Card"], fetched: dict[str, int]) -> None:
    for name, card in cards.items():
        _heading(console, name, _size(card))
        _section(console, "", [card.says], card.tries[:1])
    for name, size in fetched.items():
        _heading(console, name, f"fetched, {size / 1e6:,.0f} MB")
    console.print("\nclearhead models NAME tells more of a bundled one; clearhead get NAME fetches others.")


def show_card(console: "Console", name: str, card: "Card") -> None:
    console.print(f"{name}: {card.title}", style="bold")
    console.print(card.says)
    _section(console, "Try", commands=card.tries)
    for number, f in enumerate(card.figures):
        value = f"{f.name} {f.value:g}, {f.interval[0]:g} to {f.interval[1]:g}, on {f.on}"
        _section(console, "" if number else "How good it is, with 95 % intervals", [value], [f.command])
    _section(console, "Where it fails", card.limits)
    _section(console, "What came, unselected", [f"{sample.given} → {sample.came}" for sample in card.samples])
    named = (f"{d.name}, {d.licence}{f', by {d.attribution}' if d.attribution else ''}: {d.source}" for d in card.data)
    _section(console, "Learned from", [*named])
    how = [card.date, card.made_on, *card.made_with, f"seeds {', '.join(map(str, card.seeds))}" if card.seeds else ""]
    _section(console, "Made", [", ".join(filter(None, how))], card.recipe)
    _section(console, "Size", [_size(card), f"sha256 of the weights: {card.sha256}"])


def _section(console: "Console", title: str, lines: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
    if title and any((*lines, *commands)):
        console.print(f"\n{title}", style="bold")
    for line in filter(None, lines):
        console.print(indent(fill(line, console.width - 2, break_long_words=False), "  "), soft_wrap=True)
    _commands(console, commands)


def _size(card: "Card") -> str:
    unit = "numbers" if card.kind == "vectors" else "parameters"
    return f"{card.kind}, {card.parameters / 1e6:.1f}M {unit}, {card.bytes / 1e6:.1f} MB"


def _heading(console: "Console", name: str, rest: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{name:<24}", "bold"), (rest, "dim")))


def _commands(console: "Console", commands: Sequence[str]) -> None:
    """To be copied: never broken into lines."""
    for command in commands:
        console.print(f"  {command}", style="cyan", soft_wrap=True)
