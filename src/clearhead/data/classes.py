"""The names and numbers of classes, and which rows are held out."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from clearhead.data.packed import Report, order
from clearhead.errors import ClearheadError


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes in the order of their numbers."""
    names = tuple(sorted(set(labels)))
    if len(names) < 2:
        raise ClearheadError(
            f"there are no two classes to tell apart among the labels, only {names[0] if names else 'none'}."
        )
    return names


def class_number(label: str, names: Mapping[str, int], where: str, report: Report) -> int | None:
    """The number of a class, or None: held-out rows may be of a class that training never saw."""
    if label not in names:
        report.skip(f"{where} ({label!r:.40})", "the label does not occur in training")
    return names.get(label)


def split(
    labels: Sequence[str | float], keys: Sequence[Hashable], share: float, seed: int
) -> tuple[list[int], list[int]]:
    """The numbers of the rows to train on and of those held out: of each class about `share`, at least one of two.

    Rows of the same key are copies of each other and stay together, lest training see what is held out.
    """
    if not 0 <= share < 1:
        raise ClearheadError(f"the share that is held out must be at least 0 and less than 1, not {share}.")
    first: dict[Hashable, str] = {}
    classes: dict[str, dict[Hashable, list[int]]] = {}
    for i, (label, key) in enumerate(zip(labels, keys, strict=True)):
        name = first.setdefault(key, label if isinstance(label, str) else "")
        classes.setdefault(name, {}).setdefault(key, []).append(i)
    train, held = [], []
    for number, (_, groups) in enumerate(sorted(classes.items())):
        copies = list(groups.values())
        mixed = [copies[i] for i in order(len(copies), seed, number).tolist()]
        most = min(len(mixed) - 1, max(1, round(share * len(mixed)))) if share else 0
        held += [i for group in mixed[:most] for i in group]
        train += [i for group in mixed[most:] for i in group]
    return sorted(train), sorted(held)
