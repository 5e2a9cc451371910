"""A model as a folder: `clearhead.json`, `model.safetensors`, and `tokenizer.json` where there is one.

Written beside its place and moved there whole; nothing in it can run.
"""

import ctypes
import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead import reader
from clearhead.config import Config
from clearhead.errors import ClearheadError, nearest
from clearhead.model.transformer import Transformer, build
from clearhead.tokens.text import Tokenizer

CONFIG, WEIGHTS, TOKENIZER = "clearhead.json", "model.safetensors", "tokenizer.json"


def write(folder: str | Path, net: Transformer, config: Config, tokenizer: Tokenizer | None) -> None:
    """Whole or not at all: at any moment the name holds the earlier model or the new one."""
    folder = Path(folder).resolve()
    try:
        check_free(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as there:
            new = Path(there) / "new"
            new.mkdir()
            save_file({name: p.detach().contiguous() for name, p in net.named_parameters()}, new / WEIGHTS)
            (new / CONFIG).write_text(json.dumps(config.tree(), indent=1) + "\n", encoding="utf-8")
            if tokenizer is not None:
                tokenizer.save(new / TOKENIZER)
            for file in (*new.iterdir(), new):
                _sync(file)
            _move(new, folder)  # what was there goes with the temporary folder
            _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"{folder} cannot be saved: {getattr(error, 'strerror', None) or error}.") from None


def check_free(folder: Path) -> None:
    """A model may take the place of nothing, or of a model."""
    for place in (folder, *folder.absolute().parents):
        if place.exists() and not place.is_dir():
            raise ClearheadError(f"{place} is a file; choose another name for the model's folder.")
    others = {path.name for path in folder.iterdir()} - {CONFIG, WEIGHTS, TOKENIZER} if folder.exists() else set()
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: str | Path, device: str, dtype: torch.dtype | None) -> tuple[Transformer, Config, Tokenizer | None]:
    """The network, its configuration, its tokenizer."""
    folder = Path(folder)
    config = Config.of(reader.load(folder / CONFIG))
    net = build(config.model, seed=None)
    tensors = read_tensors(folder / WEIGHTS, device)
    fill(net, tensors, str(folder / WEIGHTS))
    tokenizer = Tokenizer.load(folder / TOKENIZER) if (folder / TOKENIZER).exists() else None
    return net.to(dtype=dtype).eval() if dtype else net.eval(), config, tokenizer


def read_tensors(path: Path, device: str) -> dict[str, Tensor]:
    try:
        return load_file(path, device=device)
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"{path} cannot be read as safetensors: {error}.") from None


def fill(net: Transformer, tensors: dict[str, Tensor], where: str) -> None:
    """Every parameter from the tensor of its name; nothing missing, nothing left over, nothing that is no number."""
    wanted = dict(net.named_parameters())
    for name, tensor in tensors.items():
        if name not in wanted:
            raise ClearheadError(f"{where} holds {name}, which this model does not have; {nearest(name, wanted)}")
        if tensor.shape != wanted[name].shape:
            raise ClearheadError(
                f"{where}: {name} is {tuple(tensor.shape)}, but the model needs {tuple(wanted[name].shape)}."
            )
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise ClearheadError(f"{where}: {name} holds values that are no finite numbers (NaN or infinity).")
    if missing := [name for name in wanted if name not in tensors]:
        raise ClearheadError(
            f"{where} lacks {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}."
        )
    net.load_state_dict(tensors, strict=False, assign=True)  # shared matrices are stored once
    for p in net.parameters():
        p.requires_grad_()
