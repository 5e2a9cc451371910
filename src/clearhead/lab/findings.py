"""What an experiment shows and what it does not, in sentences."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from clearhead.config import Language, MaskedWord
from clearhead.evaluate.figures import digits
from clearhead.files import json_lines
from clearhead.lab.certainty import LEAST, MANY
from clearhead.lab.experiment import LAST, LOSS, Experiment
from clearhead.lab.summary import Row, Summary, Versus
from clearhead.train.diagnosis import Finding, Line, diagnose, points
from clearhead.train.report import LOG

NAMES = {LOSS: "lowest validation loss", LAST: "last validation loss"}


def findings(summary: Summary, out: Path) -> list[Finding]:
    """The claims first, then what stands in their way."""
    missing = len(summary.experiment.runs) - len(summary.done)
    early = [Finding("not at its end", f"{missing} of {len(summary.experiment.runs)} runs are not done.", bad=True)]
    caveats = [Finding("mind", sentence, bad=True) for sentence in _caveats(summary, out)]
    return [*(early if missing else []), *_claims(summary), *caveats]


def metric_name(metric: str) -> str:
    return NAMES.get(metric, metric)


def too_few(experiment: Experiment) -> list[Finding]:
    """What is known of an experiment before its first run."""
    seeds = len(experiment.seeds)
    if seeds >= LEAST or len(experiment.variants) == 1:
        return []
    few = f"with {seeds} seed{'s' * (seeds > 1)} nothing can be claimed"
    return [Finding("too few seeds", f"{few}: chance alone makes runs differ. {LEAST} are the least.", bad=True)]


def _claims(summary: Summary) -> Iterator[Finding]:
    first, metric = summary.first.name, metric_name(summary.experiment.metric)
    if not summary.others:
        return
    if few := too_few(summary.experiment):
        yield from few
        return
    judged = [(row, row.versus) for row in summary.others if row.versus is not None]
    for row, versus in judged:
        if versus.claimed:
            better = "better" if (versus.chance.mean < 0) is summary.less else "worse"
            yield Finding(better, f"{row.name} is {better} than {first}: {metric} {_difference(row, versus)}.")
    if same := [row.name for row, _ in judged if not any(row.differences)]:
        yield Finding("no effect", f"{', '.join(same)}: the same as {first} in every run, to the last digit.")
    if unclear := [(row, versus) for row, versus in judged if any(row.differences) and not versus.claimed]:
        each = "; ".join(f"{row.name} {_difference(row, versus)}" for row, versus in unclear)
        equal = "That does not make them equal: a difference may be anywhere in its interval"
        yield Finding("not to be told apart", f"from {first}, by {metric}: {each}. {equal}.")
    if silent := [row.name for row in summary.others if row.versus is None]:
        pairs = f"fewer than {LEAST} pairs of runs with the same seed"
        yield Finding("nothing to say", f"of {', '.join(silent)} there are {pairs}.", bad=True)


def _difference(row: Row, versus: Versus) -> str:
    chance, places = versus.chance, digits(row.mean or 0.0)
    signed = f"+.{places}f" if abs(chance.mean) >= 10**-places else "+.2g"  # never nothing where there is something
    between = "no interval: all differences are the same"
    if chance.low is not None:
        between = f"95 % interval {chance.low:{signed}} to {chance.high:{signed}}"
    return f"{chance.mean:{signed}} ({between}, p {chance_text(versus.p)})"


def chance_text(p: float) -> str:
    return f"= {p:.2g}" if p >= 1e-4 else "< 0.0001"


def _caveats(summary: Summary, out: Path) -> Iterator[str]:
    experiment, done = summary.experiment, summary.done
    for row in summary.rows:
        if row.diverged:
            lost = f"{len(row.diverged)} of {len(row.runs)} runs of {row.name} diverged and count in no mean"
            yield f"{lost}. The first of them: {row.diverged[0].why}"
    if experiment.earlier:
        before = f"this experiment was asked before: {'; '.join(experiment.earlier)}"
        yield f"{before}. p is corrected for the comparisons of one report only: what is found by asking on is weaker."
    varied = [text.partition("=")[0] for text in experiment.vary]
    words = [o for o in varied if o in ("data.tokenizer", "data.vocabulary", "train.start")]
    told = isinstance(experiment.base.model.head, Language | MaskedWord)
    if words and told and experiment.metric in (LOSS, LAST, "perplexity"):
        yield f"{words[0]} varies, and a loss a token cannot be compared where tokens differ; bits per byte can."
    if other := [o for o in varied if o.startswith("data.") and o not in words]:
        yield f"{other[0]} varies, so that variants may be judged on other data than each other."
    if any(o.removeprefix("model.") in ("context", "train.length") for o in varied):
        yield "variants are judged on texts of the length that they were trained on; --lengths judges all on the same."
    if not all(v.config.data.valid for v in experiment.variants) and len(experiment.seeds) > 1:
        yield "without data.valid each seed holds out other texts, which adds to the spread; of a single text, its end."
    if slow := [v for v in experiment.variants if v.config.train.warmup > v.config.train.steps]:
        steps = f"{slow[0].config.train.warmup:,} steps of {slow[0].config.train.steps:,}"
        yield f"the rate never came to its height: train.warmup takes {steps}; a shorter one teaches more."
    logs = [json_lines(out / run.place / LOG) for run in done if run.end != "diverged"]
    shapes = Counter(found.name for lines in logs for found in diagnose(lines))
    more = "with more steps the order may be another"
    if lowest := sum(map(_lowest_at_its_end, logs)):
        few = f"{lowest} of {len(done)} runs had their lowest validation loss at their end, but too few validations"
        yield f"{few} to tell whether they were still falling: {more}."
    if once := sum(len(points(lines, "valid")) == 1 for lines in logs):
        yield f"{once} of {len(done)} runs were validated once: a smaller train.check tells whether they still fell."
    if shapes["still falling"]:
        yield f"{shapes['still falling']} of {len(done)} runs were still falling at their end: {more}."
    if shapes["overfitting"]:
        yield f"{shapes['overfitting']} of {len(done)} runs overfit: the lowest loss is from before their end."
    if len(machines := sorted({run.machine for run in done if run.machine})) > 1:
        yield f"times and memory are of different machines: {'; '.join(machines)}."
    if (most := max((run.processes for run in done), default=1)) > 1:
        yield f"up to {most} runs shared a machine, so each took longer than it would have taken alone."


def _lowest_at_its_end(lines: list[Line]) -> bool:
    """Whether that is all that can be told of a run's course."""
    valid = [value for _, value in points(lines, "valid")]
    return diagnose(lines)[0].name == "too early to tell" and len(valid) > 1 and valid[-1] < min(valid[:-1])


def method(summary: Summary) -> str:
    """How it was compared, in a paragraph."""
    n, several = len(summary.experiment.seeds), len(summary.others) > 1
    found = f"Means over {n} seed{'s' * (n > 1)}, ± the standard deviation of single runs"
    found += f"; {'less' if summary.less else 'more'} is better."
    if n < LEAST or not summary.others:
        return found
    found += f" Differences are those of runs with the same seed to {summary.first.name}, and p is two-sided, by"
    found += " Student's t, which takes them to spread normally"
    found += f" (by counting all choices of signs it could not come below {2 / 2**n:.2g})" if n <= MANY else ""
    found += ", and corrected by Holm; each interval is for one comparison." if several else "."
    return f"{found} What is claimed is of other seeds, on the same data."
