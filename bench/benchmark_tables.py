"""The tables of the benchmarks page in Markdown: missed targets first, then targets by area.

python bench/benchmark_tables.py        prints them
"""

from collections.abc import Iterable, Sequence

from benchmark_results import Measurement, Row, Run
from benchmark_targets import (
    Target,
    TargetStatus,
    read_areas,
    results_without_target,
    target_statuses,
)


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_measurement(measurement: Measurement, unit: str = "", quartiles: bool = False) -> str:
    """The middle with its unit and the spread, or the spread only."""
    if not measurement:
        return ""
    middle, *ends = measurement
    spread = "–".join(format_number(end) for end in ends if end is not None)
    if middle is None:
        return f"{spread} {unit}".strip()
    text = f"{format_number(middle)} {unit}".strip()
    if not spread:
        return text
    return f"{text} (quartiles {spread})" if quartiles else f"{text} ({spread})"


def format_target(target: Target) -> str:
    """The limits and the aim of a target."""
    limits = (("≥", target.at_least), ("≤", target.at_most), ("aim", target.aim))
    texts = [f"{sign} {format_number(value)}" for sign, value in limits if value is not None]
    return f"{', '.join(texts)} {target.unit or '×'}"


def format_workload(workload: str, results: str) -> str:
    """A workload with its machine, from the stem of the results file."""
    return f"{results.split('.')[1].upper()}: {workload}"


def format_status(status: TargetStatus) -> str:
    """Whether a target is met, and by how much it is missed."""
    target = status.target
    value = status.value
    if value is None:
        return "*not measured*"
    if status.is_missed:
        limit = target.at_least or target.at_most
        return f"**missed**: {value / limit:.3f} × the limit" if limit else "**missed**"
    if target.aim is None:
        return "met"
    if not status.misses_aim:
        return "met, and the aim"
    has_limit = target.at_least or target.at_most
    return f"{'met; ' if has_limit else ''}{value / target.aim:.2f} × the aim"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_run(run: Run) -> str:
    """Command, date, machine, versions, rounds and load of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    counts = sorted({row.rounds for row in run.rows if row.rounds is not None})
    rounds = "unknown number of rounds"
    if counts:
        rounds = f"rounds: {'–'.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))}"
    load = "" if run.load is None else f"; load average before the run {run.load:g}"
    source = ""
    if run.source:
        source = f"; copied from the [log]({run.source.removeprefix('docs/')})"
    details = f"{versions or 'unknown versions'}; {rounds}{load}{source}"
    return f"`{run.command}`, {run.date}, {run.machine}; {details}"


def summarize(statuses: list[TargetStatus]) -> list[str]:
    """How many targets are met, and tables of those that are not, with the reasons."""
    limits = [s for s in statuses if s.target.at_least is not None or s.target.at_most is not None]
    aims = [s for s in statuses if s.target.aim is not None]
    missed = [s for s in limits if s.is_missed]
    below_aim = [s for s in aims if s.misses_aim and not s.is_missed]
    unmeasured = [s for s in statuses if s.value is None]
    num_met = sum(s.value is not None for s in limits) - len(missed)
    num_aims_met = sum(s.value is not None and not s.misses_aim for s in aims)

    def to_row(status: TargetStatus) -> tuple[str, ...]:
        target = status.target
        measured = ""
        if status.value is not None:
            measured = f"{format_number(status.value)} {target.unit or '×'}"
        workload = format_workload(target.workload, target.results)
        return workload, target.peer, format_target(target), measured, target.why

    parts = [
        f"Of {len(limits)} targets, **{num_met} are met, {len(missed)} are missed and "
        f"{len(unmeasured)} are not measured**. Of {len(aims)} more ambitious aims, "
        f"{num_aims_met} are met. The newest result counts, not the best; numbers in brackets "
        "link to the [runs](#runs)."
    ]
    for title, group in (
        ("Missed targets", missed),
        ("Met, but below the aim", below_aim),
        ("Not measured", unmeasured),
    ):
        if group:
            head = ("workload", "compared with", "target", "measured", "why")
            parts += [f"## {title}", format_table(head, map(to_row, group))]
    return parts


def render_markdown() -> str:
    """All tables; runs are numbered in the order in which they are referred to."""
    runs: list[Run] = []

    def measurements(row: Row) -> tuple[str, str, str]:
        ours = format_measurement(row.ours, row.unit, row.quartiles)
        theirs = f"{row.peer} {format_measurement(row.theirs)}".strip()
        return ours, theirs, format_measurement(row.ratio)

    def link(run: Run | None) -> str:
        if run is None:
            return ""
        if run not in runs:
            runs.append(run)
        number = runs.index(run) + 1
        return f" [[{number}]](#run-{number})"

    def to_row(status: TargetStatus) -> tuple[str, ...]:
        target = status.target
        cells = measurements(status.row) if status.row else ("", target.peer, "")
        workload = format_workload(target.workload, target.results)
        return workload, format_target(target), *cells, format_status(status) + link(status.run)

    statuses = target_statuses()
    parts = summarize(statuses)
    for area, description in read_areas().items():
        rows = [to_row(status) for status in statuses if status.target.area == area]
        head = ("workload", "target", "ours", "theirs", "ratio", "")
        parts += [f"## {area}", description, format_table(head, rows)]
    rest = [
        (format_workload(row.workload, name), *measurements(row), link(run))
        for name, row, run in results_without_target()
    ]
    head = ("workload", "ours", "theirs", "ratio", "")
    parts += ["## Results without a target", format_table(head, rest), "## Runs"]
    items = [
        f'- <a id="run-{number}"></a>**[{number}]** {format_run(run)}'
        for number, run in enumerate(runs, 1)
    ]
    return "\n\n".join([*parts, "\n".join(items)]) + "\n"


if __name__ == "__main__":
    print(render_markdown())
