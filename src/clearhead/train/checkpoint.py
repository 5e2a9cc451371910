"""Whether a run goes on with the data that it began with."""

import glob
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead.config.model import Config
from clearhead.config.parse import ConfigDict, read_config_file
from clearhead.config.training import DataConfig
from clearhead.data.media import AUDIO_SUFFIXES, IMAGE_SUFFIXES, idx_labels_path
from clearhead.data.readers import TEXT_SUFFIXES
from clearhead.errors import ClearheadError
from clearhead.io import atomic_model_folder, file_lock, read_json_lines, write_atomic
from clearhead.model.transformer import build_transformer
from clearhead.train.distributed import SingleProcess
from clearhead.weights.checkpoint import (
    WEIGHTS_FILE,
    Checkpoint,
    Placement,
    SafetensorsReader,
    load_weights,
    save_checkpoint,
)
from clearhead.weights.mapping import diff_trees

# ---- unchanged: Whether a run goes on with the data that it began with.

FINGERPRINT_FILE = "data.json"
PATH_OPTIONS = "data.train", "data.valid", "data.tokenizer", "train.init_from"


def fingerprint_data(data: DataConfig, out: Path, resuming: bool) -> ConfigDict:
    """What each path holds now: a hash of names, sizes and times, and one of the content.

    A run that is held in `out`, to be gone on with, refuses what has changed. Content is only read anew where a name,
    size or time is not as it was: a file that was copied back is the same, and what is away for now is known on. What
    comes through a pipe is kept in the folder of the run.
    """
    kept = (
        read_config_file(out / FINGERPRINT_FILE)
        if resuming and (out / FINGERPRINT_FILE).is_file()
        else {}
    )
    known = {_normalize_path(path): state for path, state in kept.items()}
    found: ConfigDict = {}
    for path in map(_normalize_path, (*data.train, *data.valid)):
        files = _data_files(path, out)
        before = known.get(path, {})
        if before and not files:
            found[path] = before
            continue
        states = [(file, file.stat()) for file in files]
        listing = _hash(
            f"{file}\0{state.st_size}\0{state.st_mtime_ns}\0".encode() for file, state in states
        )
        content = (
            before["content"]
            if before.get("listing") == listing
            else _hash(_digest(file) for file in files)
        )
        if before and content != before["content"]:
            raise ClearheadError(
                f"{path} has changed since the run in {out} began; choose another --out."
            )
        found[path] = {"listing": listing, "content": content}
    return found


def same_paths(option: str, old: Any, new: Any) -> bool:
    """Whether an option names the same files, spelled otherwise: texts/ and ./texts are texts."""
    if option not in PATH_OPTIONS:
        return False
    first, second = ([value] if isinstance(value, str) else value for value in (old, new))
    return list(map(_normalize_path, first)) == list(map(_normalize_path, second))


def _normalize_path(path: str) -> str:
    return str(Path(path)) if path else ""


def _data_files(path: str, out: Path) -> list[Path]:
    """The files that a path stands for, with their labels where those stand beside them; of a folder those that may be
    data, and none of the run's own."""
    place = Path(path)
    if place.is_file():
        return [file for file in dict.fromkeys((place, idx_labels_path(place))) if file.is_file()]
    if not place.is_dir():
        return sorted(
            Path(file) for file in glob.glob(path, recursive=True) if Path(file).is_file()
        )
    inside = (
        file
        for file in place.rglob("*")
        if file.name.lower().endswith((*TEXT_SUFFIXES, *IMAGE_SUFFIXES, *AUDIO_SUFFIXES))
    )
    seen = (
        file for file in inside if not any(part[0] == "." for part in file.relative_to(place).parts)
    )
    return sorted(
        file for file in seen if file.is_file() and out.resolve() not in file.resolve().parents
    )


def _digest(file: Path) -> bytes:
    """Of its name, which may be a label, and its content."""
    try:
        with file.open("rb") as content:
            return str(file).encode() + hashlib.file_digest(content, "sha256").digest()
    except OSError:  # whoever reads it as data will tell
        return b""


def _hash(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


# ---- checkpoint: A run as a folder: its configuration, its log, and checkpoints that are whole or not there.

LOG_FILE = "log.jsonl"
STATE_TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
CHECKPOINTS_FOLDER = "steps"
BEST_LINK = "best"
AVERAGE_FOLDER = "average"
STATE_KEYS = {"step", "best", "best_step", "since", "first"}  # what a run remembers


@dataclass(frozen=True)
class SavedCheckpoint:
    """Where a run stands: the step that comes next, and what is remembered about the ones before."""

    step: int
    progress: dict[str, Any]
    directory: Path

    def weights(self) -> dict[str, Tensor]:
        return _read_tensors(self.directory / WEIGHTS_FILE)

    def state(self) -> dict[str, Tensor]:
        return _read_tensors(self.directory / STATE_TENSORS_FILE)


class CheckpointManager:
    """The checkpoints of one run. The last `keep` remain, and the best.

    Those between two that were due, every `save` steps, do not count: of a better model, or of an interrupt. So what
    is kept and averaged does not depend on how a run was cut.
    """

    def __init__(self, out: Path, keep_checkpoints: int = 1, save_every: int = 1) -> None:
        self.output = out
        self.keep_checkpoints = keep_checkpoints
        self.save_every = save_every

    def directory(self, step: int) -> Path:
        return self.output / CHECKPOINTS_FOLDER / f"{step:08d}"

    def save(
        self, step: int, model: Checkpoint, state: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """All of it under its step's name, or nothing."""
        with atomic_model_folder(self.directory(step)) as new:
            save_checkpoint(new, model)
            save_file(
                {name: t.detach().cpu().contiguous() for name, t in state.items()},
                new / STATE_TENSORS_FILE,
            )
            (new / STATE_FILE).write_text(
                json.dumps({"step": step, **facts}) + "\n", encoding="utf-8"
            )

    def save_average(self, model: Checkpoint, count: int) -> int:
        """The mean of the last models in fp32, as a model of its own; of how many, for there may be fewer."""
        stored = [SafetensorsReader([place / WEIGHTS_FILE]) for place in self._due()[-count:]]
        means = (
            (name, torch.stack([one.get_tensor(name).float() for one in stored]).mean(dim=0))
            for name in stored[0].shapes
        )
        net = load_weights(
            build_transformer(model.config.model, seed=None),
            means,
            Placement(),
            str(self.output / CHECKPOINTS_FOLDER),
        )
        with atomic_model_folder(self.output / AVERAGE_FOLDER) as new:
            save_checkpoint(new, replace(model, net=net))
        return len(stored)

    def latest(self) -> SavedCheckpoint | None:
        """The newest one that is whole."""
        if not (found := self._steps()):
            return None
        facts = read_config_file(found[-1] / STATE_FILE)
        if type(facts.get("step")) is not int or not facts.keys() >= STATE_KEYS:
            raise ClearheadError(
                f"{found[-1] / STATE_FILE} is damaged: it does not tell where the run stands."
            )
        return SavedCheckpoint(int(facts.pop("step")), facts, found[-1])

    def exists(self, step: int) -> bool:
        return (self.directory(step) / STATE_FILE).is_file()

    def _steps(self) -> list[Path]:
        found = (
            (self.output / CHECKPOINTS_FOLDER).glob("*")
            if (self.output / CHECKPOINTS_FOLDER).is_dir()
            else ()
        )
        return sorted(
            path
            for path in found
            if re.fullmatch(r"\d{8}", path.name) and (path / STATE_FILE).is_file()
        )

    def _due(self) -> list[Path]:
        """Those that every run of this length has: one every so many steps, and the newest."""
        found = self._steps()
        return [
            place for place in found if int(place.name) % self.save_every == 0 or place == found[-1]
        ]

    def prune(self, best: int | None) -> None:
        """`best` is the link to this step, if to any, also where a run was killed before it was; older ones go.

        The link changes in one step: it always leads to a whole checkpoint.
        """
        kept = self._due()[-self.keep_checkpoints :]
        if best is not None:
            kept.append(self.directory(best))
            there = self.directory(best).relative_to(self.output)
            if (
                not (self.output / BEST_LINK).is_symlink()
                or (self.output / BEST_LINK).readlink() != there
            ):
                draft = self.output / f".{BEST_LINK}.{os.getpid()}"
                draft.unlink(missing_ok=True)
                draft.symlink_to(there)
                draft.replace(self.output / BEST_LINK)
        for place in self._steps():
            if place not in kept:  # first the name goes: half of what is removed is no checkpoint
                shutil.rmtree(place.rename(place.with_name(f".{place.name}.old")))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped: they take no memory until they are copied to where they are needed."""
    stored = SafetensorsReader([file])
    return {name: stored.get_tensor(name) for name in stored.shapes}


def read_log(log: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, each with a step and its loss."""
    damaged = ClearheadError(
        f"{log} is damaged: not every line is a report with a step and a loss."
    )
    try:
        found = read_json_lines(log)
    except UnicodeDecodeError:
        raise damaged from None
    for line in found:
        if not isinstance(line, dict) or not all(
            isinstance(line.get(name), int | float) for name in ("step", "loss")
        ):
            raise damaged
    return found


class LogWriter:
    """One line of JSON for each report; what a killed run wrote after its last checkpoint is taken back."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_log(path) if line["step"] <= step]
        self.last_loss = float(kept[-1]["loss"]) if kept else math.nan  # of the last report
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


MUTABLE_OPTIONS = (
    "max_steps", "log_every", "eval_every", "save_every", "keep_checkpoints", "patience", "average_checkpoints", "strategy",
    "probe_texts", "expected_loss",
)  # fmt: skip


def check_same_run(run: Path, tree: ConfigDict) -> None:
    """A run goes on as what it was: only how long it lasts and how often it reports may change."""
    before = Config.from_dict(read_config_file(run)).to_dict()
    for path, old, new in diff_trees(before, tree, ""):
        if path.removeprefix("train.") not in MUTABLE_OPTIONS and not same_paths(path, old, new):
            raise ClearheadError(
                f"{run.parent} holds a run with {path} = {old!r}, not {new!r}; choose another --out for this one."
            )


# ---- claim: The folder of a run belongs to one process at a time, which first clears away what a killed one left half done.

LOCK_FILE = ".lock"
OWN_FILES = r"run\.json|data\.json|log\.jsonl|facts\.json|report\.html|curve\.png|best|average|(source_)?tokenizer\.json"
TEMPORARY_NAMES = {
    ".": rf"\.({OWN_FILES})\.\w+",
    "steps": r"\.\d{8}\.\w+",
    "tokens": r"\.(train|valid)\.\w+",
}
TEMPORARY_NAMES["piped"] = r"\.(train|valid)-\d+\..+"


@contextmanager
def lock_output(out: Path, team: SingleProcess) -> Iterator[None]:
    """For the time of a run; a second one in the same folder is refused."""
    if out.exists() and not out.is_dir():
        raise ClearheadError(f"{out} is a file; choose another --out.")
    if not team.is_main_process:
        yield
        return
    fresh = not out.exists()
    try:
        with file_lock(
            out / LOCK_FILE,
            f"a run is under way in {out}; wait for its end, or choose another --out.",
        ):
            _remove_temporary_files(out)
            try:
                yield
            except ClearheadError:
                if fresh and not (out / LOG_FILE).exists():  # it was refused before its first step
                    shutil.rmtree(out, ignore_errors=True)
                raise
    finally:
        with suppress(OSError):  # a run that was refused leaves no empty folder
            out.rmdir()


def _remove_temporary_files(out: Path) -> None:
    for folder, names in TEMPORARY_NAMES.items():
        for path in (out / folder).glob(".*"):
            if re.fullmatch(names, path.name):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
