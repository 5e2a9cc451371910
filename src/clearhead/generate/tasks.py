"""Tasks without generation: mask filling, classification, regression, text scores, embeddings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import Batch, batches_by_length, check_text_length
from clearhead.errors import ClearheadError, InputTextError, NonFiniteError, check_int
from clearhead.model.heads import mean_pool
from clearhead.model.transformer import Transformer, eval_mode
from clearhead.progress_bar import progress_bar
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, Tokenizer, encode_with_masks

MAX_LOGITS = 2**24  # computed at once, to bound memory


@dataclass(frozen=True)
class TokenProbability:
    """A candidate for a mask."""

    token: int
    word: str
    probability: float


@dataclass(frozen=True)
class FillResult:
    """The most likely words for each mask of a text, most likely first."""

    masks: list[list[TokenProbability]]


@dataclass(frozen=True)
class Classification:
    """The most likely label with its probability; of a regression model, the predicted value."""

    label: str  # empty for a regression model
    score: float
    probabilities: dict[str, float]  # of all labels; empty for a regression model


@dataclass(frozen=True)
class Score:
    """The log-probability of each token after the first, given those before it."""

    logprobs: list[float]

    @property
    def total_logprob(self) -> float:
        """The log-probability of the text, given its first token."""
        return sum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return safe_exp(-self.total_logprob / len(self.logprobs)) if self.logprobs else math.nan


def safe_exp(exponent: float) -> float:
    """exp, infinite instead of an OverflowError."""
    return math.exp(exponent) if exponent < 709 else math.inf


def check_finite(values: Tensor, name: str = "the logits") -> None:
    """Raise if there is a NaN or infinity. Pass exp of log-probabilities, as −∞ is valid there."""
    if not bool(values.isfinite().all()):
        raise NonFiniteError(name)


@torch.no_grad()
def fill_masks(
    net: Transformer, tokenizer: Tokenizer | None, config: c.Config, text: str, top_k: int
) -> FillResult:
    """Predict the `top_k` most likely tokens for each mask of the text."""
    if not isinstance(config.model.head, c.MLMHead):
        raise ClearheadError(
            f"filling masks needs a model with an mlm head; this {config.model.architecture.kind} "
            f"has head {config.model.head.kind}."
        )
    if tokenizer is None or not config.inference.mask_token:
        raise ClearheadError(
            "filling masks needs a tokenizer and a mask token: set inference.mask_token = [id]."
        )
    if not isinstance(text, str):
        raise ClearheadError(f"expected a text with {MASK_PLACEHOLDER}, got {type(text).__name__}.")
    check_int("top_k", top_k, 1)
    ids = encode_masked_text(tokenizer, config.inference, text)
    check_text_length(len(ids), net.context_length)
    row = torch.tensor([ids], device=next(net.parameters()).device)
    with eval_mode(net):
        logits = net.compute_logits(net(row))[row == config.inference.mask_token[0]]
    probabilities = logits[:, : len(tokenizer)].float().softmax(dim=-1)
    check_finite(probabilities)
    best = probabilities.topk(min(top_k, len(tokenizer)))
    return FillResult(
        [
            [
                TokenProbability(token, tokenizer.decode([token]).strip(), p)
                for token, p in zip(tokens, values, strict=True)
            ]
            for tokens, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    )


def encode_masked_text(tokenizer: Tokenizer, inference: c.InferenceConfig, text: str) -> list[int]:
    """Encode a text with masks, between the tokens that the model expects around a text."""
    ids = encode_with_masks(tokenizer, inference.mask_token[0], text)
    if inference.mask_token[0] not in ids:
        raise InputTextError(None, f"has no mask; write {MASK_PLACEHOLDER} for a missing word.")
    return [*inference.bos_tokens, *ids, *inference.sep_tokens]


def check_can_embed(m: c.ModelConfig) -> None:
    """Raise unless the model can embed a text."""
    if isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError(
            "an encoder-decoder has no text embeddings; use an encoder or decoder."
        )


def pool_hidden(
    hidden: Tensor, segment_ids: Tensor | None, pooling: str, normalize: bool
) -> Tensor:
    """Pool the hidden states of each row into one vector, optionally of unit length."""
    if pooling not in ("mean", "first"):
        raise ClearheadError(f"pooling must be 'mean' or 'first', got {pooling!r}.")
    vectors = mean_pool(hidden, segment_ids) if pooling == "mean" else hidden[:, 0]
    check_finite(vectors, "the embeddings")
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


def check_can_classify(m: c.ModelConfig) -> None:
    """Raise unless the model has a classification or regression head."""
    if not isinstance(m.head, c.ClassificationHead | c.RegressionHead):
        raise ClearheadError(
            f"this {m.architecture.kind} has head {m.head.kind}; classification needs a "
            "classification or regression head. Fine-tune the model with one."
        )


def check_texts_not_empty(texts: object) -> None:
    """Raise if one of several texts is blank; token ids are not checked."""
    if not isinstance(texts, list | tuple):
        return
    for index, text in enumerate(texts):
        if isinstance(text, str) and not text.strip():
            raise InputTextError(index if len(texts) > 1 else None, "is empty.")


def max_classification_tokens(config: c.Config) -> int:
    """The length to which texts are truncated before they are classified."""
    return config.inference.max_length or config.model.context_length


def classification_results(logits: Tensor, config: c.Config) -> list[Classification]:
    """Turn rows of logits into labels with probabilities, or into predicted values."""
    check_finite(logits)
    if isinstance(config.model.head, c.RegressionHead):
        return [Classification("", value, {}) for value in logits.squeeze(-1).tolist()]
    labels = config.inference.labels or tuple(map(str, range(logits.shape[1])))
    results = []
    for row in logits.softmax(dim=-1).tolist():
        probabilities = dict(zip(labels, row, strict=True))
        best = max(probabilities, key=lambda label: probabilities[label])
        results.append(Classification(best, probabilities[best], probabilities))
    return results


def score_texts(
    net: Transformer, rows: Sequence[Sequence[int]], stride: int = 0, show_progress: bool = False
) -> list[Score]:
    """Score texts of any length; a text longer than the context is read in sliding windows."""
    window_texts = []  # for each window, the index of its text
    windows = []
    for index, ids in enumerate(rows):
        for start, new, end in sliding_windows(len(ids) - 1, net.context_length, stride):
            window_texts.append(index)
            windows.append((ids[start : end + 1], new - start))
    results = window_logprobs(net, windows)
    logprobs = dict(progress_bar(results, len(windows), "windows") if show_progress else results)
    texts: list[list[float]] = [[] for _ in rows]
    for window, index in enumerate(window_texts):
        texts[index] += logprobs[window]
    return [Score(values) for values in texts]


def sliding_windows(tokens: int, context: int, stride: int = 0) -> Iterator[tuple[int, int, int]]:
    """Cut a text into overlapping windows: start, first position not in an earlier window, end.

    The stride defaults to half the context.
    """
    new = 0
    for start in range(0, tokens, stride or max(1, context // 2)):
        if new < tokens:
            end = min(start + context, tokens)
            yield start, new, end
            new = end


@torch.no_grad()
def window_logprobs(
    net: Transformer, windows: Sequence[tuple[Sequence[int], int]]
) -> Iterator[tuple[int, list[float]]]:
    """For each window `(ids, new)`: its index and the log-probabilities of the tokens after `new`.

    Windows of similar length are batched, so the order differs from the input's.
    """
    device = next(net.parameters()).device
    for indices in batches_by_length([len(ids) - 1 for ids, _ in windows], device):
        batch = Batch.from_rows([windows[i][0][:-1] for i in indices], device)
        with eval_mode(net):
            hidden = net(batch.inputs, segment_ids=batch.segment_ids)
        states = []
        targets: list[int] = []
        for row, i in zip(hidden, indices, strict=True):
            ids, new = windows[i]
            states.append(row[new : len(ids) - 1])
            targets += ids[new + 1 :]
        logprobs = iter(_target_logprobs(net, torch.cat(states), targets))
        for i in indices:
            ids, new = windows[i]
            yield i, [*islice(logprobs, len(ids) - 1 - new)]


def _target_logprobs(net: Transformer, states: Tensor, targets: Sequence[int]) -> list[float]:
    """The log-probability of each target after its hidden state, a few logits at a time."""
    logprobs: list[float] = []
    chunk = max(1, MAX_LOGITS // net.config.vocab_size)
    for start in range(0, len(targets), chunk):
        logits = net.compute_logits(states[None, start : start + chunk])[0].float()
        index = torch.tensor(targets[start : start + chunk], device=logits.device)
        values = logits.log_softmax(dim=-1).gather(1, index[:, None])[:, 0]
        check_finite(values.exp())
        logprobs += values.tolist()
    return logprobs
