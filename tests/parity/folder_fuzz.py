"""Random models of transformers, saved, and random edits of their folders.

Each folder must then load with the logits of transformers, or be refused.
"""

import json
import random

import torch
import transformers
from huggingface_models import SPECIAL_TOKENS
from safetensors.torch import load_file, save_file

ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "swish", "gelu_pytorch_tanh", "gelu_fast"]
RARE_ACTIVATIONS = ["quick_gelu", "tanh", "relu2", "mish", "gelu_10", "leaky_relu", "sigmoid"]
EPSILONS = [1e-12, 1e-6, 1e-5, 1e-3, 1e-2]
ROPES = [
    None,
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 500.0,
    },
]
RARE_ROPES = [
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0},
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "rope_theta": 100.0,
        "original_max_position_embeddings": 8,
    },
]
CLASSES = {
    "gpt2": ["GPT2LMHeadModel", "GPT2Model"],
    "llama": ["LlamaForCausalLM", "LlamaModel"],
    "mistral": ["MistralForCausalLM", "MistralModel"],
    "qwen2": ["Qwen2ForCausalLM", "Qwen2Model"],
    "qwen3": ["Qwen3ForCausalLM", "Qwen3Model"],
    "bert": [
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertModel",
    ],
    "roformer": ["RoFormerForMaskedLM", "RoFormerModel"],
    "marian": ["MarianMTModel"],
    "t5": ["T5ForConditionalGeneration"],
    "vit": ["ViTForImageClassification", "ViTModel"],
    "whisper": ["WhisperForConditionalGeneration"],
}


def draw_activation(rng, common=ACTIVATIONS):
    return rng.choice(common if rng.random() < 0.95 else RARE_ACTIVATIONS)


def draw_layers(rng):
    return rng.randint(1, 3)


def draw_options(rng, family):
    """Arguments of a configuration class, most of them of models that clearhead supports."""
    heads = rng.choice([1, 2, 3])
    d_model = heads * rng.choice([4, 8, 10])
    vocab_size = rng.choice([41, 53])
    tied = rng.random() < 0.5
    match family:
        case "gpt2":
            return {
                "vocab_size": vocab_size,
                "n_positions": rng.choice([20, 32]),
                "n_embd": d_model,
                "n_layer": draw_layers(rng),
                "n_head": heads,
                "n_inner": rng.choice([None, 20, 28]),
                "activation_function": draw_activation(rng),
                "layer_norm_epsilon": rng.choice(EPSILONS),
                "scale_attn_weights": rng.random() < 0.8,
                "scale_attn_by_inverse_layer_idx": rng.random() < 0.1,
                "reorder_and_upcast_attn": rng.random() < 0.2,
                "tie_word_embeddings": tied,
                "initializer_range": 0.3,
                **SPECIAL_TOKENS,
            }
        case "llama" | "mistral" | "qwen2" | "qwen3":
            options = {
                **draw_sizes(rng, heads, d_model, vocab_size),
                "hidden_act": draw_activation(rng, ["silu", "gelu", "gelu_pytorch_tanh"]),
                "num_key_value_heads": rng.choice([1, heads]),
                "rms_norm_eps": rng.choice(EPSILONS[1:]),
                "tie_word_embeddings": tied,
            }
            if rope := rng.choice(ROPES if rng.random() < 0.9 else RARE_ROPES):
                options["rope_parameters"] = dict(rope)
            if family in ("llama", "mistral", "qwen3"):
                options["head_dim"] = rng.choice([4, 6, 10])
            if family in ("llama", "qwen3"):
                options["attention_bias"] = rng.random() < 0.5
            if family == "llama":
                options["mlp_bias"] = rng.random() < 0.5
            if family == "mistral":
                options["sliding_window"] = rng.choice([None, 3, 7, 100])
            if family in ("qwen2", "qwen3"):
                options["use_sliding_window"] = rng.random() < 0.5
                options["sliding_window"] = rng.choice([3, 7, 100])
                options["max_window_layers"] = rng.choice([0, 0, 1, 28])
            return options
        case "bert" | "roformer":
            return {
                **draw_sizes(rng, heads, d_model, vocab_size),
                "hidden_act": draw_activation(rng),
                "layer_norm_eps": rng.choice(EPSILONS),
                "type_vocab_size": rng.choice([1, 2, 3]),
                "num_labels": rng.choice([1, 2, 3, 5]),
                "tie_word_embeddings": rng.random() < 0.9,
            }
        case "marian" | "whisper":
            sizes = {
                f"{side}_{name}": value
                for side in ("encoder", "decoder")
                for name, value in {"attention_heads": heads, "ffn_dim": 28}.items()
            }
            options = {
                "vocab_size": vocab_size,
                "d_model": d_model + d_model % 2,
                "encoder_layers": draw_layers(rng),
                "decoder_layers": draw_layers(rng),
                "activation_function": draw_activation(rng),
                "scale_embedding": rng.random() < (0.5 if family == "marian" else 0.1),
                "tie_word_embeddings": tied,
                "decoder_start_token_id": 1,
                "forced_eos_token_id": rng.choice([None, 5]),
                "init_std": 0.3,
                **sizes,
                **SPECIAL_TOKENS,
            }
            if family == "marian":
                options["max_position_embeddings"] = 32
                if rng.random() < 0.3:
                    options["share_encoder_decoder_embeddings"] = False
                    options["decoder_vocab_size"] = 47
                return options
            audio = {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32}
            return {**options, **audio, "begin_suppress_tokens": None}
        case "t5":
            return {
                "vocab_size": vocab_size,
                "d_model": d_model,
                "d_kv": rng.choice([4, 7]),
                "d_ff": 28,
                "num_layers": draw_layers(rng),
                "num_decoder_layers": rng.choice([None, 1, 2]),
                "num_heads": heads,
                "feed_forward_proj": rng.choice(
                    ["relu", "gelu", "gated-gelu", "gated-silu", "silu"]
                ),
                "relative_attention_num_buckets": rng.choice([8, 12]),
                "relative_attention_max_distance": rng.choice([16, 64, 128]),
                "layer_norm_epsilon": rng.choice(EPSILONS[1:]),
                "tie_word_embeddings": tied,
                "decoder_start_token_id": 0,
            }
        case "vit":
            return {
                "hidden_size": d_model,
                "num_hidden_layers": draw_layers(rng),
                "num_attention_heads": heads,
                "intermediate_size": 28,
                "hidden_act": draw_activation(rng),
                "layer_norm_eps": rng.choice(EPSILONS),
                "qkv_bias": rng.random() < 0.5,
                "image_size": 12,
                "patch_size": rng.choice([3, 4]),
                "num_channels": rng.choice([1, 3]),
                "num_labels": rng.choice([1, 2, 4]),
                "initializer_range": 0.3,
            }
    raise AssertionError(family)


def draw_sizes(rng, heads, d_model, vocab_size):
    return {
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "num_hidden_layers": draw_layers(rng),
        "num_attention_heads": heads,
        "intermediate_size": rng.choice([20, 28]),
        "max_position_embeddings": 32,
        "initializer_range": 0.3,
        **SPECIAL_TOKENS,
    }


def save_random_model(rng, family, folder):
    """Save a model of this family; None if transformers refuses the options itself."""
    cls = getattr(transformers, rng.choice(CLASSES[family]))
    torch.manual_seed(rng.randrange(2**31))
    try:
        model = cls(cls.config_class(**draw_options(rng, family)))
    except (ValueError, TypeError, KeyError):
        return None
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:  # sinusoidal tables are fixed
                p += 0.1 * torch.randn(p.shape)
    model.save_pretrained(folder)
    return cls


# --- edits
# Attributes that some version of transformers, or some other family, knows.
ADDED_ATTRIBUTES = [
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ("rope_scaling", {"type": "linear", "factor": 2.0, "rope_theta": 50.0}),
    ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
    ("rope_scaling", None),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 70.0}),
    ("rope_parameters", {"rope_type": "linear", "factor": 2.0}),
    ("rope_parameters", None),
    ("rope_theta", 30.0),
    ("rope_theta", None),
    ("partial_rotary_factor", 0.5),
    ("partial_rotary_factor", 1.0),
    ("original_max_position_embeddings", 8),
    ("rope_interleaved", True),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", False),
    ("tie_word_embeddings", None),
    ("scale_decoder_outputs", False),
    ("scale_decoder_outputs", True),
    ("tie_encoder_decoder", True),
    ("sliding_window", 4),
    ("sliding_window", 0),
    ("sliding_window", None),
    ("use_sliding_window", True),
    ("max_window_layers", 0),
    ("layer_types", ["full_attention"]),
    ("layer_types", ["sliding_attention"] * 2),
    ("attention_bias", True),
    ("mlp_bias", True),
    ("head_dim", 8),
    ("head_dim", None),
    ("num_key_value_heads", None),
    ("num_key_value_heads", 2),
    ("num_hidden_layers", 1),
    ("num_hidden_layers", 2),
    ("num_layers", 1),
    ("n_layer", 1),
    ("n_inner", None),
    ("hidden_size", 16),
    ("hidden_act", "relu"),
    ("activation_function", "relu"),
    ("dense_act_fn", "silu"),
    ("is_gated_act", True),
    ("feed_forward_proj", "gated-relu"),
    ("embedding_size", 8),
    ("embedding_size", None),
    ("rotary_value", True),
    ("rotary_value", False),
    ("position_embedding_type", "relative_key"),
    ("position_embedding_type", "absolute"),
    ("is_decoder", True),
    ("is_decoder", False),
    ("add_cross_attention", True),
    ("chunk_size_feed_forward", 2),
    ("pruned_heads", {"0": [0]}),
    ("normalize_before", True),
    ("add_final_layer_norm", True),
    ("normalize_embedding", True),
    ("static_position_embeddings", False),
    ("layer_norm_eps", 0.1),
    ("layer_norm_epsilon", 0.1),
    ("rms_norm_eps", 0.1),
    ("logit_scale", 2.0),
    ("final_logit_softcapping", 5.0),
    ("attention_multiplier", 0.3),
    ("pretraining_tp", 2),
    ("num_labels", 3),
    ("num_labels", 2),
    ("_num_labels", 4),
    ("id2label", {"0": "a", "1": "b"}),
    ("id2label", {"1": "b", "0": "a", "2": "c"}),
    ("id2label", None),
    ("problem_type", "regression"),
    ("problem_type", "single_label_classification"),
    ("problem_type", "multi_label_classification"),
    ("eos_token_ids", [3]),
    ("pad_token_id", None),
    ("per_layer_config", {"0": {"hidden_act": "relu"}}),
    ("dtype", "float16"),
    ("torch_dtype", "bfloat16"),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    ("share_encoder_decoder_embeddings", False),
    ("decoder_vocab_size", None),
    ("use_cache", False),
    ("unheard_of", 3),
]
# These change attributes of other names.
RELATED = ("id2label", "num_labels", "rope_scaling", "rope_theta", "sliding_window", "torch_dtype")
OTHER_STRINGS = [*ACTIVATIONS, *RARE_ACTIVATIONS, "gated-gelu", "gated-silu", "default", "linear"]


def other_value(rng, value):
    if value is not None and rng.random() < 0.15:
        return None
    match value:
        case bool():
            return not value
        case int():
            return rng.choice([value + 1, value * 2, max(0, value - 1), 0, float(value), -1])
        case float():
            return rng.choice([value * 2 + 0.1, value * 10, int(value), 1, 0.0])
        case str():
            return rng.choice(OTHER_STRINGS)
        case list():
            return rng.choice([value[1:], [*value, *value[:1]], []])
        case dict():
            return {key: other_value(rng, item) for key, item in value.items()}
        case None:
            return rng.choice([0, 1, 3, True])
    raise AssertionError(value)


FIXED_ATTRIBUTES = ("architectures", "model_type", "transformers_version")


def edit_attributes(rng, config):
    """Change, remove or add one attribute; return what was done."""
    names = [name for name in config if name not in FIXED_ATTRIBUTES]
    action = rng.choice(["change", "remove", "add", "add"])
    if action == "add":
        known = [item for item in ADDED_ATTRIBUTES if item[0] in config or item[0] in RELATED]
        name, value = rng.choice(known if rng.random() < 0.7 else ADDED_ATTRIBUTES)
        config[name] = value
        return f"{name} = {value!r} set"
    name = rng.choice(names)
    if action == "remove":
        del config[name]
        return f"{name} removed"
    config[name] = other_value(rng, config[name])
    return f"{name} = {config[name]!r}"


EMBEDDINGS = ("word_embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight")
# Names under which some version stores a copy of the embedding, or a bias.
COPIES = {
    "gpt2": ["lm_head.weight"],
    "llama": ["lm_head.weight"],
    "bert": ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"],
    "roformer": ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"],
    "marian": [
        "lm_head.weight",
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "model.shared.weight",
    ],
    "t5": ["lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"],
    "whisper": ["proj_out.weight"],
}


def copy_tensor(rng, tensors, config):
    """Store an embedding or a bias once more, equal or not."""
    names = COPIES.get(config["model_type"], COPIES["llama"])
    name = rng.choice([name for name in names if rng.random() < 0.9] or names)
    suffixes = ("cls.predictions.bias",) if name.endswith("bias") else EMBEDDINGS
    originals = [key for key in sorted(tensors) if key.endswith(suffixes) and key != name]
    if not originals:
        return ""
    original = tensors[rng.choice(originals)]
    is_equal = rng.random() < 0.4
    tensors[name] = original.clone() if is_equal else original * 1.5 + 0.1
    return f"{'copied' if is_equal else 'other'} {name}"


def draw_tables(config):
    """Tables that some version stores although they follow from the configuration."""
    heads = config.get("num_attention_heads") or 1
    d_model = config.get("hidden_size") or config.get("d_model") or config.get("n_embd") or 8
    if not isinstance(heads, int) or not isinstance(d_model, int):
        return {}
    d_head = config.get("head_dim") or d_model // heads
    match config["model_type"]:
        case "gpt2":
            return {
                "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32).tril().bool(),
                "transformer.h.0.attn.masked_bias": torch.tensor([-1e4]),
            }
        case "bert":
            return {
                "bert.embeddings.position_ids": torch.arange(32)[None],
                "cls.seq_relationship.bias": torch.ones(2),
                "bert.pooler.dense.bias": torch.ones(d_model),
            }
        case "roformer":
            return {"roformer.encoder.embed_positions.weight": sinusoids(32, d_model // heads)}
        case "marian" | "whisper":
            return {
                f"model.{side}.embed_positions.weight": sinusoids(32, d_model)
                for side in ("encoder", "decoder")
            }
        case "t5":
            bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
            return {bias: torch.ones(8, config["num_heads"] or 1)}
        case _:
            frequencies = 10000.0 ** (-torch.arange(0, d_head, 2) / d_head)
            return {"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies}


def add_table(rng, tensors, config):
    """Store a table that follows from the configuration, right or wrong."""
    tables = draw_tables(config)
    if not tables:
        return ""
    name = rng.choice(list(tables))
    is_right = rng.random() < 0.6
    table = tables[name]
    tensors[name] = table if is_right else table.roll(1, -1)
    return f"{'right' if is_right else 'wrong'} {name}"


def sinusoids(rows, d):
    angle = torch.arange(rows)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)[:, :d]


def remove_tensor(rng, tensors, config):
    name = rng.choice(sorted(tensors))
    del tensors[name]
    return f"removed {name}"


def rename_tensor(rng, tensors, config):
    name = rng.choice(sorted(tensors))
    new = rng.choice(
        [f"{name}.x", name.replace(".0.", ".7."), f"model.{name}", name.split(".", 1)[-1]]
    )
    if new == name:
        return ""
    tensors[new] = tensors.pop(name)
    return f"{name} renamed to {new}"


def rename_all(rng, tensors, config):
    """Other prefixes, or the names of old versions."""
    base = config["model_type"] if config["model_type"] in ("bert", "roformer", "vit") else "model"
    base = "transformer" if config["model_type"] == "gpt2" else base
    renamings = [(f"{base}.", ""), ("", f"{base}."), ("LayerNorm.weight", "LayerNorm.gamma")]
    old, new = rng.choice(renamings)
    if not any(old in name for name in tensors):
        return ""
    for name in sorted(tensors):
        tensor = tensors.pop(name)
        tensors[name.replace(old, new) if old else new + name] = tensor
    return f"all {old!r} renamed to {new!r}"


def cast_tensors(rng, tensors, config):
    dtype = rng.choice([torch.float16, torch.bfloat16, torch.float64])
    share = rng.choice([0.3, 1.0])
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and rng.random() < share:
            tensors[name] = tensor.to(dtype)
    return f"{share:.0%} as {dtype}"


def reshape_tensor(rng, tensors, config):
    """Transpose or shorten a tensor."""
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    if tensor.dim() == 2 and rng.random() < 0.5:
        tensors[name] = tensor.mT.contiguous()
        return f"{name} transposed"
    if tensor.dim():
        tensors[name] = tensor[: max(1, len(tensor) - 1)].contiguous()
    return f"{name} shortened"


def add_tensor(rng, tensors, config):
    name = rng.choice(sorted(tensors))
    extra = rng.choice([f"{name}_g", name.replace("weight", "bias"), "lm_head.bias", "extra"])
    if extra in tensors:
        return ""
    tensors[extra] = torch.randn(len(tensors[name]) if tensors[name].dim() else 1)
    return f"added {extra}"


TENSOR_EDITS = [
    copy_tensor,
    copy_tensor,
    copy_tensor,
    add_table,
    add_table,
    cast_tensors,
    cast_tensors,
    rename_all,
    rename_tensor,
    remove_tensor,
    reshape_tensor,
    add_tensor,
]


def save_shards(tensors, folder):
    """Two files and their index."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    where = {name: names[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in names:
        part = {name: tensors[name] for name in tensors if where[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def edit_folder(rng, folder):
    """Apply up to three edits; return what they were."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    edits = []
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if rng.random() < 0.5:
            edits.append(edit_attributes(rng, config))
        else:
            edits.append(rng.choice(TENSOR_EDITS)(rng, tensors, config))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if rng.random() < 0.1:
        save_shards(tensors, folder)
        edits.append("two shards")
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return [edit for edit in edits if edit]


def random_case(seed, number, folder):
    """The class that reads a random folder, and its edits; None if there is no such model."""
    rng = random.Random(f"{seed}-{number}")
    cls = save_random_model(rng, list(CLASSES)[number % len(CLASSES)], folder)
    return None if cls is None else (cls, edit_folder(rng, folder))
