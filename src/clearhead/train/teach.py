"""A whole run, from its configuration to its report: what `clearhead train` and `ch.train` both do."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from clearhead import reader
from clearhead.config import Config
from clearhead.data.labelled import Labelled
from clearhead.errors import ClearheadError
from clearhead.train.begin import begin
from clearhead.train.board import Board
from clearhead.train.checkpoint import reports
from clearhead.train.claim import claimed
from clearhead.train.microscope import Microscope
from clearhead.train.pace import Speed, peak
from clearhead.train.report import ENDS, FACTS, FILM, LOG, PAGE, Facts, commands, facts_of, write
from clearhead.train.run import Progress, Result, Run
from clearhead.train.team import join
from clearhead.weights.checkpoint import Home

Say = Callable[[str], None]


class Display(Protocol):
    """What shows each report to a person."""

    def show(self, at: Progress) -> None: ...


def teach(
    config: Config,
    out: Path,
    display: Callable[[Run, Speed], AbstractContextManager[Display]],
    say: Say,
    *,
    name: str = "",
    resume: bool = True,
    device: str = "",
    compiled: bool | None = None,
    tensorboard: bool = False,
    microscope: bool = False,
) -> Result:
    """Trains in `out`, alone or as one of the processes that torchrun started; only the first of them speaks."""
    where = Home.of(device, "").device
    with join(where, config.train) as team, claimed(out, team):
        where = team.device(where)
        tell = say if team.first else silent
        fast = where.startswith("cuda") if compiled is None else compiled
        run = begin(config, out, resume=resume, device=where, compiled=fast, team=team, say=tell)
        if team.any(team.first and _finished(run, microscope)):
            tell(f"nothing is left to do in {out}: {_nothing_left(run)}")
            loss = [math.nan, *(line["loss"] for line in reports(out / LOG))]
            return Result(run.end, run.step, loss[-1], run.best, run.checkpoints.place(run.step))
        for line in opening(run, where):
            tell(line)
        looks = microscope and (team.first or team.sharded)  # where weights are shared out, all look or none
        scope = Microscope(run.model, run.data, out, run.step, team, tell) if looks else None
        if scope is not None:
            if scope.note:
                tell(scope.note)
            scope(run.step)
        if team.first:
            result = shown(run, display, say, name, tensorboard, scope)
        else:
            result = run.train(lambda at: True, each=scope)
            if scope is not None:
                scope.finish(result.step)
    return result


def silent(line: str) -> None:
    """What only the first process says, or another program."""


def _finished(run: Run, microscope: bool) -> bool:
    """Whether this very run came to its end before, and left all that it is to leave: its report was the last."""
    if not run.end or not (run.out / FACTS).is_file() or (microscope and not (run.out / FILM).is_file()):
        return False
    facts = reader.load(run.out / FACTS)
    return bool(facts.get("end") == run.end and facts.get("config") == run.model.config.tree())


def _nothing_left(run: Run) -> str:
    if run.end == "done":
        return f"all {run.options.steps:,} steps are done; a larger train.steps goes on."
    return f"it no longer got better by step {run.step:,}; a larger train.patience goes on."


def opening(run: Run, where: str) -> list[str]:
    """What was read, and what is about to be trained."""
    told = [str(run.data.report)] if run.data.report.skipped else []
    size = sum(p.numel() for p in run.net.parameters())
    learn = sum(p.numel() for p in run.net.parameters() if p.requires_grad)
    many = f"{learn:,} of {size:,} parameters learn" if learn < size else f"{size:,} parameters"
    epoch = f"{run.data.epoch / run.options.accumulate:,.4g}"
    among = f", {run.team.size} processes" if run.team.size > 1 else ""
    begins = f"going on after step {run.step:,}" if run.step else f"from {run.options.start or 'random weights'}"
    told.append(f"{many}, {epoch} step{'s' * (epoch != '1')} an epoch, on {where}{among}, {begins}")
    if isinstance(run.data, Labelled) and not run.options.start and not run.step:
        told.append("it starts from nothing; --train.start NAME starts from a model that has read before, such as fill")
    return told


def shown(
    run: Run,
    display: Callable[[Run, Speed], AbstractContextManager[Display]],
    say: Say,
    name: str,
    tensorboard: bool,
    scope: Microscope | None,
) -> Result:
    """The run itself, on the screen and on paper: a report is left even of one that fails."""
    board = Board(run.out, run.step) if tensorboard else None
    batches = (run.data.batch(run.step * run.options.accumulate + i) for i in range(4))
    power = peak(run.device, next(run.net.parameters()).dtype) * run.team.size
    speed = Speed.of(run.model.config, batches, power)
    facts = facts_of(run, name, speed)
    with display(run, speed) as screen:

        def watch(at: Progress) -> bool:
            screen.show(at)
            if board is not None:
                board.write(at)
            return True

        try:
            result = run.train(watch, each=scope)
            film = scope.finish(result.step) if scope is not None else ""  # before the report, which names it
        except ClearheadError:
            _report(run, facts | {"end": "failed"}, say)
            raise
        finally:
            if board is not None:
                board.close()
    best = f", best validation {result.best:.4f}" if result.best < float("inf") else ""
    say(f"{ENDS[result.end]} at step {result.step:,}: loss {result.loss:.4f}{best}")
    _report(run, facts | {"end": result.end}, say)
    if film:
        say(film)
    if result.end == "stopped":
        say("the same command goes on")
    sentence, line = commands(run.out, run.model.config)[0]
    say(f"{sentence[0].lower()}{sentence[1:]}: {line}")
    return result


def _report(run: Run, facts: Facts, say: Say) -> None:
    if reports(run.out / LOG):  # a run that ended before its first report has nothing to tell
        for finding in write(run.out, facts):
            say(str(finding))
        say(f"report: {run.out / PAGE}")
