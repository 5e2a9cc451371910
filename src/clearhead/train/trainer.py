"""How long training takes, without what is done beside it."""

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from clearhead.config.model import ClassificationHead, ModelConfig, RegressionHead
from clearhead.config.training import TrainConfig
from clearhead.data.batch import Dataset, PackedBatch, count_targets
from clearhead.errors import ClearheadError
from clearhead.model import heads
from clearhead.model.transformer import Transformer
from clearhead.train.checkpoint import CheckpointManager, LogWriter, SavedCheckpoint
from clearhead.train.distributed import SINGLE_PROCESS, SingleProcess
from clearhead.train.optim import EMA, Optimizer
from clearhead.weights.checkpoint import Checkpoint

# ---- clock: How long training takes, without what is done beside it.


class TrainingTimer:
    """Seconds since it was started. A GPU works behind the program, so what is done aside is timed by the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self.start()

    def start(self) -> None:
        self.started = time.monotonic()
        self.pauses = list[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens meanwhile does not count."""
        if not self.gpu:
            now = time.monotonic()
            yield
            self.started += time.monotonic() - now
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        yield
        after.record()
        self.pauses.append((before, after))

    def seconds(self) -> float:
        """Once the GPU has done what it was given."""
        for _, after in self.pauses:
            after.synchronize()
        return (
            time.monotonic() - self.started - sum(a.elapsed_time(b) for a, b in self.pauses) / 1000
        )


# ---- interrupts: Ctrl-C, or a polite end from outside, at a moment that suits.


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM (docker stop, Slurm), kept until a step is whole: half a step must never be saved.

    A second Ctrl-C ends at once. A second SIGTERM does not: launchers pass theirs on to processes that have it already.
    """
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():  # signals are not for others
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- lesson: One pass: a batch where the network is, through it, to a summed loss; compiled where the compiler can.

Call = TypeVar("Call", bound=Callable[..., Any])


def hidden_states(net: Transformer, batch: PackedBatch) -> Tensor:
    return net(
        batch.tokens,
        segment_ids=batch.segment_ids,
        token_type_ids=batch.token_type_ids,
        source=batch.source,
        source_segment_ids=batch.source_segment_ids,
    )


def batch_loss(net: Transformer, batch: PackedBatch, smoothing: float) -> tuple[Tensor, Tensor]:
    return net.loss(hidden_states(net, batch), batch.targets, batch.segment_ids, smoothing)


def batch_to_device(batch: PackedBatch, device: torch.device, net: Transformer) -> PackedBatch:
    """The batch where the network is; pictures and sounds in its numbers."""
    dtype = next(net.parameters()).dtype

    def moved(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        return t.to(
            device, dtype if t.is_floating_point() and t.dim() > 1 else t.dtype, non_blocking=True
        )

    parts: dict[str, Any] = {name: moved(t) for name, t in vars(batch).items()}
    return PackedBatch(**parts)


COMPILE_FAILED = "the compiler gave up ({}); going on without it"


def compile_with_fallback(call: Call, say: Callable[[str], None]) -> Call:
    """Compiled; where the compiler fails, one line says so and the loop goes on without it."""
    fast: Any = torch.compile(call, dynamic=False)

    def either(*args: Any, **kwargs: Any) -> Any:
        nonlocal fast
        try:
            return fast(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if fast is call:
                raise
            say(COMPILE_FAILED.format(type(error).__name__))
            fast = call
            return fast(*args, **kwargs)

    return cast(Call, either)


# ---- validate: How good a network is on what is held out.


@torch.no_grad()
def validation_loss(
    net: Transformer, data: Dataset, device: torch.device, team: SingleProcess
) -> tuple[float | None, float | None]:
    """The loss of a lesson, the share of classes that were told right where there are classes; None without data."""
    net.eval()
    judges = isinstance(net.config.head, ClassificationHead)
    count = 0
    sums: Tensor = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in data.valid_batches():
        mine, counts = team.split_batch(batch)
        mine = batch_to_device(mine, device, net)
        hidden = hidden_states(net, mine)
        loss, _ = net.loss(hidden, mine.targets, mine.segment_ids)
        right = (
            (net.compute_logits(hidden, mine.segment_ids).argmax(dim=-1) == mine.targets).sum()
            if judges
            else loss * 0
        )
        sums += torch.stack([loss.double(), right.double()]) * counts
        count += count_targets(batch.targets)
    team.reshard(net)
    total, right = team.all_reduce(sums).tolist()
    return (total / count, right / count if judges else None) if count else (None, None)


# ---- health: When a loss says that a run is lost.


class DivergenceError(ClearheadError):
    """A run whose numbers are no numbers any more, or far too large."""


def divergence_threshold(m: ModelConfig, first: float) -> float:
    """The mean loss above which a run has exploded, where its first report was `first`.

    Who knows nothing and guesses among n answers pays log n; no run that learns comes to pay ten times that. For
    numbers there is no such measure, since they may be of any size: there it is a thousand times the first loss.
    """
    if isinstance(m.head, RegressionHead):
        return 1000 * (first + 1)
    answers = m.head.num_labels if isinstance(m.head, ClassificationHead) else m.vocab_size
    return 10 * (max(first, math.log(answers)) + 1)


def describe_batches(model: Checkpoint, data: Dataset, step: int) -> str:
    """The batches of a step, by number and, where there are words, by the first ones."""
    count = model.config.train.grad_accum
    numbers = range(step * count, (step + 1) * count)
    tokens = data.batch(numbers[0]).tokens
    words = model.tokenizer.decode(tokens[0, :16].tolist()) if model.tokenizer is not None else ""
    named = f"batch {numbers[0]}" if count == 1 else f"batches {numbers[0]} to {numbers[-1]}"
    return f"{named} ({words!r} …)" if words else named


# ---- step: One step: the gradients of some batches' summed loss, clipped, and new weights; on a GPU recorded and replayed.

CUDA_GRAPH_WARMUP_STEPS = 3  # steps until compilers and libraries have settled
StepFunction = Callable[[Sequence[PackedBatch], Sequence[float | Tensor], float | Tensor], Tensor]
_Echo = Callable[[str], None]


class TrainStep:
    """Called with batches, the count of all their lessons and the schedule's factor; gives this process' mean loss.

    What makes it fast (the compiler, the recording, the kernel for the loss) is left out where it fails, with a line.
    """

    def __init__(
        self,
        net: Transformer,
        optimizer: Optimizer,
        ema: EMA | None,
        options: TrainConfig,
        device: torch.device,
        compiled: bool,
        team: SingleProcess,
        say: _Echo,
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.ema = ema
        self.config = options
        self.device = device
        self.strategy = team
        self.echo = say
        self.compile = compiled and not team.is_sharded
        if device.type == "cuda" and heads.USE_FUSED_LOSS and not heads.probe_fused_loss(device):
            say("triton cannot make the kernel for the loss here; going on without it")
        self.loss_function = (
            torch.compile(self._loss, dynamic=False) if self.compile else self._loss
        )
        recorded = compiled and device.type == "cuda" and team.size == 1
        self.cuda_graph = CUDAGraphStep(self.run, self.to_device, device) if recorded else None

    def __call__(self, batches: Sequence[PackedBatch], count: int, factor: float) -> Tensor:
        self.net.train()
        if self.cuda_graph is not None:
            try:
                return self.cuda_graph(batches, 1 / count, factor)
            except CaptureError as error:
                self.echo(f"the step cannot be recorded ({error}); going on without")
                self.cuda_graph = None
        mine = [self.strategy.split_batch(batch) for batch in batches]
        shares = [counts / count for _, counts in mine]
        return self.run([self.to_device(batch) for batch, _ in mine], shares, factor)

    def to_device(self, batch: PackedBatch) -> PackedBatch:
        return batch_to_device(batch, self.device, self.net)

    def run(
        self,
        batches: Sequence[PackedBatch],
        shares: Sequence[float | Tensor],
        factor: float | Tensor,
    ) -> Tensor:
        try:
            mean = self._gradients(batches, shares)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not self.compile:
                raise
            self.echo(COMPILE_FAILED.format(type(error).__name__))
            self.compile = False
            self.loss_function = self._loss
            self.optimizer.zero_grad()
            torch.manual_seed(torch.initial_seed())  # what the broken pass drew is drawn again
            mean = self._gradients(batches, shares)
        self.optimizer.all_reduce_gradients()
        if self.config.grad_clip:
            self.optimizer.clip_grad_norm(self.config.grad_clip)
        self.optimizer.step(factor)
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()
        return mean

    def _gradients(
        self, batches: Sequence[PackedBatch], shares: Sequence[float | Tensor]
    ) -> Tensor:
        mean = torch.zeros((), device=self.device)
        for batch, share in zip(batches, shares, strict=True):
            part = self.loss_function(batch) * share
            part.backward()
            mean += part.detach()
            if len(batches) > 1 or self.strategy.size > 1:
                self.optimizer.accumulate_gradients()
        return mean

    def _loss(self, batch: PackedBatch) -> Tensor:
        return batch_loss(self.net, batch, self.config.label_smoothing)[0]


class CaptureError(Exception):
    """The GPU's work cannot be recorded, for the reason given; nothing of it was done."""


class CUDAGraphStep:
    """Work for a GPU that is recorded once and then replayed as a whole (CUDA graphs): no kernel waits for Python.

    The recording reads from fixed places, into which each batch is copied; so all batches must be of one form.
    """

    def __init__(
        self, work: StepFunction, placed: Callable[[PackedBatch], PackedBatch], device: torch.device
    ) -> None:
        self.step_function = work
        self.to_device = placed
        self.stream = torch.cuda.Stream(device)
        self.calls = 0
        self.weight, self.factor = (torch.zeros((), device=device) for _ in range(2))
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: Sequence[PackedBatch], share: float, factor: float) -> Tensor:
        self.weight.fill_(share)
        self.factor.fill_(factor)
        self.calls += 1
        if self.calls <= CUDA_GRAPH_WARMUP_STEPS:
            return self._aside([self.to_device(batch) for batch in batches])
        if self.graph is None:
            self._record([self.to_device(batch) for batch in batches])
        for there, here in zip(
            map(_tensors_of, self.static_batches), map(_tensors_of, batches), strict=True
        ):
            for place, given in zip(there, here, strict=True):
                place.copy_(given.pin_memory(), non_blocking=True)
        cast(torch.cuda.CUDAGraph, self.graph).replay()
        return self.mean_loss.clone()

    def _record(self, places: list[PackedBatch]) -> None:
        self.static_batches = places
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.mean_loss = self.step_function(
                    places, [self.weight] * len(places), self.factor
                )
        except RuntimeError as error:
            with warnings.catch_warnings(action="ignore"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass  # nothing: but chance, which still believes in the recording that broke, is free again
            raise CaptureError(str(error).splitlines()[0]) from None
        self.graph = graph

    def _aside(self, batches: list[PackedBatch]) -> Tensor:
        """On another stream, as the steps before a recording must be."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            mean = self.step_function(batches, [self.weight] * len(batches), self.factor)
        here.wait_stream(self.stream)
        return mean


def _tensors_of(batch: PackedBatch) -> list[Tensor]:
    return [t for field in fields(batch) if (t := getattr(batch, field.name)) is not None]


# ---- run: The training loop: batches by step, gradients of one summed loss, a step of the optimiser, and nothing lost.


@dataclass(frozen=True)
class Progress:
    """Where a run stands; `valid` only where it was just measured."""

    step: int
    max_steps: int
    loss: float
    lr_factor: float  # of the schedule, 0 … 1
    targets_per_second: float  # a second: tokens, hidden words or rows that had something to teach
    valid_loss: float | None = None
    accuracy: float | None = None  # of classes

    @property
    def to_dict(self) -> dict[str, Any]:
        speed = float(f"{self.targets_per_second:.4g}")
        found = {
            "step": self.step,
            "loss": self.loss,
            "factor": self.lr_factor,
            "lessons_per_second": speed,
        }
        measured = {"valid": self.valid_loss, "accuracy": self.accuracy}
        return found | {name: value for name, value in measured.items() if value is not None}


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: `done`, `stopped` (interrupted or told so), or `patience` (it no longer got better)."""

    status: str
    step: int
    loss: float
    best_loss: float  # the lowest validation loss; infinity where none was measured
    checkpoint: Path  # of the last checkpoint


class Trainer:
    """One training run in a folder."""

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        out: Path,
        device: str,
        compile: bool,
        strategy: SingleProcess = SINGLE_PROCESS,
        echo: Callable[[str], None] = print,
    ) -> None:
        self.config: TrainConfig = model.config.train
        o = self.config
        if o.average_checkpoints > o.keep_checkpoints:
            raise ClearheadError(
                f"train.average_checkpoints = {o.average_checkpoints} is more than train.keep_checkpoints = {o.keep_checkpoints} checkpoints."
            )
        if o.patience and next(iter(data.valid_batches()), None) is None:
            raise ClearheadError(
                f"train.patience = {o.patience} needs data.valid, or data.valid_fraction above 0; without them it must be 0."
            )
        self.data = data
        self.output = out
        self.device = torch.device(device)
        self.strategy = strategy
        self.echo = echo
        half = o.precision == "bfloat16" or (o.precision == "auto" and self.device.type == "cuda")
        exact = model.net.to(torch.bfloat16 if half else torch.float32)
        self.model = replace(model, net=strategy.wrap_model(exact, self.device, compile, echo))
        self.net: Transformer = self.model.net
        self.optimizer = Optimizer(self.net, o.optimizer, strategy=strategy)
        self.ema = EMA(self.optimizer, o.ema_decay) if o.ema_decay else None
        self.checkpoints = CheckpointManager(out, o.keep_checkpoints, o.save_every)
        self.compiled_step = TrainStep(
            self.net, self.optimizer, self.ema, o, self.device, compile, strategy, echo
        )
        self.step = 0
        self.best_loss = math.inf
        self.evals_since_best = 0
        self.best_step: int | None = None
        self.first_loss: float | None = None  # mean loss of the first report

    def resume(self) -> bool:
        """Goes on from the last whole checkpoint, where there is one."""
        saved = self.checkpoints.latest()
        if saved is None:
            return False
        self._load_checkpoint(saved)
        return True

    @torch.no_grad()
    def _load_checkpoint(self, saved: SavedCheckpoint) -> None:
        state = saved.state()

        def under(section: str) -> dict[str, Tensor]:
            return {k.removeprefix(section): t for k, t in state.items() if k.startswith(section)}

        state_of_optimiser = under("optimiser.")
        exact = {
            k: state_of_optimiser.pop(k) for k in [*state_of_optimiser] if k.endswith(".master")
        }
        weights = (
            saved.weights()
            | under("weights.")
            | {k.removesuffix(".master"): t for k, t in exact.items()}
        )
        for name, p in self.net.named_parameters():
            self.strategy.copy_full_tensor(p, weights[name])
        masters = {
            f"{name}.master": weights[name].float() for name in self.optimizer.master_weights
        }  # of any precision
        self.optimizer.load_state_dict(state_of_optimiser | masters)
        if self.ema is not None:
            self.ema.load_state_dict(under("ema."))
        self.step = saved.step
        facts = saved.progress
        self.best_loss = math.inf if facts["best"] is None else facts["best"]
        self.best_step = facts["best_step"]
        self.evals_since_best = facts["since"]
        self.first_loss = facts["first"]
        if self.strategy.is_main_process:
            self.checkpoints.prune(self.best_step)  # a killed run may not have come to it

    def ema_weights(self) -> AbstractContextManager[dict[str, Tensor]]:
        """The network with its averaged weights, where there are some; given are those of its own that are not kept."""
        return self.ema.swap_weights() if self.ema is not None else nullcontext({})

    def save_checkpoint(self) -> Path:
        """A checkpoint of this step: what is validated, and what training goes on with."""
        place = self.checkpoints.directory(self.step)
        if self.strategy.any_process(
            not all(t.isfinite().all() for t in self.optimizer.local_parameters.values())
        ):
            raise self.divergence_error(f"the weights after step {self.step} hold no numbers")
        fresh = self.strategy.is_main_process and not self.checkpoints.exists(
            self.step
        )  # one that went on comes to the same numbers
        if self.strategy.any_process(fresh):
            state = {f"optimiser.{name}": t for name, t in self.optimizer.state_dict().items()}
            if self.ema is not None:
                state |= {f"ema.{name}": t for name, t in self.ema.state_dict().items()}
            best = self.best_loss if math.isfinite(self.best_loss) else None
            facts = {
                "best": best,
                "best_step": self.best_step,
                "since": self.evals_since_best,
                "first": self.first_loss,
            }
            with self.ema_weights() as own:
                state |= {
                    f"weights.{name}": t
                    for name, t in own.items()
                    if name not in self.optimizer.master_weights
                }
                whole = self.strategy.gather_full_tensors(state)
                model = replace(self.model, net=self.strategy.full_model(self.net))
                if self.strategy.is_main_process:
                    self.checkpoints.save(self.step, model, whole, facts)
        if self.strategy.is_main_process:
            self.checkpoints.prune(self.best_step)
        self.strategy.barrier()
        return place

    def train(
        self, on_report: Callable[[Progress], bool], on_step: Callable[[int], None] | None = None
    ) -> TrainResult:
        """To the last step, or until `watch` says no, patience ends or somebody interrupts; always to a checkpoint.

        `watch` is called in the first process. `each`, with the number of steps taken, after every one of them, and its
        time is not counted: in the first process too, but in all where they share the weights, for no pass can be made
        by one of them.
        """
        o = self.config
        team = self.strategy
        log = LogWriter(self.output / "log.jsonl", self.step) if team.is_main_process else None
        mean = log.last_loss if log is not None else math.nan
        clock = TrainingTimer(self.device)
        going = True
        counted: list[tuple[Tensor, int]] = []
        with deferred_signals() as interrupted:
            while going and not self.stop_reason:
                counted.append(self.training_step())
                self.step += 1
                if on_step is not None and (team.is_main_process or team.is_sharded):
                    with clock.paused():
                        on_step(self.step)
                        team.reshard(self.net)
                last = self.step == o.max_steps
                going = not team.should_stop(bool(interrupted))
                if (
                    all(self.step % n for n in (o.log_every, o.eval_every, o.save_every))
                    and not last
                ):
                    mean = mean if going else self.mean_loss(counted)
                    continue
                mean = self.mean_loss(counted)
                lessons = sum(n for _, n in counted) / clock.seconds()
                valid, accuracy = (
                    self.validate() if self.step % o.eval_every == 0 or last else (None, None)
                )
                progress = Progress(
                    self.step,
                    o.max_steps,
                    mean,
                    self.lr_factor(self.step - 1),
                    lessons,
                    valid,
                    accuracy,
                )
                if log is not None:
                    log.write(**progress.to_dict)
                going = (
                    not team.any_process(team.is_main_process and not on_report(progress)) and going
                )
                better = valid is not None and self.update_best(valid)
                if self.step % o.save_every == 0 or last or better:
                    self.save_checkpoint()
                counted = []
                clock.start()
            self.net.eval()
            place = self.save_checkpoint()
            end = self.stop_reason if going else "stopped"
        if o.average_checkpoints and end != "stopped" and team.is_main_process:
            found = self.checkpoints.save_average(self.model, o.average_checkpoints)
            if found < o.average_checkpoints:
                self.echo(
                    f"the average is of {found} checkpoints: there were no more, with one every {o.save_every} steps"
                )
        return TrainResult(end, self.step, mean, self.best_loss, place)

    @property
    def stop_reason(self) -> str:
        """Why there is no further step; empty where there is one."""
        o = self.config
        if self.step >= o.max_steps:
            return "done"
        return "patience" if o.patience and self.evals_since_best >= o.patience else ""

    def lr_factor(self, step: int) -> float:
        return self.config.schedule.lr_factor(step, self.config.max_steps, self.config.warmup_steps)

    def training_step(self) -> tuple[Tensor, int]:
        """One step; the summed loss of its rows stays on the device, the count of all lessons is known beforehand."""
        o = self.config
        torch.manual_seed(
            (o.seed * 1_000_003 + self.step + self.strategy.rank * 982_451_653) % 2**63
        )  # what dropout draws
        batches = [self.data.batch(self.step * o.grad_accum + i) for i in range(o.grad_accum)]
        count = max(
            1, sum(count_targets(batch.targets) for batch in batches)
        )  # a batch may teach nothing
        return self.compiled_step(batches, count, self.lr_factor(self.step)) * count, count

    def mean_loss(self, counted: list[tuple[Tensor, int]]) -> float:
        """The loss of a lesson since the last report; what is no number ends the run before it is saved."""
        totals = self.strategy.all_reduce(torch.stack([total for total, _ in counted])).tolist()
        losses = [total / count for total, (_, count) in zip(totals, counted, strict=True)]
        mean = sum(totals) / sum(count for _, count in counted)
        self.first_loss = mean if self.first_loss is None else self.first_loss
        if not mean <= divergence_threshold(self.model.config.model, self.first_loss):
            lost = next(
                (i for i, loss in enumerate(losses) if not math.isfinite(loss)),
                losses.index(max(losses)),
            )
            step = self.step - len(losses) + lost
            batches = describe_batches(self.model, self.data, step)
            raise self.divergence_error(
                f"the loss of step {step} is {losses[lost]:.4g}, of {batches}"
            )
        return mean

    def divergence_error(self, what: str) -> DivergenceError:
        saved = self.checkpoints.latest()
        good = (
            f"the last good checkpoint is {saved.directory}"
            if saved
            else "there is no checkpoint yet"
        )
        return DivergenceError(f"{what}: a smaller rate may help; {good}.")

    def validate(self) -> tuple[float | None, float | None]:
        """The loss of a lesson on what is held out, and the accuracy, with the averaged weights if there are some."""
        with self.ema_weights():
            valid, accuracy = validation_loss(self.net, self.data, self.device, self.strategy)
        if valid is not None and not math.isfinite(valid):
            raise self.divergence_error(f"the validation loss after step {self.step} is {valid}")
        return valid, accuracy

    def update_best(self, valid: float) -> bool:
        """Whether it is the best so far."""
        better = valid < self.best_loss
        self.evals_since_best = 0 if better else self.evals_since_best + 1
        if better:
            self.best_loss = valid
            self.best_step = self.step
        return better
