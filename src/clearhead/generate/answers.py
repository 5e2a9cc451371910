"""What models answer without writing on: a word for a gap, a class, a number, a vector, how likely a text is."""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.model.heads import pool_mean
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

GAP = "[MASK]"  # what people type, whatever the tokenizer calls it


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
        return sum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens that would surprise as much."""
        return math.exp(-self.total / len(self.logprobs)) if self.logprobs else math.nan


@torch.no_grad()
def fill(net: Transformer, tokenizer: Tokenizer | None, config: c.Config, text: str, top: int) -> list[list[Filled]]:
    """The likeliest tokens for each gap of the text."""
    if not isinstance(config.model.head, c.MaskedWord):
        raise ClearheadError(f"this {config.model.shape.kind} fills no gaps; a model with a masked-word head does.")
    if tokenizer is None or not config.use.mask:
        raise ClearheadError("it is not known which token hides a word; give the model a tokenizer and use__mask=[id].")
    if top < 1:
        raise ClearheadError(f"top = {top} answers are too few; ask for at least 1.")
    ids = gapped(tokenizer, config.use, text)
    if len(ids) > net.context:
        raise ClearheadError(f"{len(ids)} tokens are more than this model's context of {net.context}.")
    row = torch.tensor([ids], device=next(net.parameters()).device)
    logits = net.predict(net(row))[0, :, : len(tokenizer)].float()
    found = []
    for place in [i for i, token in enumerate(ids) if token == config.use.mask[0]]:
        best = logits[place].softmax(dim=-1).topk(min(top, len(tokenizer)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found.append([Filled(tokenizer.decode([token]).strip(), token, p) for token, p in pairs])
    return found


def gapped(tokenizer: Tokenizer, use: c.Use, text: str) -> list[int]:
    """The ids of a text with gaps, with what stands around it. A word brings its own space, so a gap does too."""
    mask = use.mask[0]
    names = [GAP, *(name for name, token in tokenizer.special.items() if token == mask)]
    space = " ?" if tokenizer.spaces_first else ""
    parts = re.split("|".join(space + re.escape(name) for name in names), text)
    if len(parts) == 1:
        raise ClearheadError(f"the text has no gap; write {GAP} where a word is missing.")
    ids = [*use.begin, *tokenizer.encode(parts[0])]
    for part in parts[1:]:
        ids += [mask, *tokenizer.encode(part)]
    return [*ids, *use.end]


def check_judges(m: c.ModelConfig) -> None:
    if not isinstance(m.head, c.Classes | c.Number):
        raise ClearheadError(f"this {m.shape.kind} has head {m.head.kind}, which tells no classes; fine-tune it to.")


def judged(logits: Tensor, config: c.Config) -> list[Judged] | list[float]:
    """Rows of logits as classes with probabilities, or as the numbers they are."""
    if isinstance(config.model.head, c.Number):
        return logits.squeeze(-1).tolist()
    names = config.use.labels or tuple(map(str, range(logits.shape[1])))
    found = []
    for row in logits.softmax(dim=-1).tolist():
        shares = dict(zip(names, row, strict=True))
        best = max(shares, key=lambda name: shares[name])
        found.append(Judged(best, shares[best], shares))
    return found


def scored(logits: Tensor, ids: list[int]) -> Scored:
    rows, following = logits[: len(ids) - 1].log_softmax(dim=-1), torch.tensor(ids[1:], device=logits.device)
    return Scored(rows.gather(1, following[:, None])[:, 0].tolist())


def pooled(hidden: Tensor, segments: Tensor | None, pooling: str, unit: bool) -> Tensor:
    """One vector for each row: the mean of its hidden states, or the first; scaled to length 1 if asked for."""
    if pooling not in ("mean", "first"):
        raise ClearheadError(f"pooling {pooling!r} is unknown; it is mean or first.")
    vectors = pool_mean(hidden, segments) if pooling == "mean" else hidden[:, 0]
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors
