"""Whatever a person gives, as a batch the network can read: text, ids, pictures, sound; or a sentence why not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.tokens import pictures
from clearhead.tokens import sound as sounds
from clearhead.tokens.text import Tokenizer


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # or pictures, or mel frames
    segments: Tensor | None  # None where nothing is padded
    single: bool  # one text, so results drop the batch
    source: Tensor | None
    source_segments: Tensor | None

    def rows(self) -> list[list[int]]:
        """The ids of each text, without padding."""
        if self.segments is None:
            return self.ids.tolist()
        return [row[real].tolist() for row, real in zip(self.ids, self.segments != 0, strict=True)]

    def unwrap(self, result: Tensor) -> Tensor:
        return result[0] if self.single else result


@dataclass(frozen=True)
class Side:
    """How the texts of one side become ids: the rule that cuts them, what stands around them, how many there may be."""

    tokenizer: Tokenizer | None
    begin: tuple[int, ...]
    end: tuple[int, ...]
    vocabulary: int
    context: int
    longest: int  # tokens after which a text is cut; 0 = never
    why: str  # there is no tokenizer


def read_batch(
    config: c.Config,
    tokenizers: tuple[Tokenizer | None, Tokenizer | None],
    like: Tensor,
    x: object = None,
    *,
    source: object = None,
    picture: object = None,
    sound: object = None,
    longest: int = 0,
    why: str = "",
) -> Batch:
    """`like` is a parameter of the model, whose device and dtype are the batch's; the second tokenizer the source's."""
    m, use = config.model, config.use
    both = isinstance(m.shape, c.EncoderDecoder)
    reads = m.shape.input if isinstance(m.shape, c.EncoderDecoder) else m.input
    wanted = {c.Tokens: "source" if both else "text", c.Pictures: "pictures"}.get(type(reads), "sound")
    given = {"text": None if both else x, "source": source, "pictures": picture, "sound": sound}
    named = wanted if wanted == "text" else f"{wanted} ({wanted}=…)"
    for name, value in given.items():
        if value is not None and name != wanted:
            raise ClearheadError(f"this model reads {named}, not {name}.")
    if given[wanted] is None:
        raise ClearheadError(f"this model reads {named}; none was given.")
    if not isinstance(m.shape, c.EncoderDecoder):
        side = Side(tokenizers[0], use.begin, use.end, m.vocabulary, m.context, longest, why)
        return Batch(*_read(given[wanted], reads, side, like), None, None)
    source_side = Side(
        tokenizers[1], use.begin, use.end, m.shape.vocabulary or m.vocabulary, m.shape.context, longest, why
    )
    first, first_segments, one = _read(given[wanted], reads, source_side, like)
    if x is None and not use.start:
        raise ClearheadError("an encoder-decoder also needs the target: logits(target, source=…).")
    if x is None:  # what its output starts with
        x = list(use.start) if one else [list(use.start)] * len(first)
    side = Side(tokenizers[0], use.start, (), m.vocabulary, m.context, longest, why)
    ids, segments, single = _read(x, m.input, side, like)
    if len(ids) != len(first):
        raise ClearheadError(f"there are {len(ids)} targets for {len(first)} sources; each target needs one source.")
    return Batch(ids, segments, single, first, first_segments)


def _read(x: object, reads: c.Input, side: Side, like: Tensor) -> tuple[Tensor, Tensor | None, bool]:
    """One side of a batch: what the network reads, segments where rows are padded, and whether it was only one."""
    if isinstance(reads, c.Tokens):
        return _ids(x, side, like.device)
    return _dense(x, reads, like)


def _ids(x: object, side: Side, device: torch.device) -> tuple[Tensor, Tensor | None, bool]:
    single = (
        isinstance(x, str)
        or (isinstance(x, Tensor) and x.dim() == 1)
        or (_is_list(x) and bool(x) and isinstance(x[0], int))
    )
    if isinstance(x, Tensor):
        if x.dim() not in (1, 2) or x.is_floating_point() or x.dtype == torch.bool:
            raise ClearheadError(f"token ids must be a 1-D or 2-D tensor of whole numbers, not {x.dim()}-D {x.dtype}.")
        rows = x.long()[None] if single else x.long()
        ids, segments = rows.to(device), None
    else:
        texts = [x] if single else x
        if not _is_list(texts):
            raise ClearheadError(f"text, a list of texts or token ids are needed, not {type(x).__name__}.")
        listed = [_encode(text, side) for text in texts]
        for tokens in listed:
            _in_range(tokens, side.vocabulary)
        longest = max(map(len, listed), default=0)
        ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in listed], device=device).long()
        lengths = torch.tensor([len(tokens) for tokens in listed], device=device)
        real = (torch.arange(longest, device=device) < lengths[:, None]).long()
        segments = None if bool(real.all()) else real
    if not ids.numel() or (segments is not None and not bool(segments[:, 0].all())):
        raise ClearheadError("the text is empty; give at least one token.")
    if ids.shape[1] > side.context:
        raise ClearheadError(f"{ids.shape[1]} tokens are more than this model's context of {side.context}.")
    _in_range((int(ids.min()), int(ids.max())), side.vocabulary)
    return ids, segments, single


def _in_range(ids: Sequence[int], vocabulary: int) -> None:
    for i in ids:
        if not 0 <= i < vocabulary:
            raise ClearheadError(f"token id {i} is out of range; the vocabulary has ids 0 to {vocabulary - 1}.")


def _encode(text: object, side: Side) -> Sequence[int]:
    """Ids as they are; a text with what belongs around it."""
    if isinstance(text, str):
        if side.tokenizer is None:
            why = side.why or "this model has no tokenizer, so it cannot read text."
            raise ClearheadError(f"{why.removesuffix('.')}; give token ids.")
        room = side.longest - len(side.begin) - len(side.end) if side.longest else None
        return [*side.begin, *side.tokenizer.encode(text)[:room], *side.end]
    if _is_list(text) and all(isinstance(i, int) and not isinstance(i, bool) for i in text):
        return text
    raise ClearheadError(f"a text or a list of token ids is needed, not {text!r:.60}.")


def _is_list(x: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(x, list | tuple)


def _dense(x: object, reads: c.Pictures | c.Sound | c.Spectrogram, like: Tensor) -> tuple[Tensor, None, bool]:
    """Pictures as channels × height × width and sound as samples, one or a batch; or files of them."""
    if not isinstance(x, Tensor):
        files: list[Any] = list(x) if _is_list(x) else [x]
        if not files:
            raise ClearheadError(f"at least one file of {reads.kind} is needed.")
        if isinstance(reads, c.Pictures):
            return pictures.batch(files, reads).to(like), None, not _is_list(x)
        if not all(isinstance(file, str | Path) for file in files):
            raise ClearheadError(f"{reads.kind} must be a tensor of samples or the name of a file.")
        heard = [sounds.log_mel(sounds.read(file, reads), reads) for file in files]
        return torch.cat(heard).to(like), None, not _is_list(x)
    one = 3 if isinstance(reads, c.Pictures) else 1
    if not x.is_floating_point() or x.dim() not in (one, one + 1):
        sizes = f"{one} dimensions, or {one + 1} for a batch"
        raise ClearheadError(f"{reads.kind} must be floating-point numbers of {sizes}, not {x.dim()}-D {x.dtype}.")
    single = x.dim() == one
    x = x[None] if single else x
    return (x if isinstance(reads, c.Pictures) else sounds.log_mel(x.float(), reads)).to(like), None, single
