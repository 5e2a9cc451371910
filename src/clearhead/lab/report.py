"""What an experiment leaves for people: report.html and report.md, table.csv, curves.png."""

import csv
import io
import shlex
from collections.abc import Sequence
from pathlib import Path

from clearhead.config import MaskedWord
from clearhead.evaluate import figures
from clearhead.files import overwrite
from clearhead.lab import curves
from clearhead.lab.experiment import FILE, LAST, LOSS, Experiment
from clearhead.lab.findings import chance_text, findings, method, metric_name
from clearhead.lab.outcome import outcomes
from clearhead.lab.summary import Row, Summary, deviation, mean, summarise
from clearhead.train.curve import png, svg
from clearhead.train.diagnosis import Finding
from clearhead.train.pace import duration
from clearhead.train.report import rendered, short

PAGE, TEXT, TABLE, CURVES, LENGTHS = "report.html", "report.md", "table.csv", "curves.png", "lengths.png"
WIDE, NARROW = (9.0, 4.4), (4.2, 4.4)
Cells = tuple[list[str], list[list[str]]]  # a table: its head, and its rows


def write(experiment: Experiment, out: Path) -> Summary:
    """All files, each in one step."""
    summary = summarise(experiment, outcomes(out))
    found = findings(summary, out)
    overwrite(out / TABLE, _csv(summary).encode())
    overwrite(out / CURVES, png(curves.by_step(summary, out, WIDE)))
    if experiment.lengths:
        overwrite(out / LENGTHS, png(curves.by_length(summary, WIDE)))
    overwrite(out / TEXT, markdown(summary, found, out).encode())
    overwrite(out / PAGE, page(summary, found, out).encode())
    return summary


def results(summary: Summary) -> Cells:
    metric = summary.experiment.metric
    losses = {LOSS: "validation loss", LAST: "at the end"}
    losses = {name: title for name, title in losses.items() if name != metric}
    head = ["variant", metric_name(metric), "min – max", "n", *losses.values()]
    head += ["difference", "95 % interval", "p"] if summary.others else []
    return head, [_result(row, [*losses], bool(summary.others)) for row in summary.rows]


def _result(row: Row, losses: list[str], compared: bool) -> list[str]:
    t = row.tree()
    lost = f" ({t['diverged']} diverged)" if t["diverged"] else ""
    spread = f"{number(t['lowest'])} – {number(t['highest'])}" if row.values else "–"
    found = [row.name, spread_of(row.values), spread, f"{t['n']}{lost}", *(number(t[n]) for n in losses)]
    signed = f"+.{figures.digits(row.mean)}f" if row.mean is not None else ""
    between = f"{t['from']:{signed}} to {t['to']:{signed}}" if t["from"] is not None else "–"
    difference = "–" if t["difference"] is None else f"{t['difference']:{signed}}"
    chance = chance_text(row.versus.p).removeprefix("= ") if row.versus else "–"
    return [*found, *([difference, between, chance] if compared else [])]


def costs(summary: Summary) -> Cells:
    body = []
    for row in summary.rows:
        t = row.tree()
        time = "–" if t["seconds"] is None else took(t["seconds"])
        speed = "–" if t["tokens_a_second"] is None else short(t["tokens_a_second"])
        memory = "–" if t["memory"] is None else f"{t['memory'] / 2**20:,.0f} MiB"
        body.append([row.name, "–" if t["parameters"] is None else f"{t['parameters']:,}", time, speed, memory])
    return ["variant", "parameters", "time of a run", "tokens a second", "peak memory"], body


def lengths(summary: Summary) -> Cells:
    every = sorted({length for row in summary.rows for length in curves.lengths(row)} | {*summary.experiment.lengths})
    return ["variant", *(f"{length:,}" for length in every)], [
        [row.name, *(spread_of(curves.lengths(row).get(length, [])) for length in every)] for row in summary.rows
    ]


def about_lengths(summary: Summary) -> list[str]:
    """What the losses at other lengths are of."""
    told = [each for run in summary.done for each in run.lengths.values() if each]
    hides = isinstance(summary.experiment.base.model.head, MaskedWord)
    once = "at each length other words are hidden" if hides else "each token counts once"
    found = [f"Mean loss of a held-out token, at the number of tokens that are read at once; {once}."]
    found.append("Dotted: the length in training. A dash: learned positions end with the context.")
    far = max((each["beyond"] for each in told), default=0.0)
    if told and not far:
        found.append("No held-out text is longer than the length in training, so nothing here is extrapolation.")
    elif told:
        found.append(f"At the longest, {far:.0%} of tokens stand further from the beginning than any in training.")
    return found


def page(summary: Summary, found: list[Finding], out: Path) -> str:
    experiment, long = summary.experiment, bool(summary.experiment.lengths)
    sizes = {"wide": WIDE, "narrow": NARROW}
    return rendered(
        Path(__file__).with_name("report.html"),
        name=out.resolve().name,
        title=title(experiment),
        findings=found,
        results=results(summary),
        first=summary.first.name,
        method=method(summary),
        runs=[svg(curves.by_run(summary, size), f"runs-{name}") for name, size in sizes.items()],
        steps=[svg(curves.by_step(summary, out, size), f"steps-{name}") for name, size in sizes.items()],
        costs=costs(summary),
        memory=about_memory(summary),
        lengths=lengths(summary) if long else None,
        longer=[svg(curves.by_length(summary, size), f"lengths-{name}") for name, size in sizes.items()]
        if long
        else [],
        about_lengths=about_lengths(summary),
        again=shlex.quote(str(out / FILE)),
        command=experiment.made.command,
        began=experiment.made.clearhead,
        torch=experiment.made.torch,
    )


def markdown(summary: Summary, found: list[Finding], out: Path) -> str:
    experiment, name = summary.experiment, out.resolve().name
    parts = [f"# {name}", f"{title(experiment)}."]
    parts += ["\n".join(f"- **{each.name}**: {each.sentence}" for each in found)] if found else []
    parts += ["## Results", pipes(results(summary)), method(summary), f"![validation loss by step]({CURVES})"]
    parts += ["## Cost", pipes(costs(summary)), about_memory(summary)]
    if experiment.lengths:
        parts += ["## Other lengths", pipes(lengths(summary)), f"![loss by length]({LENGTHS})"]
        parts += [" ".join(about_lengths(summary))]
    parts += ["## Again", f"```\nclearhead compare {shlex.quote(str(out / FILE))} --out another\n```"]
    return "\n\n".join(parts) + "\n"


def title(experiment: Experiment) -> str:
    """What is compared, in half a sentence."""
    name, vary = experiment.what or "a configuration", " × ".join(experiment.vary) or "as it is"
    n, every = len(experiment.seeds), len(experiment.runs)
    return f"{name}: {vary}, {n} seed{'s' * (n > 1)}, {every} run{'s' * (every > 1)}"


def about_memory(summary: Summary) -> str:
    gpu = any(run.machine and not run.machine.startswith("cpu") for run in summary.done)
    took = "tensors took of the GPU" if gpu else "the whole process took, with what earlier runs left in it"
    return f"Memory is what {took}; the most of all runs."


def pipes(table: Cells) -> str:
    head, body = table
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _csv(summary: Summary) -> str:
    held = io.StringIO()
    rows = [row.tree() for row in summary.rows]
    writer = csv.DictWriter(held, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return held.getvalue()


def text(table: Cells) -> str:
    """In columns, for a terminal."""
    rows: Sequence[list[str]] = [table[0], *table[1]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table[0]))]
    pad = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return "\n".join(
        "  ".join(p(cell, w) for p, cell, w in zip(pad, row, widths, strict=True)).rstrip() for row in rows
    )


def took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def spread_of(values: Sequence[float]) -> str:
    """The mean ± the standard deviation."""
    middle = mean(values)
    if middle is None or len(values) == 1:
        return number(middle)
    return f"{number(middle)} ± {deviation(values):.{figures.digits(middle)}f}"


def number(value: float | None) -> str:
    return "–" if value is None else figures.number(value)
