"""A language model on texts: how little they surprise it, for each token, word and byte."""

import math
from collections.abc import Iterator, Sequence

from clearhead.evaluate.documents import Document, over_documents, read_documents
from clearhead.evaluate.figures import Evaluation
from clearhead.evaluate.task import Task
from clearhead.generate.answers import powers, scored
from clearhead.tokens.text import Tokenizer
from clearhead.train.tokenizers import opening

STRETCH = 128  # tokens of the parts of which intervals are drawn, where documents are few
HOW = {
    "loss": "−log p of a token, in nats",
    "perplexity": "of a token: exp(loss)",
    "word perplexity": "of a word between white space: exp(−log p / words)",
    "bits per byte": "−log₂ p / bytes of UTF-8, whatever the tokens",
}


def surprise(task: Task) -> Evaluation:
    """Every token is told once, from what stands before it in its document, as far as a window reaches back."""
    net, (found, rows) = task.model.net, _opened(task, read_documents(task))
    if any(len(ids) - 1 > net.context for ids in rows):
        step = task.stride or net.context // 2
        task.report.told.append(f"long texts were read in windows of {net.context} tokens, with a stride of {step}")
    told = scored(net, rows, task.stride, bar=True)
    documents = zip(found, told, strict=True)
    parts = [(i, sums) for i, (document, one) in enumerate(documents) for sums in _sums(document, one.logprobs)]
    unit = f"stretches of up to {STRETCH} tokens"
    return over_documents(task, found, parts, unit, HOW, _surprises, {"tokens": 1, "bytes": 3})


def _sums(document: Document, logprobs: list[float]) -> Iterator[list[float]]:
    """−log p, tokens, words and bytes of each stretch; the last two are taken to be as many as its share of tokens."""
    for start in range(0, len(logprobs), STRETCH):
        some = logprobs[start : start + STRETCH]
        share = len(some) / len(logprobs)
        yield [-math.fsum(some), len(some), share * document.words, share * document.bytes]


def _opened(task: Task, found: list[Document]) -> tuple[list[Document], list[Sequence[int]]]:
    """The documents of which anything can be told, each with its ids, the first of which is only read."""
    first = opening(task.model.config.use, task.tokenizer)
    if first is not None:
        return found, [[first, *document.ids] for document in found]
    found = [document for document in found if len(document.ids) > 1]
    task.refuse_nothing(len(found), "text of two tokens")
    for document in found:
        document.bytes -= _size(task.tokenizer, document.ids[0])
        both, second = (len(task.tokenizer.decode(ids).split()) for ids in (document.ids[:2], document.ids[1:2]))
        document.words -= both - second  # 1 where it is a whole word
    said = "no token opens a document, so the first is only read"
    task.report.told.append(f"{said}; neither its bytes nor, where it is a whole one, its word count")
    return found, [document.ids for document in found]


def _size(tokenizer: Tokenizer, token: int) -> int:
    """Its bytes: tokens made of bytes have a letter for each, and may hold only a part of a character."""
    return len(tokenizer._token(token) if tokenizer.spaces_first else tokenizer.decode([token]).encode())


def _surprises(loss: float, tokens: float, words: float, size: float) -> list[float]:
    per_word = powers(loss / words) if words else math.nan
    return [loss / tokens, powers(loss / tokens), per_word, loss / size / math.log(2) if size else math.nan]
