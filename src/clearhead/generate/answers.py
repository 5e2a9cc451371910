"""What models answer without writing on: a word for a gap, a class, a number, a vector, how likely a text is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch, by_length, check_length
from clearhead.errors import ClearheadError, NoNumbers, Unreadable, check_whole
from clearhead.lens.progress import shown
from clearhead.model.heads import pool_mean
from clearhead.model.transformer import Transformer
from clearhead.tokens.gaps import GAP, with_gaps
from clearhead.tokens.text import Tokenizer

LOGITS = 2**24  # that are made at once, where one for each word and place would be too many


@dataclass(frozen=True)
class Filled:
    """A word for a gap."""

    word: str
    token: int
    probability: float


@dataclass(frozen=True)
class Judged:
    """The likeliest class, and the probability of each."""

    label: str
    probability: float
    all: dict[str, float]


@dataclass(frozen=True)
class Scored:
    """The log-probability of each token after the first, given those before it."""

    logprobs: list[float]

    @property
    def total(self) -> float:
        """The log-probability of the whole text, given its first token."""
        return sum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens that would surprise as much."""
        return powers(-self.total / len(self.logprobs)) if self.logprobs else math.nan


def powers(exponent: float) -> float:
    """e to that power; infinite where a float ends."""
    return math.exp(exponent) if exponent < 709 else math.inf


@torch.no_grad()
def fill(net: Transformer, tokenizer: Tokenizer | None, config: c.Config, text: str, top: int) -> list[list[Filled]]:
    """The likeliest tokens for each gap of the text."""
    if not isinstance(config.model.head, c.MaskedWord):
        raise ClearheadError(f"this {config.model.shape.kind} fills no gaps; a model with a masked-word head does.")
    if tokenizer is None or not config.use.mask:
        raise ClearheadError("it is not known which token hides a word; it needs a tokenizer, and use.mask = [id].")
    if not isinstance(text, str):
        raise ClearheadError(f"one text with {GAP} where a word is missing is needed, not {type(text).__name__}.")
    check_whole("top", top, 1)
    ids = gapped(tokenizer, config.use, text)
    check_length(len(ids), net.context)
    row = torch.tensor([ids], device=next(net.parameters()).device)
    chances = net.predict(net(row))[row == config.use.mask[0], : len(tokenizer)].float().softmax(dim=-1)
    check_numbers(chances)
    best = chances.topk(min(top, len(tokenizer)))
    return [
        [Filled(tokenizer.decode([token]).strip(), token, p) for token, p in zip(tokens, shares, strict=True)]
        for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def gapped(tokenizer: Tokenizer, use: c.Use, text: str) -> list[int]:
    """The ids of a text with gaps, with what stands around it."""
    ids = with_gaps(tokenizer, use.mask[0], text)
    if use.mask[0] not in ids:
        raise Unreadable(None, f"has no gap; write {GAP} where a word is missing.")
    return [*use.begin, *ids, *use.end]


def check_numbers(values: Tensor, what: str = "the logits") -> None:
    """Refuses what a model computed, if that is no numbers; of log-probabilities, −∞ is one, so give their exp."""
    if not bool(values.isfinite().all()):
        raise NoNumbers(what)


def check_embeds(m: c.ModelConfig) -> None:
    if isinstance(m.shape, c.EncoderDecoder):
        raise ClearheadError("an encoder-decoder gives no vector for a text; an encoder or a decoder does.")


def judged_tokens(config: c.Config) -> int:
    """Tokens of a text that are judged; the rest is cut."""
    return config.use.longest or config.model.context


def check_said(texts: Any) -> None:
    """There is something to read in each of several texts; what is given as ids may be anything."""
    for number, text in enumerate(texts if isinstance(texts, list | tuple) else ()):
        if isinstance(text, str) and not text.strip():
            raise Unreadable(number if len(texts) > 1 else None, "is empty; there must be something to read.")


def check_judges(m: c.ModelConfig) -> None:
    if not isinstance(m.head, c.Classes | c.Number):
        raise ClearheadError(f"this {m.shape.kind} has head {m.head.kind}, which tells no classes; fine-tune it to.")


def judged(logits: Tensor, config: c.Config) -> list[Judged] | list[float]:
    """Rows of logits as classes with probabilities, or as the numbers they are."""
    check_numbers(logits)
    if isinstance(config.model.head, c.Number):
        return logits.squeeze(-1).tolist()
    names = config.use.labels or tuple(map(str, range(logits.shape[1])))
    found = []
    for row in logits.softmax(dim=-1).tolist():
        shares = dict(zip(names, row, strict=True))
        best = max(shares, key=lambda name: shares[name])
        found.append(Judged(best, shares[best], shares))
    return found


def scored(net: Transformer, rows: Sequence[Sequence[int]], step: int = 0, bar: bool = False) -> list[Scored]:
    """How likely each text is, whatever its length and however many there are; a long one is read in `windows`."""
    cuts = [(text, *cut) for text, ids in enumerate(rows) for cut in windows(len(ids) - 1, net.context, step)]
    pieces = [(rows[text][begin : end + 1], new - begin) for text, begin, new, end in cuts]
    read = told_tokens(net, pieces)
    told = dict(shown(read, len(pieces), "windows") if bar else read)
    found: list[list[float]] = [[] for _ in rows]
    for number, (text, *_) in enumerate(cuts):
        found[text] += told[number]
    return [Scored(logprobs) for logprobs in found]


def windows(tokens: int, context: int, step: int = 0) -> Iterator[tuple[int, int, int]]:
    """Pieces of a text, each so many tokens after the one before: its begin, what is new from there, its end.

    The step is half a context where it is not told.
    """
    new = 0
    for begin in range(0, tokens, step or max(1, context // 2)):
        if new < tokens:
            end = min(begin + context, tokens)
            yield begin, new, end
            new = end


@torch.no_grad()
def told_tokens(net: Transformer, pieces: Sequence[tuple[Sequence[int], int]]) -> Iterator[tuple[int, list[float]]]:
    """The log-probability of each token after place `new` of a piece `(ids, new)`, with the number of the piece.

    Pieces of like length are read together, so they come in another order than they were given in.
    """
    device = next(net.parameters()).device
    for some in by_length([len(ids) - 1 for ids, _ in pieces], device):
        batch = Batch.of([pieces[i][0][:-1] for i in some], device)
        hidden = net(batch.ids, segments=batch.segments)
        news = [(i, *pieces[i]) for i in some]
        states = torch.cat([row[new : len(ids) - 1] for row, (_, ids, new) in zip(hidden, news, strict=True)])
        told = iter(_told(net, states, [token for _, ids, new in news for token in ids[new + 1 :]]))
        for i, ids, new in news:
            yield i, [*islice(told, len(ids) - 1 - new)]


def _told(net: Transformer, states: Tensor, following: Sequence[int]) -> list[float]:
    """The log-probability of the token after each state; logits are made for a few at a time, being so many."""
    found, some = [], max(1, LOGITS // net.config.vocabulary)
    for at in range(0, len(following), some):
        log_probs = net.predict(states[None, at : at + some])[0].float().log_softmax(dim=-1)
        wanted = torch.tensor(following[at : at + some], device=log_probs.device)
        own = log_probs.gather(1, wanted[:, None])[:, 0]
        check_numbers(own.exp())
        found += own.tolist()
    return found


def pooled(hidden: Tensor, segments: Tensor | None, pooling: str, unit: bool) -> Tensor:
    """One vector for each row: the mean of its hidden states, or the first; scaled to length 1 if asked for."""
    if pooling not in ("mean", "first"):
        raise ClearheadError(f"pooling {pooling!r} is unknown; it is mean or first.")
    vectors = pool_mean(hidden, segments) if pooling == "mean" else hidden[:, 0]
    check_numbers(vectors, "the vectors")
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors
