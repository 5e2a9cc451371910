"""Hugging Face folders: `config.json`, safetensors in one file or many, and a tokenizer; in and out.

Nothing of a folder is ever run: no pickles, no code of its own.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from clearhead import config as c
from clearhead import reader
from clearhead.config import Config, Use
from clearhead.errors import ClearheadError, understood
from clearhead.files import write_json
from clearhead.tokens import published
from clearhead.weights import around, features, fields, rules
from clearhead.weights.checkpoint import Checkpoint, Home, fill, promised
from clearhead.weights.express import expressed
from clearhead.weights.families.family import Family
from clearhead.weights.families.known import FAMILIES
from clearhead.weights.store import Safetensors
from clearhead.weights.whole import MARK

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
KNOWN = {family.name: family for family in FAMILIES}


def read(folder: Path, home: Home) -> Checkpoint:
    with understood(f"{folder} cannot be understood"):
        return _read(folder, home)


def _read(folder: Path, home: Home) -> Checkpoint:
    theirs = reader.load(folder / CONFIG)
    family, head = _family(theirs)
    labels = around.labels(theirs)
    m = fields.read(family.fields, replace(family.base, head=around.sized(head, theirs, labels)), theirs)
    m = features.read(folder, m)
    words = published.read(folder, family.name, str(theirs.get("tokenizer_class") or ""))
    use = around.read(folder, theirs, words, m, labels)
    if (folder / MARK).is_file():
        use = reader.read(Use, reader.tree(use) | reader.load(folder / MARK).get("use", {}))
    stored = Safetensors(weight_files(folder, theirs))
    net = promised(m, len(stored.shapes))
    where = str(folder)
    fill(net, rules.read(family.table(m), stored, net, m, where), home, where)
    return Checkpoint(net, Config(m, use), words.tokenizer, words.source, words.why)


def _family(theirs: dict[str, Any]) -> tuple[Family, c.Head]:
    """Which table, and which head, by what the file says of itself."""
    if "auto_map" in theirs:
        raise ClearheadError("config.json asks for code of its own (auto_map); clearhead runs nothing from a folder.")
    if "quantization_config" in theirs:
        raise ClearheadError("config.json speaks of quantised weights; clearhead reads those from .gguf files only.")
    kind = theirs.get("model_type")
    if kind not in KNOWN:
        raise ClearheadError(
            f"config.json: model_type {kind!r} is no family that clearhead knows; it knows {', '.join(KNOWN)}."
        )
    family = KNOWN[kind]
    named = theirs.get("architectures") or list(family.heads)
    name = named[0] if isinstance(named, list) else named
    if name not in family.heads:
        known = ", ".join(family.heads)
        raise ClearheadError(f"config.json: architecture {name!r} is not one that clearhead knows: {known}.")
    return family, family.heads[name]


def weight_files(folder: Path, theirs: dict[str, Any]) -> list[Path]:
    """One file, or those that an index names: plain names of files beside it."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        if pickles := sorted(folder.glob("*.bin")):
            name = (theirs.get("architectures") or ["AutoModel"])[0]
            classes = (name, "AutoTokenizer")
            convert = "; ".join(f"t.{n}.from_pretrained({str(folder)!r}).save_pretrained('safe')" for n in classes)
            raise ClearheadError(
                f"{pickles[0].name} is a pickle, which can run code when it is opened, so clearhead does not open it. "
                f'If you trust it, convert it once: python -c "import transformers as t; {convert}"'
            )
        raise ClearheadError(f"{folder} holds no weights: there is no {WEIGHTS} and no {INDEX}.")
    named = reader.load(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ClearheadError(f"{INDEX} must hold a weight_map from names to files.")
    files = sorted(set(named.values()))
    for name in files:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise ClearheadError(f"{INDEX} names {name!r}, which is no safetensors file beside it.")
        if not (folder / name).is_file():
            raise ClearheadError(f"{INDEX} names {name}, which is not there; the download may be incomplete.")
    return [folder / name for name in files]


def write(folder: Path, model: Checkpoint) -> None:
    """As the first family that computes the same; it loads with transformers' Auto classes.

    What they have no place for in how it is used stands in a file of ours, for whoever reads it here.
    """
    family, architecture, theirs, model = expressed(model, FAMILIES, "Hugging Face")
    m, use = model.config.model, model.config.use
    dtype = str(next(model.net.parameters()).dtype).removeprefix("torch.")
    theirs = {"model_type": family.name, "architectures": [architecture], "torch_dtype": dtype, **theirs}
    prefixes = family.table(m).prefixes
    prefix = prefixes[-1] if isinstance(m.head, c.Hidden) else prefixes[0]
    save_file(dict(rules.write(family.table(m), model.net, m, prefix)), folder / WEIGHTS, {"format": "pt"})
    theirs |= around.write(folder, use, m)
    write_json(folder / CONFIG, theirs)
    if model.tokenizer is not None:
        published.write(folder, model.tokenizer, model.source_tokenizer, use, m)
    features.write(folder, m)
    words = published.read(folder, family.name)
    back = reader.tree(around.read(folder, theirs, words, m, around.labels(theirs)))
    back["chat"] = use.chat  # which comes back with the tokens that it speaks of
    if lost := {name: value for name, value in reader.tree(use).items() if value != back[name]}:
        write_json(folder / MARK, {"use": lost})
