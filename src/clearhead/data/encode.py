"""Texts become ids, many at a time: asked for one short text after another, a tokenizer leaves most cores idle."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from clearhead.data.sources import PIECE
from clearhead.errors import ClearheadError
from clearhead.tokens.text import Tokenizer

T = TypeVar("T")


def batches(things: Iterable[T], size: Callable[[T], int], most: int = PIECE) -> Iterator[list[T]]:
    """Things in order, as many together as have `most` characters: enough work, and little to be held at once."""
    batch: list[T] = []
    full = 0
    for thing in things:
        batch.append(thing)
        full += size(thing)
        if full >= most:
            yield batch
            batch, full = [], 0
    yield batch


def ids_or_why(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | str]:
    """The ids of each text, or why there are none."""
    try:
        return [*tokenizer.encode_batch(texts)]
    except ClearheadError:
        return [_ids_or_why(tokenizer, text) for text in texts]


def _ids_or_why(tokenizer: Tokenizer, text: str) -> list[int] | str:
    try:
        return tokenizer.encode(text)
    except ClearheadError as error:
        return str(error).removesuffix(".")
