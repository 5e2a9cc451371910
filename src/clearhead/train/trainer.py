"""Training loop: batches by step, gradients of a summed loss, optimizer steps, checkpoints.

Random numbers of a step follow from the seed and the step, so a run that was killed and resumed
from its last checkpoint equals one that was not; on a CPU it is bit-identical. Several processes
take the same steps together (see `distributed`).
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.config.model import ClassificationHead, ModelConfig, RegressionHead
from clearhead.config.training import TrainConfig
from clearhead.data.dataset import Dataset
from clearhead.data.packed_batch import count_targets
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.train.checkpoint import LOG_FILE, CheckpointManager, LogWriter
from clearhead.train.optim import EMA, Optimizer
from clearhead.train.strategy import SINGLE_PROCESS, Echo, SingleProcess
from clearhead.train.train_step import TrainStep, validation_loss
from clearhead.weights.checkpoint import Checkpoint

# --- divergence


class DivergenceError(ClearheadError):
    """The loss or the weights became NaN, infinite or far too large."""


def divergence_threshold(config: ModelConfig, first_loss: float) -> float:
    """Mean loss above which a run counts as diverged, given the loss of its first report.

    Uniform guessing over n classes has loss log n; a run that learns never reaches ten times that.
    A regression loss has no such scale, so the threshold is a thousand times the first loss.
    """
    if isinstance(config.head, RegressionHead):
        return 1000 * (first_loss + 1)
    num_classes = config.vocab_size
    if isinstance(config.head, ClassificationHead):
        num_classes = config.head.num_labels
    return 10 * (max(first_loss, math.log(num_classes)) + 1)


def describe_batches(model: Checkpoint, data: Dataset, step: int) -> str:
    """Batch numbers of a step and, for text, its first words."""
    count = model.config.train.grad_accum
    first = step * count
    description = f"batch {first}" if count == 1 else f"batches {first} to {first + count - 1}"
    if model.tokenizer is None:
        return description
    text = model.tokenizer.decode(data.batch(first).tokens[0, :16].tolist())
    return f"{description}, {text!r} …" if text else description


# --- the run


@dataclass(frozen=True)
class Progress:
    """A report of a run; the validation loss only if it was just measured."""

    step: int
    max_steps: int
    loss: float
    lr_factor: float  # learning rate as a fraction of the peak
    targets_per_second: float  # tokens, masked tokens or rows with a target
    valid_loss: float | None = None  # of the weights that are saved: the EMA if there is one
    raw_valid_loss: float | None = None  # at the end, with an EMA: of the weights without it
    accuracy: float | None = None  # of a classifier

    def to_dict(self) -> dict[str, Any]:
        """Line of log.jsonl."""
        report: dict[str, Any] = {
            "step": self.step,
            "loss": self.loss,
            "lr_factor": self.lr_factor,
            "targets_per_second": float(f"{self.targets_per_second:.4g}"),
        }
        if self.valid_loss is not None:
            report["valid_loss"] = self.valid_loss
        if self.raw_valid_loss is not None:
            report["raw_valid_loss"] = self.raw_valid_loss
        if self.accuracy is not None:
            report["accuracy"] = self.accuracy
        return report


@dataclass(frozen=True)
class TrainResult:
    """Status of a run: `completed`, `early_stopped` (patience) or `interrupted`."""

    status: str
    step: int
    loss: float
    best_loss: float  # lowest validation loss; infinity without validation
    checkpoint: Path  # folder of the last checkpoint


class Trainer:
    """One training run in a folder."""

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        output: Path,
        device: str,
        compile: bool,
        strategy: SingleProcess = SINGLE_PROCESS,
        echo: Echo = print,
    ) -> None:
        config = model.config.train
        if config.average_checkpoints > config.keep_checkpoints:
            raise ClearheadError(
                f"train.average_checkpoints = {config.average_checkpoints} exceeds "
                f"train.keep_checkpoints = {config.keep_checkpoints}; keep at least as many."
            )
        if config.patience and next(iter(data.valid_batches()), None) is None:
            raise ClearheadError(
                f"train.patience = {config.patience} needs validation data: set data.valid, "
                "or data.valid_fraction above 0, or train.patience = 0."
            )
        self.config: TrainConfig = config
        self.data = data
        self.output = output
        self.device = torch.device(device)
        self.strategy = strategy
        self.echo = echo
        use_bf16 = config.precision == "bfloat16" or (
            config.precision == "auto" and self.device.type == "cuda"
        )
        net = model.net.to(torch.bfloat16 if use_bf16 else torch.float32)
        self.model = replace(model, net=strategy.wrap_model(net, self.device, compile, echo))
        self.net: Transformer = self.model.net
        self.optimizer = Optimizer(self.net, config.optimizer, strategy=strategy)
        self.ema = EMA(self.optimizer, config.ema_decay) if config.ema_decay else None
        self.checkpoints = CheckpointManager(output, config.keep_checkpoints, config.save_every)
        self.step_function = TrainStep(
            self.net, self.optimizer, self.ema, config, self.device, compile, strategy, echo
        )
        self.step = 0
        self.best_loss = math.inf
        self.best_step: int | None = None
        self.evals_since_best = 0
        self.first_loss: float | None = None  # of the first report
        # Of steps since the last report: summed loss and targets of each, and their time.
        self.unreported_losses: list[tuple[Tensor, int]] = []
        self.unreported_seconds = 0.0

    def train(
        self,
        on_report: Callable[[Progress], bool],
        on_step: Callable[[int], None] | None = None,
        estimate_time: Callable[[int], bool] | None = None,
    ) -> TrainResult:
        """Train until the last step, patience ends, `on_report` returns False, or an interrupt.

        `on_report` is called in the main process. `on_step` is called with the number of steps
        taken after each step, in the main process, or in all processes if the weights are sharded;
        its time does not count. `estimate_time` is called like it, but in its own process only and
        without stopping the clock, until it returns True. Training always ends with a checkpoint.
        """
        config = self.config
        strategy = self.strategy
        log = LogWriter(self.output / LOG_FILE, self.step) if strategy.is_main_process else None
        mean_loss = log.last_loss if log is not None else math.nan
        timer = TrainingTimer(self.device, self.unreported_seconds)
        is_running = True
        with deferred_signals() as signals:
            while is_running and not self.stop_reason:
                self.unreported_losses.append(self.training_step())
                self.step += 1
                if on_step is not None and (strategy.is_main_process or strategy.is_sharded):
                    with timer.paused():
                        on_step(self.step)
                        strategy.reshard(self.net)
                if estimate_time is not None and estimate_time(self.step):
                    estimate_time = None
                is_running = not strategy.should_stop(bool(signals))
                is_last = self.step == config.max_steps
                intervals = (config.log_every, config.eval_every, config.save_every)
                is_report_due = is_last or any(self.step % interval == 0 for interval in intervals)
                if is_report_due or not is_running:
                    mean_loss = self.mean_loss()
                    self.unreported_seconds = timer.seconds()
                if not is_report_due:
                    continue

                if self.first_loss is None:
                    self.first_loss = mean_loss
                num_targets = sum(count for _, count in self.unreported_losses)
                targets_per_second = num_targets / self.unreported_seconds
                self.unreported_losses = []
                self.unreported_seconds = 0.0
                valid_loss = raw_valid_loss = accuracy = None
                if is_last or self.step % config.eval_every == 0:
                    valid_loss, accuracy = self.validate()
                is_best = valid_loss is not None and self.update_best(valid_loss)
                if self.ema is not None and self.stop_reason:
                    raw_valid_loss, _ = self.validate(use_ema=False)
                progress = Progress(
                    step=self.step,
                    max_steps=config.max_steps,
                    loss=mean_loss,
                    lr_factor=self.lr_factor(self.step - 1),
                    targets_per_second=targets_per_second,
                    valid_loss=valid_loss,
                    raw_valid_loss=raw_valid_loss,
                    accuracy=accuracy,
                )
                if log is not None:
                    log.write(progress.to_dict())
                wants_stop = strategy.is_main_process and not on_report(progress)
                if strategy.any_process(wants_stop):
                    is_running = False
                if is_last or is_best or self.step % config.save_every == 0:
                    self.save_checkpoint()
                timer.start()
            self.net.eval()
            checkpoint = self.save_checkpoint()
            status = self.stop_reason if is_running else "interrupted"
        if config.average_checkpoints and status != "interrupted" and strategy.is_main_process:
            count = self.checkpoints.save_average(self.model, config.average_checkpoints)
            if count < config.average_checkpoints:
                self.echo(
                    f"averaged {count} instead of {config.average_checkpoints} checkpoints: with "
                    f"train.save_every = {config.save_every} there were no more"
                )
        return TrainResult(status, self.step, mean_loss, self.best_loss, checkpoint)

    @property
    def stop_reason(self) -> str:
        """`completed` or `early_stopped`; empty while there are steps to take."""
        if self.step >= self.config.max_steps:
            return "completed"
        patience = self.config.patience
        return "early_stopped" if patience and self.evals_since_best >= patience else ""

    def lr_factor(self, step: int) -> float:
        config = self.config
        return config.schedule.lr_factor(step, config.max_steps, config.warmup_steps)

    def training_step(self) -> tuple[Tensor, int]:
        """Take a step; return the summed loss of the local rows, on the device, and all targets."""
        config = self.config
        # The seed of dropout differs between steps and between processes.
        seed = config.seed * 1_000_003 + self.step + self.strategy.rank * 982_451_653
        torch.manual_seed(seed % 2**63)
        first = self.step * config.grad_accum
        batches = [self.data.batch(first + i) for i in range(config.grad_accum)]
        num_targets = max(1, sum(count_targets(batch.targets) for batch in batches))
        mean_loss = self.step_function(batches, num_targets, self.lr_factor(self.step))
        return mean_loss * num_targets, num_targets

    def mean_loss(self) -> float:
        """Mean loss per target since the last report; raise DivergenceError if it diverged."""
        loss_sums = self.unreported_loss_sums()
        counts = [count for _, count in self.unreported_losses]
        mean = sum(loss_sums) / sum(counts)
        first_loss = mean if self.first_loss is None else self.first_loss
        if not mean <= divergence_threshold(self.model.config.model, first_loss):
            losses = [loss_sum / n for loss_sum, n in zip(loss_sums, counts, strict=True)]
            non_finite = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
            index = non_finite[0] if non_finite else losses.index(max(losses))
            step = self.step - len(losses) + index
            batches = describe_batches(self.model, self.data, step)
            raise self.divergence_error(f"loss {losses[index]:.4g} at step {step} ({batches})")
        return mean

    def unreported_loss_sums(self) -> list[float]:
        """Summed loss of each step since the last report, over all processes."""
        if not self.unreported_losses:
            return []
        local_sums = torch.stack([loss_sum for loss_sum, _ in self.unreported_losses])
        sums: list[float] = self.strategy.all_reduce(local_sums).tolist()
        return sums

    def divergence_error(self, problem: str) -> DivergenceError:
        saved = self.checkpoints.latest()
        checkpoint = f"last good checkpoint: {saved.folder}" if saved else "no checkpoint yet"
        return DivergenceError(
            f"training diverged: {problem}. Try a smaller train.optimizer.lr; {checkpoint}."
        )

    def validate(self, *, use_ema: bool = True) -> tuple[float | None, float | None]:
        """Validation loss and accuracy, with the averaged weights if there is an EMA to use."""
        with self.ema_weights() if use_ema else nullcontext():
            loss, accuracy = validation_loss(self.net, self.data, self.device, self.strategy)
        if loss is not None and not math.isfinite(loss):
            raise self.divergence_error(f"validation loss {loss} after step {self.step}")
        return loss, accuracy

    def update_best(self, valid_loss: float) -> bool:
        """Record a validation loss; return whether it is the best so far."""
        is_best = valid_loss < self.best_loss
        self.evals_since_best = 0 if is_best else self.evals_since_best + 1
        if is_best:
            self.best_loss = valid_loss
            self.best_step = self.step
        return is_best

    # --- checkpoints
    def ema_weights(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Put EMA weights, if any, into the network for the block; yield the original ones."""
        return self.ema.swap_weights() if self.ema is not None else nullcontext({})

    def save_checkpoint(self) -> Path:
        """Save this step: the model as it was validated, and the state to continue from."""
        weights = self.optimizer.local_parameters.values()
        if self.strategy.any_process(not all(t.isfinite().all() for t in weights)):
            raise self.divergence_error(f"NaN or infinite weights after step {self.step}")
        is_main_process = self.strategy.is_main_process
        # A resumed run reaches the same numbers again, so an existing checkpoint is kept.
        if self.strategy.any_process(is_main_process and not self.checkpoints.exists(self.step)):
            state = {f"optimizer.{name}": t for name, t in self.optimizer.state_dict().items()}
            if self.ema is not None:
                state |= {f"ema.{name}": t for name, t in self.ema.state_dict().items()}
            progress = {
                "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
                "best_step": self.best_step,
                "evals_since_best": self.evals_since_best,
                "first_loss": self.first_loss,
                "unreported_losses": [
                    [loss_sum, count]
                    for loss_sum, (_, count) in zip(
                        self.unreported_loss_sums(), self.unreported_losses, strict=True
                    )
                ],
                "unreported_seconds": self.unreported_seconds,
            }
            with self.ema_weights() as original:
                for name, t in original.items():
                    if name not in self.optimizer.master_weights:
                        state[f"weights.{name}"] = t
                full_state = self.strategy.gather_full_tensors(state)
                model = replace(self.model, net=self.strategy.full_model(self.net))
                if is_main_process:
                    self.checkpoints.save(self.step, model, full_state, progress)
        if is_main_process:
            self.checkpoints.prune(self.best_step)
        self.strategy.barrier()
        return self.checkpoints.folder(self.step)

    @torch.no_grad()
    def resume(self) -> bool:
        """Load the latest checkpoint; return whether there is one."""
        saved = self.checkpoints.latest()
        if saved is None:
            return False
        state = saved.state()

        def section(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)
            }

        # Exact weights: those of the saved model, unless that is an EMA or rounded from fp32.
        optimizer_state = section("optimizer.")
        weights = saved.weights() | section("weights.")
        for key in [key for key in optimizer_state if key.endswith(".master")]:
            weights[key.removesuffix(".master")] = optimizer_state.pop(key)
        for name, p in self.net.named_parameters():
            if name not in weights or weights[name].shape != p.shape:
                problem = "has the wrong shape" if name in weights else "is missing"
                raise ClearheadError(f"{saved.folder} is damaged: {name} {problem}.")
            self.strategy.copy_full_tensor(p, weights[name])
        for name in self.optimizer.master_weights:  # also after a change of train.precision
            optimizer_state[f"{name}.master"] = weights[name].float()
        try:
            self.optimizer.load_state_dict(optimizer_state)
            if self.ema is not None:
                self.ema.load_state_dict(section("ema."), saved.step)
        except ClearheadError as error:
            raise ClearheadError(f"{saved.folder} cannot be resumed: {error}") from None

        self.step = saved.step
        progress = saved.progress
        self.best_loss = math.inf if progress["best_loss"] is None else progress["best_loss"]
        self.best_step = progress["best_step"]
        self.evals_since_best = progress["evals_since_best"]
        self.first_loss = progress["first_loss"]
        # The sums are of all processes, which add theirs up again.
        share = float(self.strategy.is_main_process)
        self.unreported_losses = [
            (torch.tensor(loss_sum * share, dtype=torch.float32, device=self.device), count)
            for loss_sum, count in progress["unreported_losses"]
        ]
        self.unreported_seconds = progress["unreported_seconds"]
        if self.strategy.is_main_process:
            self.checkpoints.prune(self.best_step)  # in case the run was killed before it
        return True


# --- time and signals


class TrainingTimer:
    """Measures training time without pauses; on a GPU, which runs asynchronously, with events.

    `elapsed` are seconds that were measured before, by another process.
    """

    def __init__(self, device: torch.device, elapsed: float = 0.0) -> None:
        self.is_cuda = device.type == "cuda"
        self.start()
        self.started -= elapsed

    def start(self) -> None:
        self.started = time.monotonic()
        self.pauses = list[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the block from the time."""
        if not self.is_cuda:
            pause_started = time.monotonic()
            yield
            self.started += time.monotonic() - pause_started
            return
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        yield
        after.record()
        self.pauses.append((before, after))

    def seconds(self) -> float:
        """Seconds since the start; the GPU must have finished its work."""
        for _, after in self.pauses:
            after.synchronize()
        paused = sum(before.elapsed_time(after) for before, after in self.pauses) / 1000
        return time.monotonic() - self.started - paused


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Defer SIGINT and SIGTERM to the next step boundary; yield the list of received signals.

    A second Ctrl-C raises KeyboardInterrupt at once. A second SIGTERM does not, because a launcher
    may forward its own SIGTERM to a process that has already received one.
    """
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received  # other threads cannot install handlers
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
