"""Evaluate language models and masked language models on texts."""

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
from clearhead.evaluate.metrics import SampleWeights
from clearhead.evaluate.results import Evaluation, bootstrap_metrics
from clearhead.generate.tasks import check_finite, safe_exp, score_texts
from clearhead.progress_bar import progress_bar
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.training_data import document_start_id

MIN_BOOTSTRAP_DOCUMENTS = 20  # with fewer, parts of documents are resampled
SEGMENT_TOKENS = 128  # size of these parts
MASK_FRACTION = 0.15  # of the words of a row
LANGUAGE_MODEL_METRICS = {
    "loss": "−log p per token, in nats",
    "perplexity": "exp(loss), per token",
    "word_perplexity": "exp(−log p / whitespace-separated words)",
    "bits_per_byte": "−log₂ p / bytes of UTF-8, independent of the tokenizer",
}
MASKED_LM_METRICS = {
    "loss": f"−log p per masked word, in nats; {MASK_FRACTION:.0%} of a row are masked at once",
    "perplexity": "exp(loss); not comparable with a language model's",
    "accuracy": "fraction of masked words predicted correctly",
}


# --- documents
@dataclass
class Document:
    """A tokenized document."""

    location: str
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    words: int = 0  # separated by whitespace
    bytes: int = 0  # of UTF-8


def tokenize_documents(task: EvaluationTask) -> list[Document]:
    """Read and tokenize documents as in training, except empty ones."""
    tokenizer = task.tokenizer
    documents: list[Document] = []
    is_start = True
    pieces = read_documents(task.paths, task.report, task.data.text_column)
    for batch in batch_by_size(pieces, lambda piece: len(piece.text)):
        texts = [piece.text for piece in batch]
        encoded = try_encode_batch(tokenizer, texts, task.data.parse_special_tokens)
        for piece, ids in zip(batch, encoded, strict=True):
            is_start = is_start or piece.is_start  # the first piece may have been skipped
            if isinstance(ids, str):
                task.report.skip(piece.location, ids)
                continue
            if is_start:
                documents.append(Document(piece.location))
                is_start = False
            documents[-1].ids.extend(ids)
            documents[-1].words += len(piece.text.split())
            documents[-1].bytes += len(piece.text.encode())
    documents = [document for document in documents if document.ids]
    task.require_examples(len(documents), "text")
    return documents


def document_metrics(
    task: EvaluationTask,
    documents: list[Document],
    parts: Sequence[tuple[int, list[float]]],
    part_unit: str,
    descriptions: Mapping[str, str],
    compute: Callable[..., list[float]],
    reported_sums: Mapping[str, int],
) -> Evaluation:
    """Metrics that `compute` makes of sums.

    `parts` are parts of documents: the document's index, and the sums of the part. Intervals
    resample documents, or parts if there are few documents. `reported_sums` name the sums that are
    reported for each document.
    """
    part_sums = np.array([sums for _, sums in parts])
    document_sums = np.zeros((len(documents), part_sums.shape[1]))
    np.add.at(document_sums, np.array([index for index, _ in parts]), part_sums)
    if len(documents) < MIN_BOOTSTRAP_DOCUMENTS:
        units, unit = part_sums, part_unit
    else:
        units, unit = document_sums, "documents"
    examples = []
    for document, sums in zip(documents, document_sums.tolist(), strict=True):
        counts = {name: round(sums[index]) for name, index in reported_sums.items()}
        values = dict(zip(descriptions, compute(*sums), strict=True))
        examples.append({"location": document.location, **counts, **values})

    def statistics(weights: SampleWeights) -> Sequence[float]:
        return compute(*(weights @ units).tolist())

    metrics = bootstrap_metrics(
        descriptions, statistics, len(units), unit, task.seed, ("accuracy",)
    )
    return Evaluation(metrics, examples)


# --- language models
def evaluate_language_model(task: EvaluationTask) -> Evaluation:
    """Score every token once, given the tokens before it in its document and window."""
    net = task.model.net
    documents, rows = _scorable_documents(task, tokenize_documents(task))
    if any(len(ids) - 1 > net.context_length for ids in rows):
        stride = task.stride or net.context_length // 2
        task.report.messages.append(
            f"long texts were read in windows of {net.context_length} tokens, {stride} apart"
        )
    scores = score_texts(net, rows, task.stride, show_progress=True)
    parts = []
    for index, (document, score) in enumerate(zip(documents, scores, strict=True)):
        parts += [(index, sums) for sums in _segment_sums(document, score.logprobs)]
    return document_metrics(
        task,
        documents,
        parts,
        f"segments of up to {SEGMENT_TOKENS} tokens",
        LANGUAGE_MODEL_METRICS,
        _language_model_values,
        {"tokens": 1, "bytes": 3},
    )


def _segment_sums(document: Document, logprobs: list[float]) -> Iterator[list[float]]:
    """−log p, tokens, words and bytes of each segment; the last two in proportion to its tokens."""
    for start in range(0, len(logprobs), SEGMENT_TOKENS):
        segment = logprobs[start : start + SEGMENT_TOKENS]
        fraction = len(segment) / len(logprobs)
        yield [
            -math.fsum(segment),
            len(segment),
            fraction * document.words,
            fraction * document.bytes,
        ]


def _scorable_documents(
    task: EvaluationTask, documents: list[Document]
) -> tuple[list[Document], list[Sequence[int]]]:
    """Documents with their ids, after a start token; without one, the first token is not scored."""
    start_id = document_start_id(task.model.config.inference, task.tokenizer)
    if start_id is not None:
        return documents, [[start_id, *document.ids] for document in documents]
    documents = [document for document in documents if len(document.ids) > 1]
    task.require_examples(len(documents), "text of two tokens")
    for document in documents:
        document.bytes -= _num_bytes(task.tokenizer, document.ids[0])
        first_two = len(task.tokenizer.decode(document.ids[:2]).split())
        second = len(task.tokenizer.decode(document.ids[1:2]).split())
        document.words -= first_two - second  # 1 if the first token is a whole word
    task.report.messages.append(
        "the tokenizer has no document start token, so the first token of each document is not "
        "scored, nor are its bytes counted"
    )
    return documents, [document.ids for document in documents]


def _num_bytes(tokenizer: Tokenizer, token: int) -> int:
    """The bytes of a token, which may be part of a character."""
    if tokenizer.has_space_prefix:  # a byte-level token has one letter per byte
        return len(tokenizer.id_to_token(token))
    return len(tokenizer.decode([token]).encode())


def _language_model_values(
    loss: float, tokens: float, words: float, num_bytes: float
) -> list[float]:
    return [
        loss / tokens,
        safe_exp(loss / tokens),
        safe_exp(loss / words) if words else math.nan,
        loss / num_bytes / math.log(2) if num_bytes else math.nan,
    ]


# --- masked language models
class MaskedRow(NamedTuple):
    """Part of a document as model input, and the positions that are masked."""

    document: int
    ids: list[int]
    masked_positions: NDArray[np.int64]


def evaluate_masked_lm(task: EvaluationTask) -> Evaluation:
    """Mask random words in rows of the context length, and predict them."""
    inference = task.model.config.inference
    context_length = task.model.net.context_length
    if not inference.mask_token:
        raise ClearheadError("evaluating a masked LM needs inference.mask_token = [id].")
    max_tokens = context_length - len(inference.bos_tokens) - len(inference.sep_tokens)
    if max_tokens < 1:
        raise ClearheadError(
            f"a context of {context_length} has no room for text between BOS and SEP tokens."
        )
    special = {inference.mask_token[0], *task.tokenizer.special_tokens.values()}
    documents = [
        document for document in tokenize_documents(task) if not special.issuperset(document.ids)
    ]
    task.require_examples(len(documents), "word to mask")
    rows = []
    rng = np.random.default_rng(task.seed)
    for index, document in enumerate(documents):
        for start in range(0, len(document.ids), max_tokens):
            ids = document.ids[start : start + max_tokens].tolist()
            row = [*inference.bos_tokens, *ids, *inference.sep_tokens]
            candidates = [
                position
                for position, token in enumerate(ids, len(inference.bos_tokens))
                if token not in special
            ]
            if candidates:
                count = max(1, round(MASK_FRACTION * len(candidates)))
                rows.append(MaskedRow(index, row, rng.choice(candidates, count, replace=False)))
    row_sums = _masked_row_sums(task, rows).tolist()
    parts = [(row.document, sums) for row, sums in zip(rows, row_sums, strict=True)]
    return document_metrics(
        task, documents, parts, "rows", MASKED_LM_METRICS, _masked_lm_values, {"masked": 1}
    )


@torch.no_grad()
def _masked_row_sums(task: EvaluationTask, rows: list[MaskedRow]) -> NDArray[np.float64]:
    """For each row: −log p of the masked words, their number, and how many were predicted."""
    net = task.model.net
    mask_id = torch.tensor(task.model.config.inference.mask_token[0], device=task.device)
    sums = np.zeros((len(rows), 3))
    batches = batches_by_length([len(row.ids) for row in rows], task.device)
    for indices in progress_bar(batches, len(rows), "rows", len):
        batch = Batch.from_rows([rows[i].ids for i in indices], task.device)
        counts = torch.tensor([len(rows[i].masked_positions) for i in indices])
        row = torch.arange(len(indices)).repeat_interleave(counts).to(task.device)
        positions = np.concatenate([rows[i].masked_positions for i in indices])
        position = torch.from_numpy(positions).to(task.device)
        targets = batch.inputs[row, position]
        inputs = batch.inputs.index_put((row, position), mask_id)
        states = net(inputs, segment_ids=batch.segment_ids)[row, position]
        logprobs = net.compute_logits(states[None])[0].float().log_softmax(dim=-1)
        target_logprobs = logprobs.gather(1, targets[:, None])[:, 0]
        check_finite(target_logprobs.exp())
        is_correct = (logprobs.argmax(dim=-1) == targets).float()
        columns = [-target_logprobs, torch.ones_like(target_logprobs), is_correct]
        values = torch.stack(columns, dim=1).double().cpu().numpy()
        np.add.at(sums, np.array(indices)[row.cpu().numpy()], values)
    return sums


def _masked_lm_values(loss: float, count: float, num_correct: float) -> list[float]:
    return [loss / count, safe_exp(loss / count), num_correct / count]
