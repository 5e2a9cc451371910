"""The runs of an experiment, one after another; several processes, on one machine or many, each take whole runs.

A run belongs to the process that has locked it. The lock of one that died is open again, and another goes on with its
run from the last checkpoint. All see the same folder, and stay until all is done.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from clearhead.api import load
from clearhead.config import Config
from clearhead.data.alone import alone
from clearhead.errors import ClearheadError
from clearhead.lab.experiment import LAST, LOCK, LOSS, RUNS, Experiment, Run
from clearhead.lab.lengths import loss_by_length
from clearhead.lab.outcome import Outcome, keep, outcomes
from clearhead.lab.seat import Seat
from clearhead.train import run as training
from clearhead.train.begin import CONFIG
from clearhead.train.health import Diverged
from clearhead.train.pace import Speed, duration
from clearhead.train.teach import Display, Say, silent, teach

BUSY = "another process is at it."
TOKENS = "tokens"  # where a run keeps what it made of texts
LONG = 10.0  # seconds, of which the one that a report takes is a small part
MOMENT = 1.0  # seconds between two looks at what the others do
Show = Callable[[training.Run, Speed], AbstractContextManager[Display]]


class _Unseen:
    """A display that shows nothing."""

    def show(self, at: training.Progress) -> None: ...


def unseen(run: training.Run, speed: Speed) -> AbstractContextManager[Display]:
    return nullcontext(_Unseen())


def work(
    experiment: Experiment,
    out: Path,
    after: Callable[[], object],
    *,
    show: Show = unseen,
    say: Say = print,
    device: str = "",
    **options: Any,
) -> bool:
    """Every run to its end, with all that is asked of it; False where somebody interrupted.

    `after` is called after each that took its time, in one process at once. More options are those of `teach`.
    """
    seat, took, waiting = Seat.take(device), list[float](), False
    while left := unfinished(experiment, outcomes(out)):
        worked = False
        for run in left:
            with _claimed(out / f"{run.place}{LOCK}") as mine:
                if not mine or not lacks(experiment, outcomes(out).get(run.key)):  # another process has it, or had
                    continue
                start, worked = time.monotonic(), True
                if show is not unseen:
                    say(f"{run}:")
                found = outcomes(out).get(run.key) or _trained(experiment, run, out, seat, show, options)
                if found is None:
                    return False
                if lacks(experiment, found):  # which may take as long, or be killed
                    keep(out, found)
                    found = _measured(experiment, run, found, out, seat.device)
                took.append(time.monotonic() - start)
                known = keep(out, found)
                if took[-1] > LONG:
                    with alone(out / LOCK):
                        after()
            say(_told(experiment, found, known, sum(took) / len(took) / seat.processes))
        if not worked:
            if not waiting:
                say(f"{len(left)} of {len(experiment.runs)} are with other processes; waiting for their end")
            waiting = True
            time.sleep(MOMENT)
    return True


def unfinished(experiment: Experiment, known: dict[tuple[str, int], Outcome]) -> list[Run]:
    return [run for run in experiment.runs if lacks(experiment, known.get(run.key))]


def lacks(experiment: Experiment, found: Outcome | None) -> bool:
    """Whether something that is asked of a run is not known yet."""
    return found is None or (found.end != "diverged" and any(_unmeasured(experiment, found)))


def _unmeasured(experiment: Experiment, found: Outcome) -> tuple[bool, bool]:
    """Whether the figure, and whether some length, is still to be measured on a run's model."""
    figure = experiment.metric not in (LOSS, LAST, *found.figures)
    return figure, not {str(length) for length in experiment.lengths} <= found.lengths.keys()


@contextmanager
def _claimed(lock: Path) -> Iterator[bool]:
    """Whether it is ours meanwhile; what a killed process had is free again."""
    with ExitStack() as stack:
        mine = True
        try:
            stack.enter_context(alone(lock, BUSY))
        except ClearheadError as error:
            if str(error) != BUSY:
                raise
            mine = False
        yield mine


def _trained(
    experiment: Experiment, run: Run, out: Path, seat: Seat, show: Show, options: dict[str, Any]
) -> Outcome | None:
    """To its end, or to where it diverges, which is a result too; None where somebody interrupted."""
    place, begun = out / run.place, False

    def shown(made: training.Run, speed: Speed) -> AbstractContextManager[Display]:
        nonlocal begun
        begun = True
        if experiment.metric == "f1" and len(labels := made.model.config.use.labels) != 2:  # which only the data tell
            raise ClearheadError(f"--metric f1 is of two classes, and there are {len(labels)}; macro f1 is of any.")
        return show(made, speed)

    end, why = "diverged", ""
    _lend_tokens(run, out)
    seat.forget()
    try:
        end = teach(run.config, place, shown, silent, name=experiment.what, device=seat.device, **options).end
    except Diverged as error:
        why = str(error)
    except torch.OutOfMemoryError:
        raise ClearheadError(f"{run}: it does not fit the memory of {seat.device}; smaller train.rows may.") from None
    except ClearheadError as error:
        raise ClearheadError(f"{run}: {error}") from None
    if end == "stopped":
        return None
    memory = seat.peak() if begun else None  # what an earlier process has done, it alone could have measured
    return Outcome.of(place, *run.key, end=end, why=why, memory=memory, processes=seat.processes)


def _lend_tokens(run: Run, out: Path) -> None:
    """What another run has made of the same texts, as links, which take no time and no room."""
    mine = out / run.place / TOKENS
    for config in [] if mine.exists() else out.glob(f"{RUNS}/*/*/{CONFIG}"):
        if config.with_name(TOKENS).is_dir() and Config.read(config).data == run.config.data:
            with suppress(OSError):  # what is not lent is made
                shutil.copytree(
                    config.with_name(TOKENS), mine, copy_function=os.link, ignore=shutil.ignore_patterns(".*")
                )
            return


def _measured(experiment: Experiment, run: Run, found: Outcome, out: Path, device: str) -> Outcome:
    """With what is to be measured on the best model of a run besides its losses."""
    if found.end == "diverged":
        return found
    figure, lengths = _unmeasured(experiment, found)
    if figure:
        from clearhead.evaluate.evaluation import evaluate  # which takes a while

        data = run.config.data
        result = evaluate(load(out / run.place, device=device), data.valid, broken=data.broken)
        value = {experiment.metric: result.value(experiment.metric)}
        found = replace(found, figures={f.name: f.value for f in result.figures} | value)
    if lengths:
        found = replace(found, lengths=found.lengths | loss_by_length(out / run.place, experiment.lengths, device))
    return found


def _told(experiment: Experiment, found: Outcome, known: dict[tuple[str, int], Outcome], seconds: float) -> str:
    """A line for a run that is done; runs take `seconds` each, as far as is known."""
    every, value = len(experiment.runs), found.value(experiment.metric)
    done = every - len(unfinished(experiment, known))
    end = found.why or f"no {experiment.metric}"
    if value is not None:
        end = f"{experiment.metric} {value:.4f} in {duration(found.seconds or 0)}"
    left = f"; about {duration(seconds * (every - done))} left" if done < every else ""
    return f"{done} of {every}: {found.variant}, seed {found.seed}: {end}{left}"
