"""A model inside CTranslate2: it does all of the writing, and what it does otherwise than we do is refused.

Beam search is content with the first `beam` outputs that end, as ours is with `early`. Tokens that are never to be
written leave their probability to the others.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.batch import unpad
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.beam_search import BeamRules, check_beam_search
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.generation import (
    BeamSearchConfig,
    Generation,
    GenerationChunk,
    beam_search_config,
    best_or_list,
    check_can_generate,
    decode_output,
)
from clearhead.generate.sampling import SamplingConfig, sampling_config
from clearhead.generate.translation import TranslationResult, Translator
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

SAMPLING_OPTIONS = {
    "max_tokens",
    "temperature",
    "top_k",
    "seed",
    "stop",
}  # the options that CTranslate2 takes
BEAM_SEARCH_OPTIONS = {"beam", "max_tokens", "length_penalty", "n_best", "early"}


class CTranslate2Model:
    """A model inside CTranslate2, with weights in the dtype that is asked for: int8, say."""

    def __init__(self, model: "Model", folder: Path, dtype: str = "") -> None:
        import ctranslate2  # type: ignore[import-untyped]

        self._model = model
        self._use = model.config.inference
        shape = model.config.model.architecture
        if isinstance(shape, c.EncoderDecoder) and not isinstance(shape.source_input, c.Tokens):
            raise ClearheadError(
                f"CTranslate2 reads text here, not {shape.source_input.kind}; leave the engine out."
            )
        device = next(model.net.parameters()).device.type
        if dtype and dtype not in (
            known := sorted(ctranslate2.get_supported_compute_types(device))
        ):
            raise ClearheadError(
                f"CTranslate2 has no dtype {dtype!r} on this {device}; {suggest(dtype, known)}"
            )
        opened = (
            ctranslate2.Translator if isinstance(shape, c.EncoderDecoder) else ctranslate2.Generator
        )
        threads = torch.get_num_threads()
        self._held = [
            opened(str(folder), device, compute_type=dtype or "default", intra_threads=threads)
        ]
        self._names, self._source_names = (
            _vocabulary(folder, side) for side in ("target", "source")
        )
        finalize(self, self._held.clear)  # its threads abort the process if Python ends before them
        unknown = self._names[len(model.tokenizer) :] if model.tokenizer else []
        self._limits = {
            "end_token": [*self._use.eos_tokens] or None,
            "suppress_sequences": [[name] for name in unknown] or None,
        }

    def generate(
        self, prompt: Any, max_tokens: int = 40, temperature: float = 1.0, top_k: int = 0, seed: int = 0, *,
        n: int = 1, logprobs: int = 0, stream: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        """As `Model.generate`, always with the likeliest token: its dice would not fall the same for the same seed."""
        check_can_generate(self._model.config.model)
        how = sampling_config(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed, **options
        )
        idle = SamplingConfig()
        if how.temperature and how.top_k != 1:
            raise ClearheadError(
                f"temperature = {temperature}: CTranslate2 draws by no seed of ours; ask for 0."
            )
        asked = {
            f.name: getattr(how, f.name) != getattr(idle, f.name)
            for f in fields(how)
            if f.name not in SAMPLING_OPTIONS
        }
        _refuse({"n": n != 1, "logprobs": logprobs != 0, **asked})
        batch = self._model.make_batch(prompt)
        rows = batch.unpadded_rows()
        context = self._model.net.context_length
        if (longest := max(map(len, rows))) + max_tokens > context:
            raise ClearheadError(
                f"{longest} tokens of prompt and {max_tokens} to write exceed the context of {context}."
            )
        texts = [_Text(self._model.tokenizer, row, how.stop, self._use.eos_tokens) for row in rows]
        pieces = self._pieces(rows, texts, max_tokens)
        if stream:
            return pieces
        for _ in pieces:
            pass
        written = [text.result() for text in texts]
        return written[0] if batch.is_single else written

    def _pieces(
        self, rows: list[list[int]], texts: list["_Text"], max_tokens: int
    ) -> Iterator[GenerationChunk]:
        for _, group in groupby(
            sorted(range(len(rows)), key=lambda i: len(rows[i])), lambda i: len(rows[i])
        ):
            same = list(
                group
            )  # prompts of one length: for shorter ones it would count what they lack as written
            prompts = [_called(rows[i], self._names) for i in same]
            steps = self._held[0].generate_tokens(
                prompts, max_length=max_tokens, return_log_prob=True, **self._limits
            )
            with closing(steps):
                for step in steps:
                    text = texts[same[step.batch_id]]
                    if not text.reason:
                        shown = text.add(
                            TokenLogprob(step.token_id, step.log_prob), last=step.is_last
                        )
                        yield GenerationChunk(
                            shown, same[step.batch_id], text.chosen[-1], text.reason
                        )
                    if all(texts[i].reason for i in same):
                        break

    def translate(
        self, texts: Any, num_beams: int = 5, max_tokens: int = 0, length_penalty: float = 1.0, *, split_sentences: bool = False,
        **options: Any,
    ) -> list[Any]:  # fmt: skip
        """As `Model.translate` with `early`."""
        how = {
            "beam": num_beams,
            "max_tokens": max_tokens,
            "length_penalty": length_penalty,
            **options,
        }
        model = self._model
        _refuse(
            {
                name: name not in BEAM_SEARCH_OPTIONS and value not in (None, 0, "")
                for name, value in how.items()
            }
        )
        wish = beam_search_config(
            **{name: value for name, value in how.items() if name in BEAM_SEARCH_OPTIONS}
        )
        searched = _Searched(self, model, wish, split_sentences)
        listed = [texts] if isinstance(texts, str) else texts
        if (
            isinstance(listed, list | tuple)
            and all(isinstance(text, str) for text in listed)
            and model.tokenizer
        ):
            return best_or_list(searched.translate_texts(listed), wish.n_best)
        return best_or_list(
            searched.translate_batch(model.make_batch(None, source=texts)), wish.n_best
        )

    def translate_ids(
        self, rows: list[list[int]], wish: BeamSearchConfig
    ) -> list[list[TranslationResult]]:
        """The best outputs for each source that fits the context."""
        use = self._use
        words = self._model.tokenizer
        penalty = wish.length_penalty
        again = (
            len(use.decoder_start_tokens) - 1
        )  # of several that it starts with, an output repeats all but the first
        most = wish.max_tokens or self._model.net.context_length - len(use.decoder_start_tokens)
        rules = BeamRules(torch.device("cpu"), wish.num_beams, most)
        check_beam_search(
            self._model.net,
            rules,
            [[*use.decoder_start_tokens]] * len(rows),
            [[]] * len(rows),
            None,
            wish.n_best,
        )
        if len(use.decoder_start_tokens) + most - 1 > (context := self._model.net.context_length):
            raise ClearheadError(
                f"max_tokens = {most} is more than the context of {context} leaves room for."
            )
        if (
            wish.num_beams > 1 and max(len(use.decoder_start_tokens), len(use.eos_tokens)) > 1
        ):  # it counts all starts, and runs past some stops
            several = f"there are {len(use.decoder_start_tokens)} tokens to start an output with and {len(use.eos_tokens)} to stop it at"
            raise ClearheadError(
                f"CTranslate2's beams differ from ours where {several}; ask for beam=1."
            )
        found = self._held[0].translate_batch(
            [_called(row, self._source_names) for row in rows],
            [_called(use.decoder_start_tokens, self._names)] * len(rows) if again else None,
            beam_size=wish.num_beams,
            num_hypotheses=wish.n_best,
            length_penalty=penalty,
            max_input_length=0,
            max_decoding_length=again + most - use.forced_eos,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
            **self._limits,
        )
        number = {name: i for i, name in enumerate(self._names)}
        made: list[list[TranslationResult]] = []
        for one in found:
            made.append([])
            for names, score in zip(one.hypotheses, one.scores, strict=True):
                ids = [number[name] for name in names[again:]]
                logprob = score * len(names) ** penalty
                if use.forced_eos and ids[-1:] != [*use.eos_tokens[:1]]:
                    ids.append(use.eos_tokens[0])  # which costs nothing, but it counts
                made[-1].append(
                    TranslationResult(
                        decode_output(words, ids, use), ids, logprob / len(ids) ** penalty, logprob
                    )
                )
        return made


class _Searched(Translator):
    """A translator whose search is done elsewhere."""

    def __init__(
        self, engine: CTranslate2Model, model: "Model", wish: BeamSearchConfig, split: bool
    ) -> None:
        super().__init__(model.net, model.config, model.tokenizers, wish, split_sentences=split)
        self.engine = engine

    def _search(
        self, source: Tensor, segment_ids: Tensor | None, begins: list[list[int]]
    ) -> list[list[TranslationResult]]:
        return self.engine.translate_ids(unpad(source, segment_ids), self.beam_config)


class _Text:
    """What is written after one prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: list[int],
        stop: Sequence[str],
        ends: tuple[int, ...],
    ) -> None:
        self.stream = IncrementalDetokenizer(tokenizer, prompt, stop) if tokenizer else None
        self.ends = ends
        self.chosen = list[TokenLogprob]()
        self.reason = ""

    def add(self, chosen: TokenLogprob, last: bool) -> str:
        """What can be shown now."""
        self.chosen.append(chosen)
        ended = chosen.token in self.ends
        shown = self.stream.add(chosen.token, self.ends, ended or last) if self.stream else ""
        if ended or (self.stream and self.stream.stopped):
            self.reason = "stop"
        elif last:
            self.reason = "length"
        return shown

    def result(self) -> Generation:
        tokens = [chosen.token for chosen in self.chosen]
        return Generation(self.stream.text if self.stream else "", tokens, self.reason, self.chosen)


def _refuse(asked: dict[str, bool]) -> None:
    if names := [name for name, wanted in asked.items() if wanted]:
        raise ClearheadError(
            f"CTranslate2 does not know {', '.join(names)} as we do; leave it out, or the engine."
        )


def _vocabulary(folder: Path, side: str) -> list[str]:
    """What CTranslate2 calls the tokens: of one side, or of both."""
    files = [folder / f"{name}vocabulary.json" for name in (f"{side}_", "shared_", "")]
    return json.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))


def _called(ids: Sequence[int], names: list[str]) -> list[str]:
    return [names[i] for i in ids]
