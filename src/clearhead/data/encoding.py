"""Texts become ids, many at a time: asked for one short text after another, a tokenizer leaves most cores idle."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from clearhead.data.batch import DataReport
from clearhead.data.readers import CHUNK_CHARS
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


def batch_by_size(
    items: Iterable[T], size: Callable[[T], int], max_size: int = CHUNK_CHARS
) -> Iterator[list[T]]:
    """Things in order, as many together as have `most` characters: enough work, and little to be held at once."""
    batch: list[T] = []
    full = 0
    for thing in items:
        batch.append(thing)
        full += size(thing)
        if full >= max_size:
            yield batch
            batch = []
            full = 0
    yield batch


def try_encode_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | str]:
    """The ids of each text, or why there are none."""
    try:
        return [*tokenizer.encode_batch(texts)]
    except ClearheadError:
        return [_try_encode(tokenizer, text) for text in texts]


class Located(Protocol):
    """Something with texts that stands in a line of a file."""

    @property
    def location(self) -> str: ...


P = TypeVar("P", bound=Located)


def encode_texts(
    items: Iterable[P],
    texts: Callable[[P], Sequence[str]],
    tokenizers: Sequence[Tokenizer],
    report: DataReport,
) -> Iterator[tuple[P, list[list[int]]]]:
    """Each thing with the ids of its texts; one for which there are no tokens is reported with its line."""
    for some in batch_by_size(items, lambda thing: sum(map(len, texts(thing)))):
        columns = [
            try_encode_batch(cut, [texts(thing)[i] for thing in some])
            for i, cut in enumerate(tokenizers)
        ]
        for thing, *found in zip(some, *columns, strict=True):
            if why := [one for one in found if isinstance(one, str)]:
                report.skip(thing.where, why[0])
            else:
                yield thing, [ids for ids in found if not isinstance(ids, str)]


def _try_encode(tokenizer: Tokenizer, text: str) -> list[int] | str:
    try:
        return tokenizer.encode(text)
    except ClearheadError as error:
        return str(error).removesuffix(".")
