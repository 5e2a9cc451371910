"""Model: a Transformer with its configuration and tokenizer; load, create and save models."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.config.model import Config
from clearhead.config.presets import presets
from clearhead.data.batch import Batch, encode_texts, make_batch
from clearhead.errors import ClearheadError, check_int, check_type, warn, with_index
from clearhead.generate import backends
from clearhead.generate import chat as chats
from clearhead.generate.beam_search_texts import (
    BeamResult,
    BeamSearchConfig,
    Prefix,
    beam_search_texts,
    encode_prefixes,
)
from clearhead.generate.chat import ChatSession
from clearhead.generate.chat_template_process import Message
from clearhead.generate.engine import EnginePool
from clearhead.generate.sampling import (
    MAX_SEED,
    SamplingConfig,
    SamplingOptions,
    check_option_names,
    check_overflow,
    sampling_config,
)
from clearhead.generate.tasks import (
    Classification,
    FillResult,
    Score,
    check_can_classify,
    check_can_embed,
    check_texts_not_empty,
    classification_results,
    fill_masks,
    max_classification_tokens,
    pool_hidden,
    score_texts,
)
from clearhead.generate.text_generation import (
    Generation,
    GenerationStream,
    TextChunk,
    check_can_generate,
    group_samples,
    with_choices,
)
from clearhead.generate.translation import Translation, Translator
from clearhead.hooks import NO_HOOKS, Hooks, Recorder, Selector, force_eager
from clearhead.lens.activation_cache import ActivationCache
from clearhead.lens.edits import Edits, check_edits
from clearhead.lens.hook_points import matching_names
from clearhead.model.transformer import EditedTransformer, Transformer, build_transformer, eval_mode
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import load_model, save_model
from clearhead.weights.tensors import Placement

MAX_SAMPLES = 1000  # of one prompt

TextPair = tuple[str, str]  # two texts that are read together
TextInput = (
    str
    | TextPair
    | Tensor
    | Sequence[str]
    | Sequence[TextPair]
    | Sequence[int]
    | Sequence[Sequence[int]]
)
MediaInput = Tensor | str | Path | Sequence[str | Path]  # tensors, or paths of files
Messages = Sequence[Message]


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Model.generate`."""

    temperature: float
    n: int
    logprobs: int
    echo: bool
    edits: Edits | None


class BeamSearchOptions(TypedDict, total=False):
    """Keyword arguments of `Model.beam_search`."""

    max_tokens: int
    length_penalty: float
    n_best: int
    early_stopping: bool
    no_repeat_ngram_size: int
    prefix: Prefix
    alternatives: int | None
    return_tree: bool
    edits: Edits | None


class TranslateOptions(BeamSearchOptions, total=False):
    """Keyword arguments of `Model.translate`."""

    split_sentences: bool
    align: int | str | None
    logprobs: int


@dataclass(eq=False, repr=False)
class Model(Checkpoint):
    """A Transformer with its configuration and tokenizer. `net` is the torch.nn.Module.

    `source_tokenizer` tokenizes the source of an encoder-decoder, if that takes another tokenizer.
    """

    def __post_init__(self) -> None:
        vocab_size = self.config.model.vocab_size
        if self.tokenizer is not None and len(self.tokenizer) > vocab_size:
            raise ClearheadError(
                f"the tokenizer has {len(self.tokenizer)} tokens, but the model's vocab_size is "
                f"only {vocab_size}. Set vocab_size={len(self.tokenizer)}."
            )
        self._engines = EnginePool()

    @property
    def architecture(self) -> str:
        """decoder, encoder or encoder-decoder."""
        return self.config.model.architecture.kind

    def num_parameters(self) -> int:
        """The number of all parameters, trainable or not."""
        return self.config.num_parameters()  # torch does not count int8 weights

    def __repr__(self) -> str:
        m = self.config.model
        return (
            f"<{self.architecture}: n_layers={m.n_layers}, n_heads={m.attention.n_heads}, "
            f"d_model={m.d_model}, {self.num_parameters():,} parameters>"
        )

    def hidden(
        self,
        x: TextInput | None = None,
        *,
        source: TextInput | None = None,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """Final hidden states, `[seq, d_model]`; with a batch dimension for several texts."""
        if edits and "logits" in edits:
            raise ClearheadError("edits of logits do not affect hidden states. Use logits(…).")
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks((), edits, batch)
        with _grad_mode(gradients, hooks):
            return batch.unwrap(self.run_batch(batch, hooks))

    def logits(
        self,
        x: TextInput | None = None,
        *,
        source: TextInput | None = None,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """Logits for every token, or for the whole text if the head pools it.

        Args:
            x: a text, a pair of texts (a tuple), token ids, or a list of these, which is padded on
                the right. For an encoder-decoder, the target.
            source: what an encoder-decoder reads.
            images: tensors or files, for a model that reads images.
            audio: tensors or files, for a model that reads audio.
            edits: a mapping from names of activations to `ablate`, `scale`, `replace` or any
                function of a tensor; a list of them is applied in order.
            gradients: keep the autograd graph, so that the result is differentiable.
        """
        if isinstance(self.config.model.head, c.NoHead):
            raise ClearheadError("this model has no head, so it has no logits. Use hidden(…).")
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks((), edits, batch)
        with _grad_mode(gradients, hooks):
            hidden = self.run_batch(batch, hooks)
            return batch.unwrap(self.net.compute_logits(hidden, batch.segment_ids, hooks))

    def watch(
        self,
        x: TextInput | None = None,
        names: str | Iterable[str] | Mapping[str, Selector] = "**",
        *,
        source: TextInput | None = None,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> ActivationCache:
        """Run the model and record activations by name, always with a batch dimension.

        `names` are patterns like "blocks.*.attn.pattern": `*` matches one part of a name, `**` any
        number of parts; by default, all are recorded. A mapping from patterns to functions
        keeps what the functions return: `{"blocks.*.attn.pattern": lambda p: p[:, 3]}`. The other
        arguments are those of `logits`.
        """
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks([names] if isinstance(names, str) else names, edits, batch)
        with _grad_mode(gradients, hooks):
            hidden = self.run_batch(batch, hooks)
            self.net.compute_logits(hidden, batch.segment_ids, hooks)
        return ActivationCache(
            hooks.values if isinstance(hooks, Recorder) else {},
            self.config.model,
            batch,
            self.tokenizers,
            is_complete=not isinstance(names, Mapping),
        )

    def make_batch(
        self,
        x: object = None,
        source: object = None,
        images: object = None,
        audio: object = None,
        *,
        max_length: int = 0,
        allow_overflow: bool = False,
    ) -> Batch:
        """Tokenize and pad inputs, on the device of the network.

        Texts longer than `max_length` tokens are truncated (0: never); texts longer than the
        context are an error, unless `allow_overflow`.
        """
        return make_batch(
            self.config,
            self.tokenizers,
            next(self.net.parameters()),
            x,
            source=source,
            images=images,
            audio=audio,
            max_length=max_length,
            allow_overflow=allow_overflow,
            no_tokenizer_reason=self.no_tokenizer_reason,
        )

    def encode_texts(
        self, texts: Sequence[Any], *, max_length: int = 0, allow_overflow: bool = False
    ) -> Iterator[list[int]]:
        """The token ids of each text as `make_batch` reads it, without padding."""
        return encode_texts(
            self.config, self.tokenizer, texts, max_length, allow_overflow, self.no_tokenizer_reason
        )

    def run_batch(self, batch: Batch, hooks: Hooks = NO_HOOKS) -> Tensor:
        """Compute the hidden states of a batch."""
        hidden: Tensor = self.net(
            batch.inputs,
            segment_ids=batch.segment_ids,
            token_type_ids=batch.token_type_ids,
            source=batch.source,
            source_segment_ids=batch.source_segment_ids,
            hooks=hooks,
        )
        return hidden

    def make_hooks(
        self,
        names: Iterable[str] | Mapping[str, Selector],
        edits: Edits | None,
        batch: Batch | None = None,
    ) -> Hooks:
        """Check `names` and `edits`, and return hooks that record and apply them."""
        check_type(names, Iterable, "names of activations")
        names = names if isinstance(names, Mapping) else list(names)
        if isinstance(names, Mapping) and not all(map(callable, names.values())):
            raise ClearheadError("the values of names must be functions that select what to keep.")
        if not names and not edits:
            return NO_HOOKS
        for pattern in names:
            matching_names(self.config.model, pattern)  # raises if there is none
        return Recorder(
            names,
            check_edits(self.config.model, edits, is_padded=bool(batch and batch.is_padded))
            if edits
            else {},
        )

    @overload
    def generate(
        self, prompt: str | Sequence[int], max_tokens: int = 40, **options: Unpack[GenerateOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        max_tokens: int = 40,
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self, prompt: TextInput, max_tokens: int = 40, **options: Unpack[GenerateOptions]
    ) -> Generation | list[Generation]: ...
    def generate(
        self,
        prompt: TextInput,
        max_tokens: int = 40,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        suppress_tokens: Sequence[int] = (),
        prefix_tokens: Sequence[int] = (),
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        seed: int = 0,
        n: int = 1,
        logprobs: int = 0,
        echo: bool = False,
        overflow: str = "error",
        edits: Edits | None = None,
        **unknown: object,  # refused, max_new_tokens with a hint
    ) -> Generation | list[Generation]:
        """Generate a continuation of a prompt; a list of prompts gives a list.

        With n > 1, `choices` of the result holds all samples. `logprobs` adds the log-probabilities
        of that many most likely tokens, `echo` repeats the prompt without special tokens,
        `overflow="slide"` allows texts longer than the context. `edits` change the activations of
        one token at a time. `SamplingConfig` explains the sampling options.
        """
        check_option_names("generate", unknown, ("max_tokens", *GenerateOptions.__annotations__))
        config = SamplingConfig(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias={} if logit_bias is None else logit_bias,
            suppress_tokens=suppress_tokens,
            prefix_tokens=prefix_tokens,
            stop=stop,
            stop_tokens=stop_tokens,
            seed=seed,
            overflow=overflow,
        )
        stream, is_single = self._generation_stream(prompt, config, n, logprobs, echo, edits)
        results = group_samples(stream.results(), n)
        return results[0] if is_single else results

    def stream(
        self,
        prompt: TextInput,
        max_tokens: int = 40,
        *,
        temperature: float = 1.0,
        n: int = 1,
        logprobs: int = 0,
        echo: bool = False,
        edits: Edits | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[TextChunk]:
        """Generate text and yield it chunk by chunk; the options are those of `generate`."""
        more_names = ("n", "logprobs", "echo", "edits")
        config = sampling_config("stream", max_tokens, temperature, options, more_names)
        stream, _ = self._generation_stream(prompt, config, n, logprobs, echo, edits)
        return iter(stream)

    def _generation_stream(
        self,
        prompt: TextInput,
        config: SamplingConfig,
        n: int,
        logprobs: int,
        echo: bool,
        edits: Edits | None,
    ) -> tuple[GenerationStream, bool]:
        """Start generating; returns the stream, and whether there is a single prompt."""
        check_can_generate(self.config.model)
        check_int("n", n, 1, MAX_SAMPLES)
        check_int("logprobs", logprobs)
        batch = self.make_batch(prompt, allow_overflow=True)  # the engine checks the length
        prompts = batch.unpadded_rows()
        engine = self._engines.get(
            self._edited_net(edits),
            self.config.inference,
            len(self.tokenizer) if self.tokenizer else None,
            len(prompts) * n,
            max(map(len, prompts)) + config.max_tokens,
            config,
        )
        stream = GenerationStream(engine, self.tokenizer, prompts, config, n, logprobs, echo)
        return stream, batch.is_single

    def chat(
        self,
        messages: Messages,
        max_tokens: int = 200,
        *,
        temperature: float = 0.7,
        n: int = 1,
        logprobs: int = 0,
        edits: Edits | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Generation:
        """Answer a conversation: `[{"role": "user", "content": "…"}, …]`.

        A model without a chat template continues the text of the messages. The options are those of
        `generate`.
        """
        more_names = ("n", "logprobs", "edits")
        config = sampling_config("chat", max_tokens, temperature, options, more_names)
        prompt, config = self._chat_request(messages, config)
        stream, _ = self._generation_stream(prompt, config, n, logprobs, False, edits)
        return group_samples(stream.results(), n)[0]

    def chat_stream(
        self,
        messages: Messages,
        max_tokens: int = 200,
        *,
        temperature: float = 0.7,
        logprobs: int = 0,
        edits: Edits | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[TextChunk]:
        """Answer a conversation and yield the answer chunk by chunk, as `chat` and `stream` do."""
        more_names = ("logprobs", "edits")
        config = sampling_config("chat_stream", max_tokens, temperature, options, more_names)
        prompt, config = self._chat_request(messages, config)
        stream, _ = self._generation_stream(prompt, config, 1, logprobs, False, edits)
        return iter(stream)

    def _chat_request(
        self, messages: Messages, config: SamplingConfig
    ) -> tuple[list[int], SamplingConfig]:
        prompt = chats.encode_chat(self.chat_template, messages, self.tokenizer)
        self._warn_without_chat_template()
        return prompt, chats.turn_config(config, messages, prompt, self.net.context_length)

    def chat_session(
        self,
        system: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 0.7,
        **options: Unpack[SamplingOptions],
    ) -> ChatSession:
        """Start a conversation, whose earlier messages stay in the KV cache.

        The options are those of `generate`, and apply to every answer.
        """
        config = sampling_config(
            "chat_session", max_tokens, temperature, options, more_names=("system",)
        )
        session = ChatSession(self, system, config)
        self._warn_without_chat_template()
        return session

    def chat_prompt(self, messages: Messages) -> str:
        """Render a conversation as the text that the model reads, with its special tokens."""
        ids = chats.encode_chat(self.chat_template, messages, self.tokenizer)
        return self.tokenizer.decode(ids) if self.tokenizer else ""

    @property
    def chat_template(self) -> str:
        """The chat template; a model without one continues the text of the messages."""
        inference = self.config.inference
        if inference.chat_template or self.tokenizer is None:
            return inference.chat_template
        return chats.continuation_template(inference, self.tokenizer)

    def _warn_without_chat_template(self) -> None:
        if not self.config.inference.chat_template:
            warn("this model has no chat template; it continues the text of the messages.")

    @overload
    def beam_search(
        self, prompt: str | Sequence[int], num_beams: int = 5, **options: Unpack[BeamSearchOptions]
    ) -> BeamResult: ...
    @overload
    def beam_search(
        self,
        prompt: list[str] | list[list[int]],
        num_beams: int = 5,
        **options: Unpack[BeamSearchOptions],
    ) -> list[BeamResult]: ...
    @overload
    def beam_search(
        self, prompt: TextInput, num_beams: int = 5, **options: Unpack[BeamSearchOptions]
    ) -> BeamResult | list[BeamResult]: ...
    def beam_search(
        self,
        prompt: TextInput,
        num_beams: int = 5,
        *,
        max_tokens: int = 40,
        length_penalty: float = 1.0,
        n_best: int = 1,
        early_stopping: bool = False,
        no_repeat_ngram_size: int = 0,
        prefix: Prefix = "",
        alternatives: int | None = None,
        return_tree: bool = False,
        edits: Edits | None = None,
        **unknown: object,
    ) -> BeamResult | list[BeamResult]:
        """Continue a prompt with beam search; a list of prompts gives a list.

        With n_best > 1, `choices` of the result holds all of them. `BeamSearchConfig` explains the
        options.
        """
        names = ("num_beams", *BeamSearchOptions.__annotations__)
        check_option_names("beam_search", unknown, names)
        check_can_generate(self.config.model)
        config = BeamSearchConfig(
            num_beams=num_beams,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            n_best=n_best,
            early_stopping=early_stopping,
            no_repeat_ngram_size=no_repeat_ngram_size,
            prefix=prefix,
            alternatives=alternatives,
            return_tree=return_tree,
        )
        batch = self.make_batch(prompt)
        prompts = batch.unpadded_rows()
        found = beam_search_texts(
            self._edited_net(edits),
            self.tokenizer,
            self.config.inference,
            prompts,
            config,
            encode_prefixes(prefix, len(prompts), self.tokenizer),
        )
        results = [with_choices(texts) for texts in found]
        return results[0] if batch.is_single else results

    @overload
    def translate(
        self, texts: str | Sequence[int], num_beams: int = 5, **options: Unpack[TranslateOptions]
    ) -> Translation: ...
    @overload
    def translate(
        self,
        texts: list[str] | list[list[int]],
        num_beams: int = 5,
        **options: Unpack[TranslateOptions],
    ) -> list[Translation]: ...
    @overload
    def translate(
        self,
        texts: TextInput | None = None,
        num_beams: int = 5,
        *,
        audio: MediaInput | None = None,
        **options: Unpack[TranslateOptions],
    ) -> Translation | list[Translation]: ...
    def translate(
        self,
        texts: TextInput | None = None,
        num_beams: int = 5,
        *,
        max_tokens: int = 0,
        length_penalty: float = 1.0,
        n_best: int = 1,
        early_stopping: bool = False,
        no_repeat_ngram_size: int = 0,
        prefix: Prefix = "",
        alternatives: int | None = None,
        return_tree: bool = False,
        split_sentences: bool = False,
        align: int | str | None = None,
        logprobs: int = 0,
        audio: MediaInput | None = None,
        edits: Edits | None = None,
        **unknown: object,
    ) -> Translation | list[Translation]:
        """Translate a text, or transcribe audio, with beam search; a list gives a list.

        With n_best > 1, `choices` of the result holds all of them. Texts longer than the context,
        and all with `split_sentences`, are translated sentence by sentence. `align` adds the source
        token that each token attends to most, in a decoder layer (-2) or in "all"; `logprobs` the
        log-probability of each token and of that many most likely ones, if it is positive.
        `BeamSearchConfig` explains the other options.
        """
        names = ("num_beams", "audio", *TranslateOptions.__annotations__)
        check_option_names("translate", unknown, names)
        config = BeamSearchConfig(
            num_beams=num_beams,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            n_best=n_best,
            early_stopping=early_stopping,
            no_repeat_ngram_size=no_repeat_ngram_size,
            prefix=prefix,
            alternatives=alternatives,
            return_tree=return_tree,
        )
        translator = Translator(
            self._edited_net(edits),
            self.config,
            self.tokenizers,
            config,
            align=align,
            split_sentences=split_sentences,
            num_logprobs=logprobs,
        )
        strings = [texts] if isinstance(texts, str) else texts
        if audio is None and translator.can_encode(strings):
            results = translator.translate_texts(strings)
            return results[0] if isinstance(texts, str) else results
        batch = self.make_batch(None, source=texts, audio=audio)
        results = translator.translate_batch(batch)
        return results[0] if batch.is_single else results

    def _edited_net(self, edits: Edits | None, *, per_token: bool = True) -> Transformer:
        """The network with edited activations; `per_token` while it generates."""
        if not edits:
            return self.net
        checked = check_edits(self.config.model, edits, per_token=per_token)
        return EditedTransformer(self.net, checked)

    def with_backend(self, backend: str, dtype: str = "") -> backends.BackendModel:
        """Export the model to another engine, "ctranslate2" or "onnxruntime".

        `dtype` is a compute type of CTranslate2, such as int8. Options that a backend does not
        support raise an error.
        """
        return backends.with_backend(self, backend, dtype)

    def embed(
        self, texts: str | Sequence[str], pooling: str = "", normalize: bool | None = None
    ) -> Tensor:
        """Embed each text as one vector, pooled as the model was trained: "mean" or "first".

        Texts longer than `inference.max_length`, if it is set, are truncated.
        """
        check_can_embed(self.config.model)
        inference = self.config.inference
        batch = self._truncated_batch(texts, inference.max_length)
        pooling = pooling or inference.pooling
        normalize = inference.normalize if normalize is None else normalize

        def embed_chunk(chunk: Batch) -> Tensor:
            hidden = self.run_batch(chunk)
            return pool_hidden(hidden, chunk.segment_ids, pooling, normalize)

        with torch.no_grad(), eval_mode(self.net):
            return batch.unwrap(batch.map_chunks(embed_chunk))

    @overload
    def fill(self, text: str, top_k: int = 5, *, edits: Edits | None = None) -> FillResult: ...
    @overload
    def fill(
        self, text: list[str], top_k: int = 5, *, edits: Edits | None = None
    ) -> list[FillResult]: ...
    def fill(
        self, text: str | list[str], top_k: int = 5, *, edits: Edits | None = None
    ) -> FillResult | list[FillResult]:
        """Predict the tokens at each [MASK]; a list of texts gives a list."""
        net = self._edited_net(edits, per_token=False)
        if not isinstance(text, list | tuple):
            return fill_masks(net, self.tokenizer, self.config, text, top_k)
        results = []
        for index, one in enumerate(text):
            with with_index(index):
                results.append(fill_masks(net, self.tokenizer, self.config, one, top_k))
        return results

    @overload
    def classify(
        self,
        texts: str | TextPair | None = None,
        *,
        images: str | Path | None = None,
        audio: str | Path | None = None,
    ) -> Classification: ...
    @overload
    def classify(
        self,
        texts: list[str] | list[TextPair] | list[list[int]] | None = None,
        *,
        images: list[str] | list[Path] | None = None,
        audio: list[str] | list[Path] | None = None,
    ) -> list[Classification]: ...
    @overload
    def classify(
        self,
        texts: TextInput | None = None,
        *,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
    ) -> Classification | list[Classification]: ...
    def classify(
        self,
        texts: TextInput | None = None,
        *,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
    ) -> Classification | list[Classification]:
        """Classify a text, pair of texts, image or recording; a list gives a list.

        A regression model gives its value as `score`. Texts longer than the context, or than the
        length used in training, are truncated; of a pair, the longer text.
        """
        check_can_classify(self.config.model)
        check_texts_not_empty([texts] if isinstance(texts, str) else texts)
        max_length = max_classification_tokens(self.config)
        batch = self._truncated_batch(texts, max_length, images=images, audio=audio)

        def classify_chunk(chunk: Batch) -> Tensor:
            hidden = self.run_batch(chunk)
            return self.net.compute_logits(hidden, chunk.segment_ids).float()

        with torch.no_grad(), eval_mode(self.net):
            logits = batch.map_chunks(classify_chunk)
        results = classification_results(logits, self.config)
        return results[0] if batch.is_single else results

    def _truncated_batch(
        self,
        texts: Any,
        max_length: int,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
    ) -> Batch:
        """Make a batch of texts truncated to `max_length` tokens; warn if any was longer."""
        batch = self.make_batch(texts, images=images, audio=audio, max_length=max_length)
        if batch.media_tokens or not 0 < max_length <= batch.inputs.shape[1]:
            return batch
        several = [texts] if batch.is_single else texts
        # Token ids are never truncated.
        strings = [text for text in several if isinstance(text, str) or isinstance(text[0], str)]
        lengths = map(len, self.encode_texts(strings, allow_overflow=True) if strings else ())
        too_long = [length for length in lengths if length > max_length]
        if too_long:
            which = f"{len(too_long)} of {len(several)} texts were truncated"
            if len(several) == 1:
                which = f"the text was truncated from {too_long[0]:,}"
            warn(f"{which} to {max_length:,} tokens.")
        return batch

    @overload
    def score(self, text: str | Sequence[int], overflow: str = "error") -> Score: ...
    @overload
    def score(self, text: list[str] | list[list[int]], overflow: str = "error") -> list[Score]: ...
    @overload
    def score(self, text: TextInput, overflow: str = "error") -> Score | list[Score]: ...
    def score(self, text: TextInput, overflow: str = "error") -> Score | list[Score]:
        """Compute the log-probability of each token after the first; a list gives a list.

        With overflow="slide", a text longer than the context is read in windows that overlap by
        half, so each token is predicted from at least half a context.
        """
        check_can_generate(self.config.model)
        check_overflow(overflow)
        check_texts_not_empty([text] if isinstance(text, str) else text)
        batch = self.make_batch(text, allow_overflow=overflow == "slide")
        scores = score_texts(self.net, batch.unpadded_rows())
        return scores[0] if batch.is_single else scores


@contextmanager
def _grad_mode(gradients: bool, hooks: Hooks) -> Iterator[None]:
    """Enable or disable gradients; run eagerly if there are hooks."""
    with torch.set_grad_enabled(gradients), nullcontext() if hooks is NO_HOOKS else force_eager():
        yield


def new(
    config: str | Config,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    **changes: object,
) -> Model:
    """Create a model with random weights from a preset or a configuration.

    `changes` are options of the model, with two underscores for a dot:
    `new("lecture-lm", d_model=64, position="rotary", attention__n_heads=8)`.
    """
    if isinstance(config, str):
        config = presets[config]
    check_type(config, Config, "a preset's name or a Config")
    check_type(tokenizer, Tokenizer | None, "a Tokenizer")
    check_int("seed", seed, maximum=MAX_SEED)
    config = config.replace(**changes)
    placement = Placement.from_names(device, dtype)
    if placement.int8:
        raise ClearheadError("a new model cannot be int8, which is for inference. Use float32.")
    net = build_transformer(config.model, seed, placement.device, placement.dtype or torch.float32)
    return Model(net.eval(), config, tokenizer)


def load(
    path: str | Path,
    *,
    device: str | torch.device = "",
    dtype: str | torch.dtype = "",
    verify: bool = False,
) -> Model:
    """Load a bundled model, a clearhead or Hugging Face folder, a .gguf file or a hub id.

    By default, the model is on the GPU if there is one. The default dtype is that of the largest
    matrix on a GPU, and float32 on a CPU; dtype="stored" keeps the dtype of every weight, "int8"
    quantizes the weights for fast inference on a CPU. With `verify`, a Hugging Face folder is also
    loaded by transformers; differing logits, tokens or chat prompts are an error.
    """
    checkpoint = load_model(path, Placement.from_names(device, dtype))
    net = checkpoint.net
    if not dtype:
        net.to(max(net.parameters(), key=lambda p: p.numel()).dtype)
    model = Model(**vars(checkpoint))
    if verify:
        from clearhead.evaluate.against_transformers import check_against_transformers

        check_against_transformers(model, path)
    return model


def save(model: Model, path: str | Path, format: str = "clearhead") -> None:
    """Save a model as "clearhead", "hf" (Hugging Face), "gguf", "ctranslate2" or "onnx"."""
    check_type(model, Model, "a model")
    check_type(path, str | Path, "the name of a folder or file")
    save_model(path, model, format)
