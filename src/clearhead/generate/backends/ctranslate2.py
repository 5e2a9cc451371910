"""CTranslate2 backend: it generates the text itself; options it handles differently are refused.

Its beam search stops as ours does with `early_stopping`, and it renormalizes the probabilities of
the remaining tokens when some are suppressed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from weakref import finalize

import torch

from clearhead import config as c
from clearhead.data.batch import unpad
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.beam_search_texts import BeamSearchConfig, decode_output
from clearhead.generate.engine import Request, TokenLogprob
from clearhead.generate.sampling import SamplingConfig, check_option_names
from clearhead.generate.text_generation import (
    Generation,
    OutputSequence,
    TextChunk,
    check_can_generate,
    with_choices,
)
from clearhead.generate.translation import Translation, Translator

if TYPE_CHECKING:
    from clearhead.api import GenerateOptions, Model, TextInput, TranslateOptions

SUPPORTED_SAMPLING = {"max_tokens", "temperature", "top_k", "seed", "stop"}
SUPPORTED_BEAM_SEARCH = {"length_penalty", "max_tokens", "n_best", "early_stopping"}
SUPPORTED_TRANSLATION = SUPPORTED_BEAM_SEARCH | {"split_sentences"}


class CTranslate2Model:
    """A model in CTranslate2, in a dtype of its own such as int8."""

    def __init__(self, model: "Model", folder: Path, dtype: str = "") -> None:
        import ctranslate2  # type: ignore[import-untyped]

        self._model = model
        self._inference = model.config.inference
        m = model.config.model
        is_translator = isinstance(m.architecture, c.EncoderDecoder)
        if not isinstance(m.main_input, c.Tokens):
            raise ClearheadError(
                f"the ctranslate2 backend reads text only; this model reads {m.main_input.kind}."
            )
        device = next(model.net.parameters()).device.type
        dtypes = sorted(ctranslate2.get_supported_compute_types(device))
        if dtype and dtype not in dtypes:
            raise ClearheadError(
                f"CTranslate2 does not support dtype {dtype!r} on this {device}; "
                f"{suggest(dtype, dtypes)}"
            )
        engine_class = ctranslate2.Translator if is_translator else ctranslate2.Generator
        engine = engine_class(
            str(folder),
            device,
            compute_type=dtype or "default",
            intra_threads=torch.get_num_threads(),
        )
        self._engines = [engine]
        # If Python exits before the engine's threads have ended, they abort the process.
        finalize(self, self._engines.clear)
        self._vocabulary = _read_vocabulary(folder, "target")
        self._source_vocabulary = _read_vocabulary(folder, "source")
        unknown = self._vocabulary[len(model.tokenizer) :] if model.tokenizer else []
        self._limits = {
            "end_token": [*self._inference.eos_tokens] or None,
            "suppress_sequences": [[name] for name in unknown] or None,
        }

    def generate(
        self, prompt: "TextInput", max_tokens: int = 40, **options: Unpack["GenerateOptions"]
    ) -> Generation | list[Generation]:
        """`Model.generate` with greedy decoding: CTranslate2 cannot sample with our seeds."""
        sequences, is_single = self._make_sequences("generate", prompt, max_tokens, options)
        for sequence in self._steps(sequences):
            sequence.new_chunks()  # finds stop strings
        results = [sequence.result() for sequence in sequences]
        return results[0] if is_single else results

    def stream(
        self, prompt: "TextInput", max_tokens: int = 40, **options: Unpack["GenerateOptions"]
    ) -> Iterator[TextChunk]:
        """`Model.stream` with greedy decoding."""
        sequences, _ = self._make_sequences("stream", prompt, max_tokens, options)
        return (chunk for sequence in self._steps(sequences) for chunk in sequence.new_chunks())

    def _make_sequences(
        self, function: str, prompt: "TextInput", max_tokens: int, options: Mapping[str, Any]
    ) -> tuple[list[OutputSequence], bool]:
        """The outputs to generate, and whether there is only one prompt."""
        check_can_generate(self._model.config.model)
        supported = _supported(function, self._model.generate, options, SUPPORTED_SAMPLING)
        config = SamplingConfig(max_tokens=max_tokens, **supported)
        if config.temperature and config.top_k != 1:
            raise ClearheadError(
                "the ctranslate2 backend supports greedy decoding only; set temperature=0."
            )
        batch = self._model.make_batch(prompt)
        prompts = batch.unpadded_rows()
        longest = max(map(len, prompts))
        context_length = self._model.net.context_length
        if longest + max_tokens > context_length:
            raise ClearheadError(
                f"a prompt of {longest} tokens and max_tokens = {max_tokens} exceed the "
                f"context of {context_length}."
            )
        tokenizer = self._model.tokenizer
        eos_tokens = self._inference.eos_tokens
        return [
            OutputSequence(Request(row, config), index, tokenizer, eos_tokens)
            for index, row in enumerate(prompts)
        ], batch.is_single

    def _steps(self, sequences: Sequence[OutputSequence]) -> Iterator[OutputSequence]:
        """After each token, the sequence that has it."""
        # CTranslate2 would count the padding of shorter prompts as output, so batch equal lengths.
        by_length = sorted(sequences, key=lambda sequence: len(sequence.request.prompt))
        for _, group in groupby(by_length, lambda sequence: len(sequence.request.prompt)):
            batch = list(group)
            requests = [sequence.request for sequence in batch]
            steps = self._engines[0].generate_tokens(
                [_token_names(request.prompt, self._vocabulary) for request in requests],
                max_length=requests[0].config.max_tokens,
                return_log_prob=True,
                **self._limits,
            )
            with closing(steps):
                for step in steps:
                    request = requests[step.batch_id]
                    if not request.finish_reason:
                        request.output.append(TokenLogprob(step.token_id, step.log_prob))
                        if step.token_id in self._inference.eos_tokens:
                            request.finish("stop")
                        elif step.is_last:
                            request.finish("length")
                        yield batch[step.batch_id]
                    if all(request.finish_reason for request in requests):
                        break

    def translate(
        self, texts: "TextInput", num_beams: int = 5, **options: Unpack["TranslateOptions"]
    ) -> Translation | list[Translation]:
        """`Model.translate` with `early_stopping`."""
        supported = _supported("translate", self._model.translate, options, SUPPORTED_TRANSLATION)
        split_sentences = supported.pop("split_sentences", False)
        config = BeamSearchConfig(num_beams=num_beams, **supported)
        translator = Translator(
            self._model.net,
            self._model.config,
            self._model.tokenizers,
            config,
            split_sentences=split_sentences,
            search=lambda source, segment_ids, _: self._search(unpad(source, segment_ids), config),
        )
        strings = [texts] if isinstance(texts, str) else texts
        if translator.can_encode(strings):
            results = translator.translate_texts(strings)
            return results[0] if isinstance(texts, str) else results
        batch = self._model.make_batch(None, source=texts)
        results = translator.translate_batch(batch)
        return results[0] if batch.is_single else results

    def _search(self, rows: list[list[int]], config: BeamSearchConfig) -> list[Translation]:
        """Translate sources that fit the context."""
        inference = self._inference
        context_length = self._model.net.context_length
        start_tokens = [*inference.decoder_start_tokens]
        max_tokens = config.max_tokens or context_length - len(start_tokens)
        if len(start_tokens) + max_tokens - 1 > context_length:
            raise ClearheadError(
                f"max_tokens = {max_tokens} exceeds the context of {context_length}."
            )
        # CTranslate2 counts all start tokens, and its beams run past some EOS tokens.
        if config.num_beams > 1 and max(len(start_tokens), len(inference.eos_tokens)) > 1:
            raise ClearheadError(
                "the ctranslate2 backend differs from ours for models with several start or EOS "
                "tokens; set num_beams=1."
            )
        # It starts with the first start token by itself; the others are a prefix.
        num_prefix = len(start_tokens) - 1
        outputs = self._engines[0].translate_batch(
            [_token_names(row, self._source_vocabulary) for row in rows],
            [_token_names(start_tokens, self._vocabulary)] * len(rows) if num_prefix else None,
            beam_size=config.num_beams,
            num_hypotheses=config.n_best,
            length_penalty=config.length_penalty,
            max_input_length=0,
            max_decoding_length=num_prefix + max_tokens - inference.forced_eos,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
            **self._limits,
        )
        ids_by_name = {name: i for i, name in enumerate(self._vocabulary)}
        results = []
        for result in outputs:
            choices = []
            for names, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [ids_by_name[name] for name in names[num_prefix:]]
                logprob = score * len(names) ** config.length_penalty
                if inference.forced_eos and ids[-1:] != [*inference.eos_tokens[:1]]:
                    ids.append(inference.eos_tokens[0])  # log-probability 0, but it counts
                choices.append(
                    Translation(
                        text=decode_output(self._model.tokenizer, ids, inference),
                        tokens=ids,
                        score=logprob / len(ids) ** config.length_penalty,
                        logprob=logprob,
                    )
                )
            results.append(with_choices(choices))
        return results


def _supported(
    function: str, method: Callable[..., object], options: Mapping[str, Any], supported: set[str]
) -> dict[str, Any]:
    """The options that CTranslate2 has. Others of our method must have their default value."""
    parameters = signature(method).parameters
    keywords = [name for name, p in parameters.items() if p.default is not p.empty]
    check_option_names(function, options, keywords)
    refused = [
        name
        for name, value in options.items()
        if name not in supported and value != parameters[name].default
    ]
    if refused:
        raise ClearheadError(f"the ctranslate2 backend does not support {', '.join(refused)}.")
    return {name: value for name, value in options.items() if name in supported}


def _read_vocabulary(folder: Path, side: str) -> list[str]:
    """CTranslate2's token names of one side, or the shared ones."""
    paths = [folder / f"{prefix}vocabulary.json" for prefix in (f"{side}_", "shared_", "")]
    path = next(path for path in paths if path.is_file())
    return json.loads(path.read_text(encoding="utf-8"))


def _token_names(ids: Sequence[int], vocabulary: list[str]) -> list[str]:
    return [vocabulary[i] for i in ids]
