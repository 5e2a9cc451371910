"""Interpretability: see what a model computes, explain its predictions, edit its activations."""

from clearhead.lens.ablation import ablation
from clearhead.lens.attention import (
    attention,
    cached_attention,
    head_output_norms,
    head_scores,
    rollout,
    simple_attention,
    softmax_steps,
    value_weighted_attention,
    word_attention,
)
from clearhead.lens.circuits import circuit, composition
from clearhead.lens.head_contrast import find_heads, read_contrast
from clearhead.lens.logit_attribution import attribution
from clearhead.lens.logit_lens import logit_lens
from clearhead.lens.max_activating_examples import max_activating_examples
from clearhead.lens.parameters import parameters
from clearhead.lens.patching import patching
from clearhead.lens.position_encodings import (
    phrase_shift,
    position_curves,
    position_shift,
    position_similarity,
    positional_encodings,
    relative_bias,
    rotary_angles,
)
from clearhead.lens.residual_norms import residual_norms
from clearhead.lens.softmax import logits, softmax
from clearhead.lens.steering import steering
from clearhead.lens.tokens import tokens
from clearhead.lens.training_trace import read_training_trace
from clearhead.lens.word_in_context import context

__all__ = [
    "ablation",
    "attention",
    "attribution",
    "cached_attention",
    "circuit",
    "composition",
    "context",
    "find_heads",
    "head_output_norms",
    "head_scores",
    "logit_lens",
    "logits",
    "max_activating_examples",
    "parameters",
    "patching",
    "phrase_shift",
    "position_curves",
    "position_shift",
    "position_similarity",
    "positional_encodings",
    "read_contrast",
    "read_training_trace",
    "relative_bias",
    "residual_norms",
    "rollout",
    "rotary_angles",
    "simple_attention",
    "softmax",
    "softmax_steps",
    "steering",
    "tokens",
    "value_weighted_attention",
    "word_attention",
]
