"""Folders that are written whole or not at all: at any moment the name holds the earlier model or the new one."""

import ctypes
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from clearhead import reader
from clearhead.errors import ClearheadError
from clearhead.files import sync

# The files that a model is written as, in any format. A folder that holds others is not replaced.
PARTS = {
    "1_Pooling", "chat_template.jinja", "clearhead.json", "clearhead_export.json", "config.json", "decoder_model.onnx",
    "decoder_model.onnx.data", "encoder_model.onnx", "encoder_model.onnx.data", "generation_config.json", "model.bin",
    "model.gguf", "model.onnx", "model.onnx.data", "model.safetensors", "modules.json", "onnx_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "shared_vocabulary.json", "source_tokenizer.json",
    "source_vocabulary.json", "special_tokens_map.json", "target_tokenizer.json", "target_vocabulary.json",
    "tokenizer.json", "tokenizer_config.json", "vocabulary.json",
}  # fmt: skip


OURS, MARK = "clearhead.json", "clearhead_export.json"  # what tells that a folder was written here


@contextmanager
def whole(folder: str | Path, kind: str = "clearhead") -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when all is in it."""
    folder = Path(folder).resolve()
    try:
        check_free(folder, kind)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            yield new
            if kind != "clearhead":
                more = reader.load(new / MARK) if (new / MARK).is_file() else {}
                (new / MARK).write_text(json.dumps({"format": kind, **more}) + "\n", encoding="utf-8")
            for file in (*new.rglob("*"), new):
                if file.is_file():  # some libraries write for the owner's eyes only
                    file.chmod(new.stat().st_mode & 0o666)
                sync(file)
            _move(new, folder)  # what was there goes with the temporary folder
            sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"{folder} cannot be saved: {getattr(error, 'strerror', None) or error}.") from None


def check_free(folder: Path, kind: str = "clearhead") -> None:
    """A model may take the place of nothing, or of a model that was written here in the same format."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise ClearheadError(f"{place} is a file; choose another name for the model's folder.")
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := inside - PARTS:
        raise ClearheadError(f"{folder} holds {min(others)}, which is no part of a model; choose another name.")
    if inside and written_as(folder) != kind:
        held = written_as(folder) or "foreign"
        raise ClearheadError(f"{folder} holds a {held} model, which is not replaced by another; choose another name.")


def written_as(folder: Path) -> str:
    """The format in which a folder was written here; empty if it was not."""
    if (folder / OURS).is_file():
        return "clearhead"
    try:
        return str(json.loads((folder / MARK).read_text(encoding="utf-8"))["format"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _move(new: Path, folder: Path) -> None:
    """`new` takes the place of `folder`; where both exist the system exchanges them in one step."""
    if not folder.exists():
        new.rename(folder)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, both_stay = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if exchange is None or exchange(here, os.fsencode(new), here, os.fsencode(folder), both_stay) != 0:
        old = new.with_name("old")
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
