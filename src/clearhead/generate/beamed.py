"""Texts written by beam search, after a prompt or for a source: what may be asked for, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from torch import Tensor

from clearhead.config import Use
from clearhead.errors import ClearheadError, nearest
from clearhead.generate.alternatives import alternatives
from clearhead.generate.beam import beam_search
from clearhead.generate.beam_tree import BeamTree
from clearhead.generate.stream import TextStream
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Written:
    """A text that was written, without the token that ended it; `tokens` hold that too."""

    text: str
    tokens: list[int]
    score: float  # what it is ranked by: logprob / length ** length_penalty
    logprob: float  # the sum of what the model gives its tokens
    tree: BeamTree | None = None  # all that was considered, where it was asked for


@dataclass(frozen=True)
class Wishes:
    """How beam search is to write."""

    beam: int = 5
    max_tokens: int = 0  # 0 = as the context allows
    length_penalty: float = 1.0  # more than 1 prefers long texts, less short ones
    n_best: int = 1
    early: bool = False  # content with the first `beam` texts that end
    no_repeat: int = 0  # runs of so many tokens stand only once in a text; 0 = as they come
    prefix: Any = ""  # what texts begin with: one text or list of ids for all, or a list of them
    alternatives: int | None = None  # a position where the n_best are to differ; before it they are as the best
    tree: bool = False

    def __post_init__(self) -> None:
        for name in ("beam", "max_tokens", "n_best", "no_repeat"):
            if type(value := getattr(self, name)) is not int:
                raise ClearheadError(f"{name} = {value!r} must be a whole number.")
        if not isinstance(self.length_penalty, int | float) or not isfinite(self.length_penalty):
            raise ClearheadError(f"length_penalty = {self.length_penalty!r} must be a finite number.")
        several = isinstance(self.prefix, list | tuple) and all(map(_one_prefix, self.prefix))
        if not several and not _one_prefix(self.prefix):
            raise ClearheadError(f"prefix = {self.prefix!r:.60} must be a text, ids, or a list of them.")


def _one_prefix(given: object) -> bool:
    return isinstance(given, str) or (isinstance(given, list | tuple) and all(type(token) is int for token in given))


def wishes(**options: Any) -> Wishes:
    """Options by name."""
    known = Wishes.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ClearheadError(f"{name} is no option of beam search; {nearest(name, known)}")
    return Wishes(**options)


def prefixes(wish: Any, count: int, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The ids that each of so many texts begins with."""
    shared = isinstance(wish, str) or (bool(wish) and isinstance(wish[0], int))
    listed = [wish] * count if shared else list(wish)
    if len(listed) != count:
        raise ClearheadError(f"there are {len(listed)} prefixes for {count} texts; give one, or one for each.")
    if tokenizer is None and any(isinstance(prefix, str) and prefix for prefix in listed):
        raise ClearheadError("this model has no tokenizer, so it cannot read a prefix; give its token ids.")
    return [tokenizer.encode(p) if isinstance(p, str) and tokenizer else list(p) for p in listed]


def best_texts(
    net: Transformer,
    tokenizer: Tokenizer | None,
    use: Use,
    prompts: list[list[int]],
    wish: Wishes,
    begins: list[list[int]],
    source: Tensor | None = None,
    source_segments: Tensor | None = None,
) -> list[list[Written]]:
    """The best texts after each prompt, or for each source, best first; each begins as `begins` says."""
    room = net.context - max(len(p) + len(b) for p, b in zip(prompts, begins, strict=True))
    options: dict[str, Any] = {
        "beams": wish.beam,
        "max_tokens": wish.max_tokens or max(1, room),
        "stop": use.stop,
        "length_penalty": wish.length_penalty,
        "n_best": wish.n_best,
        "closed": use.closed,
        "early": wish.early,
        "known": len(tokenizer) if tokenizer else None,
        **allowed(use, wish),
    }
    if wish.alternatives is None:
        options |= {"source": source, "source_segments": source_segments, "prefix": begins, "tree": wish.tree}
        found = beam_search(net, prompts, **options)
    elif wish.tree:
        raise ClearheadError("alternatives come from several searches, not one tree; ask for one or the other.")
    else:
        rows = [None] * len(prompts) if source is None else _alone(source, source_segments)
        found = [
            alternatives(net, prompt, at=wish.alternatives, prefix=begin, source=row, **options)
            for prompt, begin, row in zip(prompts, begins, rows, strict=True)
        ]
    before = prompts if source is None else [[]] * len(prompts)  # a text with a source begins as texts do
    return [
        [
            Written(plain_text(tokenizer, h.tokens, use, prompt), h.tokens, h.score, h.logprob, h.tree)
            for h in hypotheses
        ]
        for prompt, hypotheses in zip(before, found, strict=True)
    ]


def allowed(use: Use, wish: Wishes) -> dict[str, Any]:
    """The rules that tell how likely a token is in its place."""
    names = ("never", "never_first", "renormalised")
    return {name: getattr(use, name) for name in names} | {"no_repeat": wish.no_repeat}


def _alone(source: Tensor, segments: Tensor | None) -> list[Tensor]:
    """Each source in a batch of its own, without padding."""
    if segments is None:
        return list(source.split(1))
    return [row[real][None] for row, real in zip(source, segments != 0, strict=True)]


def unlisted(found: Sequence[list[T]], n_best: int) -> list[Any]:
    """Lists where several were asked for, else the best themselves."""
    return list(found) if n_best > 1 else [best for best, *_ in found]


def plain_text(tokenizer: Tokenizer | None, tokens: Sequence[int], use: Use, prompt: Sequence[int] = ()) -> str:
    """What was written, without the token that ended it; after a prompt, with the space between them."""
    if tokenizer is None:
        return ""
    stream = TextStream(tokenizer, prompt)
    return "".join([*(stream.feed(token) for token in tokens if token not in use.stop), stream.end()])
