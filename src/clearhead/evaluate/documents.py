"""Texts as documents, with what there is to count in them; and figures over documents."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clearhead.data.encode import batches, ids_or_why
from clearhead.data.sources import documents
from clearhead.evaluate.figures import Counts, Evaluation, figures
from clearhead.evaluate.task import Task

FEW = 20  # documents: with fewer an interval is drawn from their parts


@dataclass
class Document:
    where: str
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    words: int = 0  # what white space separates
    bytes: int = 0  # of UTF-8


def read_documents(task: Task) -> list[Document]:
    """The documents of files as the trainer reads them; those without a token are none."""
    tokenizer, found, begins = task.tokenizer, list[Document](), True
    for some in batches(documents(task.paths, task.report, task.data.field), lambda document: len(document.text)):
        encoded = ids_or_why(tokenizer, [document.text for document in some])
        for document, ids in zip(some, encoded, strict=True):
            begins = begins or document.begins  # also when the piece that opened the document was left out
            if isinstance(ids, str):
                task.report.skip(document.where, ids)
                continue
            if begins:
                found.append(Document(document.where))
                begins = False
            found[-1].ids.extend(ids)
            found[-1].words += len(document.text.split())
            found[-1].bytes += len(document.text.encode())
    found = [document for document in found if document.ids]
    task.refuse_nothing(len(found), "text")
    return found


def over_documents(
    task: Task,
    found: list[Document],
    parts: Sequence[tuple[int, list[float]]],
    part: str,
    how: Mapping[str, str],
    values: Callable[..., list[float]],
    counted: Mapping[str, int],
) -> Evaluation:
    """The figures that `values` makes of sums, which are told of each part of a document with the document's number.

    Intervals are drawn from documents; where those are few, from the parts. `counted` are sums to be told of each.
    """
    sums = np.array([own for _, own in parts])
    whole = np.zeros((len(found), sums.shape[1]))
    np.add.at(whole, np.array([number for number, _ in parts]), sums)
    units, unit = (sums, part) if len(found) < FEW else (whole, "documents")
    each = [
        {"where": document.where}
        | {name: round(own[place]) for name, place in counted.items()}
        | dict(zip(how, values(*own), strict=True))
        for document, own in zip(found, whole.tolist(), strict=True)
    ]

    def statistics(counts: Counts) -> Sequence[float]:
        return values(*(counts @ units).tolist())

    return Evaluation(figures(how, statistics, len(units), unit, task.seed, ("accuracy",)), each)
