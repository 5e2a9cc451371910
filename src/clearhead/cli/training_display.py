"""Training progress: a live bar in a terminal, otherwise a line per validation."""

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clearhead.cli.common import echo
from clearhead.config import RegressionHead
from clearhead.train.throughput import ETA, Throughput, format_duration
from clearhead.train.trainer import Progress, Trainer


class TrainingDisplay:
    """A context manager whose function shows a report of a run."""

    def __init__(self, trainer: Trainer, throughput: Throughput) -> None:
        self.tokens_per_target = throughput.tokens_per_target
        self.eta = ETA(trainer.config.max_steps)
        self.best_loss = trainer.best_loss
        self.validation = ""  # text of the last validation
        self.is_regression = isinstance(trainer.model.config.model.head, RegressionHead)
        self.live: Live | None = None
        console = Console(highlight=False)
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            bar = self._bar(trainer.step, trainer.config.max_steps, "", [])
            self.live = Live(bar, console=console, refresh_per_second=8)

    def __enter__(self) -> Callable[[Progress], None]:
        if self.live is not None:
            self.live.start()
        return self.show

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, progress: Progress) -> None:
        seconds = self.eta.remaining(progress.step, time.monotonic())
        remaining = ""
        if seconds is not None and progress.step < progress.max_steps:
            remaining = f"{format_duration(seconds)} left"
        if progress.valid_loss is not None and math.isfinite(progress.valid_loss):
            self.validation = self._describe_validation(progress.valid_loss, progress)
        parts = [f"loss {progress.loss:.4f}"]
        if self.validation:
            parts.append(self.validation)
        parts.append(f"{progress.targets_per_second * self.tokens_per_target:,.0f} tok/s")
        if self.live is not None:
            self.live.update(self._bar(progress.step, progress.max_steps, remaining, parts))
        elif progress.valid_loss is not None:
            if remaining:
                parts.append(remaining)
            echo(f"step {progress.step:,} of {progress.max_steps:,}: {', '.join(parts)}")

    def _describe_validation(self, loss: float, progress: Progress) -> str:
        is_best = loss < self.best_loss
        self.best_loss = min(self.best_loss, loss)
        text = f"validation {loss:.4f} (best{'' if is_best else f' {self.best_loss:.4f}'})"
        if self.is_regression:
            text += f", RMSE {math.sqrt(loss):.4g}"
        if progress.raw_valid_loss is not None:
            text += f", without EMA {progress.raw_valid_loss:.4f}"
        if progress.accuracy is not None:
            text += f", accuracy {progress.accuracy:.1%}"
        return text

    def _bar(self, step: int, max_steps: int, remaining: str, parts: list[str]) -> Group:
        line = Table.grid(expand=True, padding=(0, 2, 0, 0))
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_row(
            ProgressBar(total=max_steps, completed=step),
            f"step {step:,} of {max_steps:,}",
            Text(remaining, "cyan"),
        )
        if parts:
            return Group(line, Text("   ".join(parts)))
        return Group(line, Text("waiting for the first report …", "dim"))
