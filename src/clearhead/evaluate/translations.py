"""A translator on pairs: how close its translations come to the references, and how little those surprise it."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead import config as c
from clearhead.batch import Batch, by_length
from clearhead.data.pair_files import Pair
from clearhead.data.pairs import Encoded, encoded
from clearhead.errors import ClearheadError
from clearhead.evaluate.figures import Counts, Evaluation, figures
from clearhead.evaluate.task import Task
from clearhead.generate.answers import powers
from clearhead.generate.chances import chances
from clearhead.lens.progress import shown
from clearhead.train.lessons import read_pairs

BLOCK = 64  # sentences that are translated before the bar moves on


class Overlap:
    """What sacrebleu counts in each hypothesis, and the score of any sums of that."""

    def __init__(self, metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        self.metric = metric
        self.stats = np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float64)

    def score(self, sums: NDArray[np.float64]) -> float:
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    @property
    def signature(self) -> str:
        return f"sacrebleu {self.metric.get_signature()}"  # of the value; the interval is drawn as all are


def compare_translations(task: Task) -> Evaluation:
    found = _fitting(task)
    losses = _losses(task, [ids for _, ids in found])
    sources, references = ([getattr(pair, side) for pair, _ in found] for side in ("source", "target"))
    hypotheses = _translated(task, sources)
    bleu, chrf = (Overlap(metric, hypotheses, references) for metric in (BLEU(force=True), CHRF()))
    how = {
        "bleu": f"{bleu.signature}, beam {task.beam}",
        "chrf": f"{chrf.signature}, beam {task.beam}",
        "loss": "−log p of a token of the reference, its end among them, in nats",
        "perplexity": "exp(loss)",
    }

    def statistics(counts: Counts) -> Sequence[float]:
        loss, tokens = (counts @ losses).tolist()
        overlap = [one.score(counts @ one.stats) for one in (bleu, chrf)]
        return [*overlap, loss / tokens, powers(loss / tokens)]

    rows = zip(found, hypotheses, losses.tolist(), chrf.stats, strict=True)
    each = [
        {"where": pair.where, "source": pair.source, "reference": pair.target, "hypothesis": hypothesis}
        | {"chrf": chrf.score(own), "loss": loss / tokens, "tokens": round(tokens)}
        for (pair, _), hypothesis, (loss, tokens), own in rows
    ]
    return Evaluation(figures(how, statistics, len(found), "sentences", task.seed), each)


def _fitting(task: Task) -> list[tuple[Pair, Encoded]]:
    """The pairs of the files, with their ids; one that is longer than the model reads is told."""
    net, use, shape = task.model.net, task.model.config.use, task.model.config.model.shape
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.input, c.Tokens):
        raise ClearheadError(f"this model reads {shape.input.kind}; it can be evaluated only on pairs of texts yet.")
    own, fitting = task.tokenizer, []
    read = read_pairs(task.data, task.report, task.paths)
    for pair, ids in encoded(read, own, task.model.source_tokenizer or own, use, task.report):
        sizes = ("source", len(ids.source), shape.context), ("target", len(ids.target) - 1, net.context)
        for side, size, most in sizes:
            if size > most:
                why = f"the {side} has more tokens than the {most} that this model reads"
                task.report.skip(f"{pair.where} ({size})", why)
                break
        else:
            fitting.append((pair, ids))
    task.refuse_nothing(len(fitting), "pair")
    return fitting


def _losses(task: Task, found: list[Encoded]) -> NDArray[np.float64]:
    """−log p of each reference, and its tokens."""
    sums, start = np.zeros((len(found), 2)), list(task.model.config.use.start)
    together = by_length([len(ids.source) + len(ids.target) for ids in found], task.device)
    for some in shown(together, len(found), "references", len):
        sources = Batch.of([found[i].source for i in some], task.device)
        outputs = [list(found[i].target[len(start) :]) for i in some]
        sides = sources.ids, sources.segments
        for i, told in zip(some, chances(task.model.net, [start] * len(some), outputs, 0, None, *sides), strict=True):
            sums[i] = -math.fsum(one.logprob for one in told), len(told)
    return sums


def _translated(task: Task, sources: list[str]) -> list[str]:
    """By beam search, the longest first."""
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    blocks = [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]
    made: dict[int, str] = {}
    for some in shown(blocks, len(sources), "sentences", len):
        found = task.model.translate([sources[i] for i in some], beam=task.beam)
        made |= {i: " ".join(one.text.split()) for i, one in zip(some, found, strict=True)}
    return [made[i] for i in range(len(sources))]
