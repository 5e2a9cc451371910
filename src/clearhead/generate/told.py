"""Translations as plain values, for JSON."""

from collections.abc import Sequence
from typing import Any

from clearhead.config import Use
from clearhead.generate.translate import Translated
from clearhead.tokens.text import Tokenizer

Tree = dict[str, Any]
SHOWN = ("text", "score", "logprob", "tokens", "alignment")


def told(
    text: str, found: Sequence[Translated], tokenizers: tuple[Tokenizer | None, Tokenizer | None], use: Use,
    aligned: bool,
) -> tuple[Tree, list[Tree]]:  # fmt: skip
    """A source, and each of its translations; the places of an alignment are those of `source_pieces`."""
    words, own = tokenizers
    source: Tree = {"source": text}
    if aligned and own:
        source["source_pieces"] = own.pieces([*use.begin, *own.encode(text), *use.end])
    trees = [{name: value for name in SHOWN if (value := getattr(one, name)) is not None} for one in found]
    if words:
        trees = [tree | {"pieces": words.pieces(tree["tokens"])} for tree in trees]
    return source, trees
