"""Whatever a person gives, as a batch the network can read: text, ids, pictures, sound; or a sentence why not."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeGuard

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, InputTextError, with_index
from clearhead.tokenizers.media import read_media
from clearhead.tokenizers.tokenizer import Tokenizer, encode_with_masks

# ---- batch: Whatever a person gives, as a batch the network can read: text, ids, pictures, sound; or a sentence why not.

MAX_BATCH_TOKENS = {
    "cpu": 1024
}  # tokens that are read at once, where a batch is read in parts; more take a CPU longer
DEFAULT_MAX_BATCH_TOKENS = 16384  # bounds the memory


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # or pictures, or mel frames
    segment_ids: Tensor | None = None  # None where nothing is padded
    is_single: bool = False  # one text, so results drop the batch
    token_type_ids: Tensor | None = (
        None  # 1 for the second text of a pair; None where there is none, or none is told apart
    )
    source: Tensor | None = None
    source_segment_ids: Tensor | None = None
    media_tokens: int = 0  # how many tokens a picture or a sound is

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], device: torch.device) -> "Batch":
        """Ids, padded on the right."""
        lengths = torch.tensor([len(row) for row in rows], device=device)
        longest = int(lengths.max())
        real = (torch.arange(longest, device=device) < lengths[:, None]).long()
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        return cls(ids, None if bool(real.all()) else real)

    def unpadded_rows(self) -> list[list[int]]:
        """The ids of each text, without padding."""
        return unpad(self.inputs, self.segment_ids)

    def unwrap(self, result: Tensor) -> Tensor:
        return result[0] if self.is_single else result

    def map_chunks(self, answer: Callable[["Batch"], Tensor]) -> Tensor:
        """What `answer` gives for each row, in their order; it is asked in parts, so any number of rows will do."""
        rows = len(self.inputs)
        device = self.inputs.device
        found = list[Tensor]()
        order = list[int]()
        width = self.media_tokens or self.inputs.shape[1]
        real = self.segment_ids
        held = [width] * rows if real is None else (real != 0).sum(dim=1).tolist()
        for some in batches_by_length(held, device):
            picked = torch.tensor(some, device=device)
            longest = held[some[0]]
            padded = held[some[-1]] < held[some[0]]
            part = Batch(
                self.inputs[picked] if self.media_tokens else self.inputs[picked, :longest],
                real[picked, :longest] if padded and real is not None else None,
                token_type_ids=None
                if self.token_type_ids is None
                else self.token_type_ids[picked, :longest],
            )
            found.append(answer(part))
            order += some
        return torch.cat(found)[torch.tensor(order, device=device).argsort()]


def batches_by_length(
    lengths: Sequence[int], device: torch.device, most: int | None = None
) -> Iterator[list[int]]:
    """Which rows are read together, being of like length, the longest first: `most` rows, and what suits the device."""
    tokens = MAX_BATCH_TOKENS.get(device.type, DEFAULT_MAX_BATCH_TOKENS)
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, min(most or len(order), tokens // lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def unpad(ids: Tensor, segment_ids: Tensor | None) -> list[list[int]]:
    if segment_ids is None:
        return ids.tolist()
    return [row[real].tolist() for row, real in zip(ids, segment_ids != 0, strict=True)]


@dataclass(frozen=True)
class SideEncoding:
    """How the texts of one side become ids: the rule that cuts them, what stands around them, how many there may be."""

    tokenizer: Tokenizer | None
    bos_tokens: tuple[int, ...]
    sep_tokens: tuple[int, ...]
    vocab_size: int
    context_length: int
    max_length: int  # tokens after which a text is cut; 0 = never
    allows_pairs: bool  # whether two texts may stand in a row
    no_tokenizer_reason: str  # there is no tokenizer
    mask_tokens: tuple[int, ...] = ()  # what stands for a gap of a text, where gaps are known


def make_batch(
    config: c.Config, tokenizers: tuple[Tokenizer | None, Tokenizer | None], like: Tensor, x: object = None, *,
    source: object = None, images: object = None, audio: object = None,
    max_length: int = 0, allow_overflow: bool = False, no_tokenizer_reason: str = "",
) -> Batch:  # fmt: skip
    """`like` is a parameter of the model, whose device and dtype are the batch's; the second tokenizer the source's.

    A text of more than `longest` tokens is cut; of more than the context it is refused, unless it may be `endless`.
    """
    m = config.model
    use = config.inference
    both = isinstance(m.architecture, c.EncoderDecoder)
    reads = m.main_input
    wanted = {c.Tokens: "source" if both else "text", c.Images: "images"}.get(type(reads), "audio")
    given = {"text": None if both else x, "source": source, "images": images, "audio": audio}
    named = wanted if wanted == "text" else f"{wanted} ({wanted}=…)"
    for name, value in given.items():
        if value is not None and name != wanted:
            raise ClearheadError(f"this model reads {named}, not {name}.")
    if given[wanted] is None:
        raise ClearheadError(f"this model reads {named}; none was given.")
    if not isinstance(m.architecture, c.EncoderDecoder):
        batch = _read_side(
            given[wanted],
            reads,
            _single_side(config, tokenizers[0], max_length, allow_overflow, no_tokenizer_reason),
            like,
        )
        return (
            batch
            if isinstance(reads, c.Tokens) and reads.token_types > 1
            else replace(batch, token_type_ids=None)
        )
    vocabulary = m.architecture.source_vocab_size or m.vocab_size
    side = SideEncoding(
        tokenizers[1],
        use.bos_tokens,
        use.sep_tokens,
        vocabulary,
        m.architecture.source_context_length,
        max_length,
        False,
        no_tokenizer_reason,
    )
    first = _read_side(given[wanted], reads, side, like)
    if x is None and not use.decoder_start_tokens:
        raise ClearheadError("an encoder-decoder also needs the target: logits(target, source=…).")
    if x is None:  # what its output starts with
        x = (
            list(use.decoder_start_tokens)
            if first.is_single
            else [list(use.decoder_start_tokens)] * len(first.inputs)
        )
    side = SideEncoding(
        tokenizers[0],
        use.decoder_start_tokens,
        (),
        m.vocab_size,
        m.context_length,
        max_length,
        False,
        no_tokenizer_reason,
    )
    second = _read_side(x, m.input, side, like)
    sources = len(first.inputs)
    if len(second.inputs) != sources:
        raise ClearheadError(
            f"there are {len(second.inputs)} targets for {sources} sources; each target needs one source."
        )
    return replace(second, source=first.inputs, source_segment_ids=first.segment_ids)


def encode_texts(
    config: c.Config, tokenizer: Tokenizer | None, texts: Sequence[Any], max_length: int = 0, allow_overflow: bool = False,
    no_tokenizer_reason: str = "",
) -> Iterator[list[int]]:  # fmt: skip
    """The ids of texts as `read_batch` reads them where there is no source; one by one, and no tensor is made."""
    if not isinstance(config.model.input, c.Tokens):
        raise ClearheadError(f"this model reads {config.model.input.kind}, not text.")
    side = _single_side(config, tokenizer, max_length, allow_overflow, no_tokenizer_reason)
    return (list(ids) for ids, _ in _encode_each(texts, side, single=len(texts) == 1))


def _single_side(
    config: c.Config, tokenizer: Tokenizer | None, longest: int, endless: bool, why: str
) -> SideEncoding:
    """The one side there is where there is no source."""
    m = config.model
    use = config.inference
    context = sys.maxsize if endless else m.context_length
    mask = use.mask_token if isinstance(m.head, c.MLMHead) else ()
    return SideEncoding(
        tokenizer,
        use.bos_tokens,
        use.sep_tokens,
        m.vocab_size,
        context,
        longest,
        bool(use.sep_tokens),
        why,
        mask,
    )


def _read_side(x: object, reads: c.Input, side: SideEncoding, like: Tensor) -> Batch:
    """One side of a batch."""
    if isinstance(reads, c.Tokens):
        return (
            _batch_from_tensor(x, side, like.device)
            if isinstance(x, Tensor)
            else _batch_from_texts(x, side, like.device)
        )
    numbers, single = read_media(x, reads)
    return Batch(numbers.to(like), is_single=single, media_tokens=c.num_input_tokens(reads))


def _batch_from_tensor(x: Tensor, side: SideEncoding, device: torch.device) -> Batch:
    if x.dim() not in (1, 2) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ClearheadError(
            f"token ids must be a 1-D or 2-D tensor of whole numbers, not {x.dim()}-D {x.dtype}."
        )
    check_text_length(x.shape[-1] if x.numel() else 0, side.context_length)
    x = x.long()  # of unsigned numbers torch finds no largest
    _check_range((int(x.min()), int(x.max())), side)
    return Batch(x.view(-1, x.shape[-1]).to(device), is_single=x.dim() == 1)


def _batch_from_texts(x: object, side: SideEncoding, device: torch.device) -> Batch:
    single = (
        isinstance(x, str) or _is_pair(x) or (_is_list(x) and bool(x) and isinstance(x[0], int))
    )
    texts = [x] if single else x
    if not _is_list(texts):
        raise ClearheadError(
            f"text, a list of texts or token ids are needed, not {type(x).__name__}."
        )
    encoded = list(_encode_each(texts, side, single))
    batch = replace(Batch.from_rows([ids for ids, _ in encoded], device), is_single=single)
    if not any(map(_is_pair, texts)):
        return batch
    firsts = torch.tensor([first for _, first in encoded], device=device)[:, None]
    return replace(
        batch, token_type_ids=(torch.arange(batch.inputs.shape[1], device=device) >= firsts).long()
    )


def _encode_each(
    texts: Sequence[Any], side: SideEncoding, single: bool
) -> Iterator[tuple[Sequence[int], int]]:
    """Each text as `_encode` gives it, or a sentence why it cannot be read."""
    if not texts:
        raise ClearheadError("the text is empty; give at least one.")
    for i, text in enumerate(texts):
        with with_index(None if single else i):
            ids, first = _encode_text(text, side)
            check_text_length(len(ids), side.context_length)
        _check_range(ids, side)
        yield ids, first


def check_text_length(tokens: int, context: int) -> None:
    if not tokens:
        raise InputTextError(None, "is empty; give at least one token.")
    if tokens > context:
        raise InputTextError(
            None, f"is too long: {tokens} tokens are more than this model's context of {context}."
        )


def _check_range(ids: Sequence[int], side: SideEncoding) -> None:
    for i in ids:
        if not 0 <= i < side.vocab_size:
            raise ClearheadError(
                f"token id {i} is out of range; the vocabulary has ids 0 to {side.vocab_size - 1}."
            )


def _encode_text(text: object, side: SideEncoding) -> tuple[Sequence[int], int]:
    """Ids as they are; a text, or a pair, with what belongs around it. And how many ids are of the first text."""
    if _is_pair(text):
        return _encode_text_pair(text, side)
    if isinstance(text, str):
        room = (
            side.max_length - len(side.bos_tokens) - len(side.sep_tokens)
            if side.max_length
            else None
        )
        ids: Sequence[int] = [*side.bos_tokens, *_tokenize(text, side)[:room], *side.sep_tokens]
        return ids, len(ids)
    if _is_list(text) and all(isinstance(i, int) and not isinstance(i, bool) for i in text):
        return text, len(text)
    hint = (
        "; a pair of texts is a tuple"
        if _is_list(text) and any(isinstance(part, str) for part in text)
        else ""
    )
    raise ClearheadError(f"a text or a list of token ids is needed, not {text!r:.60}{hint}.")


def _encode_text_pair(pair: Sequence[Any], side: SideEncoding) -> tuple[Sequence[int], int]:
    """`begin a end b end`, as rows are laid out in training."""
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise InputTextError(
            None, f"is {pair!r:.60}, but a tuple is a pair of two texts; several texts are a list."
        )
    if not side.allows_pairs:
        raise InputTextError(
            None,
            f"is {pair!r:.60}, a pair; this model reads no pairs of texts (several are a list).",
        )
    first, second = (_tokenize(text, side) for text in pair)
    if not first or not second:
        raise InputTextError(
            None, f"is the pair {pair!r:.60}, of which one is empty; both need at least one token."
        )
    if side.max_length:
        a, b = truncated_lengths(
            len(first),
            len(second),
            max(2, side.max_length - len(side.bos_tokens) - 2 * len(side.sep_tokens)),
        )
        first = first[:a]
        second = second[:b]
    row = [*side.bos_tokens, *first, *side.sep_tokens]
    return [*row, *second, *side.sep_tokens], len(row)


def _tokenize(text: str, side: SideEncoding) -> list[int]:
    if side.tokenizer is None:
        why = side.no_tokenizer_reason or "this model has no tokenizer, so it cannot read text."
        raise ClearheadError(f"{why.removesuffix('.')}; give token ids.")
    return (
        encode_with_masks(side.tokenizer, side.mask_tokens[0], text)
        if side.mask_tokens
        else side.tokenizer.encode(text)
    )


def _is_list(x: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(x, list | tuple)


def _is_pair(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Several texts are a list; a tuple that holds a text is meant as a pair."""
    return isinstance(x, tuple) and any(isinstance(part, str) for part in x)


# ---- packed: What training reads: packed batches of static shape, as a pure function of the seed and the step.

IGNORE_INDEX = -100  # a target that teaches nothing: padding, or a word that was not hidden
OnError = Literal["fail", "skip"]


@dataclass(frozen=True)
class PackedBatch:
    """One batch. Several documents or pairs share a row; `segments` number them from 1, and 0 is padding."""

    tokens: Tensor  # ids, or pictures, or mel frames
    targets: Tensor  # an id for each token, IGNORE where nothing is to be learned; or a class or number for each row
    segment_ids: Tensor | None = None
    source: Tensor | None = None
    source_segment_ids: Tensor | None = None
    token_type_ids: Tensor | None = None


def count_targets(targets: Tensor) -> int:
    """How many targets teach: whole numbers that are not IGNORE; of numbers to be predicted all, whatever they are."""
    return targets.numel() if targets.is_floating_point() else int((targets != IGNORE_INDEX).sum())


@dataclass
class DataReport:
    """What was read, and what was left out and why, with the first places."""

    on_error: OnError = "fail"
    num_read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    locations: dict[str, list[str]] = field(default_factory=dict)
    messages: list[str] = field(
        default_factory=list
    )  # how it was read, where that was not asked for

    def skip(self, location: str, reason: str, *, only_input: bool = False) -> None:
        """Leaves something out, or refuses to, as the user chose; without what is `alone` nothing would be left."""
        if self.on_error == "fail":
            raise ClearheadError(
                f"{location}: {reason}{'' if only_input else '; --data.on_error skip would leave it out'}."
            )
        self.record(location, reason)

    def record(self, location: str, reason: str) -> None:
        """Counts what was cut or left out on purpose, whatever is done with what is broken."""
        self.skipped[reason] += 1
        self.locations.setdefault(reason, [])
        if len(self.locations[reason]) < 3:
            self.locations[reason].append(location)

    def __str__(self) -> str:
        lines = [f"{self.num_read:,} read, {sum(self.skipped.values()):,} cut or left out"]
        for why, n in self.skipped.items():
            places = self.locations[why]
            lines.append(f"  {n:,} × {why}: {', '.join(places)}{' …' * (n > len(places))}")
        return "\n".join(lines)


class Dataset(Protocol):
    """Batches by step, and those that are held out."""

    packing_efficiency: float  # of real tokens
    batches_per_epoch: float  # batches of one pass; the next begins where it ends, in the middle of a batch if need be
    report: DataReport

    def batch(self, step: int) -> PackedBatch: ...

    def valid_batches(self) -> Iterator[PackedBatch]: ...


@lru_cache(maxsize=4)
def shuffled_indices(count: int, seed: int, epoch: int) -> Tensor:
    """The numbers 0 … count − 1 in the order of an epoch."""
    return torch.randperm(count, generator=seeded_generator(seed, epoch))


def seeded_generator(seed: int, number: int) -> torch.Generator:
    """Random numbers that follow from the seed and the number of an epoch or a step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


def select_rows(step: int, batch_size: int, count: int, seed: int) -> list[tuple[int, int]]:
    """(epoch, number) of each row of a batch: epochs follow one another without a gap."""
    found: list[tuple[int, int]] = []
    while len(found) < batch_size:
        epoch, at = divmod(step * batch_size + len(found), count)
        numbers = shuffled_indices(count, seed, epoch)[at : at + batch_size - len(found)].tolist()
        found.extend((epoch, number) for number in numbers)
    return found


def truncated_lengths(a: int, b: int, max_length: int) -> tuple[int, int]:
    """How many ids of each of two texts fit: while there are too many, the longer text loses its last."""
    b = min(b, max(max_length - a, max_length // 2))
    return min(a, max_length - b), b
