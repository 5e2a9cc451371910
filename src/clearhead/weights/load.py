"""Any model in, any format out: which reader fits a path or a name, and which writer a format."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from clearhead.config.parse import read_config_file
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError, reraise_as, suggest, suggest_file
from clearhead.io import atomic_model_folder
from clearhead.model.int8 import is_quantized
from clearhead.tokenizers.gguf import read_gguf_tokenizer
from clearhead.tokenizers.huggingface import (
    PretrainedTokenizer,
    read_hf_tokenizer,
    read_tokenizer_json,
)
from clearhead.weights import hub
from clearhead.weights.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    Placement,
    load_checkpoint,
    load_checkpoint_tokenizers,
)
from clearhead.weights.model_cards import bundled_models
from clearhead.word_vectors.io import has_word_vectors

SAVE_FORMATS = {
    "clearhead": "clearhead.weights.checkpoint",
    "hf": "clearhead.weights.huggingface",
    "gguf": "clearhead.weights.gguf",
    "ctranslate2": "clearhead.weights.ctranslate2",
    "onnx": "clearhead.weights.onnx",
}
HF_CONFIG_FILE = "config.json"
EXPORT_ONLY_FILES = {"model.bin": "CTranslate2", "onnx_config.json": "ONNX"}


def load_model(where: str | Path, home: Placement) -> Checkpoint:
    """A bundled or fetched model by name, a clearhead or Hugging Face folder, a .gguf file, `owner/name` on the hub."""
    path = resolve_model(where, hub.MODEL_PATTERNS)
    if path.suffix in (".safetensors", ".json", ".bin"):
        raise ClearheadError(f"{where} is one file of a model; name the folder that it is in.")
    if path.is_file():
        from clearhead.weights.gguf import load_gguf as read_gguf

        return read_gguf(path, home)
    if (path / CONFIG_FILE).is_file():
        return load_checkpoint(path, home)
    from clearhead.weights import huggingface

    for part, engine in EXPORT_ONLY_FILES.items():
        if (path / part).is_file() and not (path / WEIGHTS_FILE).is_file():
            raise ClearheadError(
                f"{where} was written for {engine}, which clearhead does not read; load what it came from."
            )
    if (path / huggingface.HF_CONFIG_FILE).is_file():
        return huggingface.load_huggingface(path, home)
    if has_word_vectors(path):
        raise ClearheadError(
            f"{where} holds vectors of words, no model; clearhead vectors {where} … asks them."
        )
    needed = f"{CONFIG_FILE} or {huggingface.HF_CONFIG_FILE}"
    raise ClearheadError(
        f"{where} is no clearhead model and no Hugging Face model: there is no {needed} in it."
    )


def load_tokenizers(where: str | Path) -> PretrainedTokenizer:
    """How a model reads text, without its weights; `where` may also be a tokenizer.json, or a folder with one."""
    path = resolve_model(where, hub.TOKENIZER_PATTERNS)
    if path.suffix == ".json":
        return read_tokenizer_json(path)
    if path.is_file():
        from clearhead.weights.gguf import GGUFFile

        with reraise_as(f"{path} cannot be understood"), path.open("rb") as file:
            if file.read(4) != b"GGUF" and path.suffix != ".gguf":
                raise ClearheadError(
                    f"{where} is no tokenizer; name a tokenizer.json, a .gguf file or a model's folder."
                )
            return read_gguf_tokenizer(GGUFFile(path).metadata)
    if (path / CONFIG_FILE).is_file():
        return load_checkpoint_tokenizers(path)
    theirs = read_config_file(path / HF_CONFIG_FILE) if (path / HF_CONFIG_FILE).is_file() else {}
    return read_hf_tokenizer(
        path, str(theirs.get("model_type")), str(theirs.get("tokenizer_class") or "")
    )


def resolve_model(where: str | Path, wanted: list[str] = hub.MODEL_PATTERNS) -> Path:
    """The folder or file that is meant; what is on the hub is fetched, as far as it is wanted."""
    if not isinstance(where, str | Path):
        raise ClearheadError(
            f"the name of a model is a text or a path, not {type(where).__name__}."
        )
    path = hub.find_model(where, wanted)
    if path is None:
        if str(where) in presets:
            raise ClearheadError(
                f"{where} is a preset, not a saved model; in Python, clearhead.new({str(where)!r}) makes one."
            )
        known = suggest(str(where), [*bundled_models(), *hub.WHEEL_MODELS])
        hint = (
            f"{suggest_file(where)}."
            if "/" in str(where)
            else f" (a model on the hub is written owner/name); {known}"
        )
        raise ClearheadError(
            f"{where} is no clearhead model: there is no such folder or file{hint}"
        )
    return _run_checkpoint(path) or _single_gguf(path) or path


def _run_checkpoint(path: Path) -> Path | None:
    """The best model of a training run, or its last, where the folder is one."""
    if not (path / "run.json").is_file():
        return None
    steps = sorted(
        place for place in (path / "steps").glob("[0-9]*") if (place / CONFIG_FILE).is_file()
    )
    best = path / "best"
    return best if best.exists() else steps[-1] if steps else None


def _single_gguf(path: Path) -> Path | None:
    """The one .gguf file of a folder that holds no other model."""
    if not path.is_dir() or any((path / name).exists() for name in (CONFIG_FILE, HF_CONFIG_FILE)):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ClearheadError(
            f"{path} holds {len(found)} .gguf files; name one of them, such as {found[0].name}."
        )
    return found[0] if found else None


def save_model(where: str | Path, model: Checkpoint, kind: str = "clearhead") -> None:
    """Whole or not at all."""
    if kind not in SAVE_FORMATS:
        raise ClearheadError(
            f"format {kind!r} is unknown; {suggest(str(kind).lower(), SAVE_FORMATS)}"
        )
    if is_quantized(model.net):
        raise ClearheadError(
            "a model in int8 is not saved; save it in float32, and it is made int8 when it is read."
        )
    writer: Callable[[Path, Checkpoint], None] = import_module(SAVE_FORMATS[kind]).write
    with atomic_model_folder(where, kind) as new:
        writer(new, model)
