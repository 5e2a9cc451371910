"""What a model learns from: its tokenizers and its batches, chosen by what it reads and what it answers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from clearhead import config as c
from clearhead.config import Config
from clearhead.data import labelled, pairs, pictured
from clearhead.data.cache import Tokens, tokenised
from clearhead.data.classes import split
from clearhead.data.packed import Dataset, Report
from clearhead.data.pair_files import Pair
from clearhead.data.pair_files import pairs as pairs_in
from clearhead.data.sources import check_apart, documents, kept, without
from clearhead.data.stream import Masked, Stream
from clearhead.data.unpacked import STDIN
from clearhead.errors import ClearheadError
from clearhead.tokens.kinds import END
from clearhead.tokens.text import Tokenizer
from clearhead.train.tokenizers import MASK, START, Origin, ids_of, opening
from clearhead.weights.checkpoint import SOURCE_TOKENIZER


@dataclass(frozen=True)
class Lessons:
    """All that a run needs besides the network; the configuration now knows the vocabulary and the classes."""

    config: Config
    data: Dataset
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None


def prepare(config: Config, origin: Origin, report: Report) -> Lessons:
    """The lessons for a model; whatever it is, its data are described by the same section."""
    m = config.model
    check_length(config)
    writes = isinstance(m.input, c.Tokens) and isinstance(m.head, c.Language | c.MaskedWord)
    if writes and not isinstance(m.shape, c.EncoderDecoder):
        return _texts(config, origin, report)
    if STDIN in (*config.data.train, *config.data.valid):
        raise ClearheadError("standard input (-) is read as one text; pairs, tables, pictures and sounds need files.")
    check_apart(config.data.train, config.data.valid)
    if isinstance(m.shape, c.EncoderDecoder):
        return _pairs(config, origin, report)
    if not isinstance(m.input, c.Tokens):
        return _things(config, report)
    if isinstance(m.head, c.Classes | c.Number):
        return _rows(config, origin, report)
    raise ClearheadError("a model without a head learns nothing; give it one, such as model.head = classes.")


def check_length(config: Config) -> None:
    context, length = config.model.context, config.train.length
    if config.model.vocabulary and length > context:
        choose = f"choose --train.length={context} or less, or a larger --model.context"
        raise ClearheadError(f"train.length = {length} is more than model.context = {context}; {choose}.")


# ---------------------------------------------------------------- texts
def _texts(config: Config, origin: Origin, report: Report) -> Lessons:
    d, t, hides = config.data, config.train, isinstance(config.model.head, c.MaskedWord)
    train = kept(without(d.train, d.valid, origin.out, report), f"{origin.out}/piped/train", origin.ready)
    tokenizer = origin.tokenizer or origin.learn(
        lambda: (document.text for document in documents(train, Report(d.broken), d.field)),
        (END, MASK) if hides else (END,),
    )
    if origin.tokenizer is None:
        ends = ids_of(tokenizer, END)
        use = {"use.mask": ids_of(tokenizer, MASK)} if hides else {"use.stop": ends}
        config = config.change(**{"model.vocabulary": len(tokenizer), "use.begin": ends}, **use)
    first = opening(config.use, tokenizer)

    def read(paths: Sequence[str], name: str) -> Tokens:
        return tokenised(paths, tokenizer, origin.out / "tokens" / name, report=report, field=d.field, begin=first)

    valid = read(kept(d.valid, f"{origin.out}/piped/valid", origin.ready), "valid") if d.valid else None
    length = t.length or config.model.context
    stop = next(iter(config.use.stop), None)
    rows = Stream(read(train, "train"), length, t.rows, t.seed, 0.0 if valid else d.held_out, valid, stop)
    if not hides:
        return Lessons(config, rows, tokenizer)
    if not config.use.mask:
        raise ClearheadError(f"{t.start} has no token that hides words, so use.mask names none.")
    special = tuple(tokenizer.special.values())
    return Lessons(config, Masked(rows, config.use.mask[0], config.model.vocabulary, special), tokenizer)


# ---------------------------------------------------------------- pairs
def _pairs(config: Config, origin: Origin, report: Report) -> Lessons:
    d, t, shape = config.data, config.train, config.model.shape
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.input, c.Tokens):
        raise ClearheadError("speech with its words cannot be learned from files yet; sounds with classes can.")
    read = read_pairs(d, report, d.train)
    held = read_pairs(d, report, d.valid)
    if not d.valid:
        picks = split([""] * len(read), [pair.source for pair in read], d.held_out, t.seed)
        _check_held(config, len(picks[1]), [""] * len(read))
        read, held = ([read[i] for i in part] for part in picks)
    tokenizer, source_tokenizer = origin.tokenizer, origin.source_tokenizer
    if tokenizer is None:
        special, apart = (START, END), bool(shape.vocabulary)
        sides = [lambda: (pair.source for pair in read), lambda: (pair.target for pair in read)]
        both = lambda: chain(sides[0](), sides[1]())  # noqa: E731
        tokenizer = origin.learn(sides[1] if apart else both, special)
        source_tokenizer = origin.learn(sides[0], special, SOURCE_TOKENIZER) if apart else None
        cut = source_tokenizer or tokenizer
        config = config.change(
            **{"model.vocabulary": len(tokenizer), "model.shape.vocabulary": len(cut) if apart else 0},
            **{"use.end": ids_of(cut, END), "use.start": ids_of(tokenizer, START), "use.stop": ids_of(tokenizer, END)},
            **{"use.never": ids_of(tokenizer, START)},
        )
    use, own = config.use, tokenizer

    def encoded(found: list[Pair]) -> list[pairs.Encoded]:
        made = pairs.encoded(found, own, source_tokenizer or own, use, report, most=d.most, ratio=d.ratio)
        return [ids for _, ids in made]

    train, length = encoded(read), t.length or config.model.context
    if not train:
        raise ClearheadError(f"there is no pair to train on; {report.read:,} were read, and none of them is left.")
    source_length = min(pairs.source_length_for(train, length), shape.context)
    options = {"rows": t.rows, "length": length, "source_length": source_length, "seed": t.seed}
    data = pairs.Pairs(train, encoded(held), report, **options, given=max(1, len(use.start)))
    return Lessons(config, data, tokenizer, source_tokenizer)


def read_pairs(d: c.Data, report: Report, paths: tuple[str, ...]) -> list[Pair]:
    if d.sides and len(d.sides) != 2:
        raise ClearheadError(f"data.sides = {list(d.sides)} must name two columns, the source's and the target's.")
    return list(pairs_in(paths, report, sides=(d.sides[0], d.sides[1]) if d.sides else None)) if paths else []


# ---------------------------------------------------------------- labelled texts
def _rows(config: Config, origin: Origin, report: Report) -> Lessons:
    d, t = config.data, config.train
    numbers = isinstance(config.model.head, c.Number)
    found, held = (list(read_rows(d, report, paths, numbers)) for paths in (d.train, d.valid))
    if not d.valid:
        keys = [(row.text, row.second) for row in found]
        labels = [row.label for row in found]
        picks = split(labels, keys, d.held_out, t.seed)
        _check_held(config, len(picks[1]), labels)
        found, held = ([found[i] for i in part] for part in picks)
    tokenizer = origin.tokenizer
    if tokenizer is None:
        texts = lambda: (text for row in found for text in (row.text, row.second) if text)  # noqa: E731
        tokenizer = origin.learn(texts, (START, END))
        around = {"use.begin": ids_of(tokenizer, START), "use.end": ids_of(tokenizer, END)}
        config = config.change(**{"model.vocabulary": len(tokenizer)}, **around)
    if d.second and not config.use.end:  # something must stand between the two texts
        end = config.use.stop[:1] or ids_of(tokenizer, END)
        if not end:
            raise ClearheadError("two texts are read together with a token between them, but use.end names none.")
        config = config.change(**{"use.end": list(end)})
    m = config.model
    config = config.change(**{"use.longest": t.length if t.length < m.context else 0})
    use = config.use
    data = labelled.Labelled(
        labelled.encoded(found, tokenizer, report),
        labelled.encoded(held, tokenizer, report),
        report,
        rows=t.rows,
        context=t.length or m.context,
        seed=t.seed,
        begin=use.begin,
        end=use.end,
        kinds=isinstance(m.input, c.Tokens) and m.input.kinds > 1,
    )
    if any(map(_FRACTION.fullmatch, data.labels)) and all(map(_NUMBER.fullmatch, data.labels)):
        kinds = f"{len(data.labels):,} different numbers are learned as classes"
        report.told.append(f"{kinds}; --model.head number learns how large they are.")
    return Lessons(_with_classes(config, data.labels), data, tokenizer)


_NUMBER, _FRACTION = re.compile(r"[-+]?\d*\.?\d+"), re.compile(r"[-+]?\d*\.\d+")


def read_rows(d: c.Data, report: Report, paths: tuple[str, ...], numbers: bool) -> Iterator[labelled.Row]:
    for path in paths:
        yield from labelled.rows(path, report, text=d.field, label=d.label, second=d.second or None, numbers=numbers)


# ---------------------------------------------------------------- pictures and sounds
def _things(config: Config, report: Report) -> Lessons:
    d, t, source = config.data, config.train, config.model.input
    if not isinstance(config.model.head, c.Classes) or isinstance(source, c.Tokens):
        raise ClearheadError("pictures and sounds are learned with classes; choose model.head = classes.")
    train = read_things(d, report, d.train, source)
    held = read_things(d, report, d.valid, source) if d.valid else d.held_out
    if isinstance(held, pictured.Things):
        train = pictured.without(train, held, report)
    data = pictured.Pictured(train, held, source, report, rows=t.rows, seed=t.seed, shift=d.shift)
    return Lessons(_with_classes(config, data.labels), data)


def read_things(d: c.Data, report: Report, paths: tuple[str, ...], source: c.Pictures | c.Mel) -> pictured.Things:
    label = "folder" if d.label == "label" else d.label
    if label not in ("folder", "stem"):
        raise ClearheadError(f"data.label = {label!r} is no choice for pictures and sounds; folder or stem is.")
    parts = [pictured.load(path, source, report, label=label) for path in paths]  # type: ignore[arg-type]
    return pictured.Things(
        torch.cat([part.data for part in parts]),
        [name for part in parts for name in part.labels],
        [place for part in parts for place in part.where],
    )


def _check_held(config: Config, held: int, labels: Sequence[str | float]) -> None:
    """Patience needs rows that are held out, of which there may be none although a share is asked for."""
    if held or not labels or not config.train.patience or not config.data.held_out:
        return
    count, names = len(labels), {label for label in labels if isinstance(label, str)}
    if 2 < count == len(names):
        raise ClearheadError(f"{count} different labels for {count} rows; for numbers choose --model.head number.")
    few = f"only {count} {'row' if count == 1 else 'rows'}, so none can be held out"
    raise ClearheadError(f"{few}; give data.valid, or more rows, or set train.patience = 0.")


def _with_classes(config: Config, labels: tuple[str, ...]) -> Config:
    if not isinstance(head := config.model.head, c.Classes):
        return config
    if config.use.labels not in ((), labels):
        raise ClearheadError(f"use.labels follow from the data, which has {', '.join(labels)}; leave them out.")
    model = replace(config.model, head=replace(head, classes=len(labels)))
    return replace(config, model=model, use=replace(config.use, labels=labels))
