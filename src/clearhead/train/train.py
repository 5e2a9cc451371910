"""Training from Python: `clearhead.train`."""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from clearhead.api import Model, load
from clearhead.config.model import ClassificationHead, Config, LMHead
from clearhead.config.parse import read_config_file
from clearhead.data.batch import DataReport
from clearhead.data.classification import LabeledTextDataset
from clearhead.errors import ClearheadError, check_type, suggest, suggest_file
from clearhead.io import write_json
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.train.activation_recorder import ActivationRecorder
from clearhead.train.checkpoint import (
    FINGERPRINT_FILE,
    LOG_FILE,
    CheckpointManager,
    SavedCheckpoint,
    check_same_run,
    fingerprint_data,
    lock_output,
    read_log,
)
from clearhead.train.datasets import TokenizerSource, load_training_data
from clearhead.train.distributed import SINGLE_PROCESS, SingleProcess, distributed_training
from clearhead.train.report import (
    REPORT_DATA_FILE,
    REPORT_FILE,
    STATUS_TEXT,
    TRACE_FIGURE_FILE,
    ReportData,
    next_commands,
    report_data,
    write_report,
)
from clearhead.train.throughput import Throughput, measure_peak_flops
from clearhead.train.trainer import Progress, Trainer, TrainResult
from clearhead.weights.checkpoint import Checkpoint, Placement
from clearhead.weights.load import load_model, load_tokenizers
from clearhead.weights.mapping import diff_trees
from clearhead.weights.model_cards import bundled_models

# ---- learn: Training from Python: `clearhead.train`.


def train(
    recipe: str | Path | Config,
    output: str | Path = "run",
    *,
    resume: bool = True,
    device: str = "",
    compile: bool | None = None,
    tensorboard: bool = False,
    record_activations: bool = False,
    quiet: bool = False,
    **changes: object,
) -> Model:
    """Trains a preset, a run.toml or a configuration, and returns its best model; what it left behind is in `out`.

    Changes are options, two underscores for a dot: `data__train="texts/"`, `train__max_steps=500`, `width=64`. Where the
    folder holds a run already it is gone on with.
    """
    check_type(output, str | Path, "a folder to train in")
    config = load_config(recipe, changes)
    output = Path(output)

    def display(run: Trainer, speed: Throughput) -> AbstractContextManager[ValidationLines]:
        return nullcontext(ValidationLines(quiet))

    result = run_training(
        config,
        output,
        display,
        (lambda line: None) if quiet else print,
        recipe=str(recipe) if isinstance(recipe, str | Path) else "",
        resume=resume,
        device=device,
        compile=compile,
        tensorboard=tensorboard,
        record_activations=record_activations,
    )
    best = output / "best"
    return load(best if best.exists() else result.checkpoint, device=device)


@dataclass(frozen=True)
class ValidationLines:
    """One line for each validation, where a bar would be in the way: notebooks, logs."""

    quiet: bool

    def show(self, at: Progress) -> None:
        if at.valid_loss is not None and not self.quiet:
            print(
                f"step {at.step:,} of {at.max_steps:,}: loss {at.loss:.4f}, validation {at.valid_loss:.4f}",
                flush=True,
            )


# ---- board: A run on TensorBoard, for those who have it.

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoardLogger:
    """Event files in out/tensorboard. What an earlier process wrote from `step` on is taken back, as in the log."""

    def __init__(self, out: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ClearheadError(
                "--tensorboard needs a package more: pip install 'clearhead[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(out / TENSORBOARD_FOLDER, purge_step=step + 1)

    def log(self, at: Progress) -> None:
        values = {
            "loss/training": at.loss,
            "loss/validation": at.valid_loss,
            "accuracy": at.accuracy,
            "share of the rate": at.lr_factor,
            "lessons a second": at.targets_per_second,
        }
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, at.step)

    def close(self) -> None:
        self.writer.close()


# ---- begin: From a configuration to a run: what is learned from, the model, in a folder that can be gone on with.

RUN_FILE = "run.json"


def build_trainer(
    config: Config,
    out: Path,
    *,
    resume: bool,
    device: str,
    compile: bool,
    strategy: SingleProcess = SINGLE_PROCESS,
    echo: Callable[[str], None] = print,
) -> Trainer:
    """A run in `out`: a fresh one, or the one that is there."""
    if not config.data.train:
        raise ClearheadError(
            "there is nothing to learn from; give --data.train a file, a folder or a glob."
        )
    for path in (*config.data.train, *config.data.valid):
        if Path(path).is_dir() and Path(path).resolve() == out.resolve():
            raise ClearheadError(
                f"--out {out} is the folder of the data; a run needs a folder of its own."
            )
    last = CheckpointManager(out).latest()
    if last is not None and not resume:
        raise ClearheadError(
            f"{out} holds a run already; --resume auto goes on with it, another --out starts anew."
        )
    if last is not None:  # before the tokens of other data take the place of this run's
        check_same_run(
            out / RUN_FILE,
            read_config_file(out / RUN_FILE)
            | {name: config.to_dict()[name] for name in ("data", "train")},
        )
    read = fingerprint_data(config.data, out, last is not None) if strategy.is_main_process else {}
    report = DataReport(config.data.on_error)
    origin, start = _tokenizer_source(
        config, out, last, ready=last is not None or not strategy.is_main_process
    )
    with strategy.main_process_first():
        lessons = load_training_data(origin.config, origin, report)
    for line in report.messages if strategy.is_main_process else ():
        echo(line)
    config = lessons.config
    if last is not None:
        check_same_run(out / RUN_FILE, config.to_dict())
    if strategy.is_main_process:
        out.mkdir(parents=True, exist_ok=True)
        for name, tree in ((RUN_FILE, config.to_dict()), (FINGERPRINT_FILE, read)):
            write_json(out / name, tree, 1)
    net = build_transformer(config.model, config.train.seed)
    if start is not None:
        load_initial_weights(net, config, start)
    if config.train.trainable == "head":
        freeze_backbone(net)
    varied = isinstance(
        lessons.dataset, LabeledTextDataset
    )  # batches of many lengths, each of which would be compiled
    model = Checkpoint(net, config, lessons.tokenizer, lessons.source_tokenizer)
    run = Trainer(model, lessons.dataset, out, device, compile and not varied, strategy, echo)
    run.resume()
    return run


def _tokenizer_source(
    config: Config, out: Path, last: SavedCheckpoint | None, ready: bool
) -> tuple[TokenizerSource, Checkpoint | None]:
    """Where tokenizers come from, with the configuration of what is trained, and the model of a fresh run's start."""
    if not config.train.init_from:
        if config.train.trainable == "head":
            raise ClearheadError(
                "train.trainable = head needs train.init_from: a body of random weights would never learn."
            )
        return TokenizerSource(config, out, ready), None
    if last is not None:  # the model that it started from may be gone
        own = load_tokenizers(last.directory)
        config = config_from_checkpoint(config, Config.from_dict(read_config_file(out / RUN_FILE)))
        return TokenizerSource(config, out, ready, own.tokenizer, own.source_tokenizer), None
    start = load_model(config.train.init_from, Placement("cpu", torch.float32))
    if start.config.model.vocab_size and start.tokenizer is None:
        raise ClearheadError(
            start.no_tokenizer_reason
            or f"{config.train.init_from} has no tokenizer, so it cannot learn from files."
        )
    return TokenizerSource(
        config_from_checkpoint(config, start.config),
        out,
        ready,
        start.tokenizer,
        start.source_tokenizer,
    ), start


def config_from_checkpoint(config: Config, start: Config) -> Config:
    """The model that is started from, with the dropout asked for, and the head asked for where that is another kind."""
    old = start.model
    new = config.model
    name = config.train.init_from
    if old.architecture.kind != new.architecture.kind and isinstance(new.head, LMHead):
        raise ClearheadError(
            f"{name} is of shape {old.architecture.kind}, but what is to be trained is {new.architecture.kind}."
        )
    head = old.head if old.head.kind == new.head.kind else new.head
    model = replace(old, dropout=new.dropout, head=head)
    return replace(config, model=model, inference=replace(start.inference, labels=()))


def load_initial_weights(net: Transformer, config: Config, start: Checkpoint) -> None:
    """All weights of the model that is started from; a head of another kind or size, or for other classes, is fresh."""
    old = dict(start.net.named_parameters())
    before = start.config.inference.labels
    now = config.inference.labels
    rows = [before.index(label) for label in now] if sorted(before) == sorted(now) else []
    with torch.no_grad():
        for name, p in net.named_parameters():
            fits = name in old and old[name].shape == p.shape
            if name.startswith("head.out.") and isinstance(config.model.head, ClassificationHead):
                if fits and rows:
                    p.copy_(old[name][rows])
            elif fits:
                p.copy_(old[name])
            elif not name.startswith("head."):
                raise ClearheadError(f"{name} of the model to start from does not fit.")


def freeze_backbone(net: Transformer) -> None:
    """Only the head may change."""
    own = [p for name, p in net.named_parameters() if name.startswith("head.")]
    if not own:
        raise ClearheadError(
            "train.trainable = head needs a head with weights of its own; this one shares the embedding."
        )
    for p in net.parameters():
        p.requires_grad_(False)
    for p in own:
        p.requires_grad_()


def load_config(what: str | Path | Config, changes: dict[str, object]) -> Config:
    """A preset by name, or a file of TOML or JSON, with changes on top; none of them may be without effect."""
    from clearhead.config.presets import presets

    if isinstance(what, Config):
        return apply_overrides(what, changes)
    name = str(what)
    if name not in presets and Path(name).suffix in (".toml", ".json"):
        if not Path(name).exists():
            missing = f"there is no file {name}{suggest_file(name)}, and no preset of that name"
            raise ClearheadError(f"{missing}; {suggest(name, presets)}")
        return apply_overrides(Config.from_dict(read_config_file(name)), changes)
    if name not in presets and name in bundled_models():
        raise ClearheadError(
            f"{name} is a model that is trained already; clearhead presets lists what can be trained."
        )
    return apply_overrides(presets[name], changes)


def apply_overrides(before: Config, changes: Mapping[str, object]) -> Config:
    """With changes on top, none of which may be without effect."""
    config = before.replace(**changes)
    if config.train.init_from:
        for path, _, new in diff_trees(before.to_dict(), config.to_dict(), ""):
            if re.match(r"model\.(?!dropout|head)|data\.(tokenizer|vocabulary)$", path):
                raise ClearheadError(
                    f"{path} = {new!r} has no effect: train.init_from says which model it is; leave it out."
                )
    return config


# ---- teach: A whole run, from its configuration to its report: what `clearhead train` and `ch.train` both do.

Echo = Callable[[str], None]


class Display(Protocol):
    """What shows each report to a person."""

    def show(self, at: Progress) -> None: ...


def run_training(
    config: Config,
    out: Path,
    display: Callable[[Trainer, Throughput], AbstractContextManager[Display]],
    echo: Echo,
    *,
    recipe: str = "",
    resume: bool = True,
    device: str = "",
    compile: bool | None = None,
    tensorboard: bool = False,
    record_activations: bool = False,
) -> TrainResult:
    """Trains in `out`, alone or as one of the processes that torchrun started; only the first of them speaks."""
    where = Placement.from_names(device, "").device
    with distributed_training(where, config.train) as team, lock_output(out, team):
        where = team.device(where)
        tell = echo if team.is_main_process else no_echo
        fast = where.startswith("cuda") if compile is None else compile
        run = build_trainer(
            config, out, resume=resume, device=where, compile=fast, strategy=team, echo=tell
        )
        if team.any_process(team.is_main_process and _is_finished(run, record_activations)):
            tell(f"nothing is left to do in {out}: {_describe_finished(run)}")
            loss = [math.nan, *(line["loss"] for line in read_log(out / LOG_FILE))]
            return TrainResult(
                run.stop_reason,
                run.step,
                loss[-1],
                run.best_loss,
                run.checkpoints.directory(run.step),
            )
        for line in describe_run(run, where):
            tell(line)
        looks = record_activations and (
            team.is_main_process or team.is_sharded
        )  # where weights are shared out, all look or none
        scope = (
            ActivationRecorder(run.model, run.data, out, run.step, team, tell) if looks else None
        )
        if scope is not None:
            if scope.note:
                tell(scope.note)
            scope(run.step)
        if team.is_main_process:
            result = train_and_report(run, display, echo, recipe, tensorboard, scope)
        else:
            result = run.train(lambda at: True, on_step=scope)
            if scope is not None:
                scope.finish(result.step)
    return result


def no_echo(line: str) -> None:
    """What only the first process says, or another program."""


def _is_finished(run: Trainer, microscope: bool) -> bool:
    """Whether this very run came to its end before, and left all that it is to leave: its report was the last."""
    if (
        not run.stop_reason
        or not (run.output / REPORT_DATA_FILE).is_file()
        or (microscope and not (run.output / TRACE_FIGURE_FILE).is_file())
    ):
        return False
    facts = read_config_file(run.output / REPORT_DATA_FILE)
    return bool(
        facts.get("end") == run.stop_reason and facts.get("config") == run.model.config.to_dict()
    )


def _describe_finished(run: Trainer) -> str:
    if run.stop_reason == "done":
        return f"all {run.config.max_steps:,} steps are done; a larger train.max_steps goes on."
    return f"it no longer got better by step {run.step:,}; a larger train.patience goes on."


def describe_run(run: Trainer, where: str) -> list[str]:
    """What was read, and what is about to be trained."""
    told = [str(run.data.report)] if run.data.report.skipped else []
    size = sum(p.numel() for p in run.net.parameters())
    learn = sum(p.numel() for p in run.net.parameters() if p.requires_grad)
    many = f"{learn:,} of {size:,} parameters learn" if learn < size else f"{size:,} parameters"
    epoch = f"{run.data.batches_per_epoch / run.config.grad_accum:,.4g}"
    among = f", {run.strategy.size} processes" if run.strategy.size > 1 else ""
    begins = (
        f"going on after step {run.step:,}"
        if run.step
        else f"from {run.config.init_from or 'random weights'}"
    )
    told.append(f"{many}, {epoch} step{'s' * (epoch != '1')} an epoch, on {where}{among}, {begins}")
    if isinstance(run.data, LabeledTextDataset) and not run.config.init_from and not run.step:
        told.append(
            "it starts from nothing; --train.init_from NAME starts from a model that has read before, such as fill"
        )
    return told


def train_and_report(
    run: Trainer,
    display: Callable[[Trainer, Throughput], AbstractContextManager[Display]],
    say: Echo,
    name: str,
    tensorboard: bool,
    scope: ActivationRecorder | None,
) -> TrainResult:
    """The run itself, on the screen and on paper: a report is left even of one that fails."""
    board = TensorBoardLogger(run.output, run.step) if tensorboard else None
    batches = (run.data.batch(run.step * run.config.grad_accum + i) for i in range(4))
    power = measure_peak_flops(run.device, next(run.net.parameters()).dtype) * run.strategy.size
    speed = Throughput.from_batches(run.model.config, batches, power)
    facts = report_data(run, name, speed)
    with display(run, speed) as screen:

        def watch(at: Progress) -> bool:
            screen.show(at)
            if board is not None:
                board.log(at)
            return True

        try:
            result = run.train(watch, on_step=scope)
            film = (
                scope.finish(result.step) if scope is not None else ""
            )  # before the report, which names it
        except ClearheadError:
            _write_report(run, facts | {"end": "failed"}, say)
            raise
        finally:
            if board is not None:
                board.close()
    best = f", best validation {result.best_loss:.4f}" if result.best_loss < float("inf") else ""
    say(f"{STATUS_TEXT[result.status]} at step {result.step:,}: loss {result.loss:.4f}{best}")
    _write_report(run, facts | {"end": result.status}, say)
    if film:
        say(film)
    if result.status == "stopped":
        say("the same command goes on")
    sentence, line = next_commands(run.output, run.model.config)[0]
    say(f"{sentence[0].lower()}{sentence[1:]}: {line}")
    return result


def _write_report(run: Trainer, facts: ReportData, say: Echo) -> None:
    if read_log(
        run.output / LOG_FILE
    ):  # a run that ended before its first report has nothing to tell
        for finding in write_report(run.output, facts):
            say(str(finding))
        say(f"report: {run.output / REPORT_FILE}")
