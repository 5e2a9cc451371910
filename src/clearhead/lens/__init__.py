"""See what a model does, and change it."""

from clearhead.lens.plots import attention_figure

__all__ = ["attention_figure"]
