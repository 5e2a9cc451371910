"""See what a model does, and change it."""

from clearhead.lens.film import read_film
from clearhead.lens.film_figure import film_figure
from clearhead.lens.logit_lens import logit_lens
from clearhead.lens.plots import attention_figure

__all__ = ["attention_figure", "film_figure", "logit_lens", "read_film"]
