"""What is seen of a run while it lasts: a bar in a terminal, elsewhere a line for each validation."""

import math
import sys
import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clearhead.config.model import RegressionHead
from clearhead.train.throughput import ETA, Throughput, format_duration
from clearhead.train.trainer import Progress, Trainer


class ProgressDisplay:
    """Shows each report. `speed` turns what a run counts into tokens and a share of the machine's peak."""

    def __init__(self, run: Trainer, speed: Throughput) -> None:
        self.speed = speed
        self.left = ETA(run.config.max_steps)
        self.best = run.best_loss
        self.valid = ""  # the last one, in words
        self.number = isinstance(run.model.config.model.head, RegressionHead)
        console = Console(highlight=False)
        self.live: Live | None = None
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            self.live = Live(
                self._bar(run.step, run.config.max_steps, "", []),
                console=console,
                refresh_per_second=8,
            )

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, at: Progress) -> None:
        seconds = self.left.remaining(at.step, time.monotonic())
        left = (
            f"{format_duration(seconds)} left"
            if seconds is not None and at.step < at.max_steps
            else ""
        )
        if at.valid_loss is not None and math.isfinite(at.valid_loss):
            better = at.valid_loss < self.best
            self.best = min(self.best, at.valid_loss)
            self.valid = f"validation {at.valid_loss:.4f}" + (
                " (best)" if better else f" (best {self.best:.4f})"
            )
            self.valid += (
                f", off by {math.sqrt(at.valid_loss):.4g}" if self.number else ""
            )  # in the label's own unit
            self.valid += "" if at.accuracy is None else f", accuracy {at.accuracy:.1%}"
        speed = [f"{at.targets_per_second * self.speed.tokens_per_target:,.0f} tok/s"]
        if self.speed.peak_flops:
            speed.append(f"{self.speed.utilization(at.targets_per_second):.0%} of peak")
        words = [f"loss {at.loss:.4f}", *([self.valid] if self.valid else []), *speed]
        if self.live is not None:
            self.live.update(self._bar(at.step, at.max_steps, left, words))
        elif at.valid_loss is not None:
            typer.echo(
                f"step {at.step:,} of {at.max_steps:,}: {', '.join([*words, *([left] if left else [])])}"
            )

    def _bar(self, step: int, steps: int, left: str, words: list[str]) -> Group:
        line = Table.grid(expand=True, padding=(0, 2, 0, 0))
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_row(
            ProgressBar(total=steps, completed=step),
            f"step {step:,} of {steps:,}",
            Text(left, "cyan"),
        )
        return Group(
            line,
            Text(
                "   ".join(words) or "the first report is on its way …", "dim" if not words else ""
            ),
        )
