"""Pieces of text on a terminal, in turn of two colours, and what there is to say of a tokenizer."""

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from tokenizers import decoders, models

from clearhead.tokenizers.tokenizer import BPEMerges, Tokenizer, to_printable

TOKEN_STYLES = ("black on bright_cyan", "black on bright_yellow")
MAX_SHOWN = 12  # of which more are only counted


def print_tokens(console: Console, tokenizer: Tokenizer, text: str) -> None:
    """A text in its pieces, their ids, and each different piece with the merges that made it."""
    ids = tokenizer.encode(text)
    pieces = tokenizer.to_str_tokens(ids)
    size = len(text.encode())
    console.print(
        _in_turn(pieces, coloured=console.color_system is not None and not console.no_color)
    )
    console.print("\nids", *ids)
    console.print(
        f"{_count(len(ids), 'token')} for {_count(size, 'byte')}: {size / max(len(ids), 1):.2f} bytes a token"
    )
    if (back := tokenizer.decode(ids)) != text:
        console.print(f"back to text they are another one: {to_printable(back)}")
    merges = BPEMerges(tokenizer)
    rows = [("id", "times", "piece", "how it was merged" if len(merges) else "")]
    for (i, piece), times in Counter(zip(ids, pieces, strict=True)).items():
        rows.append((str(i), str(times), piece, _story(merges, i)))
    console.print()
    _table(console, rows)


def _in_turn(pieces: Sequence[str], coloured: bool) -> Text:
    line = Text()
    begun = False
    for number, piece in enumerate(pieces):
        line.append("│" if begun and not coloured else "")
        line.append(piece, TOKEN_STYLES[number % 2] if coloured else "")
        begun = not piece.endswith("↵")
        line.append("" if begun else "\n")
    line.rstrip()
    return line


def _story(merges: BPEMerges, i: int) -> str:
    """l o w → lo w → low."""
    return " → ".join(" ".join(step) for step in merges.merge_steps(i))


def _table(console: Console, rows: Sequence[tuple[str, str, str, str]]) -> None:
    widths = [max(cell_len(row[column]) for row in rows) for column in range(3)]
    for number, (i, times, piece, story) in enumerate(rows):
        line = f"{i:>{widths[0]}}  {times:>{widths[1]}}  {piece}{' ' * (widths[2] - cell_len(piece))}  {story}"
        console.print(line.rstrip(), style="dim" if not number else None)


def print_description(
    console: Console, tokenizer: Tokenizer, around: tuple[Sequence[int], Sequence[int]]
) -> None:
    """What kind of tokenizer it is, and what it has."""
    merges = BPEMerges(tokenizer)
    pieces = _plain(tokenizer)
    words = sorted(
        {piece for piece in pieces if _bare(piece).isalpha()},
        key=lambda piece: (-len(piece), piece),
    )
    begin, end = (tokenizer.to_str_tokens(ids) for ids in around)
    rows = {
        "tokenizer": summarize(tokenizer),
        "special": _some(
            [f"{to_printable(name)} {i}" for name, i in tokenizer.special_tokens.items()]
        ),
        "around a text": " ".join([*begin, "…", *end]) if begin or end else "nothing",
        "first merges": ", ".join(
            f"{left} {right} → {whole}" for left, right, whole in merges.first_merges(MAX_SHOWN)
        ),
        "longest words": "  ".join(words[:MAX_SHOWN]) if words and len(_bare(words[0])) > 1 else "",
        "pieces": " ".join(pieces) if isinstance(tokenizer.backend.model, models.WordLevel) else "",
    }
    for name, value in rows.items():
        if value:
            console.print(Text.assemble((f"{name:<15}", "dim"), value))


def summarize(tokenizer: Tokenizer) -> str:
    """byte-level BPE, 8,192 tokens, 7,935 merges, 1 special token."""
    merges = len(BPEMerges(tokenizer))
    special = len(tokenizer.special_tokens)
    counts = {"token": len(tokenizer), "merge": merges, "special token": special}
    return ", ".join(
        [_kind(tokenizer, merges), *(_count(n, what) for what, n in counts.items() if n)]
    )


def _kind(tokenizer: Tokenizer, merges: int) -> str:
    model = tokenizer.backend.model
    if isinstance(model, models.BPE) and isinstance(tokenizer.backend.decoder, decoders.ByteLevel):
        return "byte-level BPE" if merges else "bytes"
    if isinstance(model, models.WordLevel):
        return "characters" if max(map(len, _plain(tokenizer))) == 1 else "whole words"
    return type(model).__name__


def _plain(tokenizer: Tokenizer) -> list[str]:
    """The pieces that text may become, in the order of their ids."""
    ids = {*tokenizer.backend.get_vocab().values()} - {*tokenizer.special_tokens.values()}
    return tokenizer.to_str_tokens(sorted(ids))


def _bare(piece: str) -> str:
    return piece.removeprefix("##").strip("·")


def _some(things: Sequence[str]) -> str:
    return "  ".join(things[:MAX_SHOWN]) + (
        f" … and {len(things) - MAX_SHOWN:,} more" if len(things) > MAX_SHOWN else ""
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
