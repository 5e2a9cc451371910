"""The training loop: batches by step, gradients of one summed loss, a step of the optimiser, and nothing lost.

What is drawn at random in a step follows from the seed and the step, so a run that was killed and goes on from its last
checkpoint is the same as one that was not, on a CPU to the bit. Several processes take the same steps together (see
`team`).
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.data.packed import Dataset, lessons_in
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.train.checkpoint import Checkpoints, Log, Saved
from clearhead.train.clock import Clock
from clearhead.train.ema import Ema
from clearhead.train.health import Diverged, highest, taught
from clearhead.train.interrupts import interrupts
from clearhead.train.optim import Optimiser
from clearhead.train.step import Step
from clearhead.train.team import ALONE, Alone
from clearhead.train.validate import validate
from clearhead.training import Train
from clearhead.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `valid` only where it was just measured."""

    step: int
    steps: int
    loss: float
    factor: float  # of the schedule, 0 … 1
    lessons: float  # a second: tokens, hidden words or rows that had something to teach
    valid: float | None = None
    accuracy: float | None = None  # of classes

    @property
    def tree(self) -> dict[str, Any]:
        speed = float(f"{self.lessons:.4g}")
        found = {"step": self.step, "loss": self.loss, "factor": self.factor, "lessons_per_second": speed}
        measured = {"valid": self.valid, "accuracy": self.accuracy}
        return found | {name: value for name, value in measured.items() if value is not None}


@dataclass(frozen=True)
class Result:
    """How a run ended: `done`, `stopped` (interrupted or told so), or `patience` (it no longer got better)."""

    end: str
    step: int
    loss: float
    best: float  # the lowest validation loss; infinity where none was measured
    folder: Path  # of the last checkpoint


class Run:
    """One training run in a folder."""

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        out: Path,
        device: str,
        compiled: bool,
        team: Alone = ALONE,
        say: Callable[[str], None] = print,
    ) -> None:
        self.options: Train = model.config.train
        o = self.options
        if o.average > o.keep:
            raise ClearheadError(f"train.average = {o.average} is more than train.keep = {o.keep} checkpoints.")
        if o.patience and next(iter(data.held_out()), None) is None:
            raise ClearheadError(
                f"train.patience = {o.patience} needs data.valid, or data.held_out above 0; without them it must be 0."
            )
        self.data, self.out, self.device, self.team, self.say = data, out, torch.device(device), team, say
        half = o.precision == "bfloat16" or (o.precision == "auto" and self.device.type == "cuda")
        exact = model.net.to(torch.bfloat16 if half else torch.float32)
        self.model = replace(model, net=team.spread(exact, self.device, compiled, say))
        self.net: Transformer = self.model.net
        self.optimiser = Optimiser(self.net, o.optimiser, team=team)
        self.ema = Ema(self.optimiser, o.ema) if o.ema else None
        self.checkpoints = Checkpoints(out, o.keep, o.save)
        self.work = Step(self.net, self.optimiser, self.ema, o, self.device, compiled, team, say)
        self.step, self.best, self.since = 0, math.inf, 0
        self.best_step: int | None = None
        self.first: float | None = None  # mean loss of the first report

    def resume(self) -> bool:
        """Goes on from the last whole checkpoint, where there is one."""
        saved = self.checkpoints.last()
        if saved is None:
            return False
        self._load(saved)
        return True

    @torch.no_grad()
    def _load(self, saved: Saved) -> None:
        state = saved.state()

        def under(section: str) -> dict[str, Tensor]:
            return {k.removeprefix(section): t for k, t in state.items() if k.startswith(section)}

        state_of_optimiser = under("optimiser.")
        exact = {k: state_of_optimiser.pop(k) for k in [*state_of_optimiser] if k.endswith(".master")}
        weights = saved.weights() | under("weights.") | {k.removesuffix(".master"): t for k, t in exact.items()}
        for name, p in self.net.named_parameters():
            self.team.fill(p, weights[name])
        masters = {f"{name}.master": weights[name].float() for name in self.optimiser.masters}  # of any precision
        self.optimiser.load(state_of_optimiser | masters)
        if self.ema is not None:
            self.ema.load(under("ema."))
        self.step, facts = saved.step, saved.facts
        self.best = math.inf if facts["best"] is None else facts["best"]
        self.best_step, self.since, self.first = facts["best_step"], facts["since"], facts["first"]
        if self.team.first:
            self.checkpoints.tidy(self.best_step)  # a killed run may not have come to it

    def averaged(self) -> AbstractContextManager[dict[str, Tensor]]:
        """The network with its averaged weights, where there are some; given are those of its own that are not kept."""
        return self.ema.swapped() if self.ema is not None else nullcontext({})

    def save(self) -> Path:
        """A checkpoint of this step: what is validated, and what training goes on with."""
        place = self.checkpoints.place(self.step)
        if self.team.any(not all(t.isfinite().all() for t in self.optimiser.held.values())):
            raise self.broken(f"the weights after step {self.step} hold no numbers")
        fresh = self.team.first and not self.checkpoints.holds(self.step)  # one that went on comes to the same numbers
        if self.team.any(fresh):
            state = {f"optimiser.{name}": t for name, t in self.optimiser.state().items()}
            if self.ema is not None:
                state |= {f"ema.{name}": t for name, t in self.ema.state().items()}
            best = self.best if math.isfinite(self.best) else None
            facts = {"best": best, "best_step": self.best_step, "since": self.since, "first": self.first}
            with self.averaged() as own:
                state |= {f"weights.{name}": t for name, t in own.items() if name not in self.optimiser.masters}
                whole = self.team.collect(state)
                model = replace(self.model, net=self.team.complete(self.net))
                if self.team.first:
                    self.checkpoints.save(self.step, model, whole, facts)
        if self.team.first:
            self.checkpoints.tidy(self.best_step)
        self.team.wait()
        return place

    def train(self, watch: Callable[[Progress], bool], each: Callable[[int], None] | None = None) -> Result:
        """To the last step, or until `watch` says no, patience ends or somebody interrupts; always to a checkpoint.

        `watch` is called in the first process. `each`, with the number of steps taken, after every one of them, and its
        time is not counted: in the first process too, but in all where they share the weights, for no pass can be made
        by one of them.
        """
        o, team = self.options, self.team
        log = Log(self.out / "log.jsonl", self.step) if team.first else None
        mean, clock, going = log.loss if log is not None else math.nan, Clock(self.device), True
        counted: list[tuple[Tensor, int]] = []
        with interrupts() as interrupted:
            while going and not self.end:
                counted.append(self.take_step())
                self.step += 1
                if each is not None and (team.first or team.sharded):
                    with clock.aside():
                        each(self.step)
                        team.fold(self.net)
                last, going = self.step == o.steps, not team.asked(bool(interrupted))
                if all(self.step % n for n in (o.report, o.check, o.save)) and not last:
                    mean = mean if going else self.mean_of(counted)
                    continue
                mean = self.mean_of(counted)
                lessons = sum(n for _, n in counted) / clock.seconds()
                valid, accuracy = self.validate() if self.step % o.check == 0 or last else (None, None)
                progress = Progress(self.step, o.steps, mean, self.factor(self.step - 1), lessons, valid, accuracy)
                if log is not None:
                    log.write(**progress.tree)
                going = not team.any(team.first and not watch(progress)) and going
                better = valid is not None and self.note(valid)
                if self.step % o.save == 0 or last or better:
                    self.save()
                counted = []
                clock.start()
            self.net.eval()
            place, end = self.save(), self.end if going else "stopped"
        if o.average and end != "stopped" and team.first:
            found = self.checkpoints.average(self.model, o.average)
            if found < o.average:
                self.say(f"the average is of {found} checkpoints: there were no more, with one every {o.save} steps")
        return Result(end, self.step, mean, self.best, place)

    @property
    def end(self) -> str:
        """Why there is no further step; empty where there is one."""
        o = self.options
        if self.step >= o.steps:
            return "done"
        return "patience" if o.patience and self.since >= o.patience else ""

    def factor(self, step: int) -> float:
        return self.options.schedule.factor(step, self.options.steps, self.options.warmup)

    def take_step(self) -> tuple[Tensor, int]:
        """One step; the summed loss of its rows stays on the device, the count of all lessons is known beforehand."""
        o = self.options
        torch.manual_seed((o.seed * 1_000_003 + self.step + self.team.rank * 982_451_653) % 2**63)  # what dropout draws
        batches = [self.data.batch(self.step * o.accumulate + i) for i in range(o.accumulate)]
        count = max(1, sum(lessons_in(batch.targets) for batch in batches))  # a batch may teach nothing
        return self.work(batches, count, self.factor(self.step)) * count, count

    def mean_of(self, counted: list[tuple[Tensor, int]]) -> float:
        """The loss of a lesson since the last report; what is no number ends the run before it is saved."""
        totals = self.team.total(torch.stack([total for total, _ in counted])).tolist()
        losses = [total / count for total, (_, count) in zip(totals, counted, strict=True)]
        mean = sum(totals) / sum(count for _, count in counted)
        self.first = mean if self.first is None else self.first
        if not mean <= highest(self.model.config.model, self.first):
            lost = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), losses.index(max(losses)))
            step = self.step - len(losses) + lost
            batches = taught(self.model, self.data, step)
            raise self.broken(f"the loss of step {step} is {losses[lost]:.4g}, of {batches}")
        return mean

    def broken(self, what: str) -> Diverged:
        saved = self.checkpoints.last()
        good = f"the last good checkpoint is {saved.folder}" if saved else "there is no checkpoint yet"
        return Diverged(f"{what}: a smaller rate may help; {good}.")

    def validate(self) -> tuple[float | None, float | None]:
        """The loss of a lesson on what is held out, and the accuracy, with the averaged weights if there are some."""
        with self.averaged():
            valid, accuracy = validate(self.net, self.data, self.device, self.team)
        if valid is not None and not math.isfinite(valid):
            raise self.broken(f"the validation loss after step {self.step} is {valid}")
        return valid, accuracy

    def note(self, valid: float) -> bool:
        """Whether it is the best so far."""
        better = valid < self.best
        self.since = 0 if better else self.since + 1
        if better:
            self.best, self.best_step = valid, self.step
        return better
