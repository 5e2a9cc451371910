"""What an experiment shows and what it does not, in sentences."""

import csv
import io
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.config.model import LMHead, MLMHead
from clearhead.evaluate import metrics
from clearhead.evaluate.metrics import decimal_places
from clearhead.io import read_json_lines, write_atomic
from clearhead.lab.experiment import (
    BEST_LOSS,
    EXPERIMENT_FILE,
    FINAL_LOSS,
    Experiment,
    read_results,
)
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
from clearhead.lens.render.colors import NEGATIVE, POSITIVE
from clearhead.train.checkpoint import LOG_FILE
from clearhead.train.diagnosis import Curve, Finding, Line, curve_of, diagnose
from clearhead.train.report import COLORS, format_si, render_template, to_png, to_svg
from clearhead.train.throughput import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- findings: What an experiment shows and what it does not, in sentences.

METRIC_NAMES = {BEST_LOSS: "lowest validation loss", FINAL_LOSS: "last validation loss"}


def findings(summary: Summary, out: Path) -> list[Finding]:
    """The claims first, then what stands in their way."""
    missing = len(summary.experiment.runs) - len(summary.results)
    early = [
        Finding(
            "not at its end",
            f"{missing} of {len(summary.experiment.runs)} runs are not done.",
            is_problem=True,
        )
    ]
    caveats = [Finding("mind", sentence, is_problem=True) for sentence in _caveats(summary, out)]
    return [*(early if missing else []), *_comparisons(summary), *caveats]


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric)


def too_few_seeds(experiment: Experiment) -> list[Finding]:
    """What is known of an experiment before its first run."""
    seeds = len(experiment.seeds)
    if seeds >= MIN_PAIRS or len(experiment.variants) == 1:
        return []
    few = f"with {seeds} seed{'s' * (seeds > 1)} nothing can be claimed"
    return [
        Finding(
            "too few seeds",
            f"{few}: chance alone makes runs differ. {MIN_PAIRS} are the least.",
            is_problem=True,
        )
    ]


def _comparisons(summary: Summary) -> Iterator[Finding]:
    first = summary.baseline.name
    metric = metric_name(summary.experiment.metric)
    if not summary.others:
        return
    if few := too_few_seeds(summary.experiment):
        yield from few
        return
    judged = [(row, row.contrast) for row in summary.others if row.contrast is not None]
    for row, versus in judged:
        if versus.is_significant:
            better = "better" if (versus.test.mean < 0) is summary.lower_is_better else "worse"
            yield Finding(
                better, f"{row.name} is {better} than {first}: {metric} {_difference(row, versus)}."
            )
    if same := [row.name for row, _ in judged if not any(row.differences)]:
        yield Finding(
            "no effect", f"{', '.join(same)}: the same as {first} in every run, to the last digit."
        )
    if unclear := [
        (row, versus)
        for row, versus in judged
        if any(row.differences) and not versus.is_significant
    ]:
        each = "; ".join(f"{row.name} {_difference(row, versus)}" for row, versus in unclear)
        equal = "That does not make them equal: a difference may be anywhere in its interval"
        yield Finding("not to be told apart", f"from {first}, by {metric}: {each}. {equal}.")
    if silent := [row.name for row in summary.others if row.contrast is None]:
        pairs = f"fewer than {MIN_PAIRS} pairs of runs with the same seed"
        yield Finding(
            "nothing to say", f"of {', '.join(silent)} there are {pairs}.", is_problem=True
        )


def _difference(row: VariantSummary, versus: Contrast) -> str:
    chance = versus.test
    places = decimal_places(row.mean or 0.0)
    signed = (
        f"+.{places}f" if abs(chance.mean) >= 10**-places else "+.2g"
    )  # never nothing where there is something
    between = "no interval: all differences are the same"
    if chance.ci_low is not None:
        between = f"95 % interval {chance.ci_low:{signed}} to {chance.ci_high:{signed}}"
    return f"{chance.mean:{signed}} ({between}, p {format_p_value(versus.p_corrected)})"


def format_p_value(p: float) -> str:
    return f"= {p:.2g}" if p >= 1e-4 else "< 0.0001"


def _caveats(summary: Summary, out: Path) -> Iterator[str]:
    experiment = summary.experiment
    done = summary.results
    for row in summary.rows:
        if row.diverged:
            lost = f"{len(row.diverged)} of {len(row.runs)} runs of {row.name} diverged and count in no mean"
            yield f"{lost}. The first of them: {row.diverged[0].error}"
    if experiment.earlier_comparisons:
        before = f"this experiment was asked before: {'; '.join(experiment.earlier_comparisons)}"
        yield f"{before}. p is corrected for the comparisons of one report only: what is found by asking on is weaker."
    varied = [text.partition("=")[0] for text in experiment.vary]
    words = [o for o in varied if o in ("data.tokenizer", "data.vocab_size", "train.init_from")]
    told = isinstance(experiment.base.model.head, LMHead | MLMHead)
    if words and told and experiment.metric in (BEST_LOSS, FINAL_LOSS, "perplexity"):
        yield f"{words[0]} varies, and a loss a token cannot be compared where tokens differ; bits per byte can."
    if other := [o for o in varied if o.startswith("data.") and o not in words]:
        yield f"{other[0]} varies, so that variants may be judged on other data than each other."
    if any(o.removeprefix("model.") in ("context_length", "train.seq_len") for o in varied):
        yield "variants are judged on texts of the length that they were trained on; --lengths judges all on the same."
    if not all(v.config.data.valid for v in experiment.variants) and len(experiment.seeds) > 1:
        yield "without data.valid each seed holds out other texts, which adds to the spread; of a single text, its end."
    if slow := [
        v for v in experiment.variants if v.config.train.warmup_steps > v.config.train.max_steps
    ]:
        steps = f"{slow[0].config.train.warmup_steps:,} steps of {slow[0].config.train.max_steps:,}"
        yield f"the rate never came to its height: train.warmup_steps takes {steps}; a shorter one teaches more."
    logs = [read_json_lines(out / run.path / LOG_FILE) for run in done if run.status != "diverged"]
    shapes = Counter(found.name for lines in logs for found in diagnose(lines))
    more = "with more steps the order may be another"
    if lowest := sum(map(_lowest_at_end, logs)):
        few = f"{lowest} of {len(done)} runs had their lowest validation loss at their end, but too few validations"
        yield f"{few} to tell whether they were still falling: {more}."
    if once := sum(len(curve_of(lines, "valid")) == 1 for lines in logs):
        yield f"{once} of {len(done)} runs were validated once: a smaller train.eval_every tells whether they still fell."
    if shapes["still falling"]:
        yield f"{shapes['still falling']} of {len(done)} runs were still falling at their end: {more}."
    if shapes["overfitting"]:
        yield f"{shapes['overfitting']} of {len(done)} runs overfit: the lowest loss is from before their end."
    if len(machines := sorted({run.machine for run in done if run.machine})) > 1:
        yield f"times and memory are of different machines: {'; '.join(machines)}."
    if (most := max((run.num_processes for run in done), default=1)) > 1:
        yield f"up to {most} runs shared a machine, so each took longer than it would have taken alone."


def _lowest_at_end(lines: list[Line]) -> bool:
    """Whether that is all that can be told of a run's course."""
    valid = [value for _, value in curve_of(lines, "valid")]
    return (
        diagnose(lines)[0].name == "too early to tell"
        and len(valid) > 1
        and valid[-1] < min(valid[:-1])
    )


def describe_method(summary: Summary) -> str:
    """How it was compared, in a paragraph."""
    n = len(summary.experiment.seeds)
    several = len(summary.others) > 1
    found = f"Means over {n} seed{'s' * (n > 1)}, ± the standard deviation of single runs"
    found += f"; {'less' if summary.lower_is_better else 'more'} is better."
    if n < MIN_PAIRS or not summary.others:
        return found
    found += f" Differences are those of runs with the same seed to {summary.baseline.name}, and p is two-sided, by"
    found += " Student's t, which takes them to spread normally"
    found += (
        f" (by counting all choices of signs it could not come below {2 / 2**n:.2g})"
        if n <= MAX_EXACT_PAIRS
        else ""
    )
    found += ", and corrected by Holm; each interval is for one comparison." if several else "."
    return f"{found} What is claimed is of other seeds, on the same data."


# ---- curves: The pictures of an experiment: validation by step, every run as a dot, and the loss at other lengths.

VARIANT_COLORS = (
    POSITIVE,
    NEGATIVE,
    "#2f9e60",
    "#9c62c8",
    "#b98a00",
    "#d0507f",
    "#4f9da6",
    "#8a8f98",
)  # seen on white and on black
LINE_STYLES = (
    "-",
    "--",
    ":",
    "-.",
)  # for those who see few colours, and where there are more variants


def validation_curves(row: VariantSummary, out: Path) -> list[Curve]:
    """The validation losses of each run of a variant that came to its end."""
    logs = (
        read_json_lines(out / run.path / LOG_FILE) for run in row.runs if run.status != "diverged"
    )
    return [found for lines in logs if (found := curve_of(lines, "valid"))]


def plot_by_step(summary: Summary, out: Path, size: tuple[float, float]) -> "Figure":
    """The mean of each variant's runs at each step that all of them have, and between which two they lie."""
    drawn, axes = _empty_plot(size, "step", "validation loss")
    seen: list[tuple[int, float]] = []
    for i, row in enumerate(summary.rows):
        runs = [dict(course) for course in validation_curves(row, out)]
        steps = sorted(set.intersection(*map(set, runs))) if runs else []
        each = [[run[step] for run in runs] for step in steps]
        seen += [
            (step, value) for step, values in zip(steps, each, strict=True) for value in values
        ]
        dot = "o" if len(steps) == 1 else ""  # of which no line can be drawn
        axes.plot(
            steps,
            [statistics.fmean(values) for values in each],
            label=row.name,
            marker=dot,
            **_line_style(i),
        )
        if len(runs) > 1:
            axes.fill_between(
                steps,
                [min(v) for v in each],
                [max(v) for v in each],
                color=_color(i),
                alpha=0.16,
                lw=0,
            )
    steep = 0.1 * max((step for step, _ in seen), default=0)  # the beginning would hide the rest
    if settled := [value for step, value in seen if step > steep]:
        room = 0.06 * (max(settled) - min(settled)) or 0.1
        axes.set_ylim(min(settled) - room, max(settled) + room)
    return _legend(drawn, axes)


def plot_runs(summary: Summary, size: tuple[float, float]) -> "Figure":
    """Every run as a dot, and a line for the mean of each variant."""
    drawn, axes = _empty_plot(
        (size[0], 0.7 + 0.34 * len(summary.rows)), metric_name(summary.experiment.metric), ""
    )
    for i, row in enumerate(summary.rows):
        axes.plot(row.values, [i] * len(row.values), "o", color=_color(i), alpha=0.7, markersize=5)
        if row.mean is not None:
            axes.plot([row.mean] * 2, [i - 0.28, i + 0.28], color=_color(i), linewidth=2)
    axes.set_yticks(
        range(len(summary.rows)), [row.name for row in summary.rows], color=COLORS["ink"]
    )
    axes.set_ylim(len(summary.rows) - 0.4, -0.6)
    axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)
    axes.grid(visible=False, axis="y")
    return drawn


def losses_by_length(row: VariantSummary) -> dict[int, list[float]]:
    """The losses of a variant's runs at each length that it can read."""
    found: dict[int, list[float]] = {}
    for length, told in (
        pair for run in row.runs for pair in run.loss_by_length.items() if pair[1]
    ):
        found.setdefault(int(length), []).append(told["loss"])
    return dict(sorted(found.items()))


def plot_by_length(summary: Summary, size: tuple[float, float]) -> "Figure":
    drawn, axes = _empty_plot(
        size, "tokens of a text that are read at once", "loss on what is held out"
    )
    axes.set_xscale("log", base=2)
    ticks = sorted({length for row in summary.rows for length in losses_by_length(row)})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    for i, row in enumerate(summary.rows):
        found = {
            length: statistics.fmean(losses) for length, losses in losses_by_length(row).items()
        }
        axes.plot(
            [*found], [*found.values()], label=row.name, marker="o", markersize=4, **_line_style(i)
        )
    for own in {
        v.config.train.seq_len or v.config.model.context_length for v in summary.experiment.variants
    }:
        axes.axvline(own, color=COLORS["quiet"], linewidth=1, linestyle=":")
    return _legend(drawn, axes)


def _empty_plot(size: tuple[float, float], across: str, up: str) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=size, layout="constrained", facecolor="none")
    axes = drawn.add_subplot(facecolor="none")
    axes.set_xlabel(across, color=COLORS["quiet"], fontsize=9)
    axes.set_ylabel(up, color=COLORS["quiet"], fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=COLORS["quiet"], labelsize=9)
    axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    return drawn, axes


def _legend(drawn: "Figure", axes: "Axes") -> "Figure":
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, int(drawn.get_size_inches()[0] * 12 // (6 + max(map(len, names), default=1))))
    drawn.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=COLORS["ink"],
                 fontsize=9, handlelength=2.0, columnspacing=1.6)  # fmt: skip
    return drawn


def _color(i: int) -> str:
    return VARIANT_COLORS[i % len(VARIANT_COLORS)]


def _line_style(i: int) -> dict[str, Any]:
    return {
        "color": _color(i),
        "linestyle": LINE_STYLES[i // len(VARIANT_COLORS) % len(LINE_STYLES)],
        "linewidth": 1.6,
    }


# ---- report: What an experiment leaves for people: report.html and report.md, table.csv, curves.png.

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TABLE_FILE = "table.csv"
CURVES_FILE = "curves.png"
LENGTHS_FILE = "lengths.png"
WIDE = (9.0, 4.4)
NARROW = (4.2, 4.4)
Table = tuple[list[str], list[list[str]]]  # a table: its head, and its rows


def write_report(experiment: Experiment, out: Path) -> Summary:
    """All files, each in one step."""
    summary = summarize(experiment, read_results(out))
    found = findings(summary, out)
    write_atomic(out / TABLE_FILE, _csv(summary).encode())
    write_atomic(out / CURVES_FILE, to_png(plot_by_step(summary, out, WIDE)))
    if experiment.eval_lengths:
        write_atomic(out / LENGTHS_FILE, to_png(plot_by_length(summary, WIDE)))
    write_atomic(out / MARKDOWN_FILE, render_markdown(summary, found, out).encode())
    write_atomic(out / REPORT_FILE, render_page(summary, found, out).encode())
    return summary


def results_table(summary: Summary) -> Table:
    metric = summary.experiment.metric
    losses = {BEST_LOSS: "validation loss", FINAL_LOSS: "at the end"}
    losses = {name: title for name, title in losses.items() if name != metric}
    head = ["variant", metric_name(metric), "min – max", "n", *losses.values()]
    head += ["difference", "95 % interval", "p"] if summary.others else []
    return head, [_result_cells(row, [*losses], bool(summary.others)) for row in summary.rows]


def _result_cells(row: VariantSummary, losses: list[str], compared: bool) -> list[str]:
    t = row.to_dict()
    lost = f" ({t['diverged']} diverged)" if t["diverged"] else ""
    spread = f"{format_number(t['lowest'])} – {format_number(t['highest'])}" if row.values else "–"
    found = [
        row.name,
        format_mean_std(row.values),
        spread,
        f"{t['n']}{lost}",
        *(format_number(t[n]) for n in losses),
    ]
    signed = f"+.{metrics.decimal_places(row.mean)}f" if row.mean is not None else ""
    between = f"{t['from']:{signed}} to {t['to']:{signed}}" if t["from"] is not None else "–"
    difference = "–" if t["difference"] is None else f"{t['difference']:{signed}}"
    chance = format_p_value(row.contrast.p_corrected).removeprefix("= ") if row.contrast else "–"
    return [*found, *([difference, between, chance] if compared else [])]


def cost_table(summary: Summary) -> Table:
    body = []
    for row in summary.rows:
        t = row.to_dict()
        time = "–" if t["seconds"] is None else format_seconds(t["seconds"])
        speed = "–" if t["tokens_a_second"] is None else format_si(t["tokens_a_second"])
        memory = "–" if t["memory"] is None else f"{t['memory'] / 2**20:,.0f} MiB"
        body.append(
            [
                row.name,
                "–" if t["parameters"] is None else f"{t['parameters']:,}",
                time,
                speed,
                memory,
            ]
        )
    return ["variant", "parameters", "time of a run", "tokens a second", "peak memory"], body


def length_table(summary: Summary) -> Table:
    every = sorted(
        {length for row in summary.rows for length in losses_by_length(row)}
        | {*summary.experiment.eval_lengths}
    )
    return ["variant", *(f"{length:,}" for length in every)], [
        [row.name, *(format_mean_std(losses_by_length(row).get(length, [])) for length in every)]
        for row in summary.rows
    ]


def describe_lengths(summary: Summary) -> list[str]:
    """What the losses at other lengths are of."""
    told = [each for run in summary.results for each in run.loss_by_length.values() if each]
    hides = isinstance(summary.experiment.base.model.head, MLMHead)
    once = "at each length other words are hidden" if hides else "each token counts once"
    found = [
        f"Mean loss of a held-out token, at the number of tokens that are read at once; {once}."
    ]
    found.append("Dotted: the length in training. A dash: learned positions end with the context.")
    far = max((each["beyond"] for each in told), default=0.0)
    if told and not far:
        found.append(
            "No held-out text is longer than the length in training, so nothing here is extrapolation."
        )
    elif told:
        found.append(
            f"At the longest, {far:.0%} of tokens stand further from the beginning than any in training."
        )
    return found


def render_page(summary: Summary, found: list[Finding], out: Path) -> str:
    experiment = summary.experiment
    long = bool(summary.experiment.eval_lengths)
    sizes = {"wide": WIDE, "narrow": NARROW}
    return render_template(
        Path(__file__).with_name("report.html"),
        name=out.resolve().name,
        title=title(experiment),
        findings=found,
        results=results_table(summary),
        first=summary.baseline.name,
        method=describe_method(summary),
        runs=[to_svg(plot_runs(summary, size), f"runs-{name}") for name, size in sizes.items()],
        steps=[
            to_svg(plot_by_step(summary, out, size), f"steps-{name}")
            for name, size in sizes.items()
        ],
        costs=cost_table(summary),
        memory=describe_memory(summary),
        lengths=length_table(summary) if long else None,
        longer=[
            to_svg(plot_by_length(summary, size), f"lengths-{name}") for name, size in sizes.items()
        ]
        if long
        else [],
        about_lengths=describe_lengths(summary),
        again=shlex.quote(str(out / EXPERIMENT_FILE)),
        command=experiment.provenance.command,
        began=experiment.provenance.clearhead_version,
        torch=experiment.provenance.torch_version,
    )


def render_markdown(summary: Summary, found: list[Finding], out: Path) -> str:
    experiment = summary.experiment
    name = out.resolve().name
    parts = [f"# {name}", f"{title(experiment)}."]
    parts += ["\n".join(f"- **{each.name}**: {each.message}" for each in found)] if found else []
    parts += [
        "## Results",
        markdown_table(results_table(summary)),
        describe_method(summary),
        f"![validation loss by step]({CURVES_FILE})",
    ]
    parts += ["## Cost", markdown_table(cost_table(summary)), describe_memory(summary)]
    if experiment.eval_lengths:
        parts += [
            "## Other lengths",
            markdown_table(length_table(summary)),
            f"![loss by length]({LENGTHS_FILE})",
        ]
        parts += [" ".join(describe_lengths(summary))]
    parts += [
        "## Again",
        f"```\nclearhead compare {shlex.quote(str(out / EXPERIMENT_FILE))} --out another\n```",
    ]
    return "\n\n".join(parts) + "\n"


def title(experiment: Experiment) -> str:
    """What is compared, in half a sentence."""
    name = experiment.recipe or "a configuration"
    vary = " × ".join(experiment.vary) or "as it is"
    n = len(experiment.seeds)
    every = len(experiment.runs)
    return f"{name}: {vary}, {n} seed{'s' * (n > 1)}, {every} run{'s' * (every > 1)}"


def describe_memory(summary: Summary) -> str:
    gpu = any(run.machine and not run.machine.startswith("cpu") for run in summary.results)
    took = (
        "tensors took of the GPU"
        if gpu
        else "the whole process took, with what earlier runs left in it"
    )
    return f"Memory is what {took}; the most of all runs."


def markdown_table(table: Table) -> str:
    head, body = table
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _csv(summary: Summary) -> str:
    held = io.StringIO()
    rows = [row.to_dict() for row in summary.rows]
    writer = csv.DictWriter(held, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return held.getvalue()


def text_table(table: Table) -> str:
    """In columns, for a terminal."""
    rows: Sequence[list[str]] = [table[0], *table[1]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table[0]))]
    pad = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return "\n".join(
        "  ".join(p(cell, w) for p, cell, w in zip(pad, row, widths, strict=True)).rstrip()
        for row in rows
    )


def format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def format_mean_std(values: Sequence[float]) -> str:
    """The mean ± the standard deviation."""
    middle = mean(values)
    if middle is None or len(values) == 1:
        return format_number(middle)
    return f"{format_number(middle)} ± {std(values):.{metrics.decimal_places(middle)}f}"


def format_number(value: float | None) -> str:
    return "–" if value is None else metrics.format_number(value)
