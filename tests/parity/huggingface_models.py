"""Tiny random models of every Hugging Face family, made by transformers, with unusual settings."""

from functools import cache

import torch

VOCAB_SIZE = 53
SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": 5, "pad_token_id": 0}


def _sizes(**options):
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
    }
    sizes |= {"intermediate_size": 28, "max_position_embeddings": 32, "initializer_range": 0.3}
    return sizes | SPECIAL_TOKENS | options


def _encoder_decoder(**options):
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"attention_heads": 3, "ffn_dim": 28}.items()
    }
    ids = {**SPECIAL_TOKENS, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    layers = {"encoder_layers": 3, "decoder_layers": 2}
    d_model = {"vocab_size": VOCAB_SIZE, "d_model": 24, "init_std": 0.3}
    return {**d_model, **sizes, **layers, **ids, **options}


def _gpt2(**options):
    return {
        "vocab_size": VOCAB_SIZE,
        "n_positions": 32,
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 3,
        "initializer_range": 0.3,
        **SPECIAL_TOKENS,
        **options,
    }


def _t5(**options):
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "d_model": 24,
        "d_kv": 7,
        "d_ff": 28,
        "num_layers": 3,
        "num_heads": 3,
    }
    return {
        **sizes,
        "num_decoder_layers": 2,
        "initializer_factor": 1.0,
        "decoder_start_token_id": 0,
        **options,
    }


CONTEXT = {"max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0}
LLAMA3["original_max_position_embeddings"] = 16
SLIDING_WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2}

RELATIVE = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
LINEAR_SCALING = {"rope_theta": 100.0, "rope_type": "linear", "factor": 3.0}
OWN_VOCAB = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41}
IMAGES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 28,
}
IMAGES |= {"image_size": 12, "patch_size": 3, "num_channels": 2, "initializer_range": 0.3}
AUDIO = {
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 32,
    "begin_suppress_tokens": None,
}

CASES = {
    "gpt2": ("GPT2LMHeadModel", _gpt2()),
    "gpt2-relu": (
        "GPT2LMHeadModel",
        _gpt2(n_inner=20, activation_function="relu", layer_norm_epsilon=1e-2),
    ),
    "gpt2-unscaled": (
        "GPT2LMHeadModel",
        _gpt2(n_head=1, scale_attn_weights=False, tie_word_embeddings=False),
    ),
    "gpt2-bare": ("GPT2Model", _gpt2(activation_function="gelu")),
    "llama": ("LlamaForCausalLM", _sizes(num_key_value_heads=1, head_dim=10, rms_norm_eps=1e-2)),
    "llama-tied": (
        "LlamaForCausalLM",
        _sizes(**GROUPED, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "llama-3": (
        "LlamaForCausalLM",
        _sizes(rope_parameters={"rope_theta": 500.0, **LLAMA3}, hidden_act="gelu"),
    ),
    "llama-linear": ("LlamaForCausalLM", _sizes(rope_parameters=LINEAR_SCALING)),
    "llama-bare": ("LlamaModel", _sizes(num_key_value_heads=3)),
    "mistral": ("MistralForCausalLM", _sizes(**GROUPED, sliding_window=5)),
    "qwen2": (
        "Qwen2ForCausalLM",
        _sizes(**GROUPED, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
    ),
    "qwen2-sliding-window": (
        "Qwen2ForCausalLM",
        _sizes(num_key_value_heads=3, **SLIDING_WINDOW, tie_word_embeddings=True),
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        _sizes(**GROUPED, head_dim=6, attention_bias=True, rms_norm_eps=1e-3),
    ),
    "bert": ("BertForMaskedLM", _sizes(hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-3)),
    "bert-pretraining": ("BertForPreTraining", _sizes()),
    "bert-classification": ("BertForSequenceClassification", _sizes(num_labels=4)),
    "bert-regression": ("BertForSequenceClassification", _sizes(num_labels=1)),
    "bert-bare": ("BertModel", _sizes(num_attention_heads=1, hidden_act="gelu_new")),
    "roformer": ("RoFormerForMaskedLM", _sizes(type_vocab_size=1)),
    "roformer-bare": ("RoFormerModel", _sizes(num_attention_heads=2)),
    "marian": (
        "MarianMTModel",
        _encoder_decoder(**CONTEXT, scale_embedding=True, activation_function="swish"),
    ),
    "marian-own-vocab": (
        "MarianMTModel",
        _encoder_decoder(**CONTEXT, **OWN_VOCAB, forced_eos_token_id=5),
    ),
    "t5": ("T5ForConditionalGeneration", _t5(**RELATIVE)),
    "t5-gated": (
        "T5ForConditionalGeneration",
        _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "vit": ("ViTForImageClassification", {**IMAGES, "num_labels": 7, "qkv_bias": False}),
    "vit-bare": ("ViTModel", {**IMAGES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "whisper": ("WhisperForConditionalGeneration", _encoder_decoder(**AUDIO)),
}


@cache
def hf_model(case):
    """The model, with no gain at 1 and no bias at 0, where errors would hide."""
    import transformers

    transformers.logging.set_verbosity_error()
    name, options = CASES[case]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:  # sinusoidal tables are fixed
                p += 0.1 * torch.randn(p.shape)
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.normal_()
    return model
