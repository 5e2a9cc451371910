"""Training runs from start to finish: configuration, data, model, training loop, report."""

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from clearhead.config.model import ClassificationHead, Config, LMHead
from clearhead.config.parse import read_config_file
from clearhead.config.presets import presets
from clearhead.config.serialize import diff_trees
from clearhead.data.classification import LabeledTextDataset
from clearhead.data.readers import STDIN, DataReport
from clearhead.errors import ClearheadError, check_type, suggest, suggest_file
from clearhead.io import read_log, write_json
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.train.checkpoint import (
    CHECKPOINTS_FOLDER,
    FINGERPRINT_FILE,
    LOG_FILE,
    REPORT_DATA_FILE,
    RUN_FILE,
    CheckpointManager,
    SavedCheckpoint,
    check_same_run,
    fingerprint_data,
    lock_output,
)
from clearhead.train.report import (
    REPORT_FILE,
    STATUS_TEXT,
    TRACE_FIGURE_FILE,
    ReportData,
    collect_report_data,
    next_commands,
    read_report_data,
    write_report,
)
from clearhead.train.strategy import SINGLE_PROCESS, Echo, SingleProcess, distributed_training
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.trainer import Progress, Trainer, TrainResult
from clearhead.train.training_data import TokenizerSource, load_training_data
from clearhead.weights.bundled import bundled_models
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import load_model, load_tokenizers
from clearhead.weights.tensors import Placement

if TYPE_CHECKING:
    from clearhead.api import Model

TENSORBOARD_FOLDER = "tensorboard"
LOGGERS = ("tensorboard",)
DEFAULT_OUTPUT = Path("run")
# Options that `train.init_from` determines.
INHERITED_OPTIONS = r"model\.(?!dropout|head)|data\.(tokenizer|vocab_size)$"
MIN_ESTIMATED_SECONDS = 60  # shorter runs need no estimate of their time
LONG_CPU_SECONDS = 3600
SLOW_STEPS_SECONDS = 5  # steps that took this long are enough for an estimate


Display = AbstractContextManager[Callable[[Progress], None]]  # its function shows a report
MakeDisplay = Callable[[Trainer, Throughput], Display]


def no_echo(line: str) -> None:
    """Print nothing."""


def no_display(trainer: Trainer, throughput: Throughput) -> Display:
    """Display nothing."""
    return nullcontext(lambda progress: None)


def validation_lines(trainer: Trainer, throughput: Throughput) -> Display:
    """Print one line per validation."""

    def show(progress: Progress) -> None:
        if progress.valid_loss is not None:
            raw = progress.raw_valid_loss
            without_ema = "" if raw is None else f" (without EMA {raw:.4f})"
            print(
                f"step {progress.step:,} of {progress.max_steps:,}: loss {progress.loss:.4f}, "
                f"validation {progress.valid_loss:.4f}{without_ema}",
                flush=True,
            )

    return nullcontext(show)


def train(
    recipe: str | Path | Config,
    output: str | Path | None = None,
    *,
    model: Mapping[str, object] | None = None,
    data: Mapping[str, object] | None = None,
    train: Mapping[str, object] | None = None,
    inference: Mapping[str, object] | None = None,
    resume: Literal["auto", "never"] = "auto",
    device: str = "",
    compile: bool | None = None,
    quiet: bool = False,
    record_activations: bool = False,
    logger: str | None = None,
) -> "Model":
    """Train a preset, a run.toml or a configuration, or resume a run; return its best model.

    `model`, `data`, `train` and `inference` replace options of these sections; names of nested
    options have dots:

        ch.train("lm-small", "run", data={"train": "texts/"}, train={"optimizer.lr": 1e-3})

    The log, the checkpoints and report.html are written to the folder `output`, by default run.
    With `resume="auto"`, a run in this folder is resumed; `ch.train("run1")` resumes the run in the
    folder run1.
    """
    check_type(output, str | Path | None, "a folder to train in")
    if resume not in ("auto", "never"):
        raise ClearheadError(f"resume must be 'auto' or 'never', got {resume!r}.")
    options = dotted_options(model=model, data=data, train=train, inference=inference)
    recipe, output, recipe_name = locate_run(recipe, output)
    config = load_config(recipe, options)
    result = run_training(
        config,
        output,
        no_display if quiet else validation_lines,
        no_echo if quiet else print,
        recipe=recipe_name,
        resume=resume == "auto",
        device=device,
        compile=compile,
        record_activations=record_activations,
        logger=logger,
    )
    best = CheckpointManager(output).best()
    from clearhead.api import load  # a higher layer

    return load(best or result.checkpoint, device=device)


# --- configuration


def dotted_options(**sections: Mapping[str, object] | None) -> dict[str, object]:
    """{"train.max_steps": 5} from train={"max_steps": 5}."""
    options: dict[str, object] = {}
    for section, values in sections.items():
        check_type(values or {}, Mapping, f"{section} as a dictionary of options")
        for name, value in (values or {}).items():
            options[f"{section}.{name}"] = value
    return options


def locate_run(
    recipe: str | Path | Config, output: str | Path | None
) -> tuple[str | Path | Config, Path, str]:
    """The source of a run's configuration, its folder, and the name of its recipe.

    Instead of a recipe, the folder of a run may be given: its run is resumed, or repeated in
    another folder.
    """
    folder = DEFAULT_OUTPUT if output is None else Path(output)
    if isinstance(recipe, Config):
        return recipe, folder, ""
    path = Path(recipe)
    if str(recipe) not in presets and (path / RUN_FILE).is_file():
        report_file = path / REPORT_DATA_FILE
        name = read_report_data(path)["recipe"] if report_file.is_file() else str(recipe)
        return path / RUN_FILE, path if output is None else folder, name
    is_run_file = path.name == RUN_FILE and (path.parent / CHECKPOINTS_FOLDER).is_dir()
    if is_run_file and output is None and path.parent.resolve() != folder.resolve():
        raise ClearheadError(
            f"{recipe} is the configuration of a run; to resume that run, name its folder, "
            f"{path.parent}, instead. To repeat it, choose another --output."
        )
    return recipe, folder, str(recipe)


def load_config(recipe: str | Path | Config, overrides: Mapping[str, object]) -> Config:
    """Load a preset by name, or a .toml or .json file, and apply overrides."""
    name = str(recipe)
    if isinstance(recipe, Config):
        config = recipe
    elif name not in presets and Path(name).suffix in (".toml", ".json"):
        if not Path(name).exists():
            raise ClearheadError(
                f"there is no file {name}{suggest_file(name)}, and no preset of this name; "
                f"{suggest(name, presets)}"
            )
        config = Config.read(name)
    elif name not in presets and name in bundled_models():
        raise ClearheadError(
            f"{name} is a trained model, not a recipe; `clearhead presets` lists recipes. "
            "To fine-tune it, set --train.init_from."
        )
    else:
        config = presets[name]
    return override_config(config, overrides)


def override_config(config: Config, overrides: Mapping[str, object]) -> Config:
    """Apply overrides, and refuse those that `train.init_from` would ignore."""
    changed = config.replace(**overrides)
    if changed.train.init_from:
        for path, _, new in diff_trees(config.to_dict(), changed.to_dict()):
            if re.match(INHERITED_OPTIONS, path):
                raise ClearheadError(
                    f"{path} = {new!r} has no effect: train.init_from determines the model. "
                    "Leave it out."
                )
    return changed


def config_from_checkpoint(config: Config, initial: Config) -> Config:
    """Configuration of a model that is fine-tuned: the initial one with dropout of the recipe.

    A head of another kind comes from the recipe, too.
    """
    old = initial.model
    new = config.model
    if old.architecture.kind != new.architecture.kind and isinstance(new.head, LMHead):
        raise ClearheadError(
            f"{config.train.init_from} is a model of architecture {old.architecture.kind}, but "
            f"the recipe trains one of architecture {new.architecture.kind}."
        )
    head = old.head if old.head.kind == new.head.kind else new.head
    model = replace(old, dropout=new.dropout, head=head)
    return replace(config, model=model, inference=replace(initial.inference, labels=()))


# --- model and data


def build_trainer(
    config: Config,
    output: Path,
    *,
    resume: bool,
    device: str,
    compile: bool,
    strategy: SingleProcess = SINGLE_PROCESS,
    echo: Echo = print,
) -> Trainer:
    """Load data and model, and start a run in a folder or resume the one in it."""
    if not config.data.train:
        raise ClearheadError("no training data: set --data.train to a file, a folder or a glob.")
    for path in (*config.data.train, *config.data.valid):
        if path == STDIN or Path(path).is_fifo():
            raise ClearheadError(
                f"training reads its data more than once, so {path} cannot be standard input or a "
                "pipe; save it to a file."
            )
        if Path(path).is_dir() and Path(path).resolve() == output.resolve():
            raise ClearheadError(f"--output {output} is the folder of the data; choose another.")
    run_file = output / RUN_FILE
    saved = CheckpointManager(output).latest()
    fingerprints = {}
    if saved is not None:
        if not resume:
            raise ClearheadError(
                f"{output} already contains a run; resume it with --resume auto, or choose another "
                "--output."
            )
        # Before tokens of other data overwrite those of this run.
        check_same_run(run_file, config, ("data", "train"))
    if strategy.is_main_process:
        fingerprints = fingerprint_data(config.data, output, saved is not None)

    report = DataReport(config.data.on_error)
    reuse = saved is not None or not strategy.is_main_process
    tokenizers, initial_model = _tokenizer_source(config, output, saved, reuse)
    with strategy.main_process_first():
        training_data = load_training_data(tokenizers.config, tokenizers, report)
    config = training_data.config
    if saved is not None:
        check_same_run(run_file, config)
    if strategy.is_main_process:
        for message in report.messages:
            echo(message)
        output.mkdir(parents=True, exist_ok=True)
        write_json(run_file, config.to_dict(), 1)
        write_json(output / FINGERPRINT_FILE, fingerprints, 1)

    net = build_transformer(config.model, config.train.seed)
    if initial_model is not None:
        load_initial_weights(net, config, initial_model)
    if config.train.trainable == "head":
        freeze_backbone(net)
    # Batches of labeled texts differ in length, and each length would be compiled anew.
    compile = compile and not isinstance(training_data.dataset, LabeledTextDataset)
    model = Checkpoint(net, config, training_data.tokenizer, training_data.source_tokenizer)
    trainer = Trainer(model, training_data.dataset, output, device, compile, strategy, echo)
    trainer.resume()
    return trainer


def _tokenizer_source(
    config: Config, output: Path, saved: SavedCheckpoint | None, reuse: bool
) -> tuple[TokenizerSource, Checkpoint | None]:
    """Source of the tokenizers, with the final configuration, and the model to fine-tune."""
    init_from = config.train.init_from
    if not init_from:
        if config.train.trainable == "head":
            raise ClearheadError(
                "train.trainable = head needs train.init_from: a random backbone would stay random."
            )
        return TokenizerSource(config, output, reuse), None
    if saved is not None:  # the initial model may be gone
        loaded = load_tokenizers(saved.folder)
        run_config = Config.read(output / RUN_FILE)
        config = config_from_checkpoint(config, run_config)
        source = TokenizerSource(config, output, reuse, loaded.tokenizer, loaded.source_tokenizer)
        return source, None
    initial = load_model(init_from, Placement("cpu", torch.float32))
    if initial.config.model.vocab_size and initial.tokenizer is None:
        reason = f"{init_from} has no tokenizer, so it cannot be trained on files."
        raise ClearheadError(initial.no_tokenizer_reason or reason)
    config = config_from_checkpoint(config, initial.config)
    source = TokenizerSource(config, output, reuse, initial.tokenizer, initial.source_tokenizer)
    return source, initial


def load_initial_weights(net: Transformer, config: Config, initial: Checkpoint) -> None:
    """Copy the initial weights; a head of another kind, size or other labels stays random."""
    initial_weights = dict(initial.net.named_parameters())
    old_labels = initial.config.inference.labels
    new_labels = config.inference.labels
    label_rows = []
    if sorted(old_labels) == sorted(new_labels):
        label_rows = [old_labels.index(label) for label in new_labels]
    is_classifier = isinstance(config.model.head, ClassificationHead)
    with torch.no_grad():
        for name, p in net.named_parameters():
            same_shape = name in initial_weights and initial_weights[name].shape == p.shape
            if is_classifier and name.startswith("head.out."):
                if same_shape and label_rows:
                    p.copy_(initial_weights[name][label_rows])
            elif same_shape:
                p.copy_(initial_weights[name])
            elif not name.startswith("head."):
                raise ClearheadError(
                    f"{name} of {config.train.init_from} does not match the model to train."
                )


def freeze_backbone(net: Transformer) -> None:
    """Make only the head trainable."""
    head_parameters = [p for name, p in net.named_parameters() if name.startswith("head.")]
    if not head_parameters:
        raise ClearheadError(
            "train.trainable = head needs a head with its own weights; this one shares the "
            "embedding (model.head.tie_embeddings)."
        )
    for p in net.parameters():
        p.requires_grad_(False)
    for p in head_parameters:
        p.requires_grad_()


# --- the run


def run_training(
    config: Config,
    output: Path,
    make_display: MakeDisplay,
    echo: Echo,
    *,
    recipe: str = "",
    resume: bool = True,
    device: str = "",
    compile: bool | None = None,
    record_activations: bool = False,
    logger: str | None = None,
) -> TrainResult:
    """Train in the folder `output`, in one process or in those that torchrun started."""
    if logger and logger not in LOGGERS:
        raise ClearheadError(f"unknown logger {logger!r}; available: {', '.join(LOGGERS)}.")
    requested_device = Placement.from_names(device, "").device
    with (
        distributed_training(requested_device, config.train) as strategy,
        lock_output(output, strategy),
    ):
        run_device = strategy.device(requested_device)
        if not strategy.is_main_process:
            echo = no_echo
        trainer = build_trainer(
            config,
            output,
            resume=resume,
            device=run_device,
            compile=run_device.startswith("cuda") if compile is None else compile,
            strategy=strategy,
            echo=echo,
        )
        is_finished = strategy.is_main_process and _is_finished(trainer, record_activations)
        if strategy.any_process(is_finished):
            echo(_describe_finished(trainer))
            losses = [report["loss"] for report in read_log(output / LOG_FILE)]
            return TrainResult(
                trainer.stop_reason,
                trainer.step,
                losses[-1] if losses else math.nan,
                trainer.best_loss,
                trainer.checkpoints.folder(trainer.step),
            )
        for line in describe_run(trainer, run_device):
            echo(line)
        recorder = None
        if record_activations and (strategy.is_main_process or strategy.is_sharded):
            recorder = ActivationRecorder(
                trainer.model, trainer.data, output, trainer.step, strategy, echo
            )
            if recorder.note:
                echo(recorder.note)
            recorder(trainer.step)
        if strategy.is_main_process:
            return train_and_report(trainer, make_display, echo, recipe, recorder, logger)
        result = trainer.train(lambda progress: True, on_step=recorder)
        if recorder is not None:
            recorder.finish(result.step)
        return result


def _is_finished(trainer: Trainer, record_activations: bool) -> bool:
    """Whether this very run has ended before and everything it should leave is there."""
    report_file = trainer.output / REPORT_DATA_FILE
    if not trainer.stop_reason or not report_file.is_file():
        return False
    if record_activations and not (trainer.output / TRACE_FIGURE_FILE).is_file():
        return False
    report = read_config_file(report_file)
    same_config = report.get("config") == trainer.model.config.to_dict()
    return bool(report.get("status") == trainer.stop_reason and same_config)


def _describe_finished(trainer: Trainer) -> str:
    if trainer.stop_reason == "completed":
        steps = f"{trainer.config.max_steps:,} steps"
        return f"{trainer.output} is complete ({steps}); raise train.max_steps to continue."
    return (
        f"{trainer.output} stopped early at step {trainer.step:,} without improvement; "
        "raise train.patience to continue."
    )


def describe_run(trainer: Trainer, device: str) -> list[str]:
    """Lines about the data that was read and the model that is about to be trained."""
    config = trainer.config
    lines = [str(trainer.data.report)] if trainer.data.report.skipped else []
    num_parameters = sum(p.numel() for p in trainer.net.parameters())
    num_trainable = sum(p.numel() for p in trainer.net.parameters() if p.requires_grad)
    parameters = f"{num_parameters:,} parameters"
    if num_trainable < num_parameters:
        parameters = f"{num_trainable:,} of {parameters} trainable"
    steps_per_epoch = trainer.data.batches_per_epoch / config.grad_accum
    epochs = config.max_steps / steps_per_epoch
    steps = f"{config.max_steps:,} steps ({epochs:,.3g} epoch{'' if epochs == 1 else 's'})"
    processes = f", {trainer.strategy.size} processes" if trainer.strategy.size > 1 else ""
    start = f"starting from {config.init_from or 'random weights'}"
    if trainer.step:
        start = f"resuming after step {trainer.step:,}"
    lines.append(f"{parameters}, {steps}, on {device}{processes}, in {trainer.output}, {start}")
    is_from_scratch = not config.init_from and not trainer.step
    if is_from_scratch and isinstance(trainer.data, LabeledTextDataset):
        lines.append(
            "Training from scratch. To fine-tune a pretrained model, such as fill, set "
            "--train.init_from."
        )
    return lines


def train_and_report(
    trainer: Trainer,
    make_display: MakeDisplay,
    echo: Echo,
    recipe: str = "",
    recorder: ActivationRecorder | None = None,
    logger: str | None = None,
) -> TrainResult:
    """Train, show progress and write the report, even of a run that fails."""
    tensorboard = None
    if logger == "tensorboard":
        tensorboard = TensorBoardLogger(trainer.output, trainer.step)
    first_batch = trainer.step * trainer.config.grad_accum
    batches = (trainer.data.batch(first_batch + i) for i in range(4))
    throughput = Throughput.from_batches(trainer.model.config, batches)
    report = collect_report_data(trainer, recipe, throughput)
    with make_display(trainer, throughput) as show:

        def on_report(progress: Progress) -> bool:
            show(progress)
            if tensorboard is not None:
                tensorboard.log(progress)
            return True

        try:
            estimate = TimeEstimate(trainer, echo)
            result = trainer.train(on_report, on_step=recorder, estimate_time=estimate)
            # Before the report, which links to the figure.
            recorder_message = recorder.finish(result.step) if recorder is not None else ""
        except ClearheadError:
            _write_report(trainer, report | {"status": "failed"}, echo)
            raise
        finally:
            if tensorboard is not None:
                tensorboard.close()
    best = f", best validation loss {result.best_loss:.4f}" if result.best_loss < math.inf else ""
    status = STATUS_TEXT[result.status]
    echo(f"{status} at step {result.step:,}: loss {result.loss:.4f}{best}")
    _write_report(trainer, report | {"status": result.status}, echo)
    if recorder_message:
        echo(recorder_message)
    if result.status == "interrupted":
        echo("run the same command again to resume")
    purpose, command = next_commands(trainer.output, trainer.model.config)[0]
    echo(f"{purpose[0].lower()}{purpose[1:]}: {command}")
    return result


def _write_report(trainer: Trainer, report: ReportData, echo: Echo) -> None:
    if not read_log(trainer.output / LOG_FILE):  # ended before the first report
        return
    for finding in write_report(trainer.output, report):
        echo(str(finding))
    echo(f"report: {trainer.output / REPORT_FILE}")


class TimeEstimate:
    """Prints once how long training will take, after its first steps."""

    def __init__(self, trainer: Trainer, echo: Echo) -> None:
        self.device = trainer.device
        self.max_steps = trainer.config.max_steps
        self.echo = echo
        # Compilation and warm-up are not measured. Steps on a GPU are fast enough to wait for more.
        is_cuda = self.device.type == "cuda"
        num_warmup = 5 if is_cuda else int(trainer.step_function.compile)
        self.start_step = trainer.step + num_warmup
        self.end_step = self.start_step + (10 if is_cuda else 3)
        self.started = time.monotonic()

    def __call__(self, step: int) -> bool:
        """To be called after each step until it returns True."""
        if step < self.start_step:
            return False
        is_slow = time.monotonic() - self.started > SLOW_STEPS_SECONDS
        if self.start_step < step < self.end_step and not is_slow:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if step == self.start_step:
            self.started = time.monotonic()
            return False
        seconds_per_step = (time.monotonic() - self.started) / (step - self.start_step)
        remaining = seconds_per_step * (self.max_steps - step)
        if remaining < MIN_ESTIMATED_SECONDS:
            return True
        hint = ""
        if self.device.type == "cpu" and remaining > LONG_CPU_SECONDS:
            hint = "; on a CPU, try a smaller recipe (`clearhead presets` lists them)"
        self.echo(
            f"about {format_duration(remaining)} to go, at {seconds_per_step:.3g} s per step{hint}"
        )
        return True


class TensorBoardLogger:
    """Writes TensorBoard event files, after removing events later than the step resumed from."""

    def __init__(self, output: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ClearheadError(
                "the tensorboard logger is not installed; run: pip install 'clearhead[tensorboard]'"
            ) from None
        self.writer = SummaryWriter(output / TENSORBOARD_FOLDER, purge_step=step + 1)

    def log(self, progress: Progress) -> None:
        values = {
            "loss/train": progress.loss,
            "loss/valid": progress.valid_loss,
            "loss/valid_raw": progress.raw_valid_loss,
            "accuracy/valid": progress.accuracy,
            "lr_factor": progress.lr_factor,
            "targets_per_second": progress.targets_per_second,
        }
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, progress.step)

    def close(self) -> None:
        self.writer.close()
