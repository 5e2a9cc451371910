"""Report of an experiment: findings, plots and tables, as report.html, report.md and table.csv."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clearhead.config.model import LMHead, MLMHead
from clearhead.evaluate.results import decimal_places, format_number
from clearhead.io import read_log, write_atomic
from clearhead.lab.experiment import (
    BEST_LOSS,
    EXPERIMENT_FILE,
    FINAL_LOSS,
    METRIC_TITLES,
    Experiment,
    RunResult,
    metric_title,
    read_results,
)
from clearhead.lab.plots import NARROW, WIDE, plot_by_length, plot_by_step, plot_runs
from clearhead.lab.stats import (
    MAX_EXACT_PAIRS,
    MIN_PAIRS,
    Contrast,
    Summary,
    VariantSummary,
    mean,
    std,
    summarize,
)
from clearhead.lens.view import format_csv
from clearhead.train.checkpoint import LOG_FILE
from clearhead.train.diagnosis import Finding, Line, curve_of, diagnose
from clearhead.train.plots import to_png, to_svg
from clearhead.train.report import format_si, render_template
from clearhead.train.throughput import format_duration

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TABLE_FILE = "table.csv"
CURVES_FILE = "curves.png"
LENGTHS_FILE = "lengths.png"

Table = list[list[str]]  # header and rows


def write_report(experiment: Experiment, output: Path) -> Summary:
    """Write all files of the report, each atomically."""
    summary = summarize(experiment, read_results(output))
    all_findings = findings(summary, output)
    table = format_csv([row.to_dict() for row in summary.rows])
    write_atomic(output / TABLE_FILE, table.encode())
    write_atomic(output / CURVES_FILE, to_png(plot_by_step(summary, output, WIDE)))
    if experiment.eval_lengths:
        write_atomic(output / LENGTHS_FILE, to_png(plot_by_length(summary, WIDE)))
    write_atomic(output / MARKDOWN_FILE, render_markdown(summary, all_findings, output).encode())
    write_atomic(output / REPORT_FILE, render_page(summary, all_findings, output).encode())
    return summary


# --- findings


def findings(summary: Summary, output: Path) -> list[Finding]:
    """What the experiment shows, followed by caveats."""
    num_runs = len(summary.experiment.runs)
    num_missing = num_runs - len(summary.results)
    all_findings = []
    if num_missing:
        message = f"{num_missing} of {num_runs} runs are not finished."
        all_findings.append(Finding("incomplete", message, is_problem=True))
    all_findings += _comparisons(summary)
    all_findings += [
        Finding("caveat", message, is_problem=True) for message in _caveats(summary, output)
    ]
    return all_findings


def too_few_seeds(experiment: Experiment) -> list[Finding]:
    """A finding if the experiment has too few seeds to compare variants; known before any run."""
    num_seeds = len(experiment.seeds)
    if num_seeds >= MIN_PAIRS or len(experiment.variants) == 1:
        return []
    message = (
        f"{num_seeds} seed{'s' * (num_seeds > 1)} cannot tell a difference from chance; use at "
        f"least {MIN_PAIRS}."
    )
    return [Finding("too few seeds", message, is_problem=True)]


def _comparisons(summary: Summary) -> Iterator[Finding]:
    """Findings about each variant against the baseline."""
    baseline = summary.baseline.name
    metric = metric_title(summary.experiment.metric)
    if not summary.others:
        return
    few_seeds = too_few_seeds(summary.experiment)
    if few_seeds:
        yield from few_seeds
        return
    identical = []
    inconclusive = []
    untested = []
    for row in summary.others:
        if row.contrast is None:
            untested.append(row.name)
        elif row.contrast.is_significant:
            is_lower = row.contrast.test.mean < 0
            verdict = "better" if is_lower is summary.lower_is_better else "worse"
            difference = _format_difference(row, row.contrast)
            yield Finding(
                verdict, f"{row.name} is {verdict} than {baseline}: {metric} {difference}."
            )
        elif any(row.differences):
            inconclusive.append(f"{row.name} {_format_difference(row, row.contrast)}")
        else:
            identical.append(row.name)
    if identical:
        message = f"{', '.join(identical)}: identical to {baseline} in every run."
        yield Finding("no effect", message)
    if inconclusive:
        yield Finding(
            "inconclusive",
            f"compared with {baseline}, by {metric}: {'; '.join(inconclusive)}. This does not show "
            "that they are equal: a difference may lie anywhere in its interval.",
        )
    if untested:
        message = f"{', '.join(untested)}: fewer than {MIN_PAIRS} pairs of runs with the same seed."
        yield Finding("too few pairs", message, is_problem=True)


def _format_difference(row: VariantSummary, contrast: Contrast) -> str:
    test = contrast.test
    digits = decimal_places(row.mean or 0.0)
    # At least two significant digits, so that a difference is never shown as 0.
    spec = f"+.{digits}f" if abs(test.mean) >= 10**-digits else "+.2g"
    interval = "no interval: all differences are equal"
    if test.ci_low is not None:
        interval = f"95 % CI {test.ci_low:{spec}} to {test.ci_high:{spec}}"
    return f"{test.mean:{spec}} ({interval}, p {format_p_value(contrast.p_corrected)})"


def format_p_value(p: float) -> str:
    return f"= {p:.2g}" if p >= 1e-4 else "< 0.0001"


def _caveats(summary: Summary, output: Path) -> Iterator[str]:
    results = summary.results
    for row in summary.rows:
        if row.diverged:
            yield (
                f"{len(row.diverged)} of {len(row.runs)} runs of {row.name} diverged and are "
                f"excluded from the means. The first one: {row.diverged[0].error}"
            )
    yield from _design_caveats(summary.experiment)
    logs = [read_log(output / run.path / LOG_FILE) for run in results if run.status != "diverged"]
    yield from _curve_caveats(logs, len(results))
    yield from _machine_caveats(results)


def _design_caveats(experiment: Experiment) -> Iterator[str]:
    """What limits the comparison, whatever the results."""
    if experiment.earlier_comparisons:
        yield (
            f"these runs were compared before: {'; '.join(experiment.earlier_comparisons)}. "
            "p-values are corrected within one report only, so later comparisons are weaker."
        )
    options = [text.partition("=")[0] for text in experiment.vary]
    token_options = ("data.tokenizer", "data.vocab_size", "train.init_from")
    varied_tokens = [name for name in options if name in token_options]
    is_language_model = isinstance(experiment.base.model.head, LMHead | MLMHead)
    is_per_token = experiment.metric in (BEST_LOSS, FINAL_LOSS, "perplexity")
    if varied_tokens and is_language_model and is_per_token:
        yield (
            f"{varied_tokens[0]} varies, and a loss per token is not comparable between "
            "tokenizers; use --metric bits_per_byte."
        )
    varied_data = [
        name for name in options if name.startswith("data.") and name not in varied_tokens
    ]
    if varied_data:
        yield f"{varied_data[0]} varies, so variants may be evaluated on different data."
    if any(name.removeprefix("model.") in ("context_length", "train.seq_len") for name in options):
        yield (
            "variants are evaluated at the length they were trained on; --eval-lengths evaluates "
            "all at the same lengths."
        )
    has_valid_files = all(variant.config.data.valid for variant in experiment.variants)
    if not has_valid_files and len(experiment.seeds) > 1:
        yield (
            "without data.valid, each seed holds out other texts, which adds to the spread; of a "
            "single text, the end is held out."
        )
    for variant in experiment.variants:
        train = variant.config.train
        if train.warmup_steps > train.max_steps:
            yield (
                f"the learning rate never reached its peak: train.warmup_steps = "
                f"{train.warmup_steps:,} exceeds train.max_steps = {train.max_steps:,}."
            )
            return


def _curve_caveats(logs: list[list[Line]], num_runs: int) -> Iterator[str]:
    """Runs whose loss curves do not support a comparison."""
    counts = Counter(finding.name for lines in logs for finding in diagnose(lines))
    hint = "longer training may change the order"
    num_lowest_at_end = sum(map(_is_lowest_at_end, logs))
    if num_lowest_at_end:
        yield (
            f"{num_lowest_at_end} of {num_runs} runs had their lowest validation loss at the end, "
            f"with too few validations to tell whether they were still improving: {hint}."
        )
    num_validated_once = sum(len(curve_of(lines, "valid_loss")) == 1 for lines in logs)
    if num_validated_once:
        yield (
            f"{num_validated_once} of {num_runs} runs were validated only once; a smaller "
            "train.eval_every shows whether they were still improving."
        )
    if counts["still improving"]:
        yield f"{counts['still improving']} of {num_runs} runs were still improving: {hint}."
    if counts["overfitting"]:
        yield f"{counts['overfitting']} of {num_runs} runs overfit before their end."


def _is_lowest_at_end(lines: list[Line]) -> bool:
    """Whether nothing else can be said about the curve."""
    losses = [value for _, value in curve_of(lines, "valid_loss")]
    is_lowest = len(losses) > 1 and losses[-1] < min(losses[:-1])
    return is_lowest and diagnose(lines)[0].name == "too early to tell"


def _machine_caveats(results: list[RunResult]) -> Iterator[str]:
    machines = sorted({run.machine for run in results if run.machine})
    if len(machines) > 1:
        yield f"times and memory are from different machines: {'; '.join(machines)}."
    num_processes = max((run.num_processes for run in results), default=1)
    if num_processes > 1:
        yield f"up to {num_processes} runs shared a machine, so each took longer than alone."


def describe_method(summary: Summary) -> str:
    """How variants were compared, in a paragraph."""
    n = len(summary.experiment.seeds)
    better = "lower" if summary.lower_is_better else "higher"
    text = f"Mean ± standard deviation over {n} seed{'s' * (n > 1)}; {better} is better."
    if n < MIN_PAIRS or not summary.others:
        return text
    text += (
        f" Differences are between runs with the same seed and {summary.baseline.name}. p-values "
        "are two-sided, from Student's t-test, which assumes normal differences"
    )
    if n <= MAX_EXACT_PAIRS:
        text += f" (those of a sign-flip test could not be below {2 / 2**n:.2g})"
    if len(summary.others) > 1:
        text += ", with Holm's correction; each interval is for one comparison"
    return f"{text}. The results are about other seeds on the same data."


# --- tables


def results_table(summary: Summary) -> Table:
    """Metric and losses of each variant, and its difference to the baseline."""
    metric = summary.experiment.metric
    losses = [name for name in METRIC_TITLES if name != metric]
    header = ["variant", metric_title(metric), "min – max", "n", *map(metric_title, losses)]
    if summary.others:
        header += ["difference", "95 % CI", "p"]
    table = [header]
    for row in summary.rows:
        values = row.to_dict()
        num_diverged = values["num_diverged"]
        spread = "–"
        if row.values:
            spread = f"{format_number(values['min'])} – {format_number(values['max'])}"
        cells = [
            row.name,
            format_mean_std(row.values),
            spread,
            f"{values['n']} ({num_diverged} diverged)" if num_diverged else f"{values['n']}",
            *(_format_optional(values[name]) for name in losses),
        ]
        if summary.others:
            cells += _difference_cells(row)
        table.append(cells)
    return table


def _difference_cells(row: VariantSummary) -> list[str]:
    difference = mean(row.differences)
    spec = f"+.{decimal_places(row.mean)}f" if row.mean is not None else ""
    cells = ["–" if difference is None else f"{difference:{spec}}", "–", "–"]
    if row.contrast:
        test = row.contrast.test
        if test.ci_low is not None:
            cells[1] = f"{test.ci_low:{spec}} to {test.ci_high:{spec}}"
        cells[2] = format_p_value(row.contrast.p_corrected).removeprefix("= ")
    return cells


def cost_table(summary: Summary) -> Table:
    """Parameters, time and memory of each variant."""
    formats: dict[str, Callable[[Any], str]] = {
        "num_parameters": "{:,}".format,
        "train_seconds": lambda t: f"{t:.1f} s" if t < 60 else format_duration(t),
        "tokens_per_second": format_si,
        "peak_memory": lambda size: f"{size / 2**20:,.0f} MiB",
    }
    table = [["variant", "parameters", "training time", "tokens per second", "peak memory"]]
    for row in summary.rows:
        values = row.to_dict()
        cells = [
            "–" if values[name] is None else format(values[name])
            for name, format in formats.items()
        ]
        table.append([row.name, *cells])
    return table


def length_table(summary: Summary) -> Table:
    """Loss of each variant by sequence length."""
    measured = {length for row in summary.rows for length in row.losses_by_length}
    lengths = sorted(measured | {*summary.experiment.eval_lengths})
    table = [["variant", *(f"{length:,}" for length in lengths)]]
    for row in summary.rows:
        losses = row.losses_by_length
        table.append([row.name, *(format_mean_std(losses.get(length, [])) for length in lengths)])
    return table


def describe_lengths(summary: Summary) -> list[str]:
    """Sentences about the losses by sequence length."""
    is_masked = isinstance(summary.experiment.base.model.head, MLMHead)
    note = "other tokens are masked at each length" if is_masked else "each token counts once"
    sentences = [
        f"Mean validation loss per token by sequence length; {note}.",
        "In the figure, the dotted line is the length in training.",
        "In the table, a dash means that learned positions end with the context length.",
    ]
    fractions = [
        measured["extrapolated_fraction"]
        for run in summary.results
        for measured in run.loss_by_length.values()
        if measured
    ]
    if any(fractions):
        sentences.append(
            f"At the longest, {max(fractions):.0%} of tokens are at positions beyond training."
        )
    elif fractions:
        sentences.append(
            "No validation text is longer than the length in training, so nothing is extrapolated."
        )
    return sentences


def describe_memory(summary: Summary) -> str:
    is_gpu = any(run.machine and not run.machine.startswith("cpu") for run in summary.results)
    if is_gpu:
        return "Memory is the peak of GPU tensors, the maximum over all runs."
    return "Memory is the peak of the process, including earlier runs; the maximum over all runs."


def markdown_table(table: Table) -> str:
    header, *rows = table
    alignment = ["---", *["---:"] * (len(header) - 1)]
    lines = [
        f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
        for row in (header, alignment, *rows)
    ]
    return "\n".join(lines)


def format_mean_std(values: Sequence[float]) -> str:
    average = mean(values)
    if average is None or len(values) == 1:
        return _format_optional(average)
    return f"{format_number(average)} ± {std(values):.{decimal_places(average)}f}"


def _format_optional(value: float | None) -> str:
    return "–" if value is None else format_number(value)


# --- page


def title(experiment: Experiment) -> str:
    """What is compared, in half a sentence."""
    recipe = experiment.recipe or "a configuration"
    vary = " × ".join(experiment.vary) or "without variations"
    num_seeds = len(experiment.seeds)
    num_runs = len(experiment.runs)
    seeds = f"{num_seeds} seed{'s' * (num_seeds > 1)}"
    return f"{recipe}: {vary}, {seeds}, {num_runs} run{'s' * (num_runs > 1)}"


def render_page(summary: Summary, all_findings: list[Finding], output: Path) -> str:
    experiment = summary.experiment
    sizes = {"wide": WIDE, "narrow": NARROW}
    length_plots = []
    if experiment.eval_lengths:
        length_plots = [
            to_svg(plot_by_length(summary, size), f"lengths-{name}") for name, size in sizes.items()
        ]
    return render_template(
        Path(__file__).with_name("report.html"),
        name=output.resolve().name,
        title=title(experiment),
        findings=all_findings,
        results=results_table(summary),
        baseline=summary.baseline.name,
        method=describe_method(summary),
        run_plots=[
            to_svg(plot_runs(summary, size), f"runs-{name}") for name, size in sizes.items()
        ],
        step_plots=[
            to_svg(plot_by_step(summary, output, size), f"steps-{name}")
            for name, size in sizes.items()
        ],
        costs=cost_table(summary),
        memory=describe_memory(summary),
        lengths=length_table(summary) if experiment.eval_lengths else None,
        length_plots=length_plots,
        length_notes=describe_lengths(summary),
        experiment_file=shlex.quote(str(output / EXPERIMENT_FILE)),
        provenance=experiment.provenance,
    )


def render_markdown(summary: Summary, all_findings: list[Finding], output: Path) -> str:
    experiment = summary.experiment
    sections = [f"# {output.resolve().name}", f"{title(experiment)}."]
    if all_findings:
        sections.append("\n".join(f"- **{each.name}**: {each.message}" for each in all_findings))
    sections += [
        "## Results",
        markdown_table(results_table(summary)),
        describe_method(summary),
        f"![Validation loss by step]({CURVES_FILE})",
        "## Cost",
        markdown_table(cost_table(summary)),
        describe_memory(summary),
    ]
    if experiment.eval_lengths:
        sections += [
            "## Loss by sequence length",
            markdown_table(length_table(summary)),
            f"![Loss by sequence length]({LENGTHS_FILE})",
            " ".join(describe_lengths(summary)),
        ]
    file = shlex.quote(str(output / EXPERIMENT_FILE))
    sections += ["## Reproduce", f"```\nclearhead compare {file} --output another\n```"]
    return "\n\n".join(sections) + "\n"
