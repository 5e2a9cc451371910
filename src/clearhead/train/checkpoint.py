"""The folder of a training run: its lock, data fingerprints, log and checkpoints.

    run.json                   configuration of the run
    data_fingerprints.json     state of the data files when the run began
    log.jsonl                  one line per report
    checkpoints/00000200/      a model for `clearhead.load`, with the training state beside it
    best                       link to the checkpoint with the lowest validation loss
    average/                   mean of the last models, if requested

A checkpoint holds the weights, optimizer state, weight averages, the step, and what accumulates
until the next report. The saved model is the one that was validated; if that is an EMA, the weights
that training continues with are part of the training state. The order of the data and all random
numbers follow from the seed and the step. Tensors are saved unsharded, so a run resumes with any
number of processes.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead.config.model import Config
from clearhead.config.parse import ConfigDict, Schema, read_json_as
from clearhead.config.serialize import diff_trees
from clearhead.config.training import DataConfig
from clearhead.data.media_dataset import AUDIO_SUFFIXES, IMAGE_SUFFIXES, idx_labels_path
from clearhead.data.readers import TEXT_SUFFIXES, glob_files, visible_files
from clearhead.errors import MAX_LISTED_NAMES, ClearheadError
from clearhead.io import file_lock, read_log, write_atomic
from clearhead.model.transformer import build_transformer
from clearhead.train.strategy import SingleProcess
from clearhead.weights.checkpoint import (
    WEIGHTS_FILE,
    Checkpoint,
    atomic_model_folder,
    save_checkpoint,
)
from clearhead.weights.tensors import Placement, SafetensorsReader, load_weights, open_safetensors

RUN_FILE = "run.json"
FINGERPRINT_FILE = "data_fingerprints.json"
LOG_FILE = "log.jsonl"
REPORT_DATA_FILE = "report.json"
LOCK_FILE = ".lock"
TOKENS_FOLDER = "tokens"
CHECKPOINTS_FOLDER = "checkpoints"
BEST_LINK = "best"
AVERAGE_FOLDER = "average"
STATE_TENSORS_FILE = "training_state.safetensors"
STATE_FILE = "training_state.json"
STATE_SCHEMA: Schema = {
    "step": int,
    "best_loss": int | float | None,
    "best_step": int | None,
    "evals_since_best": int,
    "first_loss": int | float | None,
    "unreported_losses": [[int | float]],
    "unreported_seconds": int | float,
}
FINGERPRINT_SCHEMA: Schema = {str: {"listing": str, "content": str}}

# Options of a run that may change when it is resumed.
MUTABLE_OPTIONS = {
    "train.max_steps",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_checkpoints",
    "train.patience",
    "train.average_checkpoints",
    "train.strategy",
    "train.probe_texts",
    "train.expected_loss",
}
PATH_OPTIONS = {"data.train", "data.valid", "data.tokenizer", "train.init_from"}

# Temporary names in the folder of a run and its subfolders; a killed process may leave them behind.
_RUN_FILES = (
    r"run\.json|data_fingerprints\.json|log\.jsonl|report\.json|report\.html|curve\.png|best|average"
    r"|(source_)?tokenizer\.json"
)
TEMPORARY_NAMES = {
    ".": rf"\.({_RUN_FILES})\.\w+",
    CHECKPOINTS_FOLDER: r"\.\d{8}\.\w+",
    TOKENS_FOLDER: r"\.(train|valid)\.\w+",
}


# --- the folder


@contextmanager
def lock_output(output: Path, strategy: SingleProcess) -> Iterator[None]:
    """Lock the folder of a run and remove temporary files that a killed process left in it."""
    if output.exists() and not output.is_dir():
        raise ClearheadError(f"{output} is a file; choose another --output.")
    if not strategy.is_main_process:
        yield
        return
    is_new = not output.exists()
    busy = f"another run is in progress in {output}; wait for it, or choose another --output."
    try:
        with file_lock(output / LOCK_FILE, busy):
            _remove_temporary_files(output)
            try:
                yield
            except ClearheadError:
                if is_new and not (output / LOG_FILE).exists():  # failed before its first step
                    shutil.rmtree(output, ignore_errors=True)
                raise
    finally:
        with suppress(OSError):  # removes the folder if it is empty
            output.rmdir()


def _remove_temporary_files(output: Path) -> None:
    for folder, pattern in TEMPORARY_NAMES.items():
        for path in (output / folder).glob(".*"):
            if not re.fullmatch(pattern, path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def check_same_run(
    run_file: Path,
    config: Config,
    sections: Sequence[str] = ("model", "inference", "data", "train"),
) -> None:
    """Refuse to resume a run with another configuration, except for `MUTABLE_OPTIONS`."""
    saved = Config.read(run_file).to_dict()
    current = config.to_dict()
    changes = [
        f"{path} = {old!r:.60} → {new!r:.60}"
        for section in sections
        for path, old, new in diff_trees(saved[section], current[section], f"{section}.")
        if path not in MUTABLE_OPTIONS and not same_paths(path, old, new)
    ]
    if not changes:
        return
    more = len(changes) - MAX_LISTED_NAMES
    shown = [*changes[:MAX_LISTED_NAMES], *([f"and {more} more"] if more > 0 else [])]
    raise ClearheadError(
        f"{run_file.parent} contains a run with other options: {'; '.join(shown)}. Choose another "
        "--output; to continue from the weights of that run, also set "
        f"--train.init_from={run_file.parent}."
    )


# --- fingerprints of the data


def fingerprint_data(data: DataConfig, output: Path, resuming: bool) -> ConfigDict:
    """Hash the data files of a run; refuse to resume it with changed data.

    For each path, one hash covers names, sizes and modification times, another one the content.
    Content is hashed again only if the first hash differs, so a file that was copied back counts
    as unchanged. Files that are missing for now keep their fingerprint.
    """
    fingerprint_file = output / FINGERPRINT_FILE
    saved = {}
    if resuming and fingerprint_file.is_file():
        saved = read_json_as(fingerprint_file, FINGERPRINT_SCHEMA)
    known = {_normalize_path(path): fingerprint for path, fingerprint in saved.items()}
    fingerprints: ConfigDict = {}
    for path in map(_normalize_path, (*data.train, *data.valid)):
        if resuming and fingerprint_file.is_file() and path not in known:
            raise ClearheadError(f"{fingerprint_file} is damaged: {path} is missing.")
        files = _data_files(path, output)
        previous = known.get(path, {})
        if previous and not files:
            fingerprints[path] = previous
            continue
        stats = [(file, file.stat()) for file in files]
        listing = _hash(f"{f}\0{s.st_size}\0{s.st_mtime_ns}\0".encode() for f, s in stats)
        if previous.get("listing") == listing:
            content = previous["content"]
        else:
            content = _hash(_file_digest(file) for file in files)
        if previous and content != previous["content"]:
            raise ClearheadError(
                f"{path} has changed since the run in {output} began; choose another --output."
            )
        fingerprints[path] = {"listing": listing, "content": content}
    return fingerprints


def same_paths(option: str, old: Any, new: Any) -> bool:
    """Whether two values of a path option name the same files, such as texts/ and ./texts."""
    return option in PATH_OPTIONS and _normalize_paths(old) == _normalize_paths(new)


def _normalize_paths(value: str | Sequence[str]) -> list[str]:
    return [_normalize_path(path) for path in ([value] if isinstance(value, str) else value)]


def _normalize_path(path: str) -> str:
    return str(Path(path)) if path else ""


def _data_files(pattern: str, output: Path) -> list[Path]:
    """Data files of a path: a file and its labels, the matches of a glob, or a folder's content."""
    path = Path(pattern)
    if path.is_file():
        return [file for file in dict.fromkeys((path, idx_labels_path(path))) if file.is_file()]
    if not path.is_dir():
        return glob_files(pattern)
    suffixes = (*TEXT_SUFFIXES, *IMAGE_SUFFIXES, *AUDIO_SUFFIXES)
    return [
        file
        for file in visible_files(path)
        if file.name.lower().endswith(suffixes) and output.resolve() not in file.resolve().parents
    ]


def _file_digest(file: Path) -> bytes:
    """Hash of the name, which may contain a label, and the content."""
    try:
        with file.open("rb") as content:
            return str(file).encode() + hashlib.file_digest(content, "sha256").digest()
    except OSError:  # reported when it is read as data
        return b""


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


# --- checkpoints


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk: its step, progress (`STATE_SCHEMA` without the step) and folder."""

    step: int
    progress: dict[str, Any]
    folder: Path

    def weights(self) -> dict[str, Tensor]:
        return _read_tensors(self.folder / WEIGHTS_FILE)

    def state(self) -> dict[str, Tensor]:
        return _read_tensors(self.folder / STATE_TENSORS_FILE)


class CheckpointManager:
    """Checkpoints of a run: saves, averages and prunes them.

    The last `keep_checkpoints` regular ones (every `save_every` steps) and the best one are kept.
    Extra checkpoints, saved for a new best loss or an interrupt, do not count, so that what is kept
    and averaged does not depend on when a run was interrupted.
    """

    def __init__(self, output: Path, keep_checkpoints: int = 1, save_every: int = 1) -> None:
        self.output = output
        self.keep_checkpoints = keep_checkpoints
        self.save_every = save_every

    def folder(self, step: int) -> Path:
        return self.output / CHECKPOINTS_FOLDER / f"{step:08d}"

    def save(
        self, step: int, model: Checkpoint, state: Mapping[str, Tensor], progress: dict[str, Any]
    ) -> None:
        """Save model, training state and progress atomically."""
        with atomic_model_folder(self.folder(step)) as folder:
            save_checkpoint(folder, model)
            tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
            save_file(tensors, folder / STATE_TENSORS_FILE)
            content = json.dumps({"step": step, **progress}) + "\n"
            (folder / STATE_FILE).write_text(content, encoding="utf-8")

    def save_average(self, model: Checkpoint, count: int) -> int:
        """Save the fp32 mean of the last `count` models; return how many there were."""
        readers = [
            SafetensorsReader([folder / WEIGHTS_FILE])
            for folder in self._regular_checkpoints()[-count:]
        ]
        means = (
            (name, torch.stack([r.get_tensor(name).float() for r in readers]).mean(dim=0))
            for name in readers[0].shapes
        )
        net = load_weights(
            build_transformer(model.config.model, seed=None),
            means,
            Placement(),
            str(self.output / CHECKPOINTS_FOLDER),
        )
        with atomic_model_folder(self.output / AVERAGE_FOLDER) as folder:
            save_checkpoint(folder, replace(model, net=net))
        return len(readers)

    def latest(self) -> SavedCheckpoint | None:
        """Newest complete checkpoint."""
        folders = self._complete_checkpoints()
        if not folders:
            return None
        state_file = folders[-1] / STATE_FILE
        progress = read_json_as(state_file, STATE_SCHEMA)
        step = progress.pop("step")
        best_step = progress["best_step"]
        if (
            step != int(folders[-1].name)
            or not (best_step is None or 0 <= best_step <= step)
            or not all(len(pair) == 2 and pair[1] > 0 for pair in progress["unreported_losses"])
        ):
            raise ClearheadError(f"{state_file} is damaged: it is not the state of step {step}.")
        return SavedCheckpoint(step, progress, folders[-1])

    def best(self) -> Path | None:
        """Checkpoint with the lowest validation loss, as a link."""
        link = self.output / BEST_LINK
        return link if link.exists() else None

    def exists(self, step: int) -> bool:
        return (self.folder(step) / STATE_FILE).is_file()

    def prune(self, best_step: int | None) -> None:
        """Point the `best` link to this step, and remove checkpoints that are not kept.

        The link is replaced atomically, so it always points to a complete checkpoint.
        """
        keep = self._regular_checkpoints()[-self.keep_checkpoints :]
        if best_step is not None:
            best = self.folder(best_step)
            keep.append(best)
            link = self.output / BEST_LINK
            target = best.relative_to(self.output)
            if not link.is_symlink() or link.readlink() != target:
                temporary = self.output / f".{BEST_LINK}.{os.getpid()}"
                temporary.unlink(missing_ok=True)
                temporary.symlink_to(target)
                temporary.replace(link)
        for folder in self._complete_checkpoints():
            if folder not in keep:  # renamed first: half a folder is not a checkpoint
                shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.old")))

    def _complete_checkpoints(self) -> list[Path]:
        return sorted(
            folder
            for folder in (self.output / CHECKPOINTS_FOLDER).glob("*")
            if re.fullmatch(r"\d{8}", folder.name) and (folder / STATE_FILE).is_file()
        )

    def _regular_checkpoints(self) -> list[Path]:
        """Checkpoints every `save_every` steps, and the newest one."""
        folders = self._complete_checkpoints()
        return [
            folder
            for folder in folders
            if int(folder.name) % self.save_every == 0 or folder == folders[-1]
        ]


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Map all tensors of a file into memory, from where they are copied into a run."""
    with open_safetensors(file) as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118


# --- log


class LogWriter:
    """Writes log.jsonl, after removing reports later than the step that the run resumes from."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        reports = [report for report in read_log(path) if report["step"] <= step]
        self.last_loss = float(reports[-1]["loss"]) if reports else math.nan
        write_atomic(path, "".join(json.dumps(report) + "\n" for report in reports).encode())

    def write(self, report: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
