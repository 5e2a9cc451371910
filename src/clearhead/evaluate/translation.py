"""A translator on pairs: how close its translations come to the references, and how little those surprise it."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead import config as c
from clearhead.data.batch import Batch, batches_by_length
from clearhead.data.pairs import EncodedPair, SentencePair, encode_pairs
from clearhead.errors import ClearheadError
from clearhead.evaluate.evaluate import EvaluationTask
from clearhead.evaluate.metrics import Evaluation, SampleWeights, bootstrap_metrics
from clearhead.generate.generation import token_logprobs
from clearhead.generate.tasks import safe_exp
from clearhead.progress import progress_bar
from clearhead.train.datasets import read_pair_files

TRANSLATION_BLOCK = 64  # sentences that are translated before the bar moves on


class CorpusScorer:
    """What sacrebleu counts in each hypothesis, and the score of any sums of that."""

    def __init__(
        self, metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
    ) -> None:
        self.metric = metric
        self.stats = np.array(
            metric._extract_corpus_statistics(hypotheses, [references]), np.float64
        )

    def score(self, sums: NDArray[np.float64]) -> float:
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    @property
    def signature(self) -> str:
        return f"sacrebleu {self.metric.get_signature()}"  # of the value; the interval is drawn as all are


def evaluate_translation(task: EvaluationTask) -> Evaluation:
    found = _fitting(task)
    losses = _losses(task, [ids for _, ids in found])
    sources, references = (
        [getattr(pair, side) for pair, _ in found] for side in ("source", "target")
    )
    hypotheses = _translated(task, sources)
    bleu, chrf = (
        CorpusScorer(metric, hypotheses, references) for metric in (BLEU(force=True), CHRF())
    )
    how = {
        "bleu": f"{bleu.signature}, beam {task.num_beams}",
        "chrf": f"{chrf.signature}, beam {task.num_beams}",
        "loss": "−log p of a token of the reference, its end among them, in nats",
        "perplexity": "exp(loss)",
    }

    def statistics(counts: SampleWeights) -> Sequence[float]:
        loss, tokens = (counts @ losses).tolist()
        overlap = [one.score(counts @ one.stats) for one in (bleu, chrf)]
        return [*overlap, loss / tokens, safe_exp(loss / tokens)]

    rows = zip(found, hypotheses, losses.tolist(), chrf.stats, strict=True)
    each = [
        {
            "where": pair.location,
            "source": pair.source,
            "reference": pair.target,
            "hypothesis": hypothesis,
        }
        | {"chrf": chrf.score(own), "loss": loss / tokens, "tokens": round(tokens)}
        for (pair, _), hypothesis, (loss, tokens), own in rows
    ]
    return Evaluation(bootstrap_metrics(how, statistics, len(found), "sentences", task.seed), each)


def _fitting(task: EvaluationTask) -> list[tuple[SentencePair, EncodedPair]]:
    """The pairs of the files, with their ids; one that is longer than the model reads is told."""
    net = task.model.net
    use = task.model.config.inference
    shape = task.model.config.model.architecture
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.source_input, c.Tokens):
        raise ClearheadError(
            f"this model reads {shape.source_input.kind}; it can be evaluated only on pairs of texts yet."
        )
    own = task.tokenizer
    fitting = []
    read = read_pair_files(task.data, task.report, task.paths)
    for pair, ids in encode_pairs(read, own, task.model.source_tokenizer or own, use, task.report):
        sizes = (
            ("source", len(ids.source), shape.source_context_length),
            ("target", len(ids.target) - 1, net.context_length),
        )
        for side, size, most in sizes:
            if size > most:
                why = f"the {side} has more tokens than the {most} that this model reads"
                task.report.skip(f"{pair.location} ({size})", why)
                break
        else:
            fitting.append((pair, ids))
    task.require_examples(len(fitting), "pair")
    return fitting


def _losses(task: EvaluationTask, found: list[EncodedPair]) -> NDArray[np.float64]:
    """−log p of each reference, and its tokens."""
    sums = np.zeros((len(found), 2))
    start = list(task.model.config.inference.decoder_start_tokens)
    together = batches_by_length([len(ids.source) + len(ids.target) for ids in found], task.device)
    for some in progress_bar(together, len(found), "references", len):
        sources = Batch.from_rows([found[i].source for i in some], task.device)
        outputs = [list(found[i].target[len(start) :]) for i in some]
        sides = sources.inputs, sources.segment_ids
        for i, told in zip(
            some,
            token_logprobs(task.model.net, [start] * len(some), outputs, 0, None, *sides),
            strict=True,
        ):
            sums[i] = -math.fsum(one.logprob for one in told), len(told)
    return sums


def _translated(task: EvaluationTask, sources: list[str]) -> list[str]:
    """By beam search, the longest first."""
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    blocks = [
        order[start : start + TRANSLATION_BLOCK]
        for start in range(0, len(order), TRANSLATION_BLOCK)
    ]
    made: dict[int, str] = {}
    for some in progress_bar(blocks, len(sources), "sentences", len):
        found = task.model.translate([sources[i] for i in some], num_beams=task.num_beams)
        made |= {i: " ".join(one.text.split()) for i, one in zip(some, found, strict=True)}
    return [made[i] for i in range(len(sources))]
