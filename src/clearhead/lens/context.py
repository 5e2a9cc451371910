"""One word in several sentences (L3.1): how alike its vectors are from layer to layer, and what makes them differ."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import ClearheadError, suggest
from clearhead.lens.activations import InputSide, check_arguments, check_no_nan
from clearhead.lens.attribution import (
    LinearPath,
    decompose_logit,
    detach_float,
    required_activations,
)
from clearhead.lens.view import Axis, View
from clearhead.tokenizers.tokenizer import split_at_masks

if TYPE_CHECKING:
    from clearhead.api import Model


@dataclass(frozen=True)
class WordInSentence:
    """A sentence as it was read: its ids, which of its tokens are the word, and where that stands in the text."""

    text: str
    ids: list[int]
    word_positions: list[int]
    char_span: tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class ContextSimilarity(View):
    """layer × pair of sentences: the cosine of the word's vectors; `start` is before the first layer."""

    side: InputSide | None = None
    sentences: tuple[WordInSentence, ...] = ()

    def by_head(self) -> View:
        """layer × head × pair: the cosine of what each head has gathered for the word."""
        side = self._side
        prefix = _prefix(self._side)
        names = [f"{prefix}blocks.{i}.attn.z" for i in range(len(side.stack.blocks))]
        runs = [
            [_of_word(value, reading) for value in _read(side, reading, names)]
            for reading in self.sentences
        ]
        values = torch.stack([torch.stack(run) for run in runs])  # sentence layer head d
        cosines = torch.stack(
            [F.cosine_similarity(values[a], values[b], dim=-1) for a, b in _pairs(runs)], dim=-1
        )
        axes = (
            Axis.from_labels("layer", cosines.shape[0]),
            Axis.from_labels("head", cosines.shape[1]),
            self.axes[1],
        )
        note = f"cosine of what a head has gathered for the word; {_listed(self.sentences)}"
        return View(
            cosines, axes, f"{self.title}, by head", "cosine", signed=True, vmax=1.0, note=note
        )

    def difference(self, first: int = 0, second: int = 1) -> "ContextDifference":
        """What each part has added to the way from the word in one sentence to the word in another.

        The parts' values add up to the distance between the two last hidden states of the word.
        """
        side = self._side
        count = len(self.sentences)
        for number in (first, second):
            if not isinstance(number, int) or not 0 <= number < count:
                raise ClearheadError(
                    f"there is no sentence {number}; there are sentences 0 to {count - 1}."
                )
        if first == second:
            raise ClearheadError(
                f"sentence {first} does not differ from itself; give two sentences."
            )
        if side.is_encoder:
            raise ClearheadError(
                "what changed a word is told of decoders and encoders, not of an encoder-decoder."
            )
        chosen = [self.sentences[number] for number in (first, second)]
        if (
            side.stack.is_causal
            and len({tuple(reading.ids[: reading.word_positions[-1] + 1]) for reading in chosen})
            == 1
        ):
            raise ClearheadError(
                "the sentences are the same up to the word; a decoder does not read what follows it."
            )
        seen = [
            check_no_nan(
                side.model.watch([reading.ids], required_activations(side.model.config.model))
            )
            for reading in chosen
        ]
        ends = [
            _of_word(detach_float(run["final_norm"][0]), reading)
            for run, reading in zip(seen, chosen, strict=True)
        ]
        way = F.normalize(ends[1] - ends[0], dim=0)
        walks = []
        for run, reading in zip(seen, chosen, strict=True):
            direction = torch.zeros_like(detach_float(run["final_norm"][0]))
            direction[reading.word_positions] = way / len(reading.word_positions)
            walks.append(
                decompose_logit(side.model.net, run, LinearPath(direction, way.new_zeros(())))
            )
        (old, old_looks), (new, new_looks) = walks
        values = torch.stack([new[part] - old[part] for part in new])
        by_head = torch.stack(
            [
                b["attention"].heads - a["attention"].heads
                for a, b in zip(old_looks, new_looks, strict=True)
            ]
        )
        note = f"what each part adds to the distance of {float(values.sum()):.4f}, along the difference"
        title = f"what changed {self.title} from {chosen[0].text!r} to {chosen[1].text!r}"
        return ContextDifference(
            values,
            (Axis.from_labels("part", list(new)),),
            title,
            "change",
            signed=True,
            note=note,
            head_values=by_head,
        )

    @property
    def _side(self) -> InputSide:
        assert self.side is not None
        return self.side


@dataclass(frozen=True, eq=False, repr=False)
class ContextDifference(View):
    """A value for each part; they add up to the distance."""

    head_values: Tensor | None = None

    def by_head(self) -> View:
        """layer × head: what each head has added to the change; its bias aside."""
        assert self.head_values is not None
        axes = (
            Axis.from_labels("layer", self.head_values.shape[0]),
            Axis.from_labels("head", self.head_values.shape[1]),
        )
        return View(
            self.head_values,
            axes,
            f"{self.title}, by head",
            self.value_name,
            signed=True,
            note=self.note,
        )


@check_arguments
def context(model: "Model", word: str, sentences: Sequence[str]) -> ContextSimilarity:
    """How alike a word is in each two of some sentences, layer by layer.

    A word of several tokens is the mean of them; where a sentence has it several times, the last is meant, which has
    read most. An encoder-decoder is looked at where it reads: in its encoder.
    """
    if not isinstance(sentences, list | tuple) or len(sentences) < 2:
        raise ClearheadError("a word is compared in two sentences or more; give a list of them.")
    side = InputSide(model)
    readings = tuple(_reading(side, word, text) for text in sentences)
    prefix = _prefix(side)
    names = [
        f"{prefix}embed",
        *(f"{prefix}blocks.{i}.resid_post" for i in range(len(side.stack.blocks))),
    ]
    runs = [
        torch.stack([_of_word(v, reading) for v in _read(side, reading, names)])
        for reading in readings
    ]
    values = torch.stack(
        [F.cosine_similarity(runs[a], runs[b], dim=-1) for a, b in _pairs(runs)], dim=-1
    )
    layers = ["start", *(f"layer {i}" for i in range(len(side.stack.blocks)))]
    axes = (
        Axis.from_labels("layer", layers),
        Axis.from_labels("pair", [f"{a}·{b}" for a, b in _pairs(runs)]),
    )
    blind = "; a decoder does not read what follows the word" if side.stack.is_causal else ""
    note = f"cosine of the word's vectors; {_listed(readings)}{blind}"
    return ContextSimilarity(
        values, axes, repr(word), "cosine", signed=True, vmax=1.0, note=note, side=side, sentences=readings
    )  # fmt: skip


def _reading(side: InputSide, word: str, text: str) -> WordInSentence:
    if not isinstance(word, str) or not word.strip() or not isinstance(text, str):
        raise ClearheadError("a word and sentences are texts, and the word has a letter at least.")
    found = [*re.finditer(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)]
    if not found:
        hint = suggest(word, dict.fromkeys(re.findall(r"\w+", text)))
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {hint}")
    return locate_word(side, text, *found[-1].span())


def locate_word(side: InputSide, text: str, start: int, end: int) -> WordInSentence:
    """A sentence whose word stands between two of its characters."""
    ids = list[int]()
    spans = list[tuple[int, int]]()
    for first, last, gap in split_at_masks(side.tokenizer, side.mask_token, text):
        if gap is not None:
            ids = [*ids, gap]
            spans = [*spans, (first, last)]
            continue
        places = side.tokenizer.backend.encode(text[first:last], add_special_tokens=False)
        if places.ids != side.tokenizer.encode(
            text[first:last]
        ):  # a text that spells out a special token
            raise ClearheadError(f"{text!r:.80} holds a special token; leave it out.")
        ids = [*ids, *places.ids]
        spans = [*spans, *((first + a, first + b) for a, b in places.offsets)]
    inside = [i for i, (a, b) in enumerate(spans) if a < end and b > start]
    before = len(side.bos_tokens)
    return WordInSentence(
        text, [*side.bos_tokens, *ids, *side.sep_tokens], [before + i for i in inside], (start, end)
    )


def _read(side: InputSide, reading: WordInSentence, names: list[str]) -> list[Tensor]:
    """Values of one sentence; a sentence is read alone."""
    seen = side.watch([reading.ids], names)
    return [seen[name][0].float().cpu() for name in names]


def _of_word(value: Tensor, reading: WordInSentence) -> Tensor:
    """The mean over the word's tokens: of … × token × width."""
    return value[..., reading.word_positions, :].mean(dim=-2)


def _pairs(runs: Sequence[object]) -> list[tuple[int, int]]:
    return list(combinations(range(len(runs)), 2))


def _prefix(side: InputSide) -> str:
    return "encoder." if side.is_encoder else ""


def _listed(readings: Sequence[WordInSentence]) -> str:
    return "; ".join(f"{number}: {reading.text}" for number, reading in enumerate(readings))
