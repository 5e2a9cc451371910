"""Tokenize many short texts at a time, so that the tokenizer can use all cores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from clearhead.data.readers import CHUNK_CHARS, DataReport
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


def batch_by_size(
    items: Iterable[T], size: Callable[[T], int], max_size: int = CHUNK_CHARS
) -> Iterator[list[T]]:
    """Group consecutive items until their sizes reach `max_size` (characters)."""
    batch: list[T] = []
    batch_size = 0
    for item in items:
        batch.append(item)
        batch_size += size(item)
        if batch_size >= max_size:
            yield batch
            batch = []
            batch_size = 0
    yield batch


def try_encode_batch(
    tokenizer: Tokenizer, texts: Sequence[str], allow_special: bool = False
) -> list[list[int] | str]:
    """The token ids of each text, or a message why it cannot be tokenized."""
    try:
        return [*tokenizer.encode_batch(texts, allow_special)]
    except ClearheadError:
        return [_try_encode(tokenizer, text, allow_special) for text in texts]


def _try_encode(tokenizer: Tokenizer, text: str, allow_special: bool) -> list[int] | str:
    try:
        return tokenizer.encode(text, allow_special)
    except ClearheadError as error:
        return str(error).removesuffix(".")


class Located(Protocol):
    """A record that knows its location in a file."""

    @property
    def location(self) -> str: ...


LocatedT = TypeVar("LocatedT", bound=Located)


def encode_records(
    records: Iterable[LocatedT],
    texts: Callable[[LocatedT], Sequence[str]],
    tokenizers: Sequence[Tokenizer],
    report: DataReport,
) -> Iterator[tuple[LocatedT, list[list[int]]]]:
    """Each record with the token ids of its texts, one tokenizer per text; failures are skipped."""
    patterns = [tokenizer.special_pattern for tokenizer in tokenizers]
    for batch in batch_by_size(records, lambda record: sum(map(len, texts(record)))):
        columns = [
            try_encode_batch(tokenizer, [texts(record)[i] for record in batch])
            for i, tokenizer in enumerate(tokenizers)
        ]
        for record, *results in zip(batch, *columns, strict=True):
            for pattern, text in zip(patterns, texts(record), strict=True):
                report.count_special_tokens(record.location, pattern.findall(text))
            errors = [result for result in results if isinstance(result, str)]
            if errors:
                report.skip(record.location, errors[0])
            else:
                yield record, [ids for ids in results if not isinstance(ids, str)]
