"""Render the page of claims from the stored results: python claims/render_page.py"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from claims import CLAIMS, RESULTS, ROFORMER_TABLE, Claim
from clearhead.lab.experiment import BEST_LOSS, EXPERIMENT_FILE, Experiment, read_results
from clearhead.lab.report import (
    describe_lengths,
    describe_method,
    findings,
    format_mean_std,
    length_table,
    markdown_table,
    metric_title,
    plot_by_length,
    plot_by_step,
    plot_runs,
    results_table,
)
from clearhead.lab.stats import Summary, mean, std, summarize
from clearhead.train.report import to_svg

PLOT_SIZE = (8.0, 4.0)
INTRO = """# Claims of the lectures, tested

Each claim of the lectures is tested by an experiment of `clearhead compare`: small models (7 to 12
million parameters), three seeds, real data. All results are shown, including those that disagree
with the claim. A small experiment can contradict a claim only for small models and short training;
the tables show the uncertainty of each difference. All variants of an experiment use the same
learning rate, which was not tuned for any of them.

- **Data.** Language models and masked language models are trained on 57 MB of English Wikipedia,
  with every fiftieth article held out, translators on Multi30k (29,000 captions, English to
  German).
- **Metrics.** Losses and BLEU are measured on the validation set that also selects each run's best
  checkpoint, for all variants. GLUE tasks are evaluated on their dev sets with the weights of the
  last step (two epochs of SST-2, ten of the others). These are second runs: the first ones used
  half of the pre-training and the checkpoint with the lowest loss, and hardly learned the small
  tasks.
- **Learning rates.** For pre-training, the largest of three that were tried for 600 steps, when
  learned positions had hardly started to learn. For fine-tuning, the better of two on the dev set
  of SST-2, with one seed.
- **Intervals** in the text are 95 % confidence intervals of the differences between runs with the
  same seed, each on its own. Comparisons with another variant than in the table use the same runs
  and are not corrected for their number.

On GLUE, RoFormer is ahead on SST-2 and STS-B, equal on CoLA, and behind on MRPC and RTE; none of
the five differences is significant.

Runs on a GPU are not bit-for-bit reproducible. Sinusoidal positions, eight heads and label
smoothing 0.1 in translation are the same three runs in three experiments: 38.5, 38.7 and 38.7
BLEU.

To repeat: `python claims/prepare.py DATA`, then `python claims/claims.py NAME` for one experiment,
or without a name for all. The GLUE tasks start from the models of roformer-pretraining in
`build/claims`, so run that one first. The results of every run are in `claims/results`; this page
is generated from them."""


TABLE_TITLE = "## RoFormer's Table 2"
TABLE_TEXT = """*RoFormer beats BERT on three of six GLUE tasks (Su et al., 2021, Table 2).*

The published numbers beside ours, in percent. Ours are of far smaller models with far less
pre-training: means and standard deviations of three seeds, on the dev sets. So compare the two
columns of ours with each other, not with the published ones."""
TABLE_NOTE = """**The published columns are of different data.** BERT's numbers are those of its own
paper: results on GLUE's hidden test sets, from the evaluation server (Devlin et al., 2019, Table
1). RoFormer's are the best results on the validation sets (section 4.3.2). Both papers name F1 as
the metric of QQP, but F1 on QQP's test set is much lower than on its validation set: fine-tuned
again by others, BERT-base reaches [an F1 of 87.2 and an accuracy of 90.4 on the validation
set](https://github.com/naver/claf/pull/15). So the largest difference of the table, 71.2 and 86.4
on QQP, does not show that rotary positions are better."""


def render_page(results: Path = RESULTS, figures: bool = True) -> str:
    """The page in Markdown; figures are inline SVG, which GitHub does not show."""
    summaries = {claim: read_summary(results / claim.name) for claim in CLAIMS}
    parts = [INTRO, _overview(summaries), *_roformer_table(summaries)]
    for claim, summary in summaries.items():
        parts += _section(claim, summary, results / claim.name, figures)
    return "\n\n".join(parts) + "\n"


def read_summary(folder: Path) -> Summary | None:
    """The results in a folder; None if there are none."""
    if not (folder / EXPERIMENT_FILE).is_file():
        return None
    return summarize(Experiment.read(folder / EXPERIMENT_FILE), read_results(folder))


def _overview(summaries: dict[Claim, Summary | None]) -> str:
    rows = []
    for claim, summary in summaries.items():
        conclusion = (claim.conclusion or "no conclusion yet") if summary else "not tested yet"
        rows.append(f"| [{claim.name}](#{claim.name}) | {claim.claim} | {conclusion} |")
    return "\n".join(["| experiment | claim | result |", "|---|---|---|", *rows])


def _roformer_table(summaries: dict[Claim, Summary | None]) -> Iterator[str]:
    """The published results beside the means and standard deviations of our runs."""
    by_name = {claim.name: summary for claim, summary in summaries.items()}
    rows = [["task", "metric", "BERT", "RoFormer", "ours, learned", "ours, rotary"]]
    for published in ROFORMER_TABLE:
        summary = by_name.get(f"roformer-{published.task.lower()}")
        ours = ["data not at hand"] * 2
        if summary is not None:
            metric = summary.experiment.metric
            ours = [
                _percent([run.metrics[metric] for run in row.runs if metric in run.metrics])
                for row in summary.rows
            ]
        rows.append([published.task, published.metric, published.bert, published.roformer, *ours])
    yield TABLE_TITLE
    yield TABLE_TEXT
    yield markdown_table(rows)
    yield TABLE_NOTE


def _percent(values: list[float]) -> str:
    average = mean(values)
    deviation = std(values)
    if average is None or deviation is None:
        return "–"
    return f"{100 * average:.1f} ± {100 * deviation:.1f}"


def _section(claim: Claim, summary: Summary | None, folder: Path, figures: bool) -> Iterator[str]:
    yield f"## {claim.name}"
    yield f"*{claim.claim}*"
    if claim.conclusion:
        yield claim.conclusion
    if summary is None:
        yield f"Not tested yet.\n\n```\n{shlex.join(claim.command)}\n```"
        return
    experiment = summary.experiment
    yield markdown_table(results_table(summary))
    if summary.results and (table := _other_metrics(summary)):
        yield table
    if figures:
        yield _figure(to_svg(plot_by_step(summary, folder, PLOT_SIZE), f"{claim.name}-steps"))
    if figures and experiment.metric != BEST_LOSS:
        yield _figure(to_svg(plot_runs(summary, PLOT_SIZE), f"{claim.name}-runs"))
    if experiment.eval_lengths:
        yield markdown_table(length_table(summary))
        if figures:
            yield _figure(to_svg(plot_by_length(summary, PLOT_SIZE), f"{claim.name}-lengths"))
        yield " ".join(describe_lengths(summary))
    all_findings = findings(summary, folder)
    yield "\n".join(f"- **{finding.name}**: {finding.message}" for finding in all_findings)
    yield describe_method(summary)
    machines = sorted({run.machine for run in summary.results if run.machine})
    provenance = experiment.provenance
    versions = f"{', '.join(machines)}; torch {provenance.torch_version}."
    yield f"{versions}\n\n```\n{provenance.command}\n```"


def _other_metrics(summary: Summary) -> str:
    """A table of the metrics that the experiment does not compare."""
    compared = (summary.experiment.metric, "loss")
    names = [name for name in summary.results[0].metrics if name not in compared]
    if not names:
        return ""
    rows = []
    for row in summary.rows:
        values = ([run.metrics[name] for run in row.runs if name in run.metrics] for name in names)
        rows.append([row.name, *map(format_mean_std, values)])
    return markdown_table([["variant", *map(metric_title, names)], *rows])


def _figure(svg: str) -> str:
    """An HTML block, which would end at a blank line."""
    lines = "\n".join(line.strip() for line in svg.splitlines() if line.strip())
    return f'<div class="drawn">{lines}\n</div>'


if __name__ == "__main__":
    print(render_page())
