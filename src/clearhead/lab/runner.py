"""Where a process of an experiment works: its device, its neighbours, and how much memory it takes."""

import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from clearhead.api import load
from clearhead.config.model import Config, Learned
from clearhead.data.batch import DataReport, Dataset
from clearhead.errors import ClearheadError
from clearhead.io import file_lock
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
from clearhead.train.datasets import TokenizerSource, load_training_data
from clearhead.train.distributed import SINGLE_PROCESS
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.train import RUN_FILE, Display, Echo, no_echo, run_training
from clearhead.train.trainer import DivergenceError, Progress, Trainer, validation_loss
from clearhead.weights.checkpoint import Placement
from clearhead.weights.load import load_model

# ---- seat: Where a process of an experiment works: its device, its neighbours, and how much memory it takes.


@dataclass(frozen=True)
class DeviceAssignment:
    device: str
    num_processes: int  # that share the machine

    @classmethod
    def assign(cls, device: str) -> Self:
        """Of the processes that torchrun started each has a GPU of its own, as far as there are so many."""
        here = int(os.environ.get("LOCAL_RANK", "0"))
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        device = Placement.from_names(device, "").device
        if device == "cuda":
            device = f"cuda:{here % torch.cuda.device_count()}"
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        if "WORLD_SIZE" in os.environ:  # from here on each trains, and speaks, for itself
            os.environ |= {"WORLD_SIZE": "1", "RANK": "0"}
        return cls(device, processes)

    def reset(self) -> None:
        """All that earlier runs have left behind; the peak of memory counts from here."""
        if "torch._dynamo" in sys.modules:  # it compiles only so many variants of one function
            torch.compiler.reset()
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        elif (refs := Path("/proc/self/clear_refs")).exists():
            with suppress(OSError):  # some containers show it and refuse it
                refs.write_text("5")

    def peak_memory(self) -> int | None:
        """In bytes: what tensors took of a GPU; else what the whole process took, where the system tells."""
        if self.device.startswith("cuda"):
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next(
            (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None
        )


# ---- lengths: How a trained model fares on texts of other lengths than it was trained on, also on longer ones.

LossByLength = dict[str, dict[str, float]]


def measure_loss_by_length(place: Path, lengths: tuple[int, ...], device: str) -> LossByLength:
    """{"512": {"loss": …, "beyond": …}}: of a run's model on what it held out, cut into rows of each length.

    Every held-out token is counted once at each length; what is hidden from a masked-word model differs between them.
    `beyond` is the share of tokens that stand further from the beginning of their text than any token in training. The
    length of training is always among them. Learned positions end with the context: there is nothing to tell of longer
    rows.
    """
    read = load_model(place, Placement.from_names(device, ""))
    config = read.config
    net = read.net
    own = config.train.seq_len or config.model.context_length
    found: LossByLength = {}
    for length in sorted({own, *lengths}):
        found[str(length)] = {}
        if length > config.model.context_length and isinstance(config.model.position, Learned):
            continue
        rows = max(1, config.train.batch_size * own // length)
        longest = max(length, config.model.context_length)
        longer = config.replace(
            **{"model.context_length": longest, "train.seq_len": length, "train.batch_size": rows}
        )
        net.context_length = longest  # no weight of the other kinds of positions depends on it
        origin = TokenizerSource(longer, place, True, read.tokenizer, read.source_tokenizer)
        data = load_training_data(longer, origin, DataReport(config.data.on_error)).dataset
        loss, _ = validation_loss(net, data, torch.device(device), SINGLE_PROCESS)
        if loss is not None:
            found[str(length)] = {"loss": loss, "beyond": _extrapolated_fraction(data, own)}
    return found


def _extrapolated_fraction(data: Dataset, own: int) -> float:
    """The share of tokens at position `own` or further on."""
    far = every = 0
    for batch in data.valid_batches():
        segment_ids = (
            torch.ones_like(batch.tokens) if batch.segment_ids is None else batch.segment_ids
        )
        real = segment_ids != 0
        far += int((positions_from_segments(segment_ids)[real] >= own).sum())
        every += int(real.sum())
    return far / max(1, every)


# ---- work: The runs of an experiment, one after another; several processes, on one machine or many, each take whole runs.

LOCKED = "another process is at it."
TOKENS_FOLDER = "tokens"  # where a run keeps what it made of texts
MIN_REPORT_INTERVAL = 10.0  # seconds, of which the one that a report takes is a small part
POLL_INTERVAL = 1.0  # seconds between two looks at what the others do
MakeDisplay = Callable[[Trainer, Throughput], AbstractContextManager[Display]]


class _NoDisplay:
    """A display that shows nothing."""

    def show(self, at: Progress) -> None: ...


def no_display(run: Trainer, speed: Throughput) -> AbstractContextManager[Display]:
    return nullcontext(_NoDisplay())


def run_experiment(
    experiment: Experiment,
    out: Path,
    on_result: Callable[[], object],
    *,
    make_display: MakeDisplay = no_display,
    echo: Echo = print,
    device: str = "",
    **options: Any,
) -> bool:
    """Every run to its end, with all that is asked of it; False where somebody interrupted.

    `after` is called after each that took its time, in one process at once. More options are those of `teach`.
    """
    seat = DeviceAssignment.assign(device)
    took = list[float]()
    waiting = False
    while left := unfinished_runs(experiment, read_results(out)):
        worked = False
        for run in left:
            with _try_lock(out / f"{run.path}{LOCK_SUFFIX}") as mine:
                if not mine or not is_incomplete(
                    experiment, read_results(out).get(run.key)
                ):  # another process has it, or had
                    continue
                start = time.monotonic()
                worked = True
                if make_display is not no_display:
                    echo(f"{run}:")
                found = read_results(out).get(run.key) or _train(
                    experiment, run, out, seat, make_display, options
                )
                if found is None:
                    return False
                if is_incomplete(experiment, found):  # which may take as long, or be killed
                    save_result(out, found)
                    found = _evaluate(experiment, run, found, out, seat.device)
                took.append(time.monotonic() - start)
                known = save_result(out, found)
                if took[-1] > MIN_REPORT_INTERVAL:
                    with file_lock(out / LOCK_SUFFIX):
                        on_result()
            echo(
                _describe_result(
                    experiment, found, known, sum(took) / len(took) / seat.num_processes
                )
            )
        if not worked:
            if not waiting:
                echo(
                    f"{len(left)} of {len(experiment.runs)} are with other processes; waiting for their end"
                )
            waiting = True
            time.sleep(POLL_INTERVAL)
    return True


def unfinished_runs(
    experiment: Experiment, known: dict[tuple[str, int], RunResult]
) -> list[RunSpec]:
    return [run for run in experiment.runs if is_incomplete(experiment, known.get(run.key))]


def is_incomplete(experiment: Experiment, found: RunResult | None) -> bool:
    """Whether something that is asked of a run is not known yet."""
    return found is None or (
        found.status != "diverged" and any(_missing_measurements(experiment, found))
    )


def _missing_measurements(experiment: Experiment, found: RunResult) -> tuple[bool, bool]:
    """Whether the figure, and whether some length, is still to be measured on a run's model."""
    figure = experiment.metric not in (BEST_LOSS, FINAL_LOSS, *found.metrics)
    return figure, not {
        str(length) for length in experiment.eval_lengths
    } <= found.loss_by_length.keys()


@contextmanager
def _try_lock(lock: Path) -> Iterator[bool]:
    """Whether it is ours meanwhile; what a killed process had is free again."""
    with ExitStack() as stack:
        mine = True
        try:
            stack.enter_context(file_lock(lock, LOCKED))
        except ClearheadError as error:
            if str(error) != LOCKED:
                raise
            mine = False
        yield mine


def _train(
    experiment: Experiment,
    run: RunSpec,
    out: Path,
    seat: DeviceAssignment,
    show: MakeDisplay,
    options: dict[str, Any],
) -> RunResult | None:
    """To its end, or to where it diverges, which is a result too; None where somebody interrupted."""
    place = out / run.path
    begun = False

    def shown(made: Trainer, speed: Throughput) -> AbstractContextManager[Display]:
        nonlocal begun
        begun = True
        if (
            experiment.metric == "f1" and len(labels := made.model.config.inference.labels) != 2
        ):  # which only the data tell
            raise ClearheadError(
                f"--metric f1 is of two classes, and there are {len(labels)}; macro f1 is of any."
            )
        return show(made, speed)

    end = "diverged"
    why = ""
    _link_tokens(run, out)
    seat.reset()
    try:
        end = run_training(
            run.config,
            place,
            shown,
            no_echo,
            recipe=experiment.recipe,
            device=seat.device,
            **options,
        ).status
    except DivergenceError as error:
        why = str(error)
    except torch.OutOfMemoryError:
        raise ClearheadError(
            f"{run}: it does not fit the memory of {seat.device}; smaller train.batch_size may."
        ) from None
    except ClearheadError as error:
        raise ClearheadError(f"{run}: {error}") from None
    if end == "stopped":
        return None
    memory = (
        seat.peak_memory() if begun else None
    )  # what an earlier process has done, it alone could have measured
    return RunResult.from_folder(
        place, *run.key, end=end, why=why, memory=memory, processes=seat.num_processes
    )


def _link_tokens(run: RunSpec, out: Path) -> None:
    """What another run has made of the same texts, as links, which take no time and no room."""
    mine = out / run.path / TOKENS_FOLDER
    for config in [] if mine.exists() else out.glob(f"{RUNS_FOLDER}/*/*/{RUN_FILE}"):
        if config.with_name(TOKENS_FOLDER).is_dir() and Config.read(config).data == run.config.data:
            with suppress(OSError):  # what is not lent is made
                shutil.copytree(
                    config.with_name(TOKENS_FOLDER),
                    mine,
                    copy_function=os.link,
                    ignore=shutil.ignore_patterns(".*"),
                )
            return


def _evaluate(
    experiment: Experiment, run: RunSpec, found: RunResult, out: Path, device: str
) -> RunResult:
    """With what is to be measured on the best model of a run besides its losses."""
    if found.status == "diverged":
        return found
    figure, lengths = _missing_measurements(experiment, found)
    if figure:
        from clearhead.evaluate.evaluate import evaluate  # which takes a while

        data = run.config.data
        result = evaluate(load(out / run.path, device=device), data.valid, broken=data.on_error)
        value = {experiment.metric: result.value(experiment.metric)}
        found = replace(found, metrics={f.name: f.value for f in result.metrics} | value)
    if lengths:
        found = replace(
            found,
            loss_by_length=found.loss_by_length
            | measure_loss_by_length(out / run.path, experiment.eval_lengths, device),
        )
    return found


def _describe_result(
    experiment: Experiment,
    found: RunResult,
    known: dict[tuple[str, int], RunResult],
    seconds: float,
) -> str:
    """A line for a run that is done; runs take `seconds` each, as far as is known."""
    every = len(experiment.runs)
    value = found.metric(experiment.metric)
    done = every - len(unfinished_runs(experiment, known))
    end = found.error or f"no {experiment.metric}"
    if value is not None:
        end = f"{experiment.metric} {value:.4f} in {format_duration(found.train_seconds or 0)}"
    left = f"; about {format_duration(seconds * (every - done))} left" if done < every else ""
    return f"{done} of {every}: {found.variant}, seed {found.seed}: {end}{left}"
