"""Progress bar with rate and remaining time; invisible unless stderr is a terminal."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress_bar(
    items: Iterable[T], total: int, description: str, count: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Yield the items; each advances the bar by `count(item)`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(description, total=total, rate="")
        for item in items:
            yield item
            speed = bar.tasks[task].speed
            bar.update(task, advance=count(item), rate=f"{speed:.1f}/s" if speed else "")
