"""A word in several contexts (L3.1): how similar its vectors are, and what makes them differ."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.data.batch import check_text_length
from clearhead.errors import ClearheadError, suggest
from clearhead.lens.activation_cache import check_no_nan
from clearhead.lens.argument_checks import check_model
from clearhead.lens.logit_attribution import (
    LinearPath,
    decompose_logit,
    detach_float,
    required_activations,
)
from clearhead.lens.text_stack import TextStack
from clearhead.lens.view import View, label_axes
from clearhead.tokenizers.tokenizer import split_at_masks

if TYPE_CHECKING:
    from clearhead.api import Model

MIN_SENTENCES_PER_SENSE = 3
BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class WordInSentence:
    """A tokenized sentence, and where a word stands in its tokens and characters."""

    text: str
    ids: list[int]
    word_positions: list[int]
    char_span: tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ContextSimilarity(View):
    """layer × pair of sentences: cosine of the word's vectors; `start` is the embedding."""

    text_stack: TextStack
    sentences: tuple[WordInSentence, ...]

    def by_head(self) -> View:
        """layer × head × pair: cosine similarity of each head's output at the word."""
        names = [
            f"{self.text_stack.prefix}blocks.{i}.attn.z"
            for i in range(len(self.text_stack.stack.blocks))
        ]
        values = [torch.stack(_word_vectors(self.text_stack, s, names)) for s in self.sentences]
        cosines = _pairwise_cosines(values)  # layer head pair
        return View(
            cosines,
            (*label_axes({"layer": cosines.shape[0], "head": cosines.shape[1]}), self.axes[1]),
            f"{self.title}, by head",
            "cosine",
            signed=True,
            vmax=1.0,
            note=f"cosine similarity of the head's output z; {_numbered(self.sentences)}",
        )

    def by_sense(self, senses: Sequence[str]) -> View:
        """layer × statistic: mean cosine within a sense, between senses, and their difference.

        `senses` has the word's sense in each sentence. The interval of the difference is a 95%
        bootstrap interval over sentences. As a control, measure a word with a single sense in the
        same sentences: its vectors differ too, because every word takes in its context.
        """
        if not isinstance(senses, list | tuple) or len(senses) != len(self.sentences):
            raise ClearheadError(f"senses must be a list of {len(self.sentences)}, one a sentence.")
        if not all(senses.count(sense) >= MIN_SENTENCES_PER_SENSE for sense in senses):
            raise ClearheadError(f"each sense needs {MIN_SENTENCES_PER_SENSE} sentences or more.")
        if len(set(senses)) < 2:
            raise ClearheadError("senses must differ between sentences.")
        pairs = list(_pairs(len(senses)))
        same = torch.tensor([senses[a] == senses[b] for a, b in pairs])
        first, second = torch.tensor(pairs).T
        sentence = torch.randint(
            len(senses),
            (BOOTSTRAP_SAMPLES, len(senses)),
            generator=torch.Generator().manual_seed(0),
        )
        counts = F.one_hot(sentence, len(senses)).sum(dim=1).float()  # sample sentence
        weights = counts[:, first] * counts[:, second]  # sample pair
        # a sample without a pair of the same sense has no difference
        weights = weights[(weights * same).any(dim=1) & (weights * ~same).any(dim=1)]
        within, between = (
            F.normalize(weights * mask, p=1) @ self.values.T for mask in (same, ~same)
        )
        low, high = (within - between).quantile(torch.tensor([0.025, 0.975]), dim=0)
        means = self.values[:, same].mean(dim=1), self.values[:, ~same].mean(dim=1)
        statistics = ("within", "between", "difference", "95% low", "95% high")
        return View(
            torch.stack([*means, means[0] - means[1], low, high], dim=-1),
            (self.axes[0], *label_axes({"statistic": statistics})),
            f"{self.title}, by sense",
            self.value_name,
            signed=True,
            vmax=1.0,
            note="mean cosine similarity of the word's vectors within a sense and between senses",
        )

    def difference(self, first: int = 0, second: int = 1) -> "ContextDifference":
        """What each component contributes to the difference of the word between two sentences.

        The values sum to the distance between the word's two final hidden states.
        """
        for index in (first, second):
            if not isinstance(index, int) or not 0 <= index < len(self.sentences):
                raise ClearheadError(
                    f"there is no sentence {index}; they are 0 to {len(self.sentences) - 1}."
                )
        if first == second:
            raise ClearheadError(f"difference needs two sentences, got {first} twice.")
        if self.text_stack.is_encoder:
            raise ClearheadError("difference does not support an encoder-decoder.")
        model = self.text_stack.model
        sentences = self.sentences[first], self.sentences[second]
        prefixes = [sentence.ids[: sentence.word_positions[-1] + 1] for sentence in sentences]
        if self.text_stack.stack.is_causal and prefixes[0] == prefixes[1]:
            raise ClearheadError(
                "the sentences are equal up to the word; a decoder does not read what follows it."
            )
        names = required_activations(model.config.model)
        caches = [check_no_nan(model.watch([sentence.ids], names)) for sentence in sentences]
        hidden = [detach_float(cache["final_norm"][0]) for cache in caches]
        old, new = (_word_mean(h, s) for h, s in zip(hidden, sentences, strict=True))
        direction = F.normalize(new - old, dim=0)
        components = []
        head_values = []
        for cache, final, sentence in zip(caches, hidden, sentences, strict=True):
            directions = torch.zeros_like(final)
            directions[sentence.word_positions] = direction / len(sentence.word_positions)
            path = LinearPath(directions, direction.new_zeros(()))
            values, layers = decompose_logit(model.net, cache, path)
            components.append(values)
            head_values.append(torch.stack([layer["attention"].heads for layer in layers]))
        changes = torch.stack([components[1][name] - components[0][name] for name in components[1]])
        return ContextDifference(
            changes,
            label_axes({"component": list(components[1])}),
            f"difference of {self.title} between {sentences[0].text!r} and {sentences[1].text!r}",
            "change",
            signed=True,
            note=f"contributions to the difference, which sum to {float(changes.sum()):.4f}",
            head_values=head_values[1] - head_values[0],
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ContextDifference(View):
    """A value for each component; they sum to the distance."""

    head_values: Tensor  # layer head

    def by_head(self) -> View:
        """layer × head: the contribution of each head, without biases."""
        return View(
            self.head_values,
            label_axes({"layer": self.head_values.shape[0], "head": self.head_values.shape[1]}),
            f"{self.title}, by head",
            self.value_name,
            signed=True,
            note=self.note,
        )


def context(model: "Model", word: str, sentences: Sequence[str]) -> ContextSimilarity:
    """How similar a word's vectors are in each pair of sentences, layer by layer.

    The vector of a word with several tokens is their mean; of several occurrences the last one
    counts, which has read the most. In an encoder-decoder it is the encoder that reads.
    """
    check_model(model)
    if not isinstance(sentences, list | tuple) or len(sentences) < 2:
        raise ClearheadError("sentences must be a list of at least two sentences.")
    text_stack = TextStack(model)
    located = tuple(find_word(text_stack, word, text) for text in sentences)
    n_layers = len(text_stack.stack.blocks)
    names = [f"{text_stack.prefix}blocks.{i}.resid_post" for i in range(n_layers)]
    names.insert(0, f"{text_stack.prefix}full_embed")
    cosines = _pairwise_cosines([torch.stack(_word_vectors(text_stack, s, names)) for s in located])
    note = f"cosine similarity of the word's vectors; {_numbered(located)}"
    if text_stack.stack.is_causal:
        note += "; a decoder does not read what follows the word"
    return ContextSimilarity(
        values=cosines,
        axes=label_axes(
            {
                "layer": ["start", *(f"layer {i}" for i in range(n_layers))],
                "pair": [f"{a}·{b}" for a, b in _pairs(len(located))],
            }
        ),
        title=repr(word),
        value_name="cosine",
        signed=True,
        vmax=1.0,
        note=note,
        text_stack=text_stack,
        sentences=located,
    )


def find_word(text_stack: TextStack, word: str, text: str) -> WordInSentence:
    """The last occurrence of a word, ignoring case."""
    if not isinstance(word, str) or not word.strip() or not isinstance(text, str):
        raise ClearheadError("the word and the sentences must be texts, and the word not empty.")
    pattern = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    matches = list(re.finditer(pattern, text, re.IGNORECASE))
    if not matches:
        hint = suggest(word, dict.fromkeys(re.findall(r"\w+", text)))
        raise ClearheadError(f"{word!r} is not in {text!r:.80}; {hint}")
    return locate_word(text_stack, text, *matches[-1].span())


def locate_word(text_stack: TextStack, text: str, start: int, end: int) -> WordInSentence:
    """The tokens of a sentence, and which of them overlap the characters from `start` to `end`."""
    return locate_words(text_stack, text, [(start, end)])[0]


def locate_words(
    text_stack: TextStack, text: str, char_spans: Sequence[tuple[int, int]]
) -> list[WordInSentence]:
    """`locate_word` of several words of a sentence, which is tokenized once."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for chunk_start, chunk_end, mask_token in split_at_masks(
        text_stack.tokenizer, text_stack.mask_token, text
    ):
        if mask_token is not None:
            ids.append(mask_token)
            spans.append((chunk_start, chunk_end))
            continue
        chunk = text[chunk_start:chunk_end]
        chunk_ids = text_stack.tokenizer.encode(chunk)  # raises for unknown characters
        encoding = text_stack.tokenizer.backend.encode(chunk, add_special_tokens=False)
        if encoding.ids != chunk_ids:
            raise ClearheadError(f"{text!r:.80} contains a special token; remove it.")
        ids += encoding.ids
        spans += [(chunk_start + a, chunk_start + b) for a, b in encoding.offsets]
    num_bos = len(text_stack.bos_tokens)
    ids = [*text_stack.bos_tokens, *ids, *text_stack.sep_tokens]
    check_text_length(len(ids), text_stack.stack.context_length)
    return [
        WordInSentence(
            text,
            ids=ids,
            word_positions=[num_bos + i for i, (a, b) in enumerate(spans) if a < end and b > start],
            char_span=(start, end),
        )
        for start, end in char_spans
    ]


def _word_vectors(
    text_stack: TextStack, sentence: WordInSentence, names: list[str]
) -> list[Tensor]:
    """The mean of each activation over the word's tokens."""
    cache = text_stack.watch([sentence.ids], names)
    return [_word_mean(cache[name][0].float().cpu(), sentence) for name in names]


def _word_mean(value: Tensor, sentence: WordInSentence) -> Tensor:
    """From … × token × d to … × d."""
    return value[..., sentence.word_positions, :].mean(dim=-2)


def _pairwise_cosines(values: Sequence[Tensor]) -> Tensor:
    """From … × d of each sentence to … × pair."""
    pairs = _pairs(len(values))
    return torch.stack([F.cosine_similarity(values[a], values[b], dim=-1) for a, b in pairs], -1)


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return combinations(range(count), 2)


def _numbered(sentences: Sequence[WordInSentence]) -> str:
    return "; ".join(f"{i}: {sentence.text}" for i, sentence in enumerate(sentences))
