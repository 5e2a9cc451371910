"""The files of sentence-transformers: how a model makes one vector of a text.

Every option that changes vectors is honored or refused by name.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clearhead import config as c
from clearhead.config.parse import ConfigDict, read_config_file
from clearhead.errors import ClearheadError
from clearhead.io import write_json
from clearhead.tokenizers.huggingface import model_max_length
from clearhead.weights.checkpoint import HF_CONFIG_FILE
from clearhead.weights.mapping import check_attribute

MODULES_FILE = "modules.json"
SENTENCE_BERT_CONFIG_FILE = "sentence_bert_config.json"
SENTENCE_TRANSFORMERS_CONFIG_FILE = "config_sentence_transformers.json"
POOLING_DIR = "1_Pooling"

Pooling = Literal["mean", "first"]
POOLING_MODES: dict[str, Pooling] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "first",
    "cls_token": "first",
}
NORMALIZE_CONFIG = "the Normalize module"
TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# Options of sentence-transformers by file, with the values that change nothing.
SENTENCE_TRANSFORMERS_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    SENTENCE_TRANSFORMERS_CONFIG_FILE: {"truncate_dim": (None,)},
    SENTENCE_BERT_CONFIG_FILE: {
        "transformer_task": (None, "feature-extraction"),
        "modality_config": (None, TEXT_MODALITY),
        "module_output_name": (None, "token_embeddings"),
        "processing_kwargs": (None, {}),
        "query_length": (None,),
        "document_length": (None,),
        "query_expansion": (None, False),
        "model_args": (None, {}),
        "model_kwargs": (None, {}),
        "config_args": (None, {}),
        "config_kwargs": (None, {}),
        "tokenizer_args": (None, {}),
        "processor_kwargs": (None, {}),
        "tokenizer_name_or_path": (None,),
        "do_lower_case": (None, False, True),
    },
    NORMALIZE_CONFIG: {
        "module_input_name": (None, "sentence_embedding"),
        "module_output_name": (None, "sentence_embedding"),
    },
}
# Options that change no embedding; the prompts are checked apart.
SENTENCE_TRANSFORMERS_IGNORED = {
    "__version__", "default_prompt_name", "embedding_dimension", "include_prompt", "max_seq_length",
    "model_type", "prompts", "requirements", "similarity_fn_name", "unpad_inputs",
    "word_embedding_dimension",
}  # fmt: skip


@dataclass(frozen=True)
class SentenceEmbedding:
    """How a sentence-transformers model makes one vector of a text."""

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int = 0  # longer texts are truncated; 0: never
    lowercase: bool = False


def read_sentence_transformers(folder: Path, context_length: int) -> SentenceEmbedding:
    """Pooling, normalization and maximum length; whatever else changes embeddings is refused."""
    if not (folder / MODULES_FILE).is_file():
        return SentenceEmbedding()
    types, paths = _read_modules(folder)
    if types[:2] != ["Transformer", "Pooling"] or types[2:] not in ([], ["Normalize"]):
        raise ClearheadError(
            f"{MODULES_FILE} lists {', '.join(types)}; clearhead supports Transformer, Pooling,"
            " Normalize."
        )
    if paths[0]:
        raise ClearheadError(f"{MODULES_FILE} has the model in {paths[0]}; pass that folder.")
    _check_prompts(_read_options(folder, SENTENCE_TRANSFORMERS_CONFIG_FILE))
    if types[2:] and paths[2]:
        _read_options(folder, NORMALIZE_CONFIG, paths[2])
    sentence_config = _read_options(folder, SENTENCE_BERT_CONFIG_FILE)
    max_length = check_attribute("max_seq_length", sentence_config.get("max_seq_length"), int, 0)
    if not max_length:
        max_length = model_max_length(folder) or context_length
    return SentenceEmbedding(
        pooling=_read_pooling(folder, paths[1] or POOLING_DIR),
        normalize=types[2:] == ["Normalize"],
        max_length=min(max_length, context_length),
        lowercase=bool(sentence_config.get("do_lower_case")),
    )


def _read_modules(folder: Path) -> tuple[list[str], list[str]]:
    """The types and the folders of the modules."""
    try:
        modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
        types = [module["type"].rsplit(".", 1)[-1] for module in modules]
        paths = [str(module.get("path") or "") for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise ClearheadError(
            f"{MODULES_FILE} must be a list of modules with a type each."
        ) from None
    for path in paths:
        if not re.fullmatch(r"[\w-]*", path):
            raise ClearheadError(f"{MODULES_FILE} names the folder {path!r}, which is not in it.")
    return types, paths


def _read_options(folder: Path, name: str, subfolder: str = "") -> ConfigDict:
    """The options of a file, if it exists; those that would change embeddings are refused."""
    path = folder / subfolder / (HF_CONFIG_FILE if name == NORMALIZE_CONFIG else name)
    options = read_config_file(path) if path.is_file() else {}
    known = SENTENCE_TRANSFORMERS_OPTIONS[name]
    for option, value in options.items():
        if option not in SENTENCE_TRANSFORMERS_IGNORED and value not in known.get(option, (None,)):
            raise ClearheadError(f"{name} has {option} = {value!r:.80}, which is not supported.")
    return options


def _check_prompts(options: ConfigDict) -> None:
    """Prompts that a caller may choose are not applied by default; a default one would be."""
    default = options.get("default_prompt_name")
    prompts: ConfigDict = check_attribute("prompts", options.get("prompts"), dict, {})
    if default is not None and prompts.get(default):
        raise ClearheadError(
            f"{SENTENCE_TRANSFORMERS_CONFIG_FILE} has default_prompt_name = {default!r}, which"
            f" prepends {prompts[default]!r:.80} to every text; clearhead does not. Set"
            " default_prompt_name to null and prepend the prompt yourself."
        )


def _read_pooling(folder: Path, subfolder: str) -> Pooling:
    name = f"{subfolder}/{HF_CONFIG_FILE}"
    options = read_config_file(folder / subfolder / HF_CONFIG_FILE)
    flags = {
        option.removeprefix("pooling_mode_"): value
        for option, value in options.items()
        if option.startswith("pooling_mode_")
    }
    default = [flag for flag, value in flags.items() if value] if flags else "mean"
    mode = options.get("pooling_mode", default)
    if isinstance(mode, list) and len(mode) == 1:
        mode = mode[0]
    if not isinstance(mode, str) or mode not in POOLING_MODES:
        raise ClearheadError(f"{name} asks for pooling {mode!r}; clearhead supports mean and cls.")
    for option, value in options.items():
        is_known = option in SENTENCE_TRANSFORMERS_IGNORED or option.startswith("pooling_mode")
        if not is_known:
            raise ClearheadError(f"{name} has {option} = {value!r:.80}, which is not supported.")
    return POOLING_MODES[mode]


def write_sentence_transformers(
    folder: Path, inference: c.InferenceConfig, m: c.ModelConfig
) -> None:
    """Write pooling, normalization and maximum length."""
    modules = [("", "Transformer"), (POOLING_DIR, "Pooling")]
    if inference.normalize:
        modules.append(("2_Normalize", "Normalize"))
    package = "sentence_transformers.models"
    module_list = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    write_json(folder / MODULES_FILE, module_list)
    sentence_config = {"max_seq_length": inference.max_length or None, "do_lower_case": False}
    write_json(folder / SENTENCE_BERT_CONFIG_FILE, sentence_config)
    pooling_config = {
        "word_embedding_dimension": m.d_model,
        "pooling_mode_cls_token": inference.pooling == "first",
        "pooling_mode_mean_tokens": inference.pooling == "mean",
    }
    (folder / POOLING_DIR).mkdir()
    write_json(folder / POOLING_DIR / "config.json", pooling_config)
