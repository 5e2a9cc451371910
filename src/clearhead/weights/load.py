"""Load any supported model, and save in any supported format."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from clearhead.config.parse import read_config_file
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError, check_type, reraise_as, suggest, suggest_file
from clearhead.model.int8 import is_quantized
from clearhead.model.transformer import build_transformer
from clearhead.tokenizers.gguf import read_gguf_tokenizer
from clearhead.tokenizers.huggingface import (
    PretrainedTokenizer,
    read_hf_tokenizer,
    read_tokenizer_json,
)
from clearhead.weights import hub
from clearhead.weights.bundled import bundled_models
from clearhead.weights.checkpoint import (
    CONFIG_FILE,
    HF_CONFIG_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    atomic_model_folder,
    load_checkpoint,
    load_checkpoint_tokenizers,
)
from clearhead.weights.tensors import Placement
from clearhead.word_vectors.io import has_word_vectors

# The function that writes each format; modules are imported when they are needed.
SAVE_FORMATS = {
    "clearhead": "checkpoint.save_checkpoint",
    "hf": "huggingface.save_huggingface",
    "gguf": "gguf.save_gguf",
    "ctranslate2": "export_ctranslate2.save_ctranslate2",
    "onnx": "export_onnx.save_onnx",
}
NOT_IN_CONFIG = (
    ", which model.config does not describe, so it could not be loaded. Save model.net.state_dict()"
    " with torch instead."
)
EXPORT_ONLY_FILES = {"model.bin": "CTranslate2", "onnx_config.json": "ONNX"}


def load_model(name: str | Path, placement: Placement) -> Checkpoint:
    """Load a model by bundled or downloaded name, folder, .gguf file, training run, or hub id."""
    path = resolve_model(name)
    if path.suffix == ".onnx":
        raise ClearheadError(_export_only(name, "ONNX"))
    if path.suffix in (".safetensors", ".json", ".bin"):
        raise ClearheadError(f"{name} is a single file of a model; pass the folder it is in.")
    if path.is_file():
        from clearhead.weights.gguf import load_gguf

        return load_gguf(path, placement)
    if (path / CONFIG_FILE).is_file():
        return load_checkpoint(path, placement)
    for file, engine in EXPORT_ONLY_FILES.items():
        if (path / file).is_file() and not (path / WEIGHTS_FILE).is_file():
            raise ClearheadError(_export_only(name, engine))
    if (path / HF_CONFIG_FILE).is_file():
        from clearhead.weights.huggingface import load_huggingface

        return load_huggingface(path, placement)
    if has_word_vectors(path):
        raise ClearheadError(
            f"{name} contains word vectors, not a model; use clearhead vectors {name}."
        )
    raise ClearheadError(
        f"{name} is not a model: it contains neither {CONFIG_FILE} nor {HF_CONFIG_FILE}."
    )


def _export_only(name: str | Path, engine: str) -> str:
    return (
        f"{name} is an export to {engine}, which clearhead cannot load; load the model it was "
        "exported from."
    )


def load_tokenizers(name: str | Path) -> PretrainedTokenizer:
    """Load a model's tokenizers without its weights, or a tokenizer.json by itself."""
    path = resolve_model(name, hub.TOKENIZER_PATTERNS)
    if path.suffix == ".json":
        return read_tokenizer_json(path)
    if path.is_file():
        from clearhead.weights.gguf_file import GGUFFile

        with reraise_as(f"cannot read {path}"), path.open("rb") as file:
            if file.read(4) != b"GGUF" and path.suffix != ".gguf":
                raise ClearheadError(
                    f"{name} is not a tokenizer; pass a tokenizer.json, a .gguf file or a model."
                )
            return read_gguf_tokenizer(GGUFFile(path).metadata)
    if (path / CONFIG_FILE).is_file():
        return load_checkpoint_tokenizers(path)
    attributes = {}
    if (path / HF_CONFIG_FILE).is_file():
        attributes = read_config_file(path / HF_CONFIG_FILE)
    tokenizer_class = str(attributes.get("tokenizer_class") or "")
    return read_hf_tokenizer(path, str(attributes.get("model_type")), tokenizer_class)


def resolve_model(name: str | Path, patterns: list[str] = hub.MODEL_PATTERNS) -> Path:
    """The folder or file of a model; files of the hub that match `patterns` may be downloaded."""
    check_type(name, str | Path, "the name or path of a model")
    path = hub.find_model(name, patterns)
    if path is None:
        raise _not_found(str(name))
    return _run_checkpoint(path) or _single_gguf(path) or path


def _not_found(name: str) -> ClearheadError:
    if name in presets:
        return ClearheadError(
            f"{name} is a preset without weights; clearhead.new({name!r}) initializes a model."
        )
    if hub.parse_hub_id(name) is not None and not Path(name).parent.exists():
        return ClearheadError(
            f"there is no folder {name}{suggest_file(name)}. If it is a model on the Hugging Face"
            f" Hub, download it first: clearhead get {name}"
        )
    if "/" in name:
        return ClearheadError(f"there is no model at {name}{suggest_file(name)}.")
    hint = suggest(name, [*bundled_models(), *hub.WHEEL_MODELS])
    return ClearheadError(f"there is no model named {name!r} and no such file or folder; {hint}")


def _run_checkpoint(path: Path) -> Path | None:
    """The best checkpoint of a training run, else its last."""
    if not (path / "run.json").is_file():
        return None
    if (path / "best").exists():
        return path / "best"
    steps = (path / "checkpoints").glob("[0-9]*")
    return max((step for step in steps if (step / CONFIG_FILE).is_file()), default=None)


def _single_gguf(path: Path) -> Path | None:
    """The only .gguf file of a folder that holds no other model."""
    if not path.is_dir() or any((path / name).exists() for name in (CONFIG_FILE, HF_CONFIG_FILE)):
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise ClearheadError(
            f"{path} contains {len(files)} .gguf files; pass one of them, such as {files[0]}."
        )
    return files[0] if files else None


def save_model(folder: str | Path, checkpoint: Checkpoint, format: str = "clearhead") -> None:
    """Save a model, atomically; a model in the same format is replaced."""
    if format not in SAVE_FORMATS:
        hint = suggest(str(format).lower(), SAVE_FORMATS)
        raise ClearheadError(f"unknown format {format!r}; {hint}")
    if is_quantized(checkpoint.net):
        raise ClearheadError(
            "an int8 model cannot be saved; load it in float32 to save it, and in int8 to use it."
        )
    module, name = SAVE_FORMATS[format].split(".")
    write: Callable[[Path, Checkpoint], None] = getattr(
        import_module(f"clearhead.weights.{module}"), name
    )
    _check_network(checkpoint)
    with atomic_model_folder(folder, format) as new:
        write(new, checkpoint)


def _check_network(checkpoint: Checkpoint) -> None:
    """Raise if the network is not the one that the configuration describes and loading builds."""
    described = build_transformer(checkpoint.config.model, seed=None)
    modules = dict(described.named_modules())
    for name, module in checkpoint.net.named_modules():
        expected = modules.pop(name, None)
        if type(module) is not type(expected):
            problem = f"{name or 'net'} is a {type(module).__name__}"
            if expected is not None:
                problem += f" instead of a {type(expected).__name__}"
            raise ClearheadError(f"the model cannot be saved: {problem}{NOT_IN_CONFIG}")
    if modules:
        raise ClearheadError(f"the model cannot be saved: {min(modules)} is missing{NOT_IN_CONFIG}")
    shapes = {name: p.shape for name, p in described.named_parameters()}
    for name, p in checkpoint.net.named_parameters():
        if shapes.get(name) != p.shape:
            problem = f"{name} has shape {tuple(p.shape)}"
            raise ClearheadError(f"the model cannot be saved: {problem}{NOT_IN_CONFIG}")
