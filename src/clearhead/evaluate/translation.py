"""Evaluate translation models: BLEU and chrF of their translations, loss of the references."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacreBLEUMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead import config as c
from clearhead.data.batch import Batch, batches_by_length
from clearhead.data.pairs import EncodedPair, SentencePair, encode_pairs
from clearhead.errors import ClearheadError
from clearhead.evaluate.evaluate import EvaluationTask
from clearhead.evaluate.metrics import SampleWeights
from clearhead.evaluate.results import Evaluation, bootstrap_metrics
from clearhead.generate.tasks import safe_exp
from clearhead.generate.teacher_forcing import token_logprobs
from clearhead.progress_bar import progress_bar
from clearhead.train.training_data import read_pair_files

PROGRESS_BLOCK = 64  # sentences between updates of the progress bar


class CorpusScorer:
    """The sacrebleu statistics of each hypothesis, and the score of any weighting of them.

    sacrebleu has no public function for this; its own bootstrap uses the same two methods.
    """

    def __init__(
        self, metric: SacreBLEUMetric, hypotheses: Sequence[str], references: Sequence[str]
    ) -> None:
        self.metric = metric
        statistics = metric._extract_corpus_statistics(hypotheses, [references])
        self.stats = np.array(statistics, np.float64)

    def score(self, sums: NDArray[np.float64]) -> float:
        """The corpus score of summed statistics."""
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    @property
    def signature(self) -> str:
        return f"sacrebleu {self.metric.get_signature()}"


def evaluate_translation(task: EvaluationTask) -> Evaluation:
    """BLEU and chrF of beam search translations; loss and perplexity of the references."""
    pairs, encoded = _read_fitting_pairs(task)
    losses = _reference_losses(task, encoded)
    references = [pair.target for pair in pairs]
    hypotheses = _translate(task, [pair.source for pair in pairs])
    bleu = CorpusScorer(BLEU(force=True), hypotheses, references)
    chrf = CorpusScorer(CHRF(), hypotheses, references)
    descriptions = {
        "bleu": f"{bleu.signature}, {task.num_beams} beams",
        "chrf": f"{chrf.signature}, {task.num_beams} beams",
        "loss": "−log p per token of the reference including EOS, in nats",
        "perplexity": "exp(loss)",
    }

    def statistics(weights: SampleWeights) -> Sequence[float]:
        loss, tokens = (weights @ losses).tolist()
        return [
            bleu.score(weights @ bleu.stats),
            chrf.score(weights @ chrf.stats),
            loss / tokens,
            safe_exp(loss / tokens),
        ]

    examples = []
    for i, pair in enumerate(pairs):
        loss, tokens = losses[i].tolist()
        examples.append(
            {
                "location": pair.location,
                "source": pair.source,
                "reference": pair.target,
                "hypothesis": hypotheses[i],
                "chrf": chrf.score(chrf.stats[i]),
                "loss": loss / tokens,
                "tokens": round(tokens),
            }
        )
    metrics = bootstrap_metrics(descriptions, statistics, len(pairs), "sentences", task.seed)
    return Evaluation(metrics, examples)


def _read_fitting_pairs(task: EvaluationTask) -> tuple[list[SentencePair], list[EncodedPair]]:
    """Read and encode the pairs; report those that exceed the context."""
    model = task.model
    architecture = model.config.model.architecture
    assert isinstance(architecture, c.EncoderDecoder)
    if not isinstance(architecture.source_input, c.Tokens):
        raise ClearheadError(
            "evaluation of encoder-decoders supports text only; this model reads "
            f"{architecture.source_input.kind}."
        )
    pairs = []
    encoded = []
    read = read_pair_files(task.data, task.report, task.paths)
    source_tokenizer = model.source_tokenizer or task.tokenizer
    for pair, ids in encode_pairs(
        read, task.tokenizer, source_tokenizer, model.config.inference, task.report
    ):
        sides = (
            ("source", len(ids.source), architecture.source_context_length),
            ("target", len(ids.target) - 1, model.net.context_length),
        )
        for side, length, max_length in sides:
            if length > max_length:
                reason = f"the {side} exceeds the context of {max_length} tokens"
                task.report.skip(f"{pair.location} ({length})", reason)
                break
        else:
            pairs.append(pair)
            encoded.append(ids)
    task.require_examples(len(pairs), "sentence pair")
    return pairs, encoded


def _reference_losses(task: EvaluationTask, encoded: list[EncodedPair]) -> NDArray[np.float64]:
    """For each reference: −log p, and the number of its tokens."""
    sums = np.zeros((len(encoded), 2))
    start = list(task.model.config.inference.decoder_start_tokens)
    lengths = [len(ids.source) + len(ids.target) for ids in encoded]
    batches = batches_by_length(lengths, task.device)
    for indices in progress_bar(batches, len(encoded), "references", len):
        source = Batch.from_rows([encoded[i].source for i in indices], task.device)
        outputs = [list(encoded[i].target[len(start) :]) for i in indices]
        results = token_logprobs(
            task.model.net,
            [start] * len(indices),
            outputs,
            0,
            None,
            source.inputs,
            source.segment_ids,
        )
        for i, tokens in zip(indices, results, strict=True):
            sums[i] = -math.fsum(token.logprob for token in tokens), len(tokens)
    return sums


def _translate(task: EvaluationTask, sources: list[str]) -> list[str]:
    """Translate with beam search, the longest sources first."""
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    blocks = [
        order[start : start + PROGRESS_BLOCK] for start in range(0, len(order), PROGRESS_BLOCK)
    ]
    hypotheses = [""] * len(sources)
    for indices in progress_bar(blocks, len(sources), "sentences", len):
        texts = [sources[i] for i in indices]
        for i, translation in zip(
            indices, task.model.translate(texts, num_beams=task.num_beams), strict=True
        ):
            hypotheses[i] = " ".join(translation.text.split())
    return hypotheses
