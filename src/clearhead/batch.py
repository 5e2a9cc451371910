"""Whatever a person gives, as a batch the network can read: text, ids, pictures, sound; or a sentence why not."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.labelled import shares
from clearhead.errors import ClearheadError, Unreadable, numbered
from clearhead.tokens import dense
from clearhead.tokens.gaps import with_gaps
from clearhead.tokens.text import Tokenizer

MOST = {"cpu": 1024}  # tokens that are read at once, where a batch is read in parts; more take a CPU longer
ELSEWHERE = 16384  # bounds the memory


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # or pictures, or mel frames
    segments: Tensor | None = None  # None where nothing is padded
    single: bool = False  # one text, so results drop the batch
    kinds: Tensor | None = None  # 1 for the second text of a pair; None where there is none, or none is told apart
    source: Tensor | None = None
    source_segments: Tensor | None = None
    dense: int = 0  # how many tokens a picture or a sound is

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], device: torch.device) -> "Batch":
        """Ids, padded on the right."""
        lengths = torch.tensor([len(row) for row in rows], device=device)
        longest = int(lengths.max())
        real = (torch.arange(longest, device=device) < lengths[:, None]).long()
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        return cls(ids, None if bool(real.all()) else real)

    def rows(self) -> list[list[int]]:
        """The ids of each text, without padding."""
        return unpadded(self.ids, self.segments)

    def unwrap(self, result: Tensor) -> Tensor:
        return result[0] if self.single else result

    def each(self, answer: Callable[["Batch"], Tensor]) -> Tensor:
        """What `answer` gives for each row, in their order; it is asked in parts, so any number of rows will do."""
        rows, device, found, order = len(self.ids), self.ids.device, list[Tensor](), list[int]()
        width, real = self.dense or self.ids.shape[1], self.segments
        held = [width] * rows if real is None else (real != 0).sum(dim=1).tolist()
        for some in by_length(held, device):
            picked, longest, padded = torch.tensor(some, device=device), held[some[0]], held[some[-1]] < held[some[0]]
            part = Batch(
                self.ids[picked] if self.dense else self.ids[picked, :longest],
                real[picked, :longest] if padded and real is not None else None,
                kinds=None if self.kinds is None else self.kinds[picked, :longest],
            )
            found.append(answer(part))
            order += some
        return torch.cat(found)[torch.tensor(order, device=device).argsort()]


def by_length(lengths: Sequence[int], device: torch.device, most: int | None = None) -> Iterator[list[int]]:
    """Which rows are read together, being of like length, the longest first: `most` rows, and what suits the device."""
    tokens, order = MOST.get(device.type, ELSEWHERE), sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, min(most or len(order), tokens // lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def unpadded(ids: Tensor, segments: Tensor | None) -> list[list[int]]:
    if segments is None:
        return ids.tolist()
    return [row[real].tolist() for row, real in zip(ids, segments != 0, strict=True)]


@dataclass(frozen=True)
class Side:
    """How the texts of one side become ids: the rule that cuts them, what stands around them, how many there may be."""

    tokenizer: Tokenizer | None
    begin: tuple[int, ...]
    end: tuple[int, ...]
    vocabulary: int
    context: int
    longest: int  # tokens after which a text is cut; 0 = never
    pairs: bool  # whether two texts may stand in a row
    why: str  # there is no tokenizer
    mask: tuple[int, ...] = ()  # what stands for a gap of a text, where gaps are known


def read_batch(
    config: c.Config, tokenizers: tuple[Tokenizer | None, Tokenizer | None], like: Tensor, x: object = None, *,
    source: object = None, picture: object = None, sound: object = None,
    longest: int = 0, endless: bool = False, why: str = "",
) -> Batch:  # fmt: skip
    """`like` is a parameter of the model, whose device and dtype are the batch's; the second tokenizer the source's.

    A text of more than `longest` tokens is cut; of more than the context it is refused, unless it may be `endless`.
    """
    m, use = config.model, config.use
    both = isinstance(m.shape, c.EncoderDecoder)
    reads = m.reads
    wanted = {c.Tokens: "source" if both else "text", c.Pictures: "pictures"}.get(type(reads), "sound")
    given = {"text": None if both else x, "source": source, "pictures": picture, "sound": sound}
    named = wanted if wanted == "text" else f"{wanted} ({wanted}=…)"
    for name, value in given.items():
        if value is not None and name != wanted:
            raise ClearheadError(f"this model reads {named}, not {name}.")
    if given[wanted] is None:
        raise ClearheadError(f"this model reads {named}; none was given.")
    if not isinstance(m.shape, c.EncoderDecoder):
        batch = _read(given[wanted], reads, _alone(config, tokenizers[0], longest, endless, why), like)
        return batch if isinstance(reads, c.Tokens) and reads.kinds > 1 else replace(batch, kinds=None)
    vocabulary = m.shape.vocabulary or m.vocabulary
    side = Side(tokenizers[1], use.begin, use.end, vocabulary, m.shape.context, longest, False, why)
    first = _read(given[wanted], reads, side, like)
    if x is None and not use.start:
        raise ClearheadError("an encoder-decoder also needs the target: logits(target, source=…).")
    if x is None:  # what its output starts with
        x = list(use.start) if first.single else [list(use.start)] * len(first.ids)
    side = Side(tokenizers[0], use.start, (), m.vocabulary, m.context, longest, False, why)
    second, sources = _read(x, m.input, side, like), len(first.ids)
    if len(second.ids) != sources:
        raise ClearheadError(
            f"there are {len(second.ids)} targets for {sources} sources; each target needs one source."
        )
    return replace(second, source=first.ids, source_segments=first.segments)


def read_rows(
    config: c.Config, tokenizer: Tokenizer | None, texts: Sequence[Any], longest: int = 0, endless: bool = False,
    why: str = "",
) -> Iterator[list[int]]:  # fmt: skip
    """The ids of texts as `read_batch` reads them where there is no source; one by one, and no tensor is made."""
    if not isinstance(config.model.input, c.Tokens):
        raise ClearheadError(f"this model reads {config.model.input.kind}, not text.")
    side = _alone(config, tokenizer, longest, endless, why)
    return (list(ids) for ids, _ in _encoded(texts, side, single=len(texts) == 1))


def _alone(config: c.Config, tokenizer: Tokenizer | None, longest: int, endless: bool, why: str) -> Side:
    """The one side there is where there is no source."""
    m, use = config.model, config.use
    context, mask = sys.maxsize if endless else m.context, use.mask if isinstance(m.head, c.MaskedWord) else ()
    return Side(tokenizer, use.begin, use.end, m.vocabulary, context, longest, bool(use.end), why, mask)


def _read(x: object, reads: c.Input, side: Side, like: Tensor) -> Batch:
    """One side of a batch."""
    if isinstance(reads, c.Tokens):
        return _tensor(x, side, like.device) if isinstance(x, Tensor) else _texts(x, side, like.device)
    numbers, single = dense.read(x, reads)
    return Batch(numbers.to(like), single=single, dense=c.tokens_of(reads))


def _tensor(x: Tensor, side: Side, device: torch.device) -> Batch:
    if x.dim() not in (1, 2) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ClearheadError(f"token ids must be a 1-D or 2-D tensor of whole numbers, not {x.dim()}-D {x.dtype}.")
    check_length(x.shape[-1] if x.numel() else 0, side.context)
    x = x.long()  # of unsigned numbers torch finds no largest
    _check_range((int(x.min()), int(x.max())), side)
    return Batch(x.view(-1, x.shape[-1]).to(device), single=x.dim() == 1)


def _texts(x: object, side: Side, device: torch.device) -> Batch:
    single = isinstance(x, str) or _is_pair(x) or (_is_list(x) and bool(x) and isinstance(x[0], int))
    texts = [x] if single else x
    if not _is_list(texts):
        raise ClearheadError(f"text, a list of texts or token ids are needed, not {type(x).__name__}.")
    encoded = list(_encoded(texts, side, single))
    batch = replace(Batch.of([ids for ids, _ in encoded], device), single=single)
    if not any(map(_is_pair, texts)):
        return batch
    firsts = torch.tensor([first for _, first in encoded], device=device)[:, None]
    return replace(batch, kinds=(torch.arange(batch.ids.shape[1], device=device) >= firsts).long())


def _encoded(texts: Sequence[Any], side: Side, single: bool) -> Iterator[tuple[Sequence[int], int]]:
    """Each text as `_encode` gives it, or a sentence why it cannot be read."""
    if not texts:
        raise ClearheadError("the text is empty; give at least one.")
    for i, text in enumerate(texts):
        with numbered(None if single else i):
            ids, first = _encode(text, side)
            check_length(len(ids), side.context)
        _check_range(ids, side)
        yield ids, first


def check_length(tokens: int, context: int) -> None:
    if not tokens:
        raise Unreadable(None, "is empty; give at least one token.")
    if tokens > context:
        raise Unreadable(None, f"is too long: {tokens} tokens are more than this model's context of {context}.")


def _check_range(ids: Sequence[int], side: Side) -> None:
    for i in ids:
        if not 0 <= i < side.vocabulary:
            raise ClearheadError(f"token id {i} is out of range; the vocabulary has ids 0 to {side.vocabulary - 1}.")


def _encode(text: object, side: Side) -> tuple[Sequence[int], int]:
    """Ids as they are; a text, or a pair, with what belongs around it. And how many ids are of the first text."""
    if _is_pair(text):
        return _encode_pair(text, side)
    if isinstance(text, str):
        room = side.longest - len(side.begin) - len(side.end) if side.longest else None
        ids: Sequence[int] = [*side.begin, *_words(text, side)[:room], *side.end]
        return ids, len(ids)
    if _is_list(text) and all(isinstance(i, int) and not isinstance(i, bool) for i in text):
        return text, len(text)
    hint = "; a pair of texts is a tuple" if _is_list(text) and any(isinstance(part, str) for part in text) else ""
    raise ClearheadError(f"a text or a list of token ids is needed, not {text!r:.60}{hint}.")


def _encode_pair(pair: Sequence[Any], side: Side) -> tuple[Sequence[int], int]:
    """`begin a end b end`, as rows are laid out in training."""
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise Unreadable(None, f"is {pair!r:.60}, but a tuple is a pair of two texts; several texts are a list.")
    if not side.pairs:
        raise Unreadable(None, f"is {pair!r:.60}, a pair; this model reads no pairs of texts (several are a list).")
    first, second = (_words(text, side) for text in pair)
    if not first or not second:
        raise Unreadable(None, f"is the pair {pair!r:.60}, of which one is empty; both need at least one token.")
    if side.longest:
        a, b = shares(len(first), len(second), max(2, side.longest - len(side.begin) - 2 * len(side.end)))
        first, second = first[:a], second[:b]
    row = [*side.begin, *first, *side.end]
    return [*row, *second, *side.end], len(row)


def _words(text: str, side: Side) -> list[int]:
    if side.tokenizer is None:
        why = side.why or "this model has no tokenizer, so it cannot read text."
        raise ClearheadError(f"{why.removesuffix('.')}; give token ids.")
    return with_gaps(side.tokenizer, side.mask[0], text) if side.mask else side.tokenizer.encode(text)


def _is_list(x: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(x, list | tuple)


def _is_pair(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Several texts are a list; a tuple that holds a text is meant as a pair."""
    return isinstance(x, tuple) and any(isinstance(part, str) for part in x)
