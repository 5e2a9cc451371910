"""What stands around a published model: where it starts and stops, names of classes, pooling, its chat template."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from clearhead import config as c
from clearhead.config.model import Config, InferenceConfig
from clearhead.config.parse import dataclass_from_dict, dataclass_to_dict, read_config_file
from clearhead.errors import ClearheadError, reraise_as
from clearhead.io import EXPORT_FILE, write_json
from clearhead.tokenizers.huggingface import (
    PretrainedTokenizer,
    read_hf_tokenizer,
    write_hf_tokenizer,
)
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import (
    Checkpoint,
    Placement,
    SafetensorsReader,
    load_weights,
    meta_model,
)
from clearhead.weights.families.bert import BERT, ROFORMER
from clearhead.weights.families.gpt2 import GPT2
from clearhead.weights.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from clearhead.weights.families.marian import MARIAN
from clearhead.weights.families.t5 import T5
from clearhead.weights.families.vit import VIT
from clearhead.weights.families.whisper import WHISPER
from clearhead.weights.mapping import (
    ModelFamily,
    match_family,
    read_attributes,
    read_weights,
    write_weights,
)

# ---- around: What stands around a published model: where it starts and stops, names of classes, pooling, its chat template.

Attributes = dict[str, Any]
GENERATION_CONFIG_FILE = "generation_config.json"
MODULES_FILE = "modules.json"
SENTENCE_BERT_CONFIG_FILE = "sentence_bert_config.json"
POOLING_DIR = "1_Pooling"


def label_names(theirs: Attributes) -> tuple[str, ...]:
    """Names of the classes, in order."""
    named = theirs.get("id2label") or {}
    return tuple(str(named[key]) for key in sorted(named, key=int))


def head_for_labels(head: c.Head, theirs: Attributes, names: tuple[str, ...]) -> c.Head:
    """A head of as many classes as there are names; one class is a number."""
    if not isinstance(head, c.ClassificationHead):
        return head
    if theirs.get("problem_type") == "multi_label_classification":
        raise ClearheadError(
            "the classes of this model do not exclude each other (multi_label_classification), ours do."
        )
    count = len(names) or theirs.get("num_labels") or theirs.get("_num_labels") or 2
    if count == 1 or theirs.get("problem_type") == "regression":
        return c.RegressionHead(pooling=head.pooling, pooler=head.pooler)
    return replace(head, num_labels=count)


def read_inference_config(
    folder: Path,
    theirs: Attributes,
    words: PretrainedTokenizer,
    m: c.ModelConfig,
    names: tuple[str, ...],
) -> InferenceConfig:
    """From config.json, generation_config.json, the tokenizer's files and those of sentence-transformers."""
    said = theirs | (
        read_config_file(folder / GENERATION_CONFIG_FILE)
        if (folder / GENERATION_CONFIG_FILE).is_file()
        else {}
    )

    def ids(*values: object) -> tuple[int, ...]:
        """Ids that the model has; a list may hold lists of one."""
        flat = [i for value in values for i in (value if isinstance(value, list) else [value])]
        flat = [i[0] if isinstance(i, list) and len(i) == 1 else i for i in flat]
        return tuple(dict.fromkeys(i for i in flat if type(i) is int and 0 <= i < m.vocab_size))

    words_forbidden = said.get("bad_words_ids") or []
    if any(isinstance(one, list) and len(one) > 1 for one in words_forbidden):
        raise ClearheadError(
            f"{GENERATION_CONFIG_FILE} forbids words of several tokens (bad_words_ids); clearhead forbids tokens."
        )
    writes = not isinstance(m.architecture, c.Encoder)
    both = isinstance(m.architecture, c.EncoderDecoder)
    start = ids(
        said.get("decoder_start_token_id"),
        said.get("forced_bos_token_id"),
        _forced_decoder_tokens(said),
    )
    stop = (
        (ids(said.get("eos_token_id")) or ids(words.special_token_ids.get("eos"))) if writes else ()
    )
    plain = all(name == f"LABEL_{i}" for i, name in enumerate(names)) or not isinstance(
        m.head, c.ClassificationHead
    )
    pooling, normalised, longest = _read_pooling(folder, m.context_length)
    return InferenceConfig(
        bos_tokens=words.bos_tokens,
        sep_tokens=words.sep_tokens,
        decoder_start_tokens=start if both else (),
        eos_tokens=stop,
        forced_eos=bool(stop) and ids(said.get("forced_eos_token_id")) == stop[:1],
        suppress_tokens=ids(said.get("suppress_tokens"), words_forbidden),
        begin_suppress_tokens=ids(said.get("begin_suppress_tokens")),
        renormalize_logits=said.get("renormalize_logits") is True,
        pad_token=ids(said.get("pad_token_id"), words.special_token_ids.get("pad"))[:1],
        mask_token=ids(words.special_token_ids.get("mask"))
        if isinstance(m.architecture, c.Encoder)
        else (),
        pooling=pooling,
        normalize=normalised,
        max_length=longest,
        labels=() if plain else names,
        chat_template=inline_special_tokens(
            words.chat_template, words.tokenizer, words.special_token_ids
        ),
    )


def inline_special_tokens(template: str, tokenizer: Tokenizer | None, roles: dict[str, int]) -> str:
    """A chat template with the special tokens that it speaks of by role."""
    named = {f"{role}_token": i for role, i in roles.items() if f"{role}_token" in template}
    spelled = (
        {name: tokenizer.decode([i]) for name, i in named.items()} if tokenizer is not None else {}
    )
    new = {name: token for name, token in spelled.items() if f"set {name} = " not in template}
    return (
        "".join(f"{{%- set {name} = {json.dumps(token)} -%}}" for name, token in new.items())
        + template
    )


def _forced_decoder_tokens(said: Attributes) -> list[object]:
    """The tokens that Whisper's output begins with, of [place, token]; one left open (null) leaves all to the model."""
    tokens = [token for _, token in said.get("forced_decoder_ids") or []]
    return [] if None in tokens else tokens


def _read_pooling(folder: Path, context: int) -> tuple[Any, bool, int]:
    """What sentence-transformers does around a model: pooling, perhaps scaling to length 1, cutting long texts."""
    if not (folder / MODULES_FILE).is_file():
        return "mean", False, 0
    said = (
        read_config_file(folder / SENTENCE_BERT_CONFIG_FILE)
        if (folder / SENTENCE_BERT_CONFIG_FILE).is_file()
        else {}
    )
    longest = min(said.get("max_seq_length", context) or 0, context)
    try:
        modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
        kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise ClearheadError(
            f"{MODULES_FILE} must be a list of modules, each with a type."
        ) from None
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ClearheadError(
            f"{MODULES_FILE} asks for {', '.join(kinds)}; clearhead knows Transformer, Pooling, Normalize."
        )
    said = read_config_file(folder / POOLING_DIR / "config.json")
    modes = [
        name for name, value in said.items() if name.startswith("pooling_mode") and value is True
    ]
    mode = said.get("pooling_mode") or (
        modes[0].removeprefix("pooling_mode_") if len(modes) == 1 else modes
    )
    known = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}
    if not isinstance(mode, str) or mode not in known:
        raise ClearheadError(
            f"{POOLING_DIR}/config.json asks for pooling {mode!r}; clearhead knows mean and cls."
        )
    return known[mode], kinds[2:] == ["Normalize"], longest


def write_inference_config(folder: Path, use: InferenceConfig, m: c.ModelConfig) -> Attributes:
    """The files beside config.json; returns the attributes that belong into it."""
    ends: Attributes = {
        "bos_token_id": _id_or_list(use.bos_tokens[:1]),
        "eos_token_id": _id_or_list(use.eos_tokens),
        "pad_token_id": _id_or_list(use.pad_token[:1]),
    }
    said: Attributes = {
        "suppress_tokens": list(use.suppress_tokens),
        "begin_suppress_tokens": list(use.begin_suppress_tokens),
    }
    said["renormalize_logits"] = use.renormalize_logits or None
    if isinstance(m.architecture, c.EncoderDecoder):
        ends["forced_eos_token_id"] = _id_or_list(use.eos_tokens[:1]) if use.forced_eos else None
        said["decoder_start_token_id"] = _id_or_list(use.decoder_start_tokens[:1])
        said["forced_decoder_ids"] = [
            [i, token] for i, token in enumerate(use.decoder_start_tokens[1:], 1)
        ]
    said = ends | {
        name: value for name, value in said.items() if value not in ([], None)
    }  # a missing id would mean their default
    if isinstance(m.head, c.LMHead):
        write_json(folder / GENERATION_CONFIG_FILE, said)
    if isinstance(m.head, c.ClassificationHead | c.RegressionHead):
        count = m.head.num_labels if isinstance(m.head, c.ClassificationHead) else 1
        names = use.labels or tuple(f"LABEL_{i}" for i in range(count))
        said |= {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
        }
        said["problem_type"] = (
            "regression" if isinstance(m.head, c.RegressionHead) else "single_label_classification"
        )
    if (
        isinstance(m.head, c.NoHead)
        and isinstance(m.architecture, c.Encoder)
        and isinstance(m.input, c.Tokens)
    ):
        _write_sentence_transformer_modules(folder, use, m)
    return said


def _write_sentence_transformer_modules(
    folder: Path, use: InferenceConfig, m: c.ModelConfig
) -> None:
    parts = [
        ("", "Transformer"),
        (POOLING_DIR, "Pooling"),
        *([("2_Normalize", "Normalize")] if use.normalize else []),
    ]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(folder / MODULES_FILE, listed)
    write_json(
        folder / SENTENCE_BERT_CONFIG_FILE,
        {"max_seq_length": use.max_length or None, "do_lower_case": False},
    )
    (folder / POOLING_DIR).mkdir()
    modes = {
        "pooling_mode_cls_token": use.pooling == "first",
        "pooling_mode_mean_tokens": use.pooling == "mean",
    }
    write_json(
        folder / POOLING_DIR / "config.json", {"word_embedding_dimension": m.d_model, **modes}
    )


def _id_or_list(ids: Iterable[int]) -> int | list[int] | None:
    listed = list(ids)
    return listed if len(listed) > 1 else listed[0] if listed else None


# ---- features: How pictures and sounds become numbers, as the `preprocessor_config.json` of a published model tells it.

_Attributes = dict[str, Any]
PREPROCESSOR_CONFIG_FILE = "preprocessor_config.json"
RESAMPLING: dict[int, Any] = {2: "bilinear", 3: "bicubic"}  # as pillow numbers them
IMAGE_PROCESSOR_DEFAULTS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_center_crop": False,
}


def read_preprocessor_config(folder: Path, m: c.ModelConfig) -> c.ModelConfig:
    """How a picture becomes numbers; for sounds there is one way, and the file must agree."""
    said = (
        read_config_file(folder / PREPROCESSOR_CONFIG_FILE)
        if (folder / PREPROCESSOR_CONFIG_FILE).is_file()
        else {}
    )
    both = isinstance(m.architecture, c.EncoderDecoder)
    source = m.main_input
    if isinstance(source, c.Audio):
        for name, value in _audio_attributes(source).items():
            if said.get(name, value) != value:
                raise ClearheadError(
                    f"{PREPROCESSOR_CONFIG_FILE} asks for {name} = {said[name]!r}; clearhead listens with {value}."
                )
    if not isinstance(source, c.Images) or both or not said:
        return m
    means = said.get("image_mean", 0.5)
    deviations = said.get("image_std", 0.5)
    size = said.get("size")
    asked = {**said, "size": size.get("height") if isinstance(size, dict) else size}
    for name, value in {**IMAGE_PROCESSOR_DEFAULTS, "size": source.image_size}.items():
        if asked.get(name) not in (value, None):
            raise ClearheadError(
                f"{PREPROCESSOR_CONFIG_FILE} asks for {name} = {said[name]!r}; clearhead only knows {value}."
            )
    smooth = RESAMPLING.get(said.get("resample", 2))
    if smooth is None:
        raise ClearheadError(
            f"{PREPROCESSOR_CONFIG_FILE} asks for resample = {said['resample']!r}; clearhead knows 2 and 3."
        )
    return replace(
        m,
        input=replace(
            source, mean=_channel_values(means), std=_channel_values(deviations), resample=smooth
        ),
    )


def _channel_values(values: object) -> tuple[float, ...]:
    """One number for each colour, or one for all."""
    listed = values if isinstance(values, list) else [values]
    if not all(isinstance(value, int | float) for value in listed):
        raise ClearheadError(
            f"{PREPROCESSOR_CONFIG_FILE}: {values!r} must be a number for each colour."
        )
    return tuple(map(float, listed[:1] if len(set(listed)) == 1 else listed))


def _audio_attributes(source: c.Audio) -> _Attributes:
    said = {
        "sampling_rate": source.sample_rate,
        "n_fft": source.n_fft,
        "hop_length": source.hop_length,
        "feature_size": source.n_mels,
    }
    return {
        **said,
        "nb_max_frames": source.n_frames,
        "n_samples": source.n_frames * source.hop_length,
    }


def write_preprocessor_config(folder: Path, m: c.ModelConfig) -> None:
    source = m.main_input
    if isinstance(source, c.Audio):
        length = source.n_frames * source.hop_length // source.sample_rate
        extra = {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "chunk_length": length,
            "padding_value": 0.0,
        }
        write_json(folder / PREPROCESSOR_CONFIG_FILE, {**_audio_attributes(source), **extra})
    if isinstance(source, c.Images):
        said: _Attributes = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": source.image_size, "width": source.image_size},
        }
        said |= IMAGE_PROCESSOR_DEFAULTS
        said |= {
            "image_mean": _per_channel(source.mean, source),
            "image_std": _per_channel(source.std, source),
        }
        said["resample"] = next(
            number for number, name in RESAMPLING.items() if name == source.resample
        )
        write_json(folder / PREPROCESSOR_CONFIG_FILE, said)


def _per_channel(values: tuple[float, ...], source: c.Images) -> list[float]:
    return list(values) * (source.num_channels if len(values) == 1 else 1)


# ---- known: Every published family, those that are tried first when a model of our own is written standing first.

FAMILIES: tuple[ModelFamily, ...] = (
    GPT2,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    BERT,
    ROFORMER,
    MARIAN,
    T5,
    VIT,
    WHISPER,
)


# ---- huggingface: Hugging Face folders: `config.json`, safetensors in one file or many, and a tokenizer; in and out.

HF_CONFIG_FILE = "config.json"
HF_WEIGHTS_FILE = "model.safetensors"
HF_INDEX_FILE = "model.safetensors.index.json"
FAMILY_BY_MODEL_TYPE = {family.name: family for family in FAMILIES}


def load_huggingface(folder: Path, home: Placement) -> Checkpoint:
    with reraise_as(f"{folder} cannot be understood"):
        return _load_huggingface(folder, home)


def _load_huggingface(folder: Path, home: Placement) -> Checkpoint:
    theirs = read_config_file(folder / HF_CONFIG_FILE)
    family, head = _find_family(theirs)
    labels = label_names(theirs)
    m = read_attributes(
        family.attributes, replace(family.base, head=head_for_labels(head, theirs, labels)), theirs
    )
    m = read_preprocessor_config(folder, m)
    words = read_hf_tokenizer(folder, family.name, str(theirs.get("tokenizer_class") or ""))
    use = read_inference_config(folder, theirs, words, m, labels)
    if (folder / EXPORT_FILE).is_file():
        use = dataclass_from_dict(
            InferenceConfig,
            dataclass_to_dict(use) | read_config_file(folder / EXPORT_FILE).get("use", {}),
        )
    stored = SafetensorsReader(weight_files(folder, theirs))
    net = meta_model(m, len(stored.shapes))
    where = str(folder)
    load_weights(net, read_weights(family.weight_map(m), stored, net, m, where), home, where)
    return Checkpoint(
        net, Config(m, use), words.tokenizer, words.source_tokenizer, words.missing_reason
    )


def _find_family(theirs: dict[str, Any]) -> tuple[ModelFamily, c.Head]:
    """Which table, and which head, by what the file says of itself."""
    if "auto_map" in theirs:
        raise ClearheadError(
            "config.json asks for code of its own (auto_map); clearhead runs nothing from a folder."
        )
    if "quantization_config" in theirs:
        raise ClearheadError(
            "config.json speaks of quantised weights; clearhead reads those from .gguf files only."
        )
    kind = theirs.get("model_type")
    if kind not in FAMILY_BY_MODEL_TYPE:
        raise ClearheadError(
            f"config.json: model_type {kind!r} is no family that clearhead knows; it knows {', '.join(FAMILY_BY_MODEL_TYPE)}."
        )
    family = FAMILY_BY_MODEL_TYPE[kind]
    named = theirs.get("architectures") or list(family.heads)
    name = named[0] if isinstance(named, list) else named
    if name not in family.heads:
        known = ", ".join(family.heads)
        raise ClearheadError(
            f"config.json: architecture {name!r} is not one that clearhead knows: {known}."
        )
    return family, family.heads[name]


def weight_files(folder: Path, theirs: dict[str, Any]) -> list[Path]:
    """One file, or those that an index names: plain names of files beside it."""
    if (folder / HF_WEIGHTS_FILE).is_file():
        return [folder / HF_WEIGHTS_FILE]
    if not (folder / HF_INDEX_FILE).is_file():
        if pickles := sorted(folder.glob("*.bin")):
            name = (theirs.get("architectures") or ["AutoModel"])[0]
            classes = (name, "AutoTokenizer")
            convert = "; ".join(
                f"t.{n}.from_pretrained({str(folder)!r}).save_pretrained('safe')" for n in classes
            )
            raise ClearheadError(
                f"{pickles[0].name} is a pickle, which can run code when it is opened, so clearhead does not open it. "
                f'If you trust it, convert it once: python -c "import transformers as t; {convert}"'
            )
        raise ClearheadError(
            f"{folder} holds no weights: there is no {HF_WEIGHTS_FILE} and no {HF_INDEX_FILE}."
        )
    named = read_config_file(folder / HF_INDEX_FILE).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ClearheadError(f"{HF_INDEX_FILE} must hold a weight_map from names to files.")
    files = sorted(set(named.values()))
    for name in files:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise ClearheadError(
                f"{HF_INDEX_FILE} names {name!r}, which is no safetensors file beside it."
            )
        if not (folder / name).is_file():
            raise ClearheadError(
                f"{HF_INDEX_FILE} names {name}, which is not there; the download may be incomplete."
            )
    return [folder / name for name in files]


def save_huggingface(folder: Path, model: Checkpoint) -> None:
    """As the first family that computes the same; it loads with transformers' Auto classes.

    What they have no place for in how it is used stands in a file of ours, for whoever reads it here.
    """
    family, architecture, theirs, model = match_family(model, FAMILIES, "Hugging Face")
    m = model.config.model
    use = model.config.inference
    dtype = str(next(model.net.parameters()).dtype).removeprefix("torch.")
    theirs = {
        "model_type": family.name,
        "architectures": [architecture],
        "torch_dtype": dtype,
        **theirs,
    }
    prefixes = family.weight_map(m).prefixes
    prefix = prefixes[-1] if isinstance(m.head, c.NoHead) else prefixes[0]
    save_file(
        dict(write_weights(family.weight_map(m), model.net, m, prefix)),
        folder / HF_WEIGHTS_FILE,
        {"format": "pt"},
    )
    theirs |= write_inference_config(folder, use, m)
    write_json(folder / HF_CONFIG_FILE, theirs)
    if model.tokenizer is not None:
        write_hf_tokenizer(folder, model.tokenizer, model.source_tokenizer, use, m)
    write_preprocessor_config(folder, m)
    words = read_hf_tokenizer(folder, family.name)
    back = dataclass_to_dict(read_inference_config(folder, theirs, words, m, label_names(theirs)))
    back["chat"] = use.chat_template  # which comes back with the tokens that it speaks of
    if lost := {
        name: value for name, value in dataclass_to_dict(use).items() if value != back[name]
    }:
        write_json(folder / EXPORT_FILE, {"use": lost})
