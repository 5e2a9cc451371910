"""Max activating examples: the tokens of a corpus on which a feed-forward neuron is most active."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.readers import read_lines
from clearhead.errors import ClearheadError, suggest_file
from clearhead.lens.activation_cache import check_no_nan
from clearhead.lens.argument_checks import check_index, check_layer, check_model, check_top_k
from clearhead.lens.view import Row, View, label_axes
from clearhead.progress_bar import progress_bar

if TYPE_CHECKING:
    from clearhead.api import Model

TEXTS_PER_BATCH = 16
CONTEXT_TOKENS = 8  # tokens shown on either side of the active one


@dataclass(frozen=True, eq=False, repr=False)
class MaxActivatingExamples(View):
    """neuron × rank: the activation, and the text around the token, with the token in ‹ ›."""

    def table(self) -> list[Row]:
        """A row for each neuron and rank: the activation and the text."""
        neurons, ranks = (axis.labels for axis in self.axes)
        words = self.words or ()
        return [
            {
                "neuron": neuron,
                "rank": rank,
                self.value_name: float(self.values[i, j]),
                "text": words[i][j],
            }
            for i, neuron in enumerate(neurons)
            for j, rank in enumerate(ranks)
        ]


def max_activating_examples(
    model: "Model",
    layer: int,
    corpus: str | Path | Sequence[str],
    neurons: int | Sequence[int],
    *,
    top_k: int = 5,
) -> MaxActivatingExamples:
    """The tokens on which these neurons are most active, after the activation function.

    The corpus is a list of texts, or a text file with one on each line. A text longer than the
    context is read in chunks.
    """
    check_model(model)
    m = model.config.model
    layer = check_layer(layer, m.n_layers)
    several = neurons if isinstance(neurons, list | tuple | range) else [neurons]
    indices = [check_index(neuron, m.d_ff, "neuron", "the layer") for neuron in several]
    if not indices:
        raise ClearheadError("neurons must name at least one neuron.")
    check_top_k(top_k)
    if isinstance(m.architecture, c.EncoderDecoder) or not isinstance(m.input, c.Tokens):
        raise ClearheadError("max_activating_examples needs a decoder or encoder of text.")
    texts = _encode_corpus(model, corpus)
    batches = [texts[i : i + TEXTS_PER_BATCH] for i in range(0, len(texts), TEXTS_PER_BATCH)]
    name = f"blocks.{layer}.ffn.post"
    best = _TopActivations(len(indices), top_k)
    for batch in progress_bar(batches, len(batches), f"{len(texts)} texts"):
        cache = check_no_nan(model.watch(batch, {name: lambda value: value[..., indices]}))
        activations = cache[name].float().cpu()  # text token neuron
        for ids, text_activations in zip(batch, activations, strict=True):
            best.update(ids, text_activations[: len(ids)].mT)
    return MaxActivatingExamples(
        best.values,
        label_axes({"neuron": list(map(str, indices)), "rank": best.values.shape[1]}),
        title=f"layer {layer}, max activating examples",
        value_name="activation",
        signed=True,
        words=tuple(
            tuple(_excerpt(model, *location) for location in row) for row in best.locations
        ),
    )


class _TopActivations:
    """The largest activations of each neuron so far, and the tokens they belong to."""

    def __init__(self, num_neurons: int, top_k: int) -> None:
        self.top_k = top_k
        self.values = torch.empty(num_neurons, 0)
        # of each neuron: text and position
        self.locations: list[list[tuple[list[int], int]]] = [[] for _ in range(num_neurons)]

    def update(self, ids: list[int], activations: Tensor) -> None:
        """Add the activations of one text, neuron × token."""
        candidates = activations.topk(min(self.top_k, len(ids)), dim=1)
        values = torch.cat((self.values, candidates.values), dim=1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self.top_k]
        self.values = values.gather(1, order)
        for neuron, best in enumerate(order.tolist()):
            new = [(ids, position) for position in candidates.indices[neuron].tolist()]
            locations = [*self.locations[neuron], *new]
            self.locations[neuron] = [locations[i] for i in best]


def _encode_corpus(model: "Model", corpus: str | Path | Sequence[str]) -> list[list[int]]:
    """The token ids of each text, in chunks no longer than the context."""
    if isinstance(corpus, str | Path):
        path = Path(corpus)
        if not path.is_file():
            raise ClearheadError(
                f"there is no file {str(path)!r:.80}{suggest_file(path)}; "
                "corpus must be a list of texts, or a text file."
            )
        corpus = list(read_lines(path))
    if not isinstance(corpus, Sequence) or not all(isinstance(text, str) for text in corpus):
        raise ClearheadError("corpus must be a list of texts, or a text file.")
    texts = [text for text in corpus if text.strip()]
    if not texts:
        raise ClearheadError("the corpus is empty; give at least one text.")
    context_length = model.config.model.context_length
    return [
        ids[i : i + context_length]
        for ids in model.encode_texts(texts, allow_overflow=True)
        for i in range(0, len(ids), context_length)
    ]


def _excerpt(model: "Model", ids: list[int], position: int) -> str:
    """The text around a token, with the token in ‹ ›."""
    assert model.tokenizer is not None
    start = max(0, position - CONTEXT_TOKENS)
    end = position + 1 + CONTEXT_TOKENS
    parts = ids[start:position], ids[position : position + 1], ids[position + 1 : end]
    before, token, after = (model.tokenizer.decode(part) if part else "" for part in parts)
    return " ".join(f"{before}‹{token}›{after}".split())
