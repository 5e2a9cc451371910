"""Print the tokens of a text, and the properties of a tokenizer."""

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from tokenizers import decoders, models

from clearhead.cli.common import count_of
from clearhead.tokenizers.tokenizer import BPEMerges, Tokenizer, to_printable

TOKEN_STYLES = ("black on bright_cyan", "black on bright_yellow")
MAX_LISTED = 12  # items; the rest is counted


def print_tokens(console: Console, tokenizer: Tokenizer, text: str) -> None:
    """Print the tokens of a text, their ids, and the BPE merges of each distinct token."""
    ids = tokenizer.encode(text)
    tokens = tokenizer.to_str_tokens(ids)
    num_bytes = len(text.encode())
    has_color = console.color_system is not None and not console.no_color
    console.print(_highlight_tokens(tokens, has_color))
    console.print("\nids", *ids)
    ratio = num_bytes / max(len(ids), 1)
    console.print(
        f"{count_of(len(ids), 'token')} for {count_of(num_bytes, 'byte')}: "
        f"{ratio:.2f} bytes per token"
    )
    decoded = tokenizer.decode(ids)
    if decoded != text:
        console.print(f"decoding gives a different text: {to_printable(decoded)}")
    merges = BPEMerges(tokenizer)
    rows = [("id", "count", "token", "merges" if len(merges) else "")]
    for (token_id, token), count in Counter(zip(ids, tokens, strict=True)).items():
        rows.append((str(token_id), str(count), token, _describe_merges(merges, token_id)))
    console.print()
    _print_table(console, rows)


def _highlight_tokens(tokens: Sequence[str], has_color: bool) -> Text:
    """Tokens in alternating colors, or with bars between them."""
    line = Text()
    needs_bar = False
    for number, token in enumerate(tokens):
        if needs_bar and not has_color:
            line.append("│")
        line.append(token, TOKEN_STYLES[number % 2] if has_color else "")
        needs_bar = not token.endswith("↵")
        if not needs_bar:
            line.append("\n")
    line.rstrip()
    return line


def _describe_merges(merges: BPEMerges, token_id: int) -> str:
    """l o w → lo w → low."""
    return " → ".join(" ".join(step) for step in merges.merge_steps(token_id))


def _print_table(console: Console, rows: Sequence[tuple[str, str, str, str]]) -> None:
    id_width, count_width, token_width = (
        max(cell_len(row[column]) for row in rows) for column in range(3)
    )
    for number, (token_id, count, token, merges) in enumerate(rows):
        padding = " " * (token_width - cell_len(token))
        line = f"{token_id:>{id_width}}  {count:>{count_width}}  {token}{padding}  {merges}"
        console.print(line.rstrip(), style=None if number else "dim")


def print_description(
    console: Console,
    tokenizer: Tokenizer,
    bos_tokens: Sequence[int] = (),
    sep_tokens: Sequence[int] = (),
) -> None:
    """Print the kind of a tokenizer, its special tokens, and samples of its vocabulary."""
    merges = BPEMerges(tokenizer)
    vocabulary = _ordinary_tokens(tokenizer)
    words = {token for token in vocabulary if _strip_markers(token).isalpha()}
    longest = sorted(words, key=lambda token: (-len(token), token))[:MAX_LISTED]
    before = tokenizer.to_str_tokens(bos_tokens)
    after = tokenizer.to_str_tokens(sep_tokens)
    special = [f"{to_printable(name)} {i}" for name, i in tokenizer.special_tokens.items()]
    first_merges = [
        f"{left} {right} → {merged}" for left, right, merged in merges.first_merges(MAX_LISTED)
    ]
    is_word_level = isinstance(tokenizer.backend.model, models.WordLevel)
    has_words = bool(longest) and len(_strip_markers(longest[0])) > 1
    rows = {
        "tokenizer": summarize(tokenizer),
        "special tokens": _join_first(special),
        "added to texts": " ".join([*before, "…", *after]) if before or after else "nothing",
        "first merges": ", ".join(first_merges),
        "longest words": "  ".join(longest) if has_words else "",
        "vocabulary": " ".join(vocabulary) if is_word_level else "",
    }
    for name, value in rows.items():
        if value:
            console.print(Text.assemble((f"{name:<15}", "dim"), value))


def summarize(tokenizer: Tokenizer) -> str:
    """byte-level BPE, 8,192 tokens, 7,935 merges, 1 special token."""
    num_merges = len(BPEMerges(tokenizer))
    counts = {
        "token": len(tokenizer),
        "merge": num_merges,
        "special token": len(tokenizer.special_tokens),
    }
    parts = [count_of(count, noun) for noun, count in counts.items() if count]
    return ", ".join([_kind(tokenizer, num_merges), *parts])


def _kind(tokenizer: Tokenizer, num_merges: int) -> str:
    model = tokenizer.backend.model
    if isinstance(model, models.BPE) and isinstance(tokenizer.backend.decoder, decoders.ByteLevel):
        return "byte-level BPE" if num_merges else "bytes"
    if isinstance(model, models.WordLevel):
        is_characters = max(map(len, _ordinary_tokens(tokenizer))) == 1
        return "characters" if is_characters else "whole words"
    return type(model).__name__


def _ordinary_tokens(tokenizer: Tokenizer) -> list[str]:
    """All tokens but the special ones, by id."""
    ids = {*tokenizer.backend.get_vocab().values()} - {*tokenizer.special_tokens.values()}
    return tokenizer.to_str_tokens(sorted(ids))


def _strip_markers(token: str) -> str:
    """The token without the marks of a word's start or continuation."""
    return token.removeprefix("##").strip("·")


def _join_first(items: Sequence[str]) -> str:
    text = "  ".join(items[:MAX_LISTED])
    num_more = len(items) - MAX_LISTED
    return f"{text} … and {num_more:,} more" if num_more > 0 else text
