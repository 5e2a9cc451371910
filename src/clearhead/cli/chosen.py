"""Tokens with their log-probabilities and what else was likely, as a table and as JSON; and where they looked."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clearhead.tokens.text import Tokenizer

if TYPE_CHECKING:
    from clearhead.generate.request import Chosen


def chosen_tree(tokenizer: Tokenizer | None, chosen: Sequence["Chosen"]) -> list[dict[str, Any]]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "piece": _piece(tokenizer, token), "logprob": logprob}

    return [one(c.token, c.logprob) | {"top": [one(*other) for other in c.top]} for c in chosen]


def token_table(tokenizer: Tokenizer | None, chosen: Sequence["Chosen"]) -> str:
    """Each token, its log-probability, and what else was likely there."""

    def others(c: "Chosen") -> str:
        return "  ".join(f"{_piece(tokenizer, token)} {value:.2f}" for token, value in c.top)

    rows = [(_piece(tokenizer, c.token), f"{c.logprob:.2f}", others(c)) for c in chosen]
    return table(("token", "log p", "likeliest"), rows)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of plain text below their names."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*names, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        made.add_row(*map(Text, row))
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(made)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _piece(tokenizer: Tokenizer | None, token: int) -> str:
    return tokenizer.pieces([token])[0] if tokenizer else str(token)
