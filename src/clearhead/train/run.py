"""The training loop: batches by step, gradients of one summed loss, a step of the optimiser, and nothing lost.

What is drawn at random in a step follows from the seed and the step, so a run that was killed and goes on from its last
checkpoint is the same to the bit as one that was not.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.data.packed import IGNORE, Dataset, Packed
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.recipe import Train
from clearhead.train.checkpoint import Checkpoints, Log, Saved
from clearhead.train.interrupts import interrupts
from clearhead.train.optim import Ema, Optimiser
from clearhead.weights.checkpoint import Checkpoint, Home
from clearhead.weights.folder import WEIGHTS
from clearhead.weights.store import Safetensors

Loss = Callable[[Packed], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `valid` only where it was just measured."""

    step: int
    steps: int
    loss: float
    rate: float  # of the schedule, 0 … 1
    tokens: float  # a second
    valid: float | None = None

    @property
    def tree(self) -> dict[str, Any]:
        found = {"step": self.step, "loss": self.loss, "factor": self.rate, "tokens_per_second": round(self.tokens)}
        return found if self.valid is None else {**found, "valid": self.valid}


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

    def __init__(self, model: Checkpoint, data: Dataset, out: Path, device: str, compiled: bool) -> None:
        self.options: Train = model.config.train
        self.data, self.out, self.device = data, out, torch.device(device)
        half = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.model = replace(model, net=model.net.to(self.device, half))
        self.net: Transformer = self.model.net
        self.optimiser = Optimiser(self.net, self.options.optimiser, master=half != torch.float32)
        self.ema = Ema(self.net, self.options.ema) if self.options.ema else None
        self.checkpoints = Checkpoints(out, self.options.keep)
        self.loss: Loss = lambda batch: loss_of(self.net, batch, self.options.smoothing)
        if compiled:
            self.loss = compiled_or_not(self.loss)
        self.step, self.best, self.since = 0, math.inf, 0

    def resume(self) -> bool:
        """Goes on from the last whole checkpoint, where there is one."""
        saved = self.checkpoints.last()
        if saved is None:
            return False
        self._load(saved)
        return True

    def _load(self, saved: Saved) -> None:
        stored = Safetensors([saved.folder / WEIGHTS])
        like = next(self.net.parameters())
        home = Home(str(self.device), like.dtype)
        tensors = {name: home(stored.read(name)) for name in stored.shapes}
        with torch.no_grad():
            for name, p in self.net.named_parameters():
                p.copy_(tensors[name])
        state = saved.state()
        self.optimiser.load({k.removeprefix("optimiser."): t for k, t in state.items() if k.startswith("optimiser.")})
        if self.ema is not None:
            self.ema.load({k.removeprefix("ema."): t for k, t in state.items() if k.startswith("ema.")})
        self.step = saved.step
        self.best, self.since = saved.facts["best"] or math.inf, saved.facts["since"]

    def save(self, best: bool = False) -> Path:
        if not all(p.isfinite().all() for p in self.net.parameters()):
            raise self.broken(f"the weights after step {self.step} hold no numbers")
        state = {f"optimiser.{name}": t for name, t in self.optimiser.state().items()}
        if self.ema is not None:
            state |= {f"ema.{name}": t for name, t in self.ema.state().items()}
        facts = {"best": self.best if math.isfinite(self.best) else None, "since": self.since}
        return self.checkpoints.save(self.step, self.model, state, facts, best)

    def train(self, watch: Callable[[Progress], bool]) -> Result:
        """To the last step, or until `watch` says no, patience ends or somebody interrupts; always to a checkpoint."""
        o, log = self.options, Log(self.out / "log.jsonl", self.step)
        end, mean, clock = "done", math.nan, time.monotonic()
        counted: list[tuple[Tensor, int]] = []
        with interrupts() as interrupted:
            while self.step < o.steps:
                counted.append(self.take_step())
                self.step += 1
                last = self.step == o.steps
                if interrupted:
                    mean, end = self.mean_of(counted), "stopped"
                    break
                if self.step % o.report and not last and self.step % o.check and self.step % o.save:
                    continue
                mean = self.mean_of(counted)
                tokens = sum(n for _, n in counted) / (time.monotonic() - clock)
                valid = self.validate() if self.step % o.check == 0 or last else None
                progress = Progress(self.step, o.steps, mean, self.factor(self.step - 1), tokens, valid)
                log.write(**progress.tree)
                going = watch(progress)
                better = valid is not None and self.note(valid)
                if self.step % o.save == 0 or last or better or not going:
                    self.save(best=better)
                counted, clock = [], time.monotonic()
                if not going or (o.patience and self.since >= o.patience):
                    end = "patience" if going else "stopped"
                    break
        self.net.eval()
        return Result(end, self.step, mean, self.best, self.save())

    def factor(self, step: int) -> float:
        return self.options.schedule.factor(step, self.options.steps, self.options.warmup)

    def take_step(self) -> tuple[Tensor, int]:
        """One step; the summed loss stays on the device, the count of lessons is known beforehand."""
        o = self.options
        torch.manual_seed((o.seed * 1_000_003 + self.step) % 2**63)  # what dropout draws
        self.net.train()
        batches = [self.data.batch(self.step * o.accumulate + i) for i in range(o.accumulate)]
        count = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            loss, _ = self.loss(to(batch, self.device, self.net))
            (loss / count).backward()
            total += loss.detach()
        if o.clip:
            self.optimiser.clip(o.clip)
        self.optimiser.step(self.factor(self.step))
        self.optimiser.zero()
        if self.ema is not None:
            self.ema.update()
        return total, count

    def mean_of(self, counted: list[tuple[Tensor, int]]) -> float:
        """The loss of a lesson since the last report; what is no number ends the run before it is saved."""
        losses = [float(total) / count for total, count in counted]
        for back, loss in enumerate(reversed(losses)):
            if not math.isfinite(loss):
                raise self.broken(f"the loss of step {self.step - 1 - back} is {loss}")
        return sum(float(total) for total, _ in counted) / sum(count for _, count in counted)

    def broken(self, what: str) -> ClearheadError:
        saved = self.checkpoints.last()
        good = f"the last good checkpoint is {saved.folder}" if saved else "there is no checkpoint yet"
        return ClearheadError(f"{what}: a smaller rate may help; {good}.")

    @torch.no_grad()
    def validate(self) -> float:
        """The loss of a lesson on what is held out, with the averaged weights where there are some."""
        self.net.eval()
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with self.ema.swapped() if self.ema is not None else nullcontext():
            for batch in self.data.held_out():
                loss, _ = loss_of(self.net, to(batch, self.device, self.net), 0.0)
                total += loss
                count += int((batch.targets != IGNORE).sum())
        return float(total) / count if count else math.nan

    def note(self, valid: float) -> bool:
        """Whether it is the best so far."""
        better = valid < self.best
        self.best, self.since = (valid, 0) if better else (self.best, self.since + 1)
        return better


def loss_of(net: Transformer, batch: Packed, smoothing: float) -> tuple[Tensor, Tensor]:
    hidden = net(
        batch.tokens,
        segments=batch.segments,
        kinds=batch.kinds,
        source=batch.source,
        source_segments=batch.source_segments,
    )
    return net.loss(hidden, batch.targets, batch.segments, smoothing)


def to(batch: Packed, device: torch.device, net: Transformer) -> Packed:
    """The batch where the network is; pictures and sounds in its numbers."""
    dtype = next(net.parameters()).dtype

    def moved(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        return t.to(device, dtype if t.is_floating_point() and t.dim() > 1 else t.dtype, non_blocking=True)

    parts: dict[str, Any] = {name: moved(t) for name, t in vars(batch).items()}
    return Packed(**parts)


def compiled_or_not(loss: Loss) -> Loss:
    """Compiled; where the compiler fails, one line says so and the loop goes on without it."""
    fast: Any = torch.compile(loss, dynamic=False)

    def call(batch: Packed) -> tuple[Tensor, Tensor]:
        nonlocal fast
        try:
            return fast(batch)
        except torch._dynamo.exc.TorchDynamoException as error:
            if fast is loss:
                raise
            print(f"the compiler gave up ({type(error).__name__}); going on without it")
            fast = loss
            return fast(batch)

    return call
