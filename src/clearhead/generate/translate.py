"""Translation: sources of like length are searched together, long texts sentence by sentence, results in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from clearhead.batch import Batch, by_length, unpadded
from clearhead.config import Config, EncoderDecoder
from clearhead.errors import ClearheadError, numbered
from clearhead.errors import Unreadable as Unreadable
from clearhead.generate.align import alignments, check_layer
from clearhead.generate.beamed import Wishes, Written, allowed, best_texts, prefixes
from clearhead.generate.chances import chances
from clearhead.generate.request import Chosen
from clearhead.generate.sentences import sentences
from clearhead.generate.write import check_samples
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

MEMORY = 4 * 2**30  # bytes that the beams searched at once may remember


@dataclass(frozen=True)
class Translated(Written):
    """What a model made of a source."""

    alignment: list[int] | None = None  # for each token, the place of the source token it attended to most
    chosen: list[Chosen] | None = None  # each token with its log-probability, where it was asked for


class Translator:
    """An encoder-decoder with what is wished of it; `align` is a layer of the decoder, or all.

    `top` is how many of the likeliest are told with each token; None leaves out how likely that was, too.
    """

    def __init__(
        self, net: Transformer, config: Config, tokenizers: tuple[Tokenizer | None, Tokenizer | None], wish: Wishes,
        align: int | str | None = None, split: bool = False, top: int | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(shape := config.model.shape, EncoderDecoder):
            raise ClearheadError(f"this {shape.kind} has no source to read; an encoder-decoder translates.")
        if not config.use.start:
            raise ClearheadError(
                "it is not known which token an output starts with; its configuration needs use.start = [id]."
            )
        if align is not None:
            check_layer(net, align)
        if top is not None:
            check_samples(1, top)
        self.top = top
        self.net, self.use, self.context = net, config.use, shape.context
        (self.tokenizer, self.source_tokenizer), self.wish, self.align, self.split = tokenizers, wish, align, split

    def texts(self, texts: Sequence[str]) -> list[list[Translated]]:
        """The best translations of each text; of an empty one, nothing."""
        parts = []
        for number, text in enumerate(texts):
            with numbered(number):
                parts.append(self._parts(text))
        begins = prefixes(self.wish.prefix, len(texts), self.tokenizer)
        rows = [(row, begin) for some, begin in zip(parts, begins, strict=True) for row, _ in some if row]
        found = iter(self.rows([row for row, _ in rows], [begin for _, begin in rows]))
        made = [[(next(found) if row else [NOTHING], gap) for row, gap in some] for some in parts]
        return [self._joined(some) for some in made]

    def batch(self, batch: Batch) -> list[list[Translated]]:
        """The same for ids, or for sounds."""
        assert batch.source is not None
        begins = prefixes(self.wish.prefix, len(batch.source), self.tokenizer)
        if not batch.source.is_floating_point():
            return self.rows(unpadded(batch.source, batch.source_segments), begins)
        some = self._most()
        parts = ((batch.source[i : i + some], begins[i : i + some]) for i in range(0, len(begins), some))
        return [found for source, begin in parts for found in self._search(source, None, begin)]

    def rows(self, rows: Sequence[list[int]], begins: list[list[int]]) -> list[list[Translated]]:
        """The same for ids that fit the context."""
        device = next(self.net.parameters()).device
        made: dict[int, list[Translated]] = {}
        for some in by_length([len(row) for row in rows], device, self._most()):
            sources = Batch.of([rows[i] for i in some], device)
            found = self._search(sources.ids, sources.segments, [begins[i] for i in some])
            made |= dict(zip(some, found, strict=True))
        return [made[i] for i in range(len(rows))]

    def _search(self, source: Tensor, segments: Tensor | None, begins: list[list[int]]) -> list[list[Translated]]:
        prompts = [list(self.use.start)] * len(source)
        found = best_texts(self.net, self.tokenizer, self.use, prompts, self.wish, begins, source, segments)
        made = [[Translated(**vars(written)) for written in sentence] for sentence in found]
        which = [i for i, sentence in enumerate(made) for _ in sentence]
        texts = [prompts[i] for i in which], [one.tokens for sentence in made for one in sentence]
        sides = source[which], None if segments is None else segments[which]
        told: dict[str, Iterator[Any]] = {}
        if self.align is not None:
            told["alignment"] = iter(alignments(self.net, *texts, self.align, *sides))
        if self.top is not None:
            known = len(self.tokenizer) if self.tokenizer else None
            told["chosen"] = iter(chances(self.net, *texts, self.top, known, *sides, **allowed(self.use, self.wish)))
        if not told:
            return made
        return [
            [replace(one, **{name: next(values) for name, values in told.items()}) for one in some] for some in made
        ]

    def _parts(self, text: str) -> list[tuple[list[int], str]]:
        """The ids of a text, or of its sentences, each with the white space that follows; those of nothing are none."""
        assert self.source_tokenizer is not None
        whole = self._ids(text)
        if not self.split and len(whole) <= self.context:
            return [(whole, "")]
        parts = [(self._ids(sentence), gap) for sentence, gap in sentences(text)]
        if (longest := max(len(ids) for ids, _ in parts)) > self.context:
            why = f"has a sentence of {longest} tokens; this model reads at most {self.context} at once."
            raise Unreadable(None, why)
        wish = self.wish
        if sum(bool(ids) for ids, _ in parts) > 1 and (
            wish.n_best > 1 or wish.prefix or wish.tree or wish.alternatives is not None or self.align is not None
        ):
            why = f"is {len(parts)} sentences, translated one by one; n_best, prefix, alternatives, tree and align are"
            raise Unreadable(None, f"{why} for one.")
        return parts

    def _ids(self, text: str) -> list[int]:
        if not text.strip():
            return []
        assert self.source_tokenizer is not None
        return [*self.use.begin, *self.source_tokenizer.encode(text), *self.use.end]

    def _joined(self, parts: list[tuple[list[Translated], str]]) -> list[Translated]:
        """The translations of a text's sentences as one, with the white space that stood between them."""
        if len(parts) == 1:
            return parts[0][0]
        best = [some[0] for some, _ in parts]
        tokens, logprob = [t for one in best for t in one.tokens], sum(one.logprob for one in best)
        text = "".join(one.text + gap for one, (_, gap) in zip(best, parts, strict=True))
        score = logprob / max(1, len(tokens)) ** self.wish.length_penalty
        chosen = None if self.top is None else [c for one in best for c in one.chosen or ()]
        return [Translated(text, tokens, score, logprob, chosen=chosen)]

    def _most(self) -> int:
        """How many sources are searched at once: what their beams remember is bounded."""
        m, p = self.net.config, next(self.net.parameters())
        token = 2 * m.layers * m.kv_heads * m.head_width * p.element_size()
        return max(1, MEMORY // (max(1, self.wish.beam) * token * min(self.wish.max_tokens or m.context, m.context)))


NOTHING = Translated("", [], 0.0, 0.0, None)
