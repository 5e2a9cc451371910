"""A model as a folder: `clearhead.json`, `model.safetensors`, and `tokenizer.json` where there is one.

Written beside its place and moved there whole; nothing in it can run.
"""

import json
import os
import shutil
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
    """Whole or not at all; an earlier model of that name stays until the new one is complete."""
    folder = Path(folder)
    if folder.exists() and not (folder / CONFIG).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClearheadError(f"{folder} exists and is no clearhead model; choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        save_file({name: p.detach().contiguous() for name, p in net.named_parameters()}, new / WEIGHTS)
        (new / CONFIG).write_text(json.dumps(config.tree(), indent=1) + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(new / TOKENIZER)
        for file in (*new.iterdir(), new):
            _sync(file)
        new.chmod(0o755)
        if folder.exists():
            old = new.with_name(new.name + ".old")
            folder.rename(old)
            new.rename(folder)
            shutil.rmtree(old)
        else:
            new.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
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
