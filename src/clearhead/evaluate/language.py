"""Texts as documents, with what there is to count in them; and figures over documents."""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.data.batch import Batch, batches_by_length
from clearhead.data.encoding import batch_by_size, try_encode_batch
from clearhead.data.readers import read_documents
from clearhead.errors import ClearheadError
from clearhead.evaluate.evaluate import EvaluationTask
from clearhead.evaluate.metrics import Evaluation, SampleWeights, bootstrap_metrics
from clearhead.generate.tasks import check_finite, safe_exp, score_texts
from clearhead.progress import progress_bar
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.datasets import document_start_id

# ---- documents: Texts as documents, with what there is to count in them; and figures over documents.

MIN_BOOTSTRAP_DOCUMENTS = 20  # documents: with fewer an interval is drawn from their parts


@dataclass
class Document:
    location: str
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    words: int = 0  # what white space separates
    bytes: int = 0  # of UTF-8


def tokenize_documents(task: EvaluationTask) -> list[Document]:
    """The documents of files as the trainer reads them; those without a token are none."""
    tokenizer = task.tokenizer
    found = list[Document]()
    begins = True
    for some in batch_by_size(
        read_documents(task.paths, task.report, task.data.text_column),
        lambda document: len(document.text),
    ):
        encoded = try_encode_batch(tokenizer, [document.text for document in some])
        for document, ids in zip(some, encoded, strict=True):
            begins = (
                begins or document.is_start
            )  # also when the piece that opened the document was left out
            if isinstance(ids, str):
                task.report.skip(document.location, ids)
                continue
            if begins:
                found.append(Document(document.location))
                begins = False
            found[-1].ids.extend(ids)
            found[-1].words += len(document.text.split())
            found[-1].bytes += len(document.text.encode())
    found = [document for document in found if document.ids]
    task.require_examples(len(found), "text")
    return found


def document_metrics(
    task: EvaluationTask,
    found: list[Document],
    parts: Sequence[tuple[int, list[float]]],
    part: str,
    how: Mapping[str, str],
    values: Callable[..., list[float]],
    counted: Mapping[str, int],
) -> Evaluation:
    """The figures that `values` makes of sums, which are told of each part of a document with the document's number.

    Intervals are drawn from documents; where those are few, from the parts. `counted` are sums to be told of each.
    """
    sums = np.array([own for _, own in parts])
    whole = np.zeros((len(found), sums.shape[1]))
    np.add.at(whole, np.array([number for number, _ in parts]), sums)
    units, unit = (sums, part) if len(found) < MIN_BOOTSTRAP_DOCUMENTS else (whole, "documents")
    each = [
        {"where": document.location}
        | {name: round(own[place]) for name, place in counted.items()}
        | dict(zip(how, values(*own), strict=True))
        for document, own in zip(found, whole.tolist(), strict=True)
    ]

    def statistics(counts: SampleWeights) -> Sequence[float]:
        return values(*(counts @ units).tolist())

    return Evaluation(
        bootstrap_metrics(how, statistics, len(units), unit, task.seed, ("accuracy",)), each
    )


# ---- texts: A language model on texts: how little they surprise it, for each token, word and byte.

SEGMENT_TOKENS = 128  # tokens of the parts of which intervals are drawn, where documents are few
LANGUAGE_MODEL_METRICS = {
    "loss": "−log p of a token, in nats",
    "perplexity": "of a token: exp(loss)",
    "word perplexity": "of a word between white space: exp(−log p / words)",
    "bits per byte": "−log₂ p / bytes of UTF-8, whatever the tokens",
}


def evaluate_language_model(task: EvaluationTask) -> Evaluation:
    """Every token is told once, from what stands before it in its document, as far as a window reaches back."""
    net, (found, rows) = task.model.net, _opened(task, tokenize_documents(task))
    if any(len(ids) - 1 > net.context_length for ids in rows):
        step = task.stride or net.context_length // 2
        task.report.messages.append(
            f"long texts were read in windows of {net.context_length} tokens, with a stride of {step}"
        )
    told = score_texts(net, rows, task.stride, show_progress=True)
    documents = zip(found, told, strict=True)
    parts = [
        (i, sums)
        for i, (document, one) in enumerate(documents)
        for sums in _sums(document, one.logprobs)
    ]
    unit = f"stretches of up to {SEGMENT_TOKENS} tokens"
    return document_metrics(
        task, found, parts, unit, LANGUAGE_MODEL_METRICS, _surprises, {"tokens": 1, "bytes": 3}
    )


def _sums(document: Document, logprobs: list[float]) -> Iterator[list[float]]:
    """−log p, tokens, words and bytes of each stretch; the last two are taken to be as many as its share of tokens."""
    for start in range(0, len(logprobs), SEGMENT_TOKENS):
        some = logprobs[start : start + SEGMENT_TOKENS]
        share = len(some) / len(logprobs)
        yield [-math.fsum(some), len(some), share * document.words, share * document.bytes]


def _opened(
    task: EvaluationTask, found: list[Document]
) -> tuple[list[Document], list[Sequence[int]]]:
    """The documents of which anything can be told, each with its ids, the first of which is only read."""
    first = document_start_id(task.model.config.inference, task.tokenizer)
    if first is not None:
        return found, [[first, *document.ids] for document in found]
    found = [document for document in found if len(document.ids) > 1]
    task.require_examples(len(found), "text of two tokens")
    for document in found:
        document.bytes -= _size(task.tokenizer, document.ids[0])
        both, second = (
            len(task.tokenizer.decode(ids).split()) for ids in (document.ids[:2], document.ids[1:2])
        )
        document.words -= both - second  # 1 where it is a whole word
    said = "no token opens a document, so the first is only read"
    task.report.messages.append(
        f"{said}; neither its bytes nor, where it is a whole one, its word count"
    )
    return found, [document.ids for document in found]


def _size(tokenizer: Tokenizer, token: int) -> int:
    """Its bytes: tokens made of bytes have a letter for each, and may hold only a part of a character."""
    return len(
        tokenizer.id_to_token(token)
        if tokenizer.has_space_prefix
        else tokenizer.decode([token]).encode()
    )


def _surprises(loss: float, tokens: float, words: float, size: float) -> list[float]:
    per_word = safe_exp(loss / words) if words else math.nan
    return [
        loss / tokens,
        safe_exp(loss / tokens),
        per_word,
        loss / size / math.log(2) if size else math.nan,
    ]


# ---- masked: A masked-word model on texts: how well it tells the words that are hidden from it.

MASK_FRACTION = 0.15  # share of the words of a row
MASKED_LM_METRICS = {
    "loss": f"−log p of a hidden word, in nats; {MASK_FRACTION:.0%} of a row's words are hidden, all at once",
    "perplexity": "exp(loss); of words seen from both sides, so not that of a language model",
    "accuracy": "share of hidden words that were the likeliest",
}


class MaskedRow(NamedTuple):
    """A part of a document as ids, with what stands around it, and the places that are hidden."""

    document: int
    ids: list[int]
    masked_positions: NDArray[np.int64]


def evaluate_masked_lm(task: EvaluationTask) -> Evaluation:
    """Documents are read in rows as long as the context allows; which words are hidden follows from the seed."""
    use = task.model.config.inference
    if not use.mask_token:
        raise ClearheadError(
            "it is not known which token hides a word; its configuration needs inference.mask_token = [id]."
        )
    room = task.model.net.context_length - len(use.bos_tokens) - len(use.sep_tokens)
    if room < 1:
        raise ClearheadError(
            f"a context of {task.model.net.context_length} has no room for a text and what stands around it."
        )
    found = tokenize_documents(task)
    special = {use.mask_token[0], *task.tokenizer.special_tokens.values()}
    found = [document for document in found if not special.issuperset(document.ids)]
    task.require_examples(len(found), "word to hide")
    rows = list[MaskedRow]()
    chance = np.random.default_rng(task.seed)
    for number, document in enumerate(found):
        for start in range(0, len(document.ids), room):
            ids = document.ids[start : start + room].tolist()
            free = [
                place
                for place, token in enumerate(ids, len(use.bos_tokens))
                if token not in special
            ]
            if free:
                gaps = chance.choice(free, max(1, round(MASK_FRACTION * len(free))), replace=False)
                rows.append(MaskedRow(number, [*use.bos_tokens, *ids, *use.sep_tokens], gaps))
    sums = zip((row.document for row in rows), _tell(task, rows).tolist(), strict=True)
    return document_metrics(
        task, found, list(sums), "rows", MASKED_LM_METRICS, _shares, {"hidden": 1}
    )


@torch.no_grad()
def _tell(task: EvaluationTask, rows: list[MaskedRow]) -> NDArray[np.float64]:
    """Of each row: −log p of what was hidden, how much that was, and how much of it was told."""
    net = task.model.net
    mask = torch.tensor(task.model.config.inference.mask_token[0], device=task.device)
    sums = np.zeros((len(rows), 3))
    together = batches_by_length([len(row.ids) for row in rows], task.device)
    for some in progress_bar(together, len(rows), "rows", len):
        batch = Batch.from_rows([rows[i].ids for i in some], task.device)
        row = (
            torch.arange(len(some))
            .repeat_interleave(torch.tensor([len(rows[i].masked_positions) for i in some]))
            .to(task.device)
        )
        at = torch.from_numpy(np.concatenate([rows[i].masked_positions for i in some])).to(
            task.device
        )
        wanted = batch.inputs[row, at]
        states = net(batch.inputs.index_put((row, at), mask), segment_ids=batch.segment_ids)[
            row, at
        ]
        log_probs = net.compute_logits(states[None])[0].float().log_softmax(dim=-1)
        own = log_probs.gather(1, wanted[:, None])[:, 0]
        check_finite(own.exp())
        told = torch.stack(
            [-own, torch.ones_like(own), (log_probs.argmax(dim=-1) == wanted).float()], dim=1
        )
        np.add.at(sums, np.array(some)[row.cpu().numpy()], told.double().cpu().numpy())
    return sums


def _shares(loss: float, count: float, right: float) -> list[float]:
    return [loss / count, safe_exp(loss / count), right / count]
