"""See what a model does, and change it."""

from clearhead.lens.atlas import atlas
from clearhead.lens.attention import attention, attention_figure, contribution, rollout, softmax_row, written
from clearhead.lens.attribution import attribution
from clearhead.lens.circuits import circuit
from clearhead.lens.composition import composition
from clearhead.lens.context import context
from clearhead.lens.film import read_film
from clearhead.lens.film_figure import film_figure
from clearhead.lens.logit_lens import logit_lens
from clearhead.lens.looks import looks
from clearhead.lens.neurons import neurons
from clearhead.lens.pieces import tokens
from clearhead.lens.positions import position_similarity, positions, relative_bias, rotary_angles, shifted
from clearhead.lens.residual import residual
from clearhead.lens.steering import steering
from clearhead.lens.sweep import patching, sweep
from clearhead.lens.vectors import vectors

__all__ = [
    "atlas",
    "attention",
    "attention_figure",
    "attribution",
    "circuit",
    "composition",
    "context",
    "contribution",
    "film_figure",
    "logit_lens",
    "looks",
    "neurons",
    "patching",
    "position_similarity",
    "positions",
    "read_film",
    "relative_bias",
    "residual",
    "rollout",
    "rotary_angles",
    "shifted",
    "softmax_row",
    "steering",
    "sweep",
    "tokens",
    "vectors",
    "written",
]
