"""What a microscope looks at: a few texts (or pairs, pictures, sounds), always the same, as one padded batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import read_batch
from clearhead.data.packed import Dataset, Packed
from clearhead.errors import ClearheadError
from clearhead.lens.film import Probe
from clearhead.lens.logit_lens import answers, token_labels
from clearhead.weights.checkpoint import Checkpoint

MOST, LONGEST = 8, 64  # probes, and tokens of one, that a user may give
FEW, SHORT = 4, 32  # of those that are taken from the data: in a GPT-2 all looks then take less than 50 MB
BETWEEN = "|||"  # the source of a pair and its target


class Text(NamedTuple):
    """One probe as ids; where there is a source, `ids` are what the decoder reads."""

    ids: list[int]
    source: list[int] | None = None
    kinds: list[int] | None = None

    @property
    def longest(self) -> int:
        return max(len(self.ids), len(self.source or ()))

    def cut(self, length: int) -> "Text":
        return Text(*(None if side is None else side[:length] for side in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Probes:
    """The batch, and what each of its rows is; `cut` counts texts that were too long or too many."""

    batch: Packed
    each: list[Probe]
    cut: int = 0


def choose(model: Checkpoint, data: Dataset) -> Probes:
    """The texts in `train.probes`; without any, the first rows that are held out, or that are trained on.

    For an encoder-decoder a probe is `source ||| target`: the same target at every step, so that its pictures can be
    compared. For pictures and sounds it is a file. A user's texts are at most 8, of at most 64 tokens.
    """
    m, given = model.config.model, model.config.train.probes
    reads = m.reads
    if not all(given):
        raise ClearheadError("train.probes holds an empty text, in which there is nothing to look at; leave it out.")
    held = None if given else next(iter(data.held_out()), None) or data.batch(0)
    if not isinstance(reads, c.Tokens):
        return _dense(model, reads, given, held)
    room = min(stack.context for stack in (model.net, model.net.encoder) if stack is not None)
    most, longest = (MOST, min(LONGEST, room)) if held is None else (FEW, min(SHORT, room))
    texts = [_checked(model, text) for text in given] if held is None else list(_rows(held, most))
    cut = sum(text.longest > longest for text in texts[:most]) + len(texts[most:])
    texts = [text.cut(longest) for text in texts[:most]]
    return Probes(_padded(texts), [_named(model, text) for text in texts], cut if held is None else 0)


def _checked(model: Checkpoint, text: str) -> Text:
    try:
        return _read(model, text)
    except ClearheadError as error:
        raise ClearheadError(f"train.probes: {text!r:.60} cannot be looked at: {error}") from None


def _read(model: Checkpoint, text: str) -> Text:
    """A user's text as ids, with what belongs around it."""
    use, hides = model.config.use, isinstance(model.config.model.head, c.MaskedWord)
    tokenizer, source_tokenizer = model.tokenizers
    if tokenizer is None or source_tokenizer is None:
        raise ClearheadError("this model has no tokenizer.")
    if not isinstance(model.config.model.shape, c.EncoderDecoder):
        ids = [*use.begin, *tokenizer.encode(text, allow_special=hides), *use.end]
        if not ids:
            raise ClearheadError("it has no token.")
        return Text(ids)
    source, bar, target = text.partition(BETWEEN)
    if not (bar and source.strip() and target.strip()):
        raise ClearheadError(f"it must be source {BETWEEN} target for an encoder-decoder.")
    around = [*use.begin, *source_tokenizer.encode(source.strip()), *use.end]
    return Text([*use.start, *tokenizer.encode(target.strip())], around)


def _rows(batch: Packed, most: int) -> Iterator[Text]:
    """From each of the first rows the longest document, or of pairs the longest that need not be cut."""
    segments = torch.ones_like(batch.tokens) if batch.segments is None else batch.segments
    for row, numbers in list(enumerate(segments))[:most]:
        own = [(numbers == n).nonzero()[:, 0] for n in numbers.unique().tolist() if n]
        texts = [
            Text(
                batch.tokens[row, places].tolist(),
                None if batch.source is None else _beside(batch, row, int(numbers[places[0]])),
                None if batch.kinds is None else batch.kinds[row, places].tolist(),
            )
            for places in own
        ]
        if texts:  # a last row may be empty
            yield max(texts, key=lambda t: (t.source is None or t.longest <= SHORT, min(len(t.ids), SHORT)))


def _beside(batch: Packed, row: int, number: int) -> list[int]:
    assert batch.source is not None
    if batch.source_segments is None:
        return batch.source[row].tolist()
    return batch.source[row][batch.source_segments[row] == number].tolist()


def _padded(texts: Sequence[Text]) -> Packed:
    def filled(sides: list[list[int] | None]) -> tuple[Tensor | None, Tensor | None]:
        rows = [side for side in sides if side is not None]
        if not rows:
            return None, None
        wide = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (wide - len(row))] for row in rows])
        return ids, torch.tensor([[1] * len(row) + [0] * (wide - len(row)) for row in rows])

    tokens, segments = filled([text.ids for text in texts])
    source, source_segments = filled([text.source for text in texts])
    kinds, _ = filled([text.kinds for text in texts])
    assert tokens is not None
    return Packed(tokens, tokens, segments, source, source_segments, kinds)


def _named(model: Checkpoint, text: Text) -> Probe:
    """A probe for people to read."""
    use, (own, other) = model.config.use, model.tokenizers
    around = {*use.begin, *use.end, *use.start, *use.stop}
    sides = [(side, tokenizer) for side, tokenizer in ((text.source, other), (text.ids, own)) if side]
    plain = [
        tokenizer.decode([i for i in side if i not in around]) if tokenizer else " ".join(map(str, side))
        for side, tokenizer in sides
    ]
    hidden = [place for place, i in enumerate(text.ids) if i in use.mask]
    return Probe(
        f" {BETWEEN} ".join(part.strip() for part in plain),
        token_labels(own, text.ids),
        token_labels(other, text.source or ()),
        hidden[0] if hidden else len(text.ids) - 1,
    )


def _dense(
    model: Checkpoint, reads: c.Pictures | c.Sound | c.Spectrogram, given: tuple[str, ...], held: Packed | None
) -> Probes:
    """Pictures or sounds: as many as have no more pairs of patches than eight texts have of tokens."""
    m, patches = model.config.model, c.tokens_of(reads)
    if isinstance(m.shape, c.EncoderDecoder):
        raise ClearheadError(f"the microscope cannot look at an encoder-decoder that reads {reads.kind}.")
    most = max(1, min(MOST if given else FEW, MOST * LONGEST**2 // patches**2))
    if held is None:
        files = list(given[:most])
        picture, sound = (files, None) if isinstance(reads, c.Pictures) else (None, files)
        things = read_batch(model.config, (None, None), torch.empty(0), picture=picture, sound=sound).ids
        batch, names = Packed(things, torch.zeros(len(files))), files
    else:
        batch = Packed(held.tokens[:most], held.targets[:most])
        kinds = [int(n) for n in batch.targets] if isinstance(m.head, c.Classes) else None
        names = answers(model.config, None, kinds) if kinds else [f"{float(n):g}" for n in batch.targets]
        names = [f"{reads.kind} {n}: {name}" for n, name in enumerate(names)]
    numbers = [str(n) for n in range(patches)]
    return Probes(batch, [Probe(name, numbers, [], 0) for name in names], max(0, len(given) - most))
