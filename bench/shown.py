"""The tables of the page of benchmarks, in Markdown: targets and figures by area, and what is short first.

python bench/shown.py        prints what the site shows
"""

from collections.abc import Iterable, Sequence

from kept import Figure, Row, Run
from standing import Standing, Target, areas, standings, unasked

NEWEST = (
    "The newest figure counts, not the best; numbers in brackets lead to the [runs](#the-runs)."
)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def told(figure: Figure, unit: str = "", quartiles: bool = False) -> str:
    """The middle with its unit, and the spread; where the middle is not known, the spread."""
    if not figure:
        return ""
    middle, *ends = figure
    spread = "–".join(number(end) for end in ends if end is not None)
    if middle is None:
        return f"{spread} {unit}".strip()
    return f"{number(middle)} {unit}".strip() + (
        f" ({'quartiles ' * quartiles}{spread})" if spread else ""
    )


def asked(target: Target) -> str:
    limits = (("≥", target.at_least), ("≤", target.at_most), ("aim", target.aim))
    return f"{', '.join(f'{sign} {number(x)}' for sign, x in limits if x is not None)} {target.unit or '×'}"


def titled(work: str, results: str) -> str:
    return f"{results.split('.')[1].upper()}: {work}"


def verdict(standing: Standing) -> str:
    target = standing.target
    reached = standing.reached
    if reached is None:
        return "*not measured*"
    if standing.short:
        limit = target.at_least or target.at_most
        word = "of what is asked" if target.at_least else "times what is allowed"
        share = f": {reached / limit:.3f} {word}" if limit else ""
        return f"**short**{share}"
    if target.aim is not None and standing.misses_aim:
        met = target.at_least or target.at_most
        word = "times" if target.at_most else "of"
        return f"{'met; ' if met else ''}{reached / target.aim:.2f} {word} the aim"
    return "met" if target.aim is None else "met, and the aim"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def described(run: Run) -> str:
    """All that is known of a run."""
    known = (
        ", ".join(f"{name} {version}" for name, version in run.versions.items())
        or "versions not told"
    )
    rounds = sorted({row.rounds for row in run.rows if row.rounds is not None})
    counted = (
        f"rounds: {'–'.join(str(n) for n in dict.fromkeys((rounds[0], rounds[-1])))}"
        if rounds
        else "rounds not told"
    )
    load = "" if run.load is None else f"; {run.load:g} processes wanted to run before it began"
    source = (
        f"; copied by hand from the [log]({run.source.removeprefix('docs/')})" if run.source else ""
    )
    return f"`{run.command}`, {run.date}, {run.machine}; {known}; {counted}{load}{source}"


def summary(everything: list[Standing]) -> list[str]:
    """How many are met, and those that are not, each with its reason."""
    musts = [s for s in everything if s.target.at_least is not None or s.target.at_most is not None]
    aims = [s for s in everything if s.target.aim is not None]
    short = [s for s in musts if s.short]
    behind = [s for s in aims if s.misses_aim and not s.short]
    unmeasured = [s for s in everything if s.reached is None]
    met = sum(s.reached is not None for s in musts) - len(short)
    reached = sum(s.reached is not None and not s.misses_aim for s in aims)

    def reason(standing: Standing) -> tuple[str, ...]:
        target = standing.target
        reached = standing.reached
        figure = "" if reached is None else f"{number(reached)} {target.unit or '×'}"
        return titled(target.work, target.results), target.peer, asked(target), figure, target.why

    told = f"Of {len(musts)} targets **{met} are met, {len(short)} are short and {len(unmeasured)} not measured**"
    parts = [f"{told}; of the {len(aims)} aims beyond them {reached} reached. {NEWEST}"]
    for title, some in (
        ("What is short", short),
        ("Met, but short of the aim", behind),
        ("Not measured", unmeasured),
    ):
        if some:
            parts += [
                f"## {title}",
                table(("work", "beside", "asked", "reached", "why"), map(reason, some)),
            ]
    return parts


def markdown() -> str:
    """Everything; runs get their numbers as they are first named."""
    runs: list[Run] = []

    def figures(row: Row) -> tuple[str, str, str]:
        return (
            told(row.ours, row.unit, row.quartiles),
            f"{row.peer} {told(row.theirs)}".strip(),
            told(row.ratio),
        )

    def link(run: Run | None) -> str:
        if run is None:
            return ""
        if run not in runs:
            runs.append(run)
        at = runs.index(run) + 1
        return f" [[{at}]](#run-{at})"

    def standing(s: Standing) -> tuple[str, ...]:
        title = titled(s.target.work, s.target.results)
        return (
            title,
            asked(s.target),
            *(figures(s.row) if s.row else ("", s.target.peer, "")),
            verdict(s) + link(s.run),
        )

    everything = standings()
    parts = summary(everything)
    for area, about in areas().items():
        here = [s for s in everything if s.target.area == area]
        parts += [
            f"## {area}",
            about,
            table(("work", "asked", "ours", "theirs", "ratio", ""), map(standing, here)),
        ]
    rest = [(titled(row.work, name), *figures(row), link(run)) for name, row, run in unasked()]
    parts += [
        "## Measured, and nothing asked",
        table(("work", "ours", "theirs", "ratio", ""), rest),
        "## The runs",
    ]
    parts.append(
        "\n".join(
            f'- <a id="run-{at}"></a>**[{at}]** {described(run)}' for at, run in enumerate(runs, 1)
        )
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown())
