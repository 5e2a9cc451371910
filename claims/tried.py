"""The page of the lectures' claims, made of what the experiments have found: python claims/tried.py prints it."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from claims import CLAIMS, RESULTS, Claim  # type: ignore[import-not-found]
from clearhead.lab.experiment import BEST_LOSS, EXPERIMENT_FILE, Experiment, read_results
from clearhead.lab.report import (
    describe_lengths,
    describe_method,
    findings,
    format_mean_std,
    length_table,
    markdown_table,
    metric_name,
    plot_by_length,
    plot_by_step,
    plot_runs,
    results_table,
)
from clearhead.lab.stats import Summary, summarize
from clearhead.train.report import to_svg

SIZE = (8.0, 4.0)
INTRO = """# The lectures' claims, tried

Each claim of the lectures as an experiment of `clearhead compare`: small models (7 to 12 million weights), three seeds,
real data. What came out stands here as it came, also where it disagrees. A small experiment can contradict a claim only
for small models and short training; the tables say how sure each difference is. In all of them one rate serves every
variant; none was tuned for one of them.

- **Data.** Language models and masked words read 57 MB of English Wikipedia, every fiftieth article is held out;
  translators read Multi30k (29,000 captions, English to German).
- **What is scored.** Losses and BLEU are of the validation set by which each run's best checkpoint is chosen, for all
  variants alike. Tasks of GLUE are scored on their dev sets with the weights of the last step (two epochs of SST-2, ten
  of the others). These are second runs: in the first, after half of the pre-training, the checkpoint of the lowest loss
  was scored, and the small tasks were hardly learned.
- **Rates.** That of pre-training is the largest of three that were tried, for 600 steps, when learned positions had
  hardly begun; that of fine-tuning the better of two on SST-2's dev set, with one seed.
- **Intervals** in the words are those of the differences of runs with the same seed, 95 %, each for itself. Where they
  compare with another variant than the table does, they are made of the same runs and not corrected for their number.

Over GLUE: RoFormer is ahead on SST-2 and STS-B, level on CoLA, behind on MRPC and RTE; not one of the five differences
is sure.

Runs on a GPU do not repeat to the bit. Sinusoidal positions, eight heads and smoothing 0.1 in translation are the same
three runs, tried in three experiments: 38.5, 38.7 and 38.7 BLEU.

Again: `python claims/prepare.py DATA`, then `python claims/claims.py NAME` for one of them, or all without a name; the
tasks of GLUE start from the models that roformer-pretraining leaves in `build/claims`, so that one comes before them.
`claims/results` has every run's figures; this page is drawn from them when the site is built."""


def page(results: Path = RESULTS) -> str:
    found = {claim: read(results / claim.name) for claim in CLAIMS}
    parts = [INTRO, _overview(found)]
    for claim, summary in found.items():
        parts += _section(claim, summary, results / claim.name)
    return "\n\n".join(parts) + "\n"


def read(folder: Path) -> Summary | None:
    """What an experiment has found; None where it was not carried out."""
    if not (folder / EXPERIMENT_FILE).is_file():
        return None
    return summarize(Experiment.read(folder / EXPERIMENT_FILE), read_results(folder))


def _overview(found: dict[Claim, Summary | None]) -> str:
    rows = []
    for claim, summary in found.items():
        came = (claim.found or "not read yet") if summary else "not tried yet"
        rows.append(f"| [{claim.name}](#{claim.name}) | {claim.says} | {came} |")
    return "\n".join(["| | the claim | what came out |", "|---|---|---|", *rows])


def _section(claim: Claim, summary: Summary | None, folder: Path) -> Iterator[str]:
    yield f"## {claim.name}"
    yield f"*{claim.says}*"
    if claim.found:
        yield claim.found
    if summary is None:
        yield f"Not tried yet.\n\n```\n{shlex.join(claim.command)}\n```"
        return
    experiment = summary.experiment
    yield markdown_table(results_table(summary))
    if other := _others(summary):
        yield other
    yield _drawn(to_svg(plot_by_step(summary, folder, SIZE), f"{claim.name}-steps"))
    if experiment.metric != BEST_LOSS:
        yield _drawn(to_svg(plot_runs(summary, SIZE), f"{claim.name}-runs"))
    if experiment.eval_lengths:
        yield markdown_table(length_table(summary))
        yield _drawn(to_svg(plot_by_length(summary, SIZE), f"{claim.name}-lengths"))
        yield " ".join(describe_lengths(summary))
    yield "\n".join(f"- **{each.name}**: {each.message}" for each in findings(summary, folder))
    yield describe_method(summary)
    machines = sorted({run.machine for run in summary.results if run.machine})
    yield f"{', '.join(machines)}; torch {experiment.provenance.torch_version}.\n\n```\n{experiment.provenance.command}\n```"


def _others(summary: Summary) -> str:
    """The same runs by the other figures that were measured, without claims: those are about what was asked."""
    names = (
        [
            name
            for name in summary.results[0].metrics
            if name not in (summary.experiment.metric, BEST_LOSS)
        ]
        if summary.results
        else []
    )
    rows: dict[str, list[str]] = {}
    for name in names:
        other = summarize(
            replace(summary.experiment, metric=name),
            {(run.variant, run.seed): run for run in summary.results},
        )
        for row in other.rows:
            rows.setdefault(row.name, [row.name]).append(format_mean_std(row.values))
    return (
        markdown_table((["variant", *map(metric_name, names)], [*rows.values()])) if names else ""
    )


def _drawn(picture: str) -> str:
    """A blank line or an indent would end a block of HTML."""
    return f'<div class="drawn">{"".join(line.strip() + chr(10) for line in picture.splitlines() if line.strip())}</div>'


if __name__ == "__main__":
    print(page())
