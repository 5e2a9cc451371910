"""`clearhead models`: list the installed models and print their cards."""

import dataclasses
import json
from collections.abc import Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING

import typer

from clearhead.cli.common import echo, format_table
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.weights.model_cards import ModelCard


def models(
    name: str | None = typer.Argument(
        None,
        metavar="NAME",
        help="Print the card of this bundled model, or the parameters of any model.",
        show_default=False,
    ),
    parameters: bool = typer.Option(
        False, "--parameters", help="Count the parameters of any model part by part, with shapes."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the installed models, or print the card of one.

    A card contains training data, metrics, limitations, and how the model was trained. With
    --parameters: shapes are those of the row form, x W. In column form, W x, each is transposed:
    the embedding matrix W_E is d × |V|, with a column for each token.
    """
    from rich.console import Console

    from clearhead.weights import hub
    from clearhead.weights.bundled import bundled_card, bundled_models

    console = Console(highlight=False, markup=False)
    if parameters:
        if not name:
            raise ClearheadError("--parameters needs the NAME of a model.")
        print_parameters(name, as_json)
        return
    if name:
        card = bundled_card(name)
        if as_json:
            echo(json.dumps(dataclasses.asdict(card), ensure_ascii=False))
        else:
            print_card(console, name, card)
        return
    cards = {name: bundled_card(name) for name in bundled_models()}
    downloaded = hub.downloaded_models()
    if as_json:
        bundled = {name: dataclasses.asdict(card) for name, card in cards.items()}
        record = {"bundled": bundled, "downloaded": downloaded}
        echo(json.dumps(record, ensure_ascii=False))
    else:
        print_list(console, cards, downloaded)


def print_parameters(name: str, as_json: bool) -> None:
    """The parameters of a model part by part, and their sum."""
    from clearhead import lens
    from clearhead.api import load

    table = lens.parameters(load(name))
    if as_json:
        record = {"parameters": table.table(), "total": table.total}
        echo(json.dumps(record, ensure_ascii=False))
        return
    rows = [
        (
            f"{group.part} {group.symbol}",
            group.formula,
            " × ".join(map(str, group.shape)),
            str(group.layers),
            "tied" if group.is_tied else f"{group.count:,}",
        )
        for group in table.groups
    ]
    rows.append(("total", "", "", "", f"{table.total:,}"))
    echo(format_table(("part", "formula", "shape", "times", "parameters"), rows), nl=False)
    echo(table.note)


def print_list(
    console: "Console", cards: dict[str, "ModelCard"], downloaded: dict[str, int]
) -> None:
    word_vectors = {name: card for name, card in cards.items() if card.architecture == "vectors"}
    for name, card in cards.items():
        if name not in word_vectors:
            _print_summary(console, name, card)
    for name, size in downloaded.items():
        _print_heading(console, name, f"downloaded, {size / 1e6:,.0f} MB")
    if word_vectors:
        console.print("\nWord vectors, only for clearhead vectors", style="bold")
    for name, card in word_vectors.items():
        _print_summary(console, name, card)
    console.print(
        "\nclearhead models NAME prints the card of a bundled model; "
        "clearhead get NAME downloads others."
    )


def print_card(console: "Console", name: str, card: "ModelCard") -> None:
    console.print(f"{name}: {card.title}", style="bold")
    console.print(card.description)
    _print_section(console, "Usage", commands=card.usage)
    title = "Metrics, with 95% confidence intervals"
    for metric in card.metrics:
        low, high = metric.confidence_interval
        line = f"{metric.name} {metric.value:g} ({low:g} to {high:g}) on {metric.dataset}"
        _print_section(console, title, [line], [metric.command])
        title = ""
    _print_section(console, "Limitations", card.limitations)
    examples = [f"{example.input} → {example.output}" for example in card.examples]
    _print_section(console, "Examples, not selected", examples)
    datasets = [
        f"{data.name}, {data.license}{f', by {data.attribution}' if data.attribution else ''}: "
        f"{data.url}"
        for data in card.datasets
    ]
    _print_section(console, "Training data", datasets)
    details = [card.date, card.compute, *card.versions]
    if card.seeds:
        details.append(f"seeds {', '.join(map(str, card.seeds))}")
    _print_section(console, "Training", [", ".join(filter(None, details))], card.training_commands)
    _print_section(console, "Size", [_size(card), f"sha256 of the weights: {card.sha256}"])


def _print_section(
    console: "Console", title: str, lines: Sequence[str] = (), commands: Sequence[str] = ()
) -> None:
    if title and any((*lines, *commands)):
        console.print(f"\n{title}", style="bold")
    for line in filter(None, lines):
        wrapped = fill(line, console.width - 2, break_long_words=False)
        console.print(indent(wrapped, "  "), soft_wrap=True)
    for command in commands:  # not wrapped, so that they can be copied
        console.print(f"  {command}", style="cyan", soft_wrap=True)


def _print_summary(console: "Console", name: str, card: "ModelCard") -> None:
    _print_heading(console, name, _size(card))
    _print_section(console, "", [card.description], card.usage[:1])


def _size(card: "ModelCard") -> str:
    unit = "values" if card.architecture == "vectors" else "parameters"
    return (
        f"{card.architecture}, {card.num_parameters / 1e6:.1f}M {unit}, "
        f"{card.size_bytes / 1e6:.1f} MB"
    )


def _print_heading(console: "Console", name: str, details: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{name:<24}", "bold"), (details, "dim")))
