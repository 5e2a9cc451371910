"""Hugging Face folders: config.json, safetensors, tokenizer, inference and media options.

Nothing in a folder is ever executed: no pickles, no custom code.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file

from clearhead import config as c
from clearhead.config.parse import ConfigDict, dataclass_from_dict, read_config_file
from clearhead.config.serialize import dataclass_to_dict
from clearhead.errors import ClearheadError, reraise_as
from clearhead.io import write_json
from clearhead.tokenizers.huggingface import (
    PretrainedTokenizer,
    lowercase_first,
    read_hf_tokenizer,
    write_hf_tokenizer,
)
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import EXPORT_FILE, HF_CONFIG_FILE, Checkpoint
from clearhead.weights.families.bert import BERT, ROFORMER
from clearhead.weights.families.gpt2 import GPT2
from clearhead.weights.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from clearhead.weights.families.marian import MARIAN
from clearhead.weights.families.t5 import T5
from clearhead.weights.families.vit import VIT
from clearhead.weights.families.whisper import WHISPER
from clearhead.weights.mapping import (
    ModelFamily,
    check_attribute,
    match_family,
    read_attributes,
    read_weights,
    untie_stored_head,
    write_weights,
)
from clearhead.weights.sentence_transformers import (
    SentenceEmbedding,
    read_sentence_transformers,
    write_sentence_transformers,
)
from clearhead.weights.tensors import Placement, SafetensorsReader, load_weights, meta_model

HF_WEIGHTS_FILE = "model.safetensors"
HF_INDEX_FILE = "model.safetensors.index.json"
ADAPTER_CONFIG_FILE = "adapter_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
PREPROCESSOR_CONFIG_FILE = "preprocessor_config.json"
PROCESSOR_CONFIG_FILE = "processor_config.json"

# The first family that can express a model is the one it is exported as.
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
FAMILY_BY_MODEL_TYPE = {family.name: family for family in FAMILIES}


def load_huggingface(folder: Path, placement: Placement) -> Checkpoint:
    """Load a model of a known family; unsupported configuration options are errors."""
    with reraise_as(f"cannot read the configuration in {folder}"):
        attributes = read_config_file(folder / HF_CONFIG_FILE)
        family, head = _find_family(folder, attributes)
        labels = label_names(attributes)
        base = replace(family.base, head=head_for_labels(head, attributes, labels))
        m = read_attributes(family.attributes, base, attributes)
        m = read_preprocessor_config(folder, m)
        tokenizer_class = str(attributes.get("tokenizer_class") or "")
        pretrained = read_hf_tokenizer(folder, family.name, tokenizer_class)
        embedding = read_sentence_transformers(folder, m.context_length)
        if embedding.lowercase and pretrained.tokenizer is not None:
            pretrained = replace(pretrained, tokenizer=lowercase_first(pretrained.tokenizer))
        inference = read_inference_config(folder, attributes, pretrained, m, labels, embedding)
        if (folder / EXPORT_FILE).is_file():
            export = read_config_file(folder / EXPORT_FILE)
            options: ConfigDict = check_attribute("inference", export.get("inference"), dict, {})
            inference = dataclass_from_dict(
                c.InferenceConfig, dataclass_to_dict(inference) | options
            )
        files = weight_files(folder, attributes)
    reader = SafetensorsReader(files)
    m = untie_stored_head(family.weight_map(m), reader, m)
    net = meta_model(m, len(reader.shapes))
    tensors = read_weights(family.weight_map(m), reader, net, m, str(folder))
    load_weights(net, tensors, placement, str(folder))
    return Checkpoint(
        net,
        c.Config(m, inference),
        pretrained.tokenizer,
        pretrained.source_tokenizer,
        pretrained.missing_reason,
    )


def save_huggingface(folder: Path, checkpoint: Checkpoint) -> None:
    """Save as the first family that computes the same; transformers' Auto classes load it.

    Inference options that these files cannot express are saved in clearhead_export.json.
    """
    match = match_family(checkpoint, FAMILIES, "the Hugging Face format")
    checkpoint = match.checkpoint
    m = checkpoint.config.model
    inference = checkpoint.config.inference
    weight_map = match.family.weight_map(m)
    prefix = weight_map.prefixes[-1 if isinstance(m.head, c.NoHead) else 0]
    tensors = dict(write_weights(weight_map, checkpoint.net, m, prefix))
    save_file(tensors, folder / HF_WEIGHTS_FILE, {"format": "pt"})

    attributes = {
        "model_type": match.family.name,
        "architectures": [match.architecture],
        "torch_dtype": str(next(checkpoint.net.parameters()).dtype).removeprefix("torch."),
        **match.attributes,
        **write_inference_config(folder, inference, m),
    }
    write_json(folder / HF_CONFIG_FILE, attributes)
    write_preprocessor_config(folder, m)
    if checkpoint.tokenizer is not None:
        write_hf_tokenizer(folder, checkpoint.tokenizer, checkpoint.source_tokenizer, inference, m)

    pretrained = read_hf_tokenizer(folder, match.family.name)
    embedding = read_sentence_transformers(folder, m.context_length)
    restored = dataclass_to_dict(
        read_inference_config(folder, attributes, pretrained, m, label_names(attributes), embedding)
    )
    restored["chat_template"] = inference.chat_template  # differs by its inlined special tokens
    options = dataclass_to_dict(inference)
    if lost := {name: value for name, value in options.items() if value != restored[name]}:
        write_json(folder / EXPORT_FILE, {"inference": lost})


def _find_family(folder: Path, attributes: ConfigDict) -> tuple[ModelFamily, c.Head]:
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        raise ClearheadError(
            f"{folder} contains {ADAPTER_CONFIG_FILE}: its weights are an adapter of another model;"
            " merge them first, with merge_and_unload of peft."
        )
    if "auto_map" in attributes:
        raise ClearheadError(
            "config.json requires custom code (auto_map); clearhead executes nothing from a folder."
        )
    if "quantization_config" in attributes:
        raise ClearheadError(
            "config.json has a quantization_config; clearhead reads quantized weights from .gguf"
            " files only."
        )
    model_type = check_attribute("model_type", attributes.get("model_type"), str, "")
    if model_type not in FAMILY_BY_MODEL_TYPE:
        supported = ", ".join(FAMILY_BY_MODEL_TYPE)
        raise ClearheadError(
            f"config.json: model_type {model_type!r} is not supported; supported: {supported}."
        )
    family = FAMILY_BY_MODEL_TYPE[model_type]
    name = find_architecture(attributes)
    if name not in family.heads:
        supported = ", ".join(family.heads)
        raise ClearheadError(
            f"config.json: architecture {name!r} is not supported; supported: {supported}."
        )
    return family, family.heads[name]


def find_architecture(attributes: ConfigDict) -> str:
    """The name of the model class, such as GPT2LMHeadModel; by default the family's first."""
    family = FAMILY_BY_MODEL_TYPE[attributes["model_type"]]
    architectures = attributes.get("architectures") or list(family.heads)
    name = architectures[0] if isinstance(architectures, list) else architectures
    return check_attribute("architectures", name, str, "")


def weight_files(folder: Path, attributes: ConfigDict) -> list[Path]:
    """The single safetensors file, or the shards that the index lists."""
    if (folder / HF_WEIGHTS_FILE).is_file():
        return [folder / HF_WEIGHTS_FILE]
    if not (folder / HF_INDEX_FILE).is_file():
        if pickles := sorted(folder.glob("*.bin")):
            raise _pickle_error(folder, pickles[0], attributes)
        raise ClearheadError(
            f"{folder} contains no weights: neither {HF_WEIGHTS_FILE} nor {HF_INDEX_FILE}."
        )
    weight_map = read_config_file(folder / HF_INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise ClearheadError(f"{HF_INDEX_FILE} must have a weight_map of tensor names to files.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise ClearheadError(
                f"{HF_INDEX_FILE} lists {name!r}, which is not a safetensors file in the folder."
            )
        if not (folder / name).is_file():
            raise ClearheadError(
                f"{HF_INDEX_FILE} lists {name}, which is missing. The download may be incomplete."
            )
    return [folder / name for name in names]


def _pickle_error(folder: Path, pickle: Path, attributes: ConfigDict) -> ClearheadError:
    model_class = (attributes.get("architectures") or ["AutoModel"])[0]
    convert = "; ".join(
        f"t.{name}.from_pretrained({str(folder)!r}).save_pretrained('safe')"
        for name in (model_class, "AutoTokenizer")
    )
    return ClearheadError(
        f"{pickle.name} is a pickle, which can execute code, so clearhead does not open it. If you"
        f' trust it, convert it once: python -c "import transformers as t; {convert}"'
    )


# --- labels
def label_names(attributes: ConfigDict) -> tuple[str, ...]:
    """The names of the classes, by index; `num_labels` wins over an `id2label` of another size."""
    id2label: ConfigDict = check_attribute("id2label", attributes.get("id2label"), dict, {})
    names = {int(index): str(name) for index, name in id2label.items()}
    if sorted(names) != list(range(len(names))):
        raise ClearheadError(f"config.json: id2label must number its labels from 0, got {names}.")
    num_labels = check_attribute("num_labels", attributes.get("num_labels"), int, len(names))
    if num_labels != len(names):
        return ()  # as in transformers
    return tuple(names[index] for index in sorted(names))


def head_for_labels(head: c.Head, attributes: ConfigDict, labels: tuple[str, ...]) -> c.Head:
    """A classification head with the right number of classes; one class means regression."""
    if not isinstance(head, c.ClassificationHead):
        return head
    problem_type = attributes.get("problem_type")
    if problem_type == "multi_label_classification":
        raise ClearheadError(
            "config.json has problem_type multi_label_classification; clearhead supports"
            " single-label classification and regression."
        )
    num_labels = len(labels) or attributes.get("num_labels") or 2
    if num_labels == 1 or problem_type == "regression":
        return c.RegressionHead(pooling=head.pooling, pooler=head.pooler)
    return replace(head, num_labels=num_labels)


# --- inference config
# Options of generation_config.json that read_inference_config reads.
GENERATION_OPTIONS = {
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id",
    "eos_token_id", "forced_bos_token_id", "forced_decoder_ids", "forced_eos_token_id",
    "lang_to_id", "language", "no_timestamps_token_id", "pad_token_id", "renormalize_logits",
    "suppress_tokens", "task", "task_to_id",
}  # fmt: skip
# What the caller of clearhead chooses, with defaults of clearhead's own.
CALLER_OPTIONS = {
    "do_sample", "diversity_penalty", "early_stopping", "epsilon_cutoff", "eta_cutoff",
    "length_penalty", "max_length", "max_new_tokens", "max_time", "min_length", "min_new_tokens",
    "min_p", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "penalty_alpha", "repetition_penalty", "temperature", "top_h", "top_k", "top_p", "typical_p",
}  # fmt: skip
# What changes no token: speed, memory, outputs, and Whisper's timestamps.
NEUTRAL_GENERATION_OPTIONS = {
    "_from_model_config", "alignment_heads", "assistant_confidence_threshold",
    "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind", "cache_config",
    "cache_implementation", "compile_config", "continuous_batching_config", "disable_compile",
    "is_assistant", "is_multilingual", "low_memory", "max_cache_len",
    "max_initial_timestamp_index", "max_matching_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "prefill_chunk_size", "prev_sot_token_id", "prompt_lookup_num_tokens",
    "remove_invalid_values", "return_dict_in_generate", "speculation_type", "target_lookbehind",
    "transformers_version", "unsloth_version", "use_cache", "use_mtp",
}  # fmt: skip
# Options that clearhead does not have, with the value that turns them off.
UNSUPPORTED_GENERATION_OPTIONS: ConfigDict = {
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "return_timestamps": False,
    "token_healing": False,
}


def check_generation_config(options: ConfigDict) -> None:
    """Refuse options that change what is generated and that clearhead does not have."""
    known = GENERATION_OPTIONS | CALLER_OPTIONS | NEUTRAL_GENERATION_OPTIONS
    for name, value in options.items():
        neutral = (None, UNSUPPORTED_GENERATION_OPTIONS.get(name))
        if name not in known and value not in neutral:
            raise ClearheadError(
                f"{GENERATION_CONFIG_FILE} has {name} = {value!r:.80}, which is not supported;"
                " remove it to generate without it."
            )


def read_inference_config(
    folder: Path,
    attributes: ConfigDict,
    pretrained: PretrainedTokenizer,
    m: c.ModelConfig,
    labels: tuple[str, ...],
    embedding: SentenceEmbedding,
) -> c.InferenceConfig:
    """Options from config.json, generation_config.json, the tokenizer and sentence-transformers."""
    if (folder / GENERATION_CONFIG_FILE).is_file():
        generation_config = read_config_file(folder / GENERATION_CONFIG_FILE)
        check_generation_config(generation_config)
        # as in transformers, config.json then says nothing about generation
        others = {k: v for k, v in attributes.items() if k not in GENERATION_OPTIONS}
        attributes = others | generation_config

    def ids(*values: object) -> tuple[int, ...]:
        """Valid token ids among integers, lists of integers, and lists of one-element lists."""
        flat = [i for value in values for i in (value if isinstance(value, list) else [value])]
        flat = [i[0] if isinstance(i, list) and len(i) == 1 else i for i in flat]
        return tuple(dict.fromkeys(i for i in flat if type(i) is int and 0 <= i < m.vocab_size))

    bad_words_ids: list[object] = check_attribute(
        "bad_words_ids", attributes.get("bad_words_ids"), list, []
    )
    if any(isinstance(word, list) and len(word) > 1 for word in bad_words_ids):
        raise ClearheadError(
            f"{GENERATION_CONFIG_FILE}: bad_words_ids has words of several tokens; clearhead can"
            " only suppress single tokens."
        )
    special = pretrained.special_token_ids
    is_encoder = isinstance(m.architecture, c.Encoder)
    eos_tokens = (
        () if is_encoder else ids(attributes.get("eos_token_id")) or ids(special.get("eos"))
    )
    decoder_start_tokens: tuple[int, ...] = ()
    if isinstance(m.architecture, c.EncoderDecoder):
        decoder_start_token = attributes.get("decoder_start_token_id")
        if decoder_start_token is None:
            decoder_start_token = attributes.get("bos_token_id")
        decoder_start_tokens = ids(
            decoder_start_token,
            attributes.get("forced_bos_token_id"),
            _whisper_task_tokens(attributes) or _forced_decoder_tokens(attributes),
        )
    are_labels_default = all(name == f"LABEL_{i}" for i, name in enumerate(labels))
    if are_labels_default or not isinstance(m.head, c.ClassificationHead):
        labels = ()
    forced_eos = ids(attributes.get("forced_eos_token_id"))
    is_decoder = isinstance(m.architecture, c.Decoder)
    if forced_eos and (is_decoder or forced_eos != eos_tokens[:1]):
        raise ClearheadError(
            f"the model's configuration has forced_eos_token_id = {list(forced_eos)}; clearhead"
            " supports only the first eos_token_id of an encoder-decoder."
        )
    if is_decoder and ids(attributes.get("forced_bos_token_id")):
        raise ClearheadError(
            "the model's configuration has a forced_bos_token_id, which clearhead supports for"
            " encoder-decoders only."
        )
    return c.InferenceConfig(
        bos_tokens=pretrained.bos_tokens,
        sep_tokens=pretrained.sep_tokens,
        decoder_start_tokens=decoder_start_tokens,
        eos_tokens=eos_tokens,
        forced_eos=bool(eos_tokens) and forced_eos == eos_tokens[:1],
        suppress_tokens=ids(attributes.get("suppress_tokens"), bad_words_ids),
        begin_suppress_tokens=ids(attributes.get("begin_suppress_tokens")),
        renormalize_logits=attributes.get("renormalize_logits") is True,
        pad_token=ids(attributes.get("pad_token_id"), special.get("pad"))[:1],
        mask_token=ids(special.get("mask")) if is_encoder else (),
        pooling=embedding.pooling,
        normalize=embedding.normalize,
        max_length=embedding.max_length,
        labels=labels,
        chat_template=inline_special_tokens(
            pretrained.chat_template, pretrained.tokenizer, special
        ),
    )


INLINED_TOKENS = re.compile(r'(\{% set \w+_token = "(\\.|[^"\\])*+" %\}\n)*+')


def inline_special_tokens(
    template: str, tokenizer: Tokenizer | None, special_token_ids: dict[str, int]
) -> str:
    """A chat template that defines the special tokens it refers to, such as `bos_token`."""
    if tokenizer is None:
        return template
    # On a separate line, which Jinja's trim_blocks removes, a definition changes no whitespace.
    existing = INLINED_TOKENS.match(template)
    assert existing is not None  # it may be empty
    definitions = ""
    for role, i in special_token_ids.items():
        name = f"{role}_token"
        if name in template and f"set {name} = " not in existing[0]:
            token = json.dumps(tokenizer.decode([i]), ensure_ascii=False)
            definitions += f"{{% set {name} = {token} %}}\n"
    return definitions + template


def _whisper_task_tokens(attributes: ConfigDict) -> list[object]:
    """The tokens of the language and the task that Whisper's generation_config.json sets."""
    language = attributes.get("language")
    languages: ConfigDict = check_attribute("lang_to_id", attributes.get("lang_to_id"), dict, {})
    if language is None or not languages:
        return []
    tasks: ConfigDict = check_attribute("task_to_id", attributes.get("task_to_id"), dict, {})
    code = language if language in languages else f"<|{language}|>"
    task = attributes.get("task") or "transcribe"
    if code not in languages or task not in tasks:
        raise ClearheadError(
            f"{GENERATION_CONFIG_FILE} has language = {language!r} and task = {task!r}, but"
            " lang_to_id or task_to_id does not; write a code such as <|en|>."
        )
    return [languages[code], tasks[task], attributes.get("no_timestamps_token_id")]


def _forced_decoder_tokens(attributes: ConfigDict) -> list[int]:
    """The tokens that Whisper's output starts with; none if one of them is left to the model."""
    pairs: list[list[int]] = check_attribute(
        "forced_decoder_ids", attributes.get("forced_decoder_ids"), list, []
    )
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ClearheadError(
            f"the model's configuration has forced_decoder_ids = {pairs!r:.80}, which must be a"
            " list of pairs."
        )
    tokens = [token for _, token in pairs]
    return [] if None in tokens else tokens


def write_inference_config(
    folder: Path, inference: c.InferenceConfig, m: c.ModelConfig
) -> ConfigDict:
    """Write the files beside config.json; return the attributes that belong into config.json."""
    # always written: a missing id would mean the family's default
    attributes: ConfigDict = {
        "bos_token_id": _id_or_list(inference.bos_tokens[:1]),
        "eos_token_id": _id_or_list(inference.eos_tokens),
        "pad_token_id": _id_or_list(inference.pad_token[:1]),
    }
    optional: ConfigDict = {
        "suppress_tokens": list(inference.suppress_tokens),
        "begin_suppress_tokens": list(inference.begin_suppress_tokens),
        "renormalize_logits": inference.renormalize_logits or None,
    }
    if isinstance(m.architecture, c.EncoderDecoder):
        forced_eos = inference.eos_tokens[:1] if inference.forced_eos else ()
        attributes["forced_eos_token_id"] = _id_or_list(forced_eos)
        start = inference.decoder_start_tokens
        optional["decoder_start_token_id"] = _id_or_list(start[:1])
        optional["forced_decoder_ids"] = [[i, token] for i, token in enumerate(start[1:], 1)]
    attributes |= {name: value for name, value in optional.items() if value not in ([], None)}
    if isinstance(m.head, c.LMHead):
        write_json(folder / GENERATION_CONFIG_FILE, attributes)
    if isinstance(m.head, c.ClassificationHead | c.RegressionHead):
        num_labels = 1
        attributes["problem_type"] = "regression"
        if isinstance(m.head, c.ClassificationHead):
            num_labels = m.head.num_labels
            attributes["problem_type"] = "single_label_classification"
        labels = inference.labels or tuple(f"LABEL_{i}" for i in range(num_labels))
        attributes["id2label"] = dict(enumerate(labels))
        attributes["label2id"] = {label: i for i, label in enumerate(labels)}
    is_text_encoder = isinstance(m.architecture, c.Encoder) and isinstance(m.input, c.Tokens)
    if is_text_encoder and isinstance(m.head, c.NoHead):
        write_sentence_transformers(folder, inference, m)
    return attributes


def _id_or_list(ids: Sequence[int]) -> int | list[int] | None:
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


# --- images and audio
# Pillow's numbers
RESAMPLING: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}
IMAGE_PROCESSOR_DEFAULTS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_center_crop": False,
}


# Options that change no pixel and no frame, as long as the others have the values above.
PREPROCESSOR_IGNORED = {
    "_valid_processor_keys", "auto_map", "crop_size", "data_format", "default_to_square", "device",
    "disable_grouping", "do_convert_rgb", "feature_extractor_type", "image_processor_type",
    "input_data_format", "mel_filters", "processor_class", "return_attention_mask",
    "return_tensors", "use_fast",
}  # fmt: skip
IMAGE_PROCESSORS = ("ViTImageProcessor", "ViTFeatureExtractor")


def read_preprocessor_config(folder: Path, m: c.ModelConfig) -> c.ModelConfig:
    """The model with the image normalization of the preprocessor; other options must match."""
    match m.main_input:
        case c.Audio() as audio:
            expected = _audio_attributes(audio)
            name, attributes = _read_preprocessor(folder, "feature_extractor")
        case c.Images() as images:
            side = images.image_size
            expected = {**IMAGE_PROCESSOR_DEFAULTS, "size": {"height": side, "width": side}}
            name, attributes = _read_preprocessor(folder, "image_processor")
            if type(attributes.get("size")) is int:
                attributes["size"] = {"height": attributes["size"], "width": attributes["size"]}
            processor = attributes.get("image_processor_type") or IMAGE_PROCESSORS[0]
            if str(processor).removesuffix("Fast") not in IMAGE_PROCESSORS:
                raise ClearheadError(
                    f"{name} has image_processor_type = {processor!r}; clearhead supports"
                    f" {IMAGE_PROCESSORS[0]} only."
                )
        case _:
            return m
    read = ("image_mean", "image_std", "resample") if isinstance(m.input, c.Images) else ()
    for option, value in attributes.items():
        if option in PREPROCESSOR_IGNORED or option in read or value is None:
            continue
        if option not in expected:
            if value is False:
                continue
            raise ClearheadError(f"{name} has {option} = {value!r:.80}, which is not supported.")
        if value != expected[option]:
            raise ClearheadError(
                f"{name} has {option} = {value!r:.80}; the model needs {expected[option]!r}."
            )
    if not isinstance(m.input, c.Images) or not attributes:
        return m
    resample = attributes.get("resample", 2)
    if type(resample) is not int or resample not in RESAMPLING:
        raise ClearheadError(
            f"{PREPROCESSOR_CONFIG_FILE} has resample = {resample!r}; clearhead supports 2"
            " (bilinear) and 3 (bicubic)."
        )
    images = replace(
        m.input,
        mean=_channel_values(attributes.get("image_mean", 0.5)),
        std=_channel_values(attributes.get("image_std", 0.5)),
        resample=RESAMPLING[resample],
    )
    return replace(m, input=images)


def _read_preprocessor(folder: Path, part: str) -> tuple[str, ConfigDict]:
    """The options of a preprocessor and the file that has them: the newer file wins."""
    if (folder / PROCESSOR_CONFIG_FILE).is_file():
        parts = read_config_file(folder / PROCESSOR_CONFIG_FILE)
        if part in parts:
            attributes: ConfigDict = check_attribute(part, parts[part], dict, {})
            return PROCESSOR_CONFIG_FILE, dict(attributes)
    if (folder / PREPROCESSOR_CONFIG_FILE).is_file():
        return PREPROCESSOR_CONFIG_FILE, read_config_file(folder / PREPROCESSOR_CONFIG_FILE)
    return PREPROCESSOR_CONFIG_FILE, {}


def _channel_values(values: object) -> tuple[float, ...]:
    """One number for each channel, or a single one for all."""
    values = values if isinstance(values, list) else [values]
    if not all(isinstance(value, int | float) for value in values):
        raise ClearheadError(
            f"{PREPROCESSOR_CONFIG_FILE}: {values!r} must be one number per channel."
        )
    numbers = tuple(map(float, values))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _audio_attributes(audio: c.Audio) -> ConfigDict:
    return {
        "chunk_length": audio.n_frames * audio.hop_length // audio.sample_rate,
        "padding_side": "right",
        "padding_value": 0.0,
        "dither": 0.0,
        "sampling_rate": audio.sample_rate,
        "n_fft": audio.n_fft,
        "hop_length": audio.hop_length,
        "feature_size": audio.n_mels,
        "nb_max_frames": audio.n_frames,
        "n_samples": audio.n_frames * audio.hop_length,
    }


def write_preprocessor_config(folder: Path, m: c.ModelConfig) -> None:
    """Write how images or audio become numbers; nothing for text."""
    match m.main_input:
        case c.Audio() as audio:
            attributes: ConfigDict = {
                **_audio_attributes(audio),
                "feature_extractor_type": "WhisperFeatureExtractor",
            }
        case c.Images() as images:
            ids = {name: number for number, name in RESAMPLING.items()}
            attributes = {
                **IMAGE_PROCESSOR_DEFAULTS,
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": images.image_size, "width": images.image_size},
                "image_mean": _per_channel(images.mean, images),
                "image_std": _per_channel(images.std, images),
                "resample": ids[images.resample],
            }
        case _:
            return
    write_json(folder / PREPROCESSOR_CONFIG_FILE, attributes)


def _per_channel(values: tuple[float, ...], images: c.Images) -> list[float]:
    return list(values) * (images.num_channels if len(values) == 1 else 1)
