"""Where sentences end: a plain rule, for texts that are longer than a translator reads at once."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.config.model import Config, EncoderDecoder, InferenceConfig
from clearhead.data.batch import Batch, batches_by_length, unpad
from clearhead.errors import ClearheadError, InputTextError, with_index
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.generation import (
    BeamResult,
    BeamSearchConfig,
    beam_search_texts,
    check_sample_counts,
    encode_prefixes,
    teacher_forcing_batch,
    token_logprobs,
    token_rules,
)
from clearhead.hooks import Recorder
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- sentences: Where sentences end: a plain rule, for texts that are longer than a translator reads at once.

SENTENCE_END = re.compile(r"""([.!?…]+["'”’»)\]]*)(\s+)|([。！？]+[」』”’）]*)(\s*)|(\s*\n\s*)""")
SENTENCE_OPENERS = frozenset("\"'“‘„«‹([{¿¡")
ABBREVIATIONS = re.compile(
    r"(mrs?|ms|dr|prof|rev|gen|col|capt|lt|sgt|st|jr|sr|hon|inc|ltd|co|corp|vs|etc|cf|al|figs?|vol|nos?|pp|eds?|dept|est"
    r"|approx|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.?g|i\.?e|a\.m|p\.m|u\.[sk]|d\.c|ph\.d"
    r"|bzw|ca|usw|evtl|ggf|nr|str|tel|vgl|z\.b|d\.h|u\.a|o\.ä|s\.o|z\.t|hr|fr|dipl|ing"
    r"|mm|mme|mlle|sra|srta|uds?|art|av|bd|chap|env|p\.ex|sig|dott)",
    re.IGNORECASE,
)


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Each sentence with the white space after it; joined, they are the text. A line's end always ends one."""
    found = []
    start = 0
    for end in SENTENCE_END.finditer(text):
        mark = end[1] or end[3] or ""
        gap = end[2] or end[4] or end[5] or ""
        if (
            end[1]
            and "\n" not in gap
            and not _ends(text[start : end.start()], mark, text[end.end() : end.end() + 1])
        ):
            continue
        found.append((text[start : end.start()] + mark, gap))
        start = end.end()
    return [*found, (text[start:], "")] if start < len(text) or not found else found


def _ends(before: str, mark: str, after: str) -> bool:
    """Whether a mark between white space and what went before ends a sentence: not after `Dr.`, `J.` or `3.`."""
    if after and not (after in SENTENCE_OPENERS or (after.isalnum() and not after.islower())):
        return False
    word = re.split(r"""[\s("'“„«\[]""", before)[-1]
    return mark != "." or not (len(word) == 1 or word.isdigit() or ABBREVIATIONS.fullmatch(word))


# ---- align: Alignment: which token of the source each token of the output looked at when it was written (L3.8).


def check_align_layer(net: Transformer, layer: int | str) -> None:
    layers = net.config.n_layers
    if layer != "all" and not (isinstance(layer, int) and -layers <= layer < layers):
        most = f'0 to {layers - 1}, counted from the end by -1 to {-layers}, or "all"'
        raise ClearheadError(f"align = {layer!r} is no layer of this decoder; there are {most}.")


@torch.no_grad()
def attention_alignments(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    layer: int | str,
    source: Tensor,
    source_segment_ids: Tensor | None,
) -> list[list[int]]:
    """For each token of an output, the place in its source with most attention: the mean of a layer's heads, or of all.

    The attention is that of the pass that wrote the token.
    """
    check_align_layer(net, layer)
    texts = teacher_forcing_batch(prompts, outputs, source.device)
    hooks = Recorder(
        {
            f"blocks.{'*' if isinstance(layer, str) else layer % net.config.n_layers}.cross_attn.pattern": mean_over_heads
        }
    )
    net(
        texts.inputs,
        segment_ids=texts.segment_ids,
        source=source,
        source_segment_ids=source_segment_ids,
        hooks=hooks,
    )
    places = torch.stack([*hooks.values.values()]).mean(0).argmax(-1).tolist()
    return [
        row[len(prompt) - 1 : len(prompt) + len(output) - 1]
        for row, prompt, output in zip(places, prompts, outputs, strict=True)
    ]


def mean_over_heads(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch query key"]:
    return pattern.mean(1)


# ---- translate: Translation: sources of like length are searched together, long texts sentence by sentence, results in order.

MAX_CACHE_BYTES = 4 * 2**30  # bytes that the beams searched at once may remember


@dataclass(frozen=True)
class TranslationResult(BeamResult):
    """What a model made of a source."""

    alignment: list[int] | None = (
        None  # for each token, the place of the source token it attended to most
    )
    token_logprobs: list[TokenLogprob] | None = (
        None  # each token with its log-probability, where it was asked for
    )


class Translator:
    """An encoder-decoder with what is wished of it; `align` is a layer of the decoder, or all.

    `top` is how many of the likeliest are told with each token; None leaves out how likely that was, too.
    """

    def __init__(
        self, net: Transformer, config: Config, tokenizers: tuple[Tokenizer | None, Tokenizer | None], beam_config: BeamSearchConfig,
        align: int | str | None = None, split_sentences: bool = False, num_logprobs: int | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(shape := config.model.architecture, EncoderDecoder):
            raise ClearheadError(
                f"this {shape.kind} has no source to read; an encoder-decoder translates."
            )
        if not config.inference.decoder_start_tokens:
            raise ClearheadError(
                "it is not known which token an output starts with; its configuration needs inference.decoder_start_tokens = [id]."
            )
        if align is not None:
            check_align_layer(net, align)
        if num_logprobs is not None:
            check_sample_counts(1, num_logprobs)
        self.num_logprobs = num_logprobs
        self.net = net
        self.inference = config.inference
        self.source_context_length = shape.source_context_length
        (
            (self.tokenizer, self.source_tokenizer),
            self.beam_config,
            self.align,
            self.split_sentences,
        ) = tokenizers, beam_config, align, split_sentences

    def translate_texts(self, texts: Sequence[str]) -> list[list[TranslationResult]]:
        """The best translations of each text; of an empty one, nothing."""
        parts = []
        for number, text in enumerate(texts):
            with with_index(number):
                parts.append(self._parts(text))
        begins = encode_prefixes(self.beam_config.prefix, len(texts), self.tokenizer)
        rows = [
            (row, begin)
            for some, begin in zip(parts, begins, strict=True)
            for row, _ in some
            if row
        ]
        found = iter(self.translate_ids([row for row, _ in rows], [begin for _, begin in rows]))
        made = [
            [(next(found) if row else [EMPTY_TRANSLATION], gap) for row, gap in some]
            for some in parts
        ]
        return [self._joined(some) for some in made]

    def translate_batch(self, batch: Batch) -> list[list[TranslationResult]]:
        """The same for ids, or for sounds."""
        assert batch.source is not None
        begins = encode_prefixes(self.beam_config.prefix, len(batch.source), self.tokenizer)
        if not batch.source.is_floating_point():
            return self.translate_ids(unpad(batch.source, batch.source_segment_ids), begins)
        some = self._most()
        parts = (
            (batch.source[i : i + some], begins[i : i + some]) for i in range(0, len(begins), some)
        )
        return [found for source, begin in parts for found in self._search(source, None, begin)]

    def translate_ids(
        self, rows: Sequence[list[int]], begins: list[list[int]]
    ) -> list[list[TranslationResult]]:
        """The same for ids that fit the context."""
        device = next(self.net.parameters()).device
        made: dict[int, list[TranslationResult]] = {}
        for some in batches_by_length([len(row) for row in rows], device, self._most()):
            sources = Batch.from_rows([rows[i] for i in some], device)
            found = self._search(sources.inputs, sources.segment_ids, [begins[i] for i in some])
            made |= dict(zip(some, found, strict=True))
        return [made[i] for i in range(len(rows))]

    def _search(
        self, source: Tensor, segment_ids: Tensor | None, begins: list[list[int]]
    ) -> list[list[TranslationResult]]:
        prompts = [list(self.inference.decoder_start_tokens)] * len(source)
        found = beam_search_texts(
            self.net,
            self.tokenizer,
            self.inference,
            prompts,
            self.beam_config,
            begins,
            source,
            segment_ids,
        )
        made = [[TranslationResult(**vars(written)) for written in sentence] for sentence in found]
        which = [i for i, sentence in enumerate(made) for _ in sentence]
        texts = [prompts[i] for i in which], [one.tokens for sentence in made for one in sentence]
        sides = source[which], None if segment_ids is None else segment_ids[which]
        told: dict[str, Iterator[Any]] = {}
        if self.align is not None:
            told["alignment"] = iter(attention_alignments(self.net, *texts, self.align, *sides))
        if self.num_logprobs is not None:
            known = len(self.tokenizer) if self.tokenizer else None
            told["chosen"] = iter(
                token_logprobs(
                    self.net,
                    *texts,
                    self.num_logprobs,
                    known,
                    *sides,
                    **token_rules(self.inference, self.beam_config),
                )
            )
        if not told:
            return made
        return [
            [replace(one, **{name: next(values) for name, values in told.items()}) for one in some]
            for some in made
        ]

    def _parts(self, text: str) -> list[tuple[list[int], str]]:
        """The ids of a text, or of its sentences, each with the white space that follows; those of nothing are none."""
        assert self.source_tokenizer is not None
        whole = self._ids(text)
        if not self.split_sentences and len(whole) <= self.source_context_length:
            return [(whole, "")]
        parts = [(self._ids(sentence), gap) for sentence, gap in split_sentences(text)]
        if (longest := max(len(ids) for ids, _ in parts)) > self.source_context_length:
            why = f"has a sentence of {longest} tokens; this model reads at most {self.source_context_length} at once."
            raise InputTextError(None, why)
        wish = self.beam_config
        if sum(bool(ids) for ids, _ in parts) > 1 and (
            wish.n_best > 1
            or wish.prefix
            or wish.return_tree
            or wish.alternatives is not None
            or self.align is not None
        ):
            why = f"is {len(parts)} sentences, translated one by one; n_best, prefix, alternatives, tree and align are"
            raise InputTextError(None, f"{why} for one.")
        return parts

    def _ids(self, text: str) -> list[int]:
        if not text.strip():
            return []
        assert self.source_tokenizer is not None
        return [
            *self.inference.bos_tokens,
            *self.source_tokenizer.encode(text),
            *self.inference.sep_tokens,
        ]

    def _joined(self, parts: list[tuple[list[TranslationResult], str]]) -> list[TranslationResult]:
        """The translations of a text's sentences as one, with the white space that stood between them."""
        if len(parts) == 1:
            return parts[0][0]
        best = [some[0] for some, _ in parts]
        tokens = [t for one in best for t in one.tokens]
        logprob = sum(one.logprob for one in best)
        text = "".join(one.text + gap for one, (_, gap) in zip(best, parts, strict=True))
        score = logprob / max(1, len(tokens)) ** self.beam_config.length_penalty
        chosen = (
            None
            if self.num_logprobs is None
            else [c for one in best for c in one.token_logprobs or ()]
        )
        return [TranslationResult(text, tokens, score, logprob, token_logprobs=chosen)]

    def _most(self) -> int:
        """How many sources are searched at once: what their beams remember is bounded."""
        m = self.net.config
        p = next(self.net.parameters())
        token = 2 * m.n_layers * m.n_kv_heads * m.d_head * p.element_size()
        return max(
            1,
            MAX_CACHE_BYTES
            // (
                max(1, self.beam_config.num_beams)
                * token
                * min(self.beam_config.max_tokens or m.context_length, m.context_length)
            ),
        )


EMPTY_TRANSLATION = TranslationResult("", [], 0.0, 0.0, None)


# ---- told: Translations as plain values, for JSON.

JSONObject = dict[str, Any]
RESULT_FIELDS = ("text", "score", "logprob", "tokens", "alignment")


def translations_to_dicts(
    text: str, found: Sequence[TranslationResult], tokenizers: tuple[Tokenizer | None, Tokenizer | None], use: InferenceConfig,
    aligned: bool,
) -> tuple[JSONObject, list[JSONObject]]:  # fmt: skip
    """A source, and each of its translations; the places of an alignment are those of `source_pieces`."""
    words, own = tokenizers
    source: JSONObject = {"source": text}
    if aligned and own:
        source["source_pieces"] = own.to_str_tokens(
            [*use.bos_tokens, *own.encode(text), *use.sep_tokens]
        )
    trees = [
        {name: value for name in RESULT_FIELDS if (value := getattr(one, name)) is not None}
        for one in found
    ]
    if words:
        trees = [tree | {"pieces": words.to_str_tokens(tree["tokens"])} for tree in trees]
    return source, trees
