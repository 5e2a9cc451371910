"""What models answer without writing on: a word for a gap, a class, a number, a vector, how likely a text is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch, batches_by_length, check_text_length
from clearhead.errors import ClearheadError, InputTextError, NonFiniteError, check_int
from clearhead.model.heads import mean_pool
from clearhead.model.transformer import Transformer
from clearhead.progress import progress_bar
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, Tokenizer, encode_with_masks

MAX_LOGITS = 2**24  # that are made at once, where one for each word and place would be too many


@dataclass(frozen=True)
class FillResult:
    """A word for a gap."""

    word: str
    token: int
    probability: float


@dataclass(frozen=True)
class ClassificationResult:
    """The likeliest class, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class ScoreResult:
    """The log-probability of each token after the first, given those before it."""

    logprobs: list[float]

    @property
    def total_logprob(self) -> float:
        """The log-probability of the whole text, given its first token."""
        return sum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens that would surprise as much."""
        return safe_exp(-self.total_logprob / len(self.logprobs)) if self.logprobs else math.nan


def safe_exp(exponent: float) -> float:
    """e to that power; infinite where a float ends."""
    return math.exp(exponent) if exponent < 709 else math.inf


@torch.no_grad()
def fill_masks(
    net: Transformer, tokenizer: Tokenizer | None, config: c.Config, text: str, top: int
) -> list[list[FillResult]]:
    """The likeliest tokens for each gap of the text."""
    if not isinstance(config.model.head, c.MLMHead):
        raise ClearheadError(
            f"this {config.model.architecture.kind} fills no gaps; a model with a masked-word head does."
        )
    if tokenizer is None or not config.inference.mask_token:
        raise ClearheadError(
            "it is not known which token hides a word; it needs a tokenizer, and inference.mask_token = [id]."
        )
    if not isinstance(text, str):
        raise ClearheadError(
            f"one text with {MASK_PLACEHOLDER} where a word is missing is needed, not {type(text).__name__}."
        )
    check_int("top", top, 1)
    ids = encode_masked_text(tokenizer, config.inference, text)
    check_text_length(len(ids), net.context_length)
    row = torch.tensor([ids], device=next(net.parameters()).device)
    chances = (
        net.compute_logits(net(row))[row == config.inference.mask_token[0], : len(tokenizer)]
        .float()
        .softmax(dim=-1)
    )
    check_finite(chances)
    best = chances.topk(min(top, len(tokenizer)))
    return [
        [
            FillResult(tokenizer.decode([token]).strip(), token, p)
            for token, p in zip(tokens, shares, strict=True)
        ]
        for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def encode_masked_text(tokenizer: Tokenizer, use: c.InferenceConfig, text: str) -> list[int]:
    """The ids of a text with gaps, with what stands around it."""
    ids = encode_with_masks(tokenizer, use.mask_token[0], text)
    if use.mask_token[0] not in ids:
        raise InputTextError(None, f"has no gap; write {MASK_PLACEHOLDER} where a word is missing.")
    return [*use.bos_tokens, *ids, *use.sep_tokens]


def check_finite(values: Tensor, what: str = "the logits") -> None:
    """Refuses what a model computed, if that is no numbers; of log-probabilities, −∞ is one, so give their exp."""
    if not bool(values.isfinite().all()):
        raise NonFiniteError(what)


def check_can_embed(m: c.ModelConfig) -> None:
    if isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError(
            "an encoder-decoder gives no vector for a text; an encoder or a decoder does."
        )


def max_classification_tokens(config: c.Config) -> int:
    """Tokens of a text that are judged; the rest is cut."""
    return config.inference.max_length or config.model.context_length


def check_texts_not_empty(texts: Any) -> None:
    """There is something to read in each of several texts; what is given as ids may be anything."""
    for number, text in enumerate(texts if isinstance(texts, list | tuple) else ()):
        if isinstance(text, str) and not text.strip():
            raise InputTextError(
                number if len(texts) > 1 else None, "is empty; there must be something to read."
            )


def check_can_classify(m: c.ModelConfig) -> None:
    if not isinstance(m.head, c.ClassificationHead | c.RegressionHead):
        raise ClearheadError(
            f"this {m.architecture.kind} has head {m.head.kind}, which tells no classes; fine-tune it to."
        )


def classification_results(
    logits: Tensor, config: c.Config
) -> list[ClassificationResult] | list[float]:
    """Rows of logits as classes with probabilities, or as the numbers they are."""
    check_finite(logits)
    if isinstance(config.model.head, c.RegressionHead):
        return logits.squeeze(-1).tolist()
    names = config.inference.labels or tuple(map(str, range(logits.shape[1])))
    found = []
    for row in logits.softmax(dim=-1).tolist():
        shares = dict(zip(names, row, strict=True))
        best = max(shares, key=lambda name: shares[name])
        found.append(ClassificationResult(best, shares[best], shares))
    return found


def score_texts(
    net: Transformer, rows: Sequence[Sequence[int]], stride: int = 0, show_progress: bool = False
) -> list[ScoreResult]:
    """How likely each text is, whatever its length and however many there are; a long one is read in `windows`."""
    cuts = [
        (text, *cut)
        for text, ids in enumerate(rows)
        for cut in sliding_windows(len(ids) - 1, net.context_length, stride)
    ]
    pieces = [(rows[text][begin : end + 1], new - begin) for text, begin, new, end in cuts]
    read = window_logprobs(net, pieces)
    told = dict(progress_bar(read, len(pieces), "windows") if show_progress else read)
    found: list[list[float]] = [[] for _ in rows]
    for number, (text, *_) in enumerate(cuts):
        found[text] += told[number]
    return [ScoreResult(logprobs) for logprobs in found]


def sliding_windows(tokens: int, context: int, stride: int = 0) -> Iterator[tuple[int, int, int]]:
    """Pieces of a text, each so many tokens after the one before: its begin, what is new from there, its end.

    The step is half a context where it is not told.
    """
    new = 0
    for begin in range(0, tokens, stride or max(1, context // 2)):
        if new < tokens:
            end = min(begin + context, tokens)
            yield begin, new, end
            new = end


@torch.no_grad()
def window_logprobs(
    net: Transformer, pieces: Sequence[tuple[Sequence[int], int]]
) -> Iterator[tuple[int, list[float]]]:
    """The log-probability of each token after place `new` of a piece `(ids, new)`, with the number of the piece.

    Pieces of like length are read together, so they come in another order than they were given in.
    """
    device = next(net.parameters()).device
    for some in batches_by_length([len(ids) - 1 for ids, _ in pieces], device):
        batch = Batch.from_rows([pieces[i][0][:-1] for i in some], device)
        hidden = net(batch.inputs, segment_ids=batch.segment_ids)
        news = [(i, *pieces[i]) for i in some]
        states = torch.cat(
            [row[new : len(ids) - 1] for row, (_, ids, new) in zip(hidden, news, strict=True)]
        )
        told = iter(_told(net, states, [token for _, ids, new in news for token in ids[new + 1 :]]))
        for i, ids, new in news:
            yield i, [*islice(told, len(ids) - 1 - new)]


def _told(net: Transformer, states: Tensor, following: Sequence[int]) -> list[float]:
    """The log-probability of the token after each state; logits are made for a few at a time, being so many."""
    found = []
    some = max(1, MAX_LOGITS // net.config.vocab_size)
    for at in range(0, len(following), some):
        log_probs = net.compute_logits(states[None, at : at + some])[0].float().log_softmax(dim=-1)
        wanted = torch.tensor(following[at : at + some], device=log_probs.device)
        own = log_probs.gather(1, wanted[:, None])[:, 0]
        check_finite(own.exp())
        found += own.tolist()
    return found


def pool_hidden(
    hidden: Tensor, segment_ids: Tensor | None, pooling: str, normalize: bool
) -> Tensor:
    """One vector for each row: the mean of its hidden states, or the first; scaled to length 1 if asked for."""
    if pooling not in ("mean", "first"):
        raise ClearheadError(f"pooling {pooling!r} is unknown; it is mean or first.")
    vectors = mean_pool(hidden, segment_ids) if pooling == "mean" else hidden[:, 0]
    check_finite(vectors, "the vectors")
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
