"""Run an experiment; several processes, on one machine or more, share its runs.

A run belongs to the process that holds its file lock. If a process dies, its lock is released and
another process resumes the run from its last checkpoint. All processes see the same folder and
stay until every run is done.
"""

import gc
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from clearhead.api import load
from clearhead.config.model import Config, Learned
from clearhead.data.dataset import Dataset
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.io import LockedError, file_lock
from clearhead.lab.experiment import (
    BEST_LOSS,
    FINAL_LOSS,
    LOCK_SUFFIX,
    RUNS_FOLDER,
    Experiment,
    RunResult,
    RunSpec,
    read_results,
    save_result,
)
from clearhead.model.attention import positions_from_segments
from clearhead.train.checkpoint import RUN_FILE, TOKENS_FOLDER
from clearhead.train.strategy import SINGLE_PROCESS, Echo
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.train import Display, MakeDisplay, no_display, no_echo, run_training
from clearhead.train.train_step import validation_loss
from clearhead.train.trainer import DivergenceError, Trainer
from clearhead.train.training_data import TokenizerSource, load_training_data
from clearhead.weights.load import load_model
from clearhead.weights.tensors import Placement

MIN_REPORTED_SECONDS = 10.0  # a report after shorter runs would take a large part of the time
POLL_SECONDS = 1.0  # between two looks at the runs of other processes


@dataclass(frozen=True)
class TrainOptions:
    """Options of all runs that are not part of their configuration."""

    compile: bool | None = None
    record_activations: bool = False
    logger: str | None = None


def run_experiment(
    experiment: Experiment,
    output: Path,
    on_result: Callable[[], object],
    *,
    make_display: MakeDisplay = no_display,
    echo: Echo = print,
    device: str = "",
    options: TrainOptions = TrainOptions(),
) -> bool:
    """Train and evaluate every run; return False if interrupted.

    `on_result` is called after each run that took some time, in one process at a time.
    """
    assignment = DeviceAssignment.assign(device)
    run_seconds: list[float] = []
    is_waiting = False
    while unfinished := unfinished_runs(experiment, read_results(output)):
        made_progress = False
        for run in unfinished:
            try:
                with file_lock(output / f"{run.path}{LOCK_SUFFIX}", "locked by another process"):
                    result = read_results(output).get(run.key)
                    if not is_incomplete(experiment, result):
                        continue  # another process has finished it
                    made_progress = True
                    started = time.monotonic()
                    if make_display is not no_display:
                        echo(f"{run}:")
                    if result is None:
                        result = _train(experiment, run, output, assignment, make_display, options)
                    if result is None:
                        return False
                    if is_incomplete(experiment, result):
                        save_result(output, result)  # before the evaluation, which may be killed
                        result = _evaluate(experiment, run, result, output, assignment.device)
                    results = save_result(output, result)
                    run_seconds.append(time.monotonic() - started)
                    if run_seconds[-1] > MIN_REPORTED_SECONDS:
                        with file_lock(output / LOCK_SUFFIX):
                            on_result()
            except LockedError:
                continue
            seconds_per_run = sum(run_seconds) / len(run_seconds) / assignment.num_processes
            echo(_describe_result(experiment, result, results, seconds_per_run))
        if not made_progress:
            if not is_waiting:
                echo(
                    f"waiting for other processes: they train {len(unfinished)} of "
                    f"{len(experiment.runs)} runs"
                )
            is_waiting = True
            time.sleep(POLL_SECONDS)
    return True


def unfinished_runs(
    experiment: Experiment, results: dict[tuple[str, int], RunResult]
) -> list[RunSpec]:
    return [run for run in experiment.runs if is_incomplete(experiment, results.get(run.key))]


def is_incomplete(experiment: Experiment, result: RunResult | None) -> bool:
    """Whether a run is not trained, or not evaluated on everything the experiment needs."""
    if result is None:
        return True
    if result.status == "diverged":
        return False
    return _needs_metric(experiment, result) or _needs_lengths(experiment, result)


def _needs_metric(experiment: Experiment, result: RunResult) -> bool:
    return experiment.metric not in (BEST_LOSS, FINAL_LOSS, *result.metrics)


def _needs_lengths(experiment: Experiment, result: RunResult) -> bool:
    return not {str(length) for length in experiment.eval_lengths} <= result.loss_by_length.keys()


def _train(
    experiment: Experiment,
    run: RunSpec,
    output: Path,
    assignment: "DeviceAssignment",
    make_display: MakeDisplay,
    options: TrainOptions,
) -> RunResult | None:
    """Train a run until it ends or diverges, which is a result too; None if interrupted."""
    folder = output / run.path
    has_started = False

    def start_display(trainer: Trainer, throughput: Throughput) -> Display:
        nonlocal has_started
        has_started = True
        num_labels = len(trainer.model.config.inference.labels)
        if experiment.metric == "f1" and num_labels != 2:  # known only after the data is read
            raise ClearheadError(
                f"--metric f1 needs two classes, and the data has {num_labels}; use macro_f1."
            )
        return make_display(trainer, throughput)

    _link_tokens(run, output)
    assignment.reset()
    status = "diverged"
    error_message = ""
    try:
        status = run_training(
            run.config,
            folder,
            start_display,
            no_echo,
            recipe=experiment.recipe,
            device=assignment.device,
            compile=options.compile,
            record_activations=options.record_activations,
            logger=options.logger,
        ).status
    except DivergenceError as error:
        error_message = str(error)
    except torch.OutOfMemoryError:
        raise ClearheadError(
            f"{run}: out of memory on {assignment.device}; try a smaller train.batch_size."
        ) from None
    except ClearheadError as error:
        raise ClearheadError(f"{run}: {error}") from None
    if status == "interrupted":
        return None
    return RunResult.from_folder(
        folder,
        run,
        status=status,
        error=error_message,
        # Unknown if an earlier process has done the training.
        peak_memory=assignment.peak_memory() if has_started else None,
        num_processes=assignment.num_processes,
    )


def _link_tokens(run: RunSpec, output: Path) -> None:
    """Hard-link the tokenized data of another run with the same data."""
    target = output / run.path / TOKENS_FOLDER
    if target.exists():
        return
    for run_file in output.glob(f"{RUNS_FOLDER}/*/*/{RUN_FILE}"):
        source = run_file.with_name(TOKENS_FOLDER)
        if source.is_dir() and Config.read(run_file).data == run.config.data:
            with suppress(OSError):  # the run then tokenizes the data itself
                shutil.copytree(
                    source, target, copy_function=os.link, ignore=shutil.ignore_patterns(".*")
                )
            return


def _evaluate(
    experiment: Experiment, run: RunSpec, result: RunResult, output: Path, device: str
) -> RunResult:
    """Measure metrics and losses by length that are missing, on the best model of a run."""
    if result.status == "diverged":
        return result
    folder = output / run.path
    if _needs_metric(experiment, result):
        from clearhead.evaluate.evaluate import evaluate  # takes long to import

        data = run.config.data
        evaluation = evaluate(load(folder, device=device), data.valid, on_error=data.on_error)
        metrics = {metric.name: metric.value for metric in evaluation.metrics}
        result = replace(result, metrics=metrics)
    if _needs_lengths(experiment, result):
        losses = measure_loss_by_length(folder, experiment.eval_lengths, device)
        result = replace(result, loss_by_length=result.loss_by_length | losses)
    return result


def _describe_result(
    experiment: Experiment,
    result: RunResult,
    results: dict[tuple[str, int], RunResult],
    seconds_per_run: float,
) -> str:
    """One line about a finished run and the time that is left."""
    num_runs = len(experiment.runs)
    num_done = num_runs - len(unfinished_runs(experiment, results))
    value = result.metric(experiment.metric)
    if value is None:
        outcome = result.error or f"no {experiment.metric}"
    else:
        seconds = format_duration(result.train_seconds or 0)
        outcome = f"{experiment.metric} {value:.4f} in {seconds}"
    line = f"{num_done} of {num_runs}: {result.variant}, seed {result.seed}: {outcome}"
    if num_done < num_runs:
        line += f"; about {format_duration(seconds_per_run * (num_runs - num_done))} left"
    return line


# --- device


@dataclass(frozen=True)
class DeviceAssignment:
    """Device of this process, and the number of processes that share the machine."""

    device: str
    num_processes: int

    @classmethod
    def assign(cls, device: str) -> Self:
        """Distribute the GPUs over the processes that torchrun started."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        device = Placement.from_names(device, "").device
        if device == "cuda":
            device = f"cuda:{local_rank % torch.cuda.device_count()}"
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        if "WORLD_SIZE" in os.environ:  # each process trains its own runs
            os.environ |= {"WORLD_SIZE": "1", "RANK": "0"}
        return cls(device, num_processes)

    def reset(self) -> None:
        """Free what earlier runs left in memory, and reset the peak memory."""
        if "torch._dynamo" in sys.modules:  # its cache of compiled variants is limited
            torch.compiler.reset()
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return
        clear_refs = Path("/proc/self/clear_refs")
        if clear_refs.exists():
            with suppress(OSError):  # not allowed in some containers
                clear_refs.write_text("5")

    def peak_memory(self) -> int | None:
        """Bytes of tensors on a GPU, or of the whole process on a CPU.

        None if the system does not report it.
        """
        if self.device.startswith("cuda"):
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status")
        for line in status.read_text().splitlines() if status.exists() else ():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None


# --- loss by sequence length


def measure_loss_by_length(
    folder: Path, lengths: tuple[int, ...], device: str
) -> dict[str, dict[str, float]]:
    """Validation loss of a run's model at several sequence lengths, also beyond its context.

    {"512": {"loss": …, "extrapolated_fraction": …}}: each validation token counts once at each
    length (masked tokens differ between lengths). The fraction is that of tokens at positions
    that do not occur in training. The length in training is always included. Learned positions end
    with the context length, so longer ones have no entries.
    """
    model = load_model(folder, Placement.from_names(device, ""))
    config = model.config
    net = model.net
    train_length = config.train.seq_len or config.model.context_length
    results: dict[str, dict[str, float]] = {}
    for length in sorted({train_length, *lengths}):
        results[str(length)] = {}
        is_beyond = length > config.model.context_length
        if is_beyond and isinstance(config.model.position, Learned):
            continue
        context_length = max(length, config.model.context_length)
        length_config = config.replace(
            **{
                "model.context_length": context_length,
                "train.seq_len": length,
                "train.batch_size": max(1, config.train.batch_size * train_length // length),
            }
        )
        net.context_length = context_length  # no weights depend on it, except learned positions
        tokenizers = TokenizerSource(
            length_config, folder, True, model.tokenizer, model.source_tokenizer
        )
        report = DataReport(config.data.on_error)
        dataset = load_training_data(length_config, tokenizers, report).dataset
        loss, _ = validation_loss(net, dataset, torch.device(device), SINGLE_PROCESS)
        if loss is not None:
            results[str(length)] = {
                "loss": loss,
                "extrapolated_fraction": _fraction_beyond(dataset, train_length),
            }
    return results


def _fraction_beyond(dataset: Dataset, train_length: int) -> float:
    """Fraction of validation tokens at position `train_length` or later."""
    num_beyond = 0
    num_tokens = 0
    for batch in dataset.valid_batches():
        segment_ids = batch.segment_ids
        if segment_ids is None:
            segment_ids = torch.ones_like(batch.tokens)
        is_token = segment_ids != 0
        positions = positions_from_segments(segment_ids)[is_token]
        num_beyond += int((positions >= train_length).sum())
        num_tokens += int(is_token.sum())
    return num_beyond / max(1, num_tokens)
