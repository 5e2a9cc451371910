"""Translation with an encoder-decoder and beam search, in batches or sentence by sentence."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from clearhead.config.model import Config, EncoderDecoder, InferenceConfig, Tokens
from clearhead.data.batch import Batch, batches_by_length, unpad
from clearhead.errors import ClearheadError, InputTextError, check_int, with_index
from clearhead.generate.beam_search_texts import (
    BeamResult,
    BeamSearchConfig,
    beam_search_rules,
    beam_search_texts,
    encode_prefixes,
)
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.teacher_forcing import teacher_forcing_batch, token_logprobs
from clearhead.generate.text_generation import with_choices
from clearhead.hooks import Recorder
from clearhead.model.transformer import Transformer, eval_mode
from clearhead.tokenizers.tokenizer import Tokenizer

MAX_CACHE_BYTES = 4 * 2**30  # for the beams of the sources that are searched together
# Possessive, and only from the start of a run, so that the time is linear in the text's length.
SENTENCE_END = re.compile(
    r"""(?<![.!?…])([.!?…]++["'”’»)\]]*+)(\s++)"""
    r"""|([。！？]++[」』”’）]*+)(\s*+)"""
    r"""|(?<!\s)([^\S\n]*+\n\s*+)"""
)
SENTENCE_OPENERS = frozenset("\"'“‘„«‹([{¿¡")
WORD_OPENERS = frozenset("\"'“„«([")
ABBREVIATIONS = re.compile(
    r"(mrs?|ms|dr|prof|rev|gen|col|capt|lt|sgt|st|jr|sr|hon|inc|ltd|co|corp|vs|etc|cf|al|figs?|vol"
    r"|nos?|pp|eds?|dept|est|approx|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.?g|i\.?e|a\.m"
    r"|p\.m|u\.[sk]|d\.c|ph\.d|bzw|ca|usw|evtl|ggf|nr|str|tel|vgl|z\.b|d\.h|u\.a|o\.ä|s\.o|z\.t|hr"
    r"|fr|dipl|ing|mm|mme|mlle|sra|srta|uds?|art|av|bd|chap|env|p\.ex|sig|dott)",
    re.IGNORECASE,
)

JSONObject = dict[str, Any]
Sentence = tuple[list[int], str]  # token ids, and the whitespace that follows in the text
# from a batch of sources, its segment ids and prefixes
SearchFunction = Callable[[Tensor, Tensor | None, list[list[int]]], list["Translation"]]


@dataclass(frozen=True)
class Translation(BeamResult):
    """A translation; with n_best, `choices` holds all, best first."""

    alignment: list[int] | None = None  # for each token, the source token it attended to most
    token_logprobs: list[TokenLogprob] | None = None  # with logprobs


EMPTY_TRANSLATION = Translation("", [], 0.0, 0.0)


class Translator:
    """An encoder-decoder with its beam search options.

    `align` is a decoder layer or "all". `num_logprobs` adds log-probabilities, and those of that
    many most likely tokens; 0 adds none. Another engine may do the search.
    """

    def __init__(
        self,
        net: Transformer,
        config: Config,
        tokenizers: tuple[Tokenizer | None, Tokenizer | None],
        beam_config: BeamSearchConfig,
        align: int | str | None = None,
        split_sentences: bool = False,
        num_logprobs: int = 0,
        search: SearchFunction | None = None,
    ) -> None:
        architecture = config.model.architecture
        if not isinstance(architecture, EncoderDecoder):
            raise ClearheadError(
                "translation needs an encoder-decoder; this model has architecture "
                f"{architecture.kind}."
            )
        if not config.inference.decoder_start_tokens:
            raise ClearheadError(
                "translation needs inference.decoder_start_tokens = [id] in the configuration."
            )
        n_layers = net.config.n_layers
        is_layer = isinstance(align, int) and -n_layers <= align < n_layers
        if align not in (None, "all") and not is_layer:
            raise ClearheadError(
                f'align must be a decoder layer from {-n_layers} to {n_layers - 1}, or "all", '
                f"got {align!r}."
            )
        check_int("logprobs", num_logprobs)
        self.net = net
        self.inference = config.inference
        self.source_input = architecture.source_input
        self.source_context_length = architecture.source_context_length
        self.tokenizer, self.source_tokenizer = tokenizers
        self.beam_config = beam_config
        self.align = align
        self.split_sentences = split_sentences
        self.num_logprobs = num_logprobs
        self.search = search or self._beam_search

    def can_encode(self, texts: object) -> TypeGuard[Sequence[str]]:
        """Whether these are strings and the model has a tokenizer for them."""
        if self.source_tokenizer is None or not isinstance(self.source_input, Tokens):
            return False
        return isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)

    def translate_texts(self, texts: Sequence[str]) -> list[Translation]:
        """Translate each text; an empty one gives an empty translation."""
        encoded = self.encode_texts(texts)
        prefixes = encode_prefixes(self.beam_config.prefix, len(texts), self.tokenizer)
        rows = []
        row_prefixes = []
        for sentences, prefix in zip(encoded, prefixes, strict=True):
            for ids, _ in sentences:
                if ids:
                    rows.append(ids)
                    row_prefixes.append(prefix)
        return self.join_texts(encoded, self.translate_ids(rows, row_prefixes))

    def encode_texts(self, texts: Sequence[str]) -> list[list[Sentence]]:
        """Encode each text as one or several sentences; a blank one has no tokens."""
        encoded = []
        for index, text in enumerate(texts):
            with with_index(index if len(texts) > 1 else None):
                encoded.append(self._encode_sentences(text))
        return encoded

    def join_texts(
        self, texts: Sequence[list[Sentence]], translations: Iterable[Translation]
    ) -> list[Translation]:
        """The translation of each text, from those of all sentences that have tokens."""
        remaining = iter(translations)
        results = []
        for sentences in texts:
            parts = [next(remaining) if ids else EMPTY_TRANSLATION for ids, _ in sentences]
            results.append(self._join_sentences(parts, [gap for _, gap in sentences]))
        return results

    def translate_batch(self, batch: Batch) -> list[Translation]:
        """Translate a batch of token ids or audio."""
        assert batch.source is not None
        source = batch.source
        prefixes = encode_prefixes(self.beam_config.prefix, len(source), self.tokenizer)
        if not source.is_floating_point():
            return self.translate_ids(unpad(source, batch.source_segment_ids), prefixes)
        size = self._max_batch_size()
        results = []
        for start in range(0, len(source), size):
            end = start + size
            results += self.search(source[start:end], None, prefixes[start:end])
        return results

    def translate_ids(
        self, rows: Sequence[list[int]], prefixes: list[list[int]]
    ) -> list[Translation]:
        """Translate sources that fit the context."""
        device = next(self.net.parameters()).device
        results: dict[int, Translation] = {}
        lengths = [len(row) for row in rows]
        for indices in batches_by_length(lengths, device, self._max_batch_size()):
            batch = Batch.from_rows([rows[i] for i in indices], device)
            translations = self.search(
                batch.inputs, batch.segment_ids, [prefixes[i] for i in indices]
            )
            results |= dict(zip(indices, translations, strict=True))
        return [results[i] for i in range(len(rows))]

    def _beam_search(
        self, source: Tensor, segment_ids: Tensor | None, prefixes: list[list[int]]
    ) -> list[Translation]:
        prompts = [list(self.inference.decoder_start_tokens)] * len(source)
        results_of_rows = beam_search_texts(
            self.net,
            self.tokenizer,
            self.inference,
            prompts,
            self.beam_config,
            prefixes,
            source,
            segment_ids,
        )
        hypotheses = [hypothesis for results in results_of_rows for hypothesis in results]
        row_of = [row for row, results in enumerate(results_of_rows) for _ in results]
        starts = [prompts[0]] * len(hypotheses)
        outputs = [hypothesis.tokens for hypothesis in hypotheses]
        sources = source[row_of]
        source_segment_ids = None if segment_ids is None else segment_ids[row_of]
        alignments: Sequence[list[int] | None] = [None] * len(hypotheses)
        if self.align is not None:
            alignments = attention_alignments(
                self.net, starts, outputs, self.align, sources, source_segment_ids
            )
        logprobs: Sequence[list[TokenLogprob] | None] = [None] * len(hypotheses)
        if self.num_logprobs:
            logprobs = token_logprobs(
                self.net,
                starts,
                outputs,
                self.num_logprobs,
                len(self.tokenizer) if self.tokenizer else None,
                sources,
                source_segment_ids,
                beam_search_rules(
                    self.net, self.tokenizer, self.inference, self.beam_config, max_tokens=1
                ),
            )
        translations = (
            Translation(**vars(hypothesis), alignment=alignment, token_logprobs=values)
            for hypothesis, alignment, values in zip(hypotheses, alignments, logprobs, strict=True)
        )
        return [with_choices([next(translations) for _ in results]) for results in results_of_rows]

    def _encode_sentences(self, text: str) -> list[Sentence]:
        """Encode a text; sentence by sentence, if it exceeds the context or that was asked for."""
        ids = self._encode(text)
        if not self.split_sentences and len(ids) <= self.source_context_length:
            return [(ids, "")]
        sentences = [(self._encode(sentence), gap) for sentence, gap in split_sentences(text)]
        longest = max(len(ids) for ids, _ in sentences)
        if longest > self.source_context_length:
            raise InputTextError(
                None,
                f"has a sentence of {longest} tokens; the model reads at most "
                f"{self.source_context_length}.",
            )
        config = self.beam_config
        needs_one_sentence = (
            config.n_best > 1
            or config.prefix
            or config.return_tree
            or config.alternatives is not None
            or self.align is not None
        )
        if needs_one_sentence and sum(bool(ids) for ids, _ in sentences) > 1:
            raise InputTextError(
                None,
                f"has {len(sentences)} sentences, which are translated one by one; n_best, prefix, "
                "alternatives, return_tree and align need a single sentence.",
            )
        return sentences

    def _encode(self, text: str) -> list[int]:
        if not text.strip():
            return []
        assert self.source_tokenizer is not None
        ids = self.source_tokenizer.encode(text)
        return [*self.inference.bos_tokens, *ids, *self.inference.sep_tokens]

    def _join_sentences(self, parts: Sequence[Translation], gaps: Sequence[str]) -> Translation:
        """Join the translations of a text's sentences with the whitespace between them."""
        if len(parts) == 1:
            return parts[0]
        tokens = [token for part in parts for token in part.tokens]
        logprob = sum(part.logprob for part in parts)
        token_logprobs = None
        if self.num_logprobs:
            token_logprobs = [token for part in parts for token in part.token_logprobs or ()]
        return Translation(
            text="".join(part.text + gap for part, gap in zip(parts, gaps, strict=True)),
            tokens=tokens,
            score=logprob / max(1, len(tokens)) ** self.beam_config.length_penalty,
            logprob=logprob,
            token_logprobs=token_logprobs,
        )

    def _max_batch_size(self) -> int:
        """How many sources are searched together, to bound the memory of the KV caches."""
        m = self.net.config
        element_size = next(self.net.parameters()).element_size()
        bytes_per_token = 2 * m.n_layers * m.n_kv_heads * m.d_head * element_size
        max_tokens = min(self.beam_config.max_tokens or m.context_length, m.context_length)
        bytes_per_source = self.beam_config.num_beams * bytes_per_token * max_tokens
        return max(1, MAX_CACHE_BYTES // bytes_per_source)


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Split a text into sentences, each with the whitespace after it. A newline always ends one."""
    sentences = []
    start = 0
    for match in SENTENCE_END.finditer(text):
        mark = match[1] or match[3] or ""
        gap = match[2] or match[4] or match[5] or ""
        if match[1] and "\n" not in gap and not _ends_sentence(text, start, match):
            continue
        sentences.append((text[start : match.start()] + mark, gap))
        start = match.end()
    if start < len(text) or not sentences:
        sentences.append((text[start:], ""))
    return sentences


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a punctuation mark ends a sentence: not after `Dr.`, `J.` or `3.`."""
    after = text[match.end() : match.end() + 1]
    if after and not (after in SENTENCE_OPENERS or (after.isalnum() and not after.islower())):
        return False
    if match[1] != ".":
        return True
    word_start = match.start()
    while word_start > start and not _separates_words(text[word_start - 1]):
        word_start -= 1
    word = text[word_start : match.start()]
    return not (len(word) == 1 or word.isdigit() or ABBREVIATIONS.fullmatch(word))


def _separates_words(character: str) -> bool:
    return character.isspace() or character in WORD_OPENERS


@torch.no_grad()
def attention_alignments(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    layer: int | str,
    source: Tensor,
    source_segment_ids: Tensor | None,
) -> list[list[int]]:
    """For each output token, the source token with the most cross-attention (L3.8).

    The attention is averaged over the heads of a layer, or of all layers.
    """
    batch = teacher_forcing_batch(prompts, outputs, source.device)
    block = "*" if isinstance(layer, str) else layer % net.config.n_layers
    hooks = Recorder({f"blocks.{block}.cross_attn.pattern": lambda pattern: pattern.mean(dim=1)})
    with eval_mode(net):
        net(
            batch.inputs,
            segment_ids=batch.segment_ids,
            source=source,
            source_segment_ids=source_segment_ids,
            hooks=hooks,
        )
    positions = torch.stack([*hooks.values.values()]).mean(0).argmax(-1).tolist()
    return [
        row[len(prompt) - 1 : len(prompt) + len(output) - 1]
        for row, prompt, output in zip(positions, prompts, outputs, strict=True)
    ]


def translation_to_json(
    source: str,
    translation: Translation,
    tokenizers: tuple[Tokenizer | None, Tokenizer | None],
    inference: InferenceConfig,
) -> tuple[JSONObject, list[JSONObject]]:
    """A source and its n_best translations as JSON values. Alignments index `source_pieces`."""
    tokenizer, source_tokenizer = tokenizers
    source_object: JSONObject = {"source": source}
    if source_tokenizer and translation.alignment is not None:
        ids = [*inference.bos_tokens, *source_tokenizer.encode(source), *inference.sep_tokens]
        source_object["source_pieces"] = source_tokenizer.to_str_tokens(ids)
    objects = []
    for choice in translation.choices:
        json_object: JSONObject = {
            "text": choice.text,
            "score": choice.score,
            "logprob": choice.logprob,
            "tokens": choice.tokens,
        }
        if choice.alignment is not None:
            json_object["alignment"] = choice.alignment
        if tokenizer:
            json_object["pieces"] = tokenizer.to_str_tokens(choice.tokens)
        objects.append(json_object)
    return source_object, objects
