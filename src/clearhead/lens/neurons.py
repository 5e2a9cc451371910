"""The neurons of a feed-forward layer, with the places in a corpus that excite them most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.readers import read_lines
from clearhead.errors import ClearheadError, suggest_file
from clearhead.lens.activations import check_arguments, check_layer, check_no_nan, check_top
from clearhead.lens.view import Axis, Row, View
from clearhead.progress import progress_bar

if TYPE_CHECKING:
    from clearhead.api import Model

TEXTS_PER_BATCH = 16  # texts in one batch
CONTEXT_TOKENS = 8  # tokens that are shown on either side


@dataclass(frozen=True, eq=False, repr=False)
class MaxActivatingExamples(View):
    """neuron × rank: how strongly each was excited, with the text around the token, which stands in ‹ ›."""

    def table(self) -> list[Row]:
        """A row for each neuron and rank: how strongly it was excited, and the text."""
        neurons, ranks = (axis.labels for axis in self.axes)
        return [
            {
                "neuron": neuron,
                "rank": rank,
                self.value_name: float(self.values[i, j]),
                "text": (self.words or ())[i][j],
            }
            for i, neuron in enumerate(neurons)
            for j, rank in enumerate(ranks)
        ]


@check_arguments
def max_activating_examples(
    model: "Model",
    layer: int,
    corpus: str | Path | Sequence[str],
    neurons: int | Sequence[int],
    *,
    top: int = 5,
) -> MaxActivatingExamples:
    """The tokens of a corpus (texts, or a file with one in each line) where those neurons are highest after f.

    A text longer than the model's context is read in pieces.
    """
    m = model.config.model
    layer = check_layer(layer, m.n_layers)
    wanted = list(neurons) if isinstance(neurons, list | tuple | range) else [neurons]
    for neuron in wanted:
        if type(neuron) is not int or not 0 <= neuron < m.d_ff:
            raise ClearheadError(
                f"there is no neuron {neuron}; the layer has neurons 0 to {m.d_ff - 1}."
            )
    if not wanted:
        raise ClearheadError("at least one neuron is needed.")
    check_top(top)
    if isinstance(m.architecture, c.EncoderDecoder) or not isinstance(m.input, c.Tokens):
        raise ClearheadError(
            "a corpus excites neurons of a model that reads text alone; this one reads something else."
        )
    texts = _texts(model, corpus)
    batches = [texts[i : i + TEXTS_PER_BATCH] for i in range(0, len(texts), TEXTS_PER_BATCH)]
    name = f"blocks.{layer}.ffn.post"
    best = _Best(len(wanted), top)
    for batch in progress_bar(batches, len(batches), f"{len(texts)} texts"):
        seen = check_no_nan(model.watch(batch, {name: lambda value: value[..., wanted]}))
        value = seen[name].float().cpu()  # text token neuron
        for ids, excited in zip(batch, value, strict=True):
            best.take(ids, excited[: len(ids)].mT)
    words = tuple(tuple(_around(model, ids, at) for ids, at in row) for row in best.places)
    axes = (
        Axis.from_labels("neuron", [str(neuron) for neuron in wanted]),
        Axis.from_labels("rank", best.values.shape[1]),
    )
    return MaxActivatingExamples(
        best.values,
        axes,
        f"layer {layer}, what excites its neurons",
        "excited",
        signed=True,
        words=words,
    )


class _Best:
    """The highest values so far of each neuron, and where they were."""

    def __init__(self, neurons: int, top: int) -> None:
        self.top = top
        self.values = torch.empty(neurons, 0)
        self.places: list[list[tuple[list[int], int]]] = [[] for _ in range(neurons)]

    def take(self, ids: list[int], excited: Tensor) -> None:
        """neuron × token of one text."""
        found = excited.topk(min(self.top, len(ids)), dim=1)
        values = torch.cat((self.values, found.values), dim=1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self.top]
        self.values = values.gather(1, order)
        for i, kept in enumerate(order.tolist()):
            known = [*self.places[i], *((ids, at) for at in found.indices[i].tolist())]
            self.places[i] = [known[k] for k in kept]


def _texts(model: "Model", corpus: str | Path | Sequence[str]) -> list[list[int]]:
    if isinstance(corpus, str | Path):
        path = Path(corpus)
        if not path.is_file():
            raise ClearheadError(
                f"there is no file {str(path)!r:.80}{suggest_file(path)}; a corpus is a list of texts, or a file of lines."
            )
        corpus = list(read_lines(path))
    if not isinstance(corpus, Sequence) or not all(isinstance(text, str) for text in corpus):
        raise ClearheadError("a corpus is a list of texts, or a file of lines.")
    room = model.config.model.context_length
    pieces = list[list[int]]()
    for text in corpus:
        if text.strip():
            ids = _encoded(model, text)
            pieces += [ids[i : i + room] for i in range(0, len(ids), room)]
    if not pieces:
        raise ClearheadError("the corpus is empty; give at least one text.")
    return pieces


def _encoded(model: "Model", text: str) -> list[int]:
    if model.tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so it cannot read a corpus.")
    return [
        *model.config.inference.bos_tokens,
        *model.tokenizer.encode(text),
        *model.config.inference.sep_tokens,
    ]


def _around(model: "Model", ids: list[int], at: int) -> str:
    assert model.tokenizer is not None
    before = ids[max(0, at - CONTEXT_TOKENS) : at]
    token = ids[at : at + 1]
    after = ids[at + 1 : at + 1 + CONTEXT_TOKENS]
    texts = [model.tokenizer.decode(part) if part else "" for part in (before, token, after)]
    return " ".join(f"{texts[0]}‹{texts[1]}›{texts[2]}".split())
