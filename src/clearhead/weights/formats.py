"""Any model in, any format out: which reader fits a path or a name, and which writer a format."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from clearhead import reader
from clearhead.errors import ClearheadError, nearest, similar, understood
from clearhead.model.int8 import quantised
from clearhead.presets import presets
from clearhead.tokens import ggml, published
from clearhead.tokens.published import Published
from clearhead.weights import bundled, folder, hub
from clearhead.weights.checkpoint import Checkpoint, Home
from clearhead.weights.whole import whole
from clearhead.words.files import holds_vectors

FORMATS = {
    "clearhead": "clearhead.weights.folder",
    "hf": "clearhead.weights.huggingface",
    "gguf": "clearhead.weights.gguf",
    "ctranslate2": "clearhead.weights.ctranslate2",
    "onnx": "clearhead.weights.onnx",
}
CONFIG = "config.json"
WRITE_ONLY = {"model.bin": "CTranslate2", "onnx_config.json": "ONNX"}


def read(where: str | Path, home: Home) -> Checkpoint:
    """A bundled or fetched model by name, a clearhead or Hugging Face folder, a .gguf file, `owner/name` on the hub."""
    path = found(where, hub.WANTED)
    if path.suffix in (".safetensors", ".json", ".bin"):
        raise ClearheadError(f"{where} is one file of a model; name the folder that it is in.")
    if path.is_file():
        from clearhead.weights.gguf import read as read_gguf

        return read_gguf(path, home)
    if (path / folder.CONFIG).is_file():
        return folder.read(path, home)
    from clearhead.weights import huggingface

    for part, engine in WRITE_ONLY.items():
        if (path / part).is_file() and not (path / folder.WEIGHTS).is_file():
            raise ClearheadError(
                f"{where} was written for {engine}, which clearhead does not read; load what it came from."
            )
    if (path / huggingface.CONFIG).is_file():
        return huggingface.read(path, home)
    if holds_vectors(path):
        raise ClearheadError(f"{where} holds vectors of words, no model; clearhead vectors {where} … asks them.")
    needed = f"{folder.CONFIG} or {huggingface.CONFIG}"
    raise ClearheadError(f"{where} is no clearhead model and no Hugging Face model: there is no {needed} in it.")


def tokenizers(where: str | Path) -> Published:
    """How a model reads text, without its weights; `where` may also be a tokenizer.json, or a folder with one."""
    path = found(where, hub.WORDS)
    if path.suffix == ".json":
        return published.alone(path)
    if path.is_file():
        from clearhead.weights.gguf_file import GgufFile

        with understood(f"{path} cannot be understood"), path.open("rb") as file:
            if file.read(4) != b"GGUF" and path.suffix != ".gguf":
                raise ClearheadError(
                    f"{where} is no tokenizer; name a tokenizer.json, a .gguf file or a model's folder."
                )
            return ggml.read(GgufFile(path).values)
    if (path / folder.CONFIG).is_file():
        return folder.tokenizers(path)
    theirs = reader.load(path / CONFIG) if (path / CONFIG).is_file() else {}
    return published.read(path, str(theirs.get("model_type")), str(theirs.get("tokenizer_class") or ""))


def found(where: str | Path, wanted: list[str] = hub.WANTED) -> Path:
    """The folder or file that is meant; what is on the hub is fetched, as far as it is wanted."""
    if not isinstance(where, str | Path):
        raise ClearheadError(f"the name of a model is a text or a path, not {type(where).__name__}.")
    path = hub.find(where, wanted)
    if path is None:
        if str(where) in presets:
            raise ClearheadError(
                f"{where} is a preset, not a saved model; in Python, clearhead.new({str(where)!r}) makes one."
            )
        known = nearest(str(where), [*bundled.names(), *hub.CATALOGUE])
        hint = f"{similar(where)}." if "/" in str(where) else f" (a model on the hub is written owner/name); {known}"
        raise ClearheadError(f"{where} is no clearhead model: there is no such folder or file{hint}")
    return _best_of_run(path) or _only_gguf(path) or path


def _best_of_run(path: Path) -> Path | None:
    """The best model of a training run, or its last, where the folder is one."""
    if not (path / "run.json").is_file():
        return None
    steps = sorted(place for place in (path / "steps").glob("[0-9]*") if (place / folder.CONFIG).is_file())
    best = path / "best"
    return best if best.exists() else steps[-1] if steps else None


def _only_gguf(path: Path) -> Path | None:
    """The one .gguf file of a folder that holds no other model."""
    if not path.is_dir() or any((path / name).exists() for name in (folder.CONFIG, CONFIG)):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ClearheadError(f"{path} holds {len(found)} .gguf files; name one of them, such as {found[0].name}.")
    return found[0] if found else None


def write(where: str | Path, model: Checkpoint, kind: str = "clearhead") -> None:
    """Whole or not at all."""
    if kind not in FORMATS:
        raise ClearheadError(f"format {kind!r} is unknown; {nearest(str(kind).lower(), FORMATS)}")
    if quantised(model.net):
        raise ClearheadError("a model in int8 is not saved; save it in float32, and it is made int8 when it is read.")
    writer: Callable[[Path, Checkpoint], None] = import_module(FORMATS[kind]).write
    with whole(where, kind) as new:
        writer(new, model)
