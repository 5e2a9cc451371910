"""`clearhead models`: the models that are here, and what is known about each."""

import dataclasses
import json
from collections.abc import Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.weights.model_cards import ModelCard

Name = typer.Argument(None, help="Print the card of this bundled model.", show_default=False)
AsJson = typer.Option(False, "--json", help="As JSON.")


def models(name: str | None = Name, as_json: bool = AsJson) -> None:
    """List the models that are here, or tell all of one.

    What it learned from, how good it is, where it fails, and how it was made.
    """
    from rich.console import Console

    from clearhead.weights import hub
    from clearhead.weights.model_cards import bundled_card, bundled_models

    console = Console(highlight=False, markup=False)
    cards = {each: bundled_card(each) for each in ([name] if name else bundled_models())}
    fetched = {} if name else hub.downloaded_models()
    if as_json:
        told = {each: dataclasses.asdict(card) for each, card in cards.items()}
        typer.echo(
            json.dumps(
                told[name] if name else {"bundled": told, "fetched": fetched}, ensure_ascii=False
            )
        )
    elif name:
        show_card(console, name, cards[name])
    else:
        show_all(console, cards, fetched)


def show_all(console: "Console", cards: dict[str, "ModelCard"], fetched: dict[str, int]) -> None:
    for name, card in cards.items():
        _heading(console, name, _size(card))
        _section(console, "", [card.description], card.usage[:1])
    for name, size in fetched.items():
        _heading(console, name, f"fetched, {size / 1e6:,.0f} MB")
    console.print(
        "\nclearhead models NAME tells more of a bundled one; clearhead get NAME fetches others."
    )


def show_card(console: "Console", name: str, card: "ModelCard") -> None:
    console.print(f"{name}: {card.title}", style="bold")
    console.print(card.description)
    _section(console, "Try", commands=card.usage)
    for number, f in enumerate(card.metrics):
        value = f"{f.name} {f.value:g}, {f.confidence_interval[0]:g} to {f.confidence_interval[1]:g}, on {f.dataset}"
        _section(
            console, "" if number else "How good it is, with 95 % intervals", [value], [f.command]
        )
    _section(console, "Where it fails", card.limitations)
    _section(
        console,
        "What came, unselected",
        [f"{sample.input} → {sample.output}" for sample in card.examples],
    )
    named = (
        f"{d.name}, {d.license}{f', by {d.attribution}' if d.attribution else ''}: {d.url}"
        for d in card.datasets
    )
    _section(console, "Learned from", [*named])
    how = [
        card.date,
        card.compute,
        *card.versions,
        f"seeds {', '.join(map(str, card.seeds))}" if card.seeds else "",
    ]
    _section(console, "Made", [", ".join(filter(None, how))], card.training_commands)
    _section(console, "Size", [_size(card), f"sha256 of the weights: {card.sha256}"])


def _section(
    console: "Console", title: str, lines: Sequence[str] = (), commands: Sequence[str] = ()
) -> None:
    if title and any((*lines, *commands)):
        console.print(f"\n{title}", style="bold")
    for line in filter(None, lines):
        console.print(
            indent(fill(line, console.width - 2, break_long_words=False), "  "), soft_wrap=True
        )
    _commands(console, commands)


def _size(card: "ModelCard") -> str:
    unit = "numbers" if card.architecture == "vectors" else "parameters"
    return f"{card.architecture}, {card.num_parameters / 1e6:.1f}M {unit}, {card.size_bytes / 1e6:.1f} MB"


def _heading(console: "Console", name: str, rest: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{name:<24}", "bold"), (rest, "dim")))


def _commands(console: "Console", commands: Sequence[str]) -> None:
    """To be copied: never broken into lines."""
    for command in commands:
        console.print(f"  {command}", style="cyan", soft_wrap=True)
