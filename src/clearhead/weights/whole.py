"""Folders that are written whole or not at all: at any moment the name holds the earlier model or the new one."""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from clearhead.errors import ClearheadError

# The files that a model is written as, in any format. A folder that holds others is not replaced.
PARTS = {
    "1_Pooling", "chat_template.jinja", "clearhead.json", "config.json", "decoder_model.onnx",
    "decoder_model.onnx.data", "encoder_model.onnx", "encoder_model.onnx.data", "generation_config.json", "model.bin",
    "model.gguf", "model.onnx", "model.onnx.data", "model.safetensors", "modules.json", "onnx_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "shared_vocabulary.json", "source_tokenizer.json",
    "source_vocabulary.json", "special_tokens_map.json", "target_tokenizer.json", "target_vocabulary.json",
    "tokenizer.json", "tokenizer_config.json", "vocabulary.json",
}  # fmt: skip


@contextmanager
def whole(folder: str | Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when all is in it."""
    folder = Path(folder).resolve()
    try:
        check_free(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            yield new
            for file in (*new.rglob("*"), new):
                sync(file)
            _move(new, folder)  # what was there goes with the temporary folder
            sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"{folder} cannot be saved: {getattr(error, 'strerror', None) or error}.") from None


def check_free(folder: Path) -> None:
    """A model may take the place of nothing, or of a model."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise ClearheadError(f"{place} is a file; choose another name for the model's folder.")
    others = {path.name for path in folder.iterdir()} - PARTS if folder.exists() else set()
    if others:
        raise ClearheadError(f"{folder} holds {min(others)}, which is no part of a model; choose another name.")


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


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
