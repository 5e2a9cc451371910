"""What can be seen of a model: text or ids in, tensors out; every value by its name, and changed if one likes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.config.model import Config
from clearhead.config.presets import presets
from clearhead.data.batch import Batch, encode_texts, make_batch
from clearhead.errors import ClearheadError, check_int, check_type, warn
from clearhead.generate import backends
from clearhead.generate import chat as chats
from clearhead.generate.chat import ChatSession
from clearhead.generate.engine import EditedTransformer
from clearhead.generate.generation import (
    EnginePool,
    GenerationStream,
    beam_search_config,
    beam_search_texts,
    best_or_list,
    check_can_generate,
    check_sample_counts,
    encode_prefixes,
)
from clearhead.generate.sampling import MAX_SEED, check_overflow, sampling_config
from clearhead.generate.tasks import (
    check_can_classify,
    check_can_embed,
    check_texts_not_empty,
    classification_results,
    fill_masks,
    max_classification_tokens,
    pool_hidden,
    score_texts,
)
from clearhead.generate.translation import Translator
from clearhead.hooks import NO_HOOKS, Edit, Hooks, Recorder, Selector, force_eager
from clearhead.lens.activations import ActivationCache, first_text_labels, matching_names
from clearhead.lens.edits import ActivationEdit, checked_edit
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import Checkpoint, Placement
from clearhead.weights.load import load_model, save_model

# ---- inside: What can be seen of a model: text or ids in, tensors out; every value by its name, and changed if one likes.

TextPair = tuple[str, str]  # two texts to be read together
TextInput = (
    str
    | TextPair
    | Tensor
    | Sequence[str]
    | Sequence[TextPair]
    | Sequence[int]
    | Sequence[Sequence[int]]
)
MediaInput = Tensor | str | Path | Sequence[str | Path]  # numbers, or files that hold them
Edits = Mapping[str, Callable[..., Tensor]]


@contextmanager
def _mode(gradients: bool, hooks: Hooks) -> Iterator[None]:
    """Gradients or not; a watched pass is never compiled."""
    with torch.set_grad_enabled(gradients), nullcontext() if hooks is NO_HOOKS else force_eager():
        yield


# ---- api: What people hold in their hands: a model with its tokenizer, at work.

Messages = Sequence[chats.Message]


class Model:
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def __init__(
        self,
        net: Transformer,
        config: Config,
        tokenizer: Tokenizer | None = None,
        source_tokenizer: Tokenizer | None = None,  # where a source is cut by another rule
        no_tokenizer_reason: str = "",  # it cannot read text, where it has no tokenizer
    ) -> None:
        self.net = net
        self.config = config
        self.tokenizer = tokenizer
        self._engines = EnginePool()
        self.source_tokenizer = source_tokenizer
        self.no_tokenizer_reason = no_tokenizer_reason
        if tokenizer is not None and len(tokenizer) > config.model.vocab_size:
            size = f"{len(tokenizer)} tokens, the model only {config.model.vocab_size}"
            raise ClearheadError(
                f"the tokenizer has {size}; give the model vocabulary={len(tokenizer)}."
            )

    @property
    def architecture(self) -> str:
        """decoder, encoder or encoder-decoder."""
        return self.config.model.architecture.kind

    def num_parameters(self) -> int:
        """How many trainable numbers it has."""
        return self.config.num_parameters()  # of int8 matrices torch counts none

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """That of what it writes and that of what it reads, which are one unless a source has its own."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer

    def __repr__(self) -> str:
        m = self.config.model
        size = f"{self.num_parameters():,} parameters"
        return f"<{self.architecture}: {m.n_layers} layers, {m.attention.n_heads} heads, width {m.d_model}, {size}>"

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
        """The last hidden states: tokens × width for one text, batch × tokens × width for several."""
        if edits and "logits" in edits:
            raise ClearheadError(
                "logits come after the hidden states; an edit of them changes nothing here."
            )
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks((), edits, batch)
        with _mode(gradients, hooks):
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
        """Logits at every position (language, masked-word), or one row for the whole text (classes, number).

        Several texts are padded on the right to the longest; what comes out beyond a text's end means nothing. A tuple
        of two texts is a pair, which models with something between two texts (`inference.sep_tokens`) read together.
        `source` is what an encoder-decoder reads; `pictures` and `sound` (tensors or files) take its place or that of
        text. `edits` map names of values to `ablate`, `scale`, `replace` or any function of a tensor.
        """
        if isinstance(self.config.model.head, c.NoHead):
            raise ClearheadError(
                "this model has no head, so it has no logits; hidden(…) gives its hidden states."
            )
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks((), edits, batch)
        with _mode(gradients, hooks):
            return batch.unwrap(
                self.net.compute_logits(self.run_batch(batch, hooks), batch.segment_ids, hooks)
            )

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
        """The values of those names (`blocks.*.attn.pattern`), by name, always with the batch as first dimension.

        Of `{name: function}` what the function returns is kept: `{"blocks.*.attn.pattern": lambda p: p[:, 3]}`.
        """
        batch = self.make_batch(x, source, images, audio)
        hooks = self.make_hooks([names] if isinstance(names, str) else names, edits, batch)
        with _mode(gradients, hooks):
            self.net.compute_logits(self.run_batch(batch, hooks), batch.segment_ids, hooks)
        values = hooks.values if isinstance(hooks, Recorder) else {}
        tokens = partial(first_text_labels, batch.inputs, batch.segment_ids, self.tokenizer)
        source_tokens = partial(
            first_text_labels, batch.source, batch.source_segment_ids, self.tokenizers[1]
        )
        segment_ids = (batch.segment_ids, batch.source_segment_ids)
        picked = isinstance(names, Mapping)
        return ActivationCache(
            values, self.config.model, tokens, source_tokens, not picked, segment_ids
        )

    def make_batch(
        self,
        x: object,
        source: object = None,
        images: object = None,
        audio: object = None,
        **limits: Any,
    ) -> Batch:
        like = next(self.net.parameters())
        given = {
            "source": source,
            "images": images,
            "audio": audio,
            "no_tokenizer_reason": self.no_tokenizer_reason,
            **limits,
        }
        return make_batch(self.config, self.tokenizers, like, x, **given)

    def encode_texts(self, texts: Sequence[Any], **limits: Any) -> Iterator[list[int]]:
        """The ids of each text alone, where no tensor is wanted."""
        return encode_texts(
            self.config,
            self.tokenizer,
            texts,
            no_tokenizer_reason=self.no_tokenizer_reason,
            **limits,
        )

    def run_batch(self, batch: Batch, hooks: Hooks) -> Tensor:
        return self.net(
            batch.inputs,
            segment_ids=batch.segment_ids,
            token_type_ids=batch.token_type_ids,
            source=batch.source,
            source_segment_ids=batch.source_segment_ids,
            hooks=hooks,
        )

    def make_hooks(
        self,
        names: Iterable[str] | Mapping[str, Selector],
        edits: Edits | None,
        batch: Batch | None = None,
    ) -> Hooks:
        if not isinstance(names, Iterable):
            raise ClearheadError(f"values are asked for by name, not by {type(names).__name__}.")
        names = names if isinstance(names, Mapping) else list(names)
        if isinstance(names, Mapping) and not all(callable(select) for select in names.values()):
            raise ClearheadError(
                "names may have functions that keep a part of each value, and nothing else."
            )
        if not names and not edits:
            return NO_HOOKS
        for pattern in names:
            self._check_name(pattern)
        padded = batch is not None and (
            batch.segment_ids is not None or batch.source_segment_ids is not None
        )
        return Recorder(names, self._resolve_edits(edits or {}, padded=padded))

    def _resolve_edits(
        self, edits: Edits, alone: bool = False, padded: bool = False
    ) -> dict[str, Edit]:
        """Edits by name; where texts are written, each must change a token `alone`, whatever the others are."""
        if not isinstance(edits, Mapping):
            raise ClearheadError(f"edits are {{name: change}}, not {type(edits).__name__}.")
        for name, edit in edits.items():
            self._check_name(name)
            if alone and isinstance(edit, ActivationEdit) and not edit.is_per_token:
                needs = "a token's place, a mean over the text, or another run"
                raise ClearheadError(
                    f"the edit of {name} needs {needs}; tokens are written one at a time."
                )
            if padded and isinstance(edit, ActivationEdit) and edit.uses_text_mean:
                raise ClearheadError(
                    f"the edit of {name} is the mean of a text; give texts of equal length, or one."
                )
        return {name: checked_edit(edit) for name, edit in edits.items()}

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str):
            raise ClearheadError(f"values are asked for by name, not by {type(name).__name__}.")
        matching_names(self.config.model, name)

    def generate(
        self, prompt: TextInput, max_tokens: int = 40, temperature: float = 1.0, top_k: int = 0, seed: int = 0, *,
        n: int = 1, logprobs: int = 0, echo: bool = False, stream: bool = False, edits: Edits | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """What follows the prompt, as `Generated`; a list of them for several prompts, or for `n` samples of one.

        More options are those of `Sampling` (top_p, stop …). `logprobs` tells so many of the likeliest tokens with
        each, `echo` repeats the prompt. With `stream`, pieces of text as they are written. `edits` change values of
        the model while it writes, each token by itself, as steering does.
        """
        check_can_generate(self.config.model)
        how = sampling_config(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed, **options
        )
        batch = self.make_batch(prompt, allow_overflow=True)  # the engine refuses, or slides
        check_sample_counts(n, logprobs)
        rows = batch.unpadded_rows()
        known = len(self.tokenizer) if self.tokenizer else None
        longest = max(map(len, rows)) + max_tokens
        use = self.config.inference
        engine = self._engines(self._edited(edits), use, known, len(rows) * n, longest, how)
        writer = GenerationStream(engine, self.tokenizer, rows, how, n, logprobs, echo)
        if stream:
            return iter(writer)
        written = writer.results()
        grouped = written if n == 1 else [written[i : i + n] for i in range(0, len(written), n)]
        return grouped[0] if batch.is_single else grouped

    def chat(
        self, messages: Messages, max_tokens: int = 200, temperature: float = 0.7, **options: Any
    ) -> Any:
        """The assistant's answer to `[{"role": "user", "content": "…"}, …]`; a system prompt comes first."""
        ids = chats.encode_chat(self.config.inference.chat_template, messages, self.tokenizer)
        options["seed"] = chats.turn_seed(options.get("seed", 0), messages)
        return self.generate(
            ids,
            chats.answer_length(max_tokens, ids, self.net.context_length, options),
            temperature,
            **options,
        )

    def chat_session(self, system: str = "", **options: Any) -> ChatSession:
        """A conversation that goes on: `say` a message, and hear the answer; what was read is not read again."""
        return ChatSession(self, system, **options)

    def chat_prompt(self, messages: Messages) -> str:
        """The very text that the model reads of a conversation, special tokens spelled out."""
        return chats.chat_prompt(self.config.inference.chat_template, messages, self.tokenizer)

    def beam_search(
        self, prompt: TextInput, num_beams: int = 5, max_tokens: int = 40, length_penalty: float = 1.0, *,
        edits: Edits | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """The best text after the prompt that beam search finds, as `Written`; a list with `n_best` (see `Wishes`)."""
        check_can_generate(self.config.model)
        how = beam_search_config(
            num_beams=num_beams, max_tokens=max_tokens, length_penalty=length_penalty, **options
        )
        batch = self.make_batch(prompt)
        begins = encode_prefixes(how.prefix, len(batch.inputs), self.tokenizer)
        found = beam_search_texts(
            self._edited(edits),
            self.tokenizer,
            self.config.inference,
            batch.unpadded_rows(),
            how,
            begins,
        )
        return (
            best_or_list(found, how.n_best)[0]
            if batch.is_single
            else best_or_list(found, how.n_best)
        )

    def translate(
        self, texts: TextInput | None = None, num_beams: int = 5, max_tokens: int = 0, length_penalty: float = 1.0, *,
        audio: MediaInput | None = None, split_sentences: bool = False, align: int | str | None = None,
        logprobs: int | None = None, edits: Edits | None = None, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """The best output for each source by beam search, as `Translated`; with `n_best`, a list of them for each.

        Sources are texts, or sounds for a model that listens. Long texts, and all with `split`, are translated
        sentence by sentence. `align` tells for each token the source token that a layer of the decoder attends to most
        (-2, or "all"), `logprobs` how likely it was, with so many of the likeliest. More options are those of
        `Wishes`: n_best, prefix, no_repeat, alternatives …
        """
        how = beam_search_config(
            num_beams=num_beams, max_tokens=max_tokens, length_penalty=length_penalty, **options
        )
        listed = [texts] if isinstance(texts, str) else texts
        translator = Translator(
            self._edited(edits), self.config, self.tokenizers, how, align, split_sentences, logprobs
        )
        reads = (
            audio is None and self.tokenizers[1] and self.config.model.main_input.kind == "tokens"
        )
        if (
            reads
            and isinstance(listed, list | tuple)
            and all(isinstance(text, str) for text in listed)
        ):
            return best_or_list(translator.translate_texts(listed), how.n_best)
        return best_or_list(
            translator.translate_batch(self.make_batch(None, source=texts, audio=audio)), how.n_best
        )

    def _edited(self, edits: Edits | None) -> Transformer:
        """The net, edited wherever it writes."""
        net = self.net.eval()
        return net if not edits else EditedTransformer(net, self._resolve_edits(edits, alone=True))

    def with_backend(self, backend: str, dtype: str = "") -> backends.BackendModel:
        """The same model, its texts written by another engine: `generate` and `translate` of ctranslate2, onnxruntime.

        CTranslate2 takes a `dtype` of its own, int8 among them. What an engine cannot do as we do is refused.
        """
        return backends.with_backend(self, backend, dtype)

    def embed(
        self, texts: str | Sequence[str], pooling: str = "", normalize: bool | None = None
    ) -> Tensor:
        """One vector for each text: the mean of its hidden states, or the first, as the model was made for.

        Models of sentence-transformers cut long texts (`config.inference.max_length`); others refuse what exceeds the context.
        """
        check_can_embed(self.config.model)
        batch = self._cut(texts, self.config.inference.max_length)
        pooling = pooling or self.config.inference.pooling
        unit = self.config.inference.normalize if normalize is None else normalize
        with torch.no_grad():
            return batch.unwrap(
                batch.map_chunks(
                    lambda part: pool_hidden(
                        self.run_batch(part, NO_HOOKS), part.segment_ids, pooling, unit
                    )
                )
            )

    def fill(self, text: str, top_k: int = 5, *, edits: Edits | None = None) -> Any:
        """The likeliest words for [MASK], best first; a list of such lists where there are several gaps."""
        net = EditedTransformer(self.net, self._resolve_edits(edits)) if edits else self.net
        found = fill_masks(net, self.tokenizer, self.config, text, top_k)
        return found[0] if len(found) == 1 else found

    def classify(
        self,
        texts: TextInput | None = None,
        *,
        images: MediaInput | None = None,
        audio: MediaInput | None = None,
    ) -> Any:
        """The class of each text, picture or sound with its probability; a number where the model gives numbers.

        A tuple of two texts is judged as a pair. What exceeds the context, or the length that was trained, is cut; of a
        pair, the longer text.
        """
        check_can_classify(self.config.model)
        check_texts_not_empty([texts] if isinstance(texts, str) else texts)
        batch = self._cut(texts, max_classification_tokens(self.config), images=images, audio=audio)
        with torch.no_grad():
            logits = batch.map_chunks(
                lambda part: self.net.compute_logits(
                    self.run_batch(part, NO_HOOKS), part.segment_ids
                ).float()
            )
        judged = classification_results(logits, self.config)
        return judged[0] if batch.is_single else judged

    def _cut(self, texts: Any, longest: int, **others: Any) -> Batch:
        """The batch, its long texts cut, of which a warning tells."""
        batch = self.make_batch(texts, max_length=longest, **others)
        if (
            longest
            and not batch.media_tokens
            and batch.inputs.shape[1] >= longest
            and not isinstance(texts, Tensor)
        ):
            given = [texts] if batch.is_single else texts
            words = [
                text for text in given if isinstance(text, str) or isinstance(text[0], str)
            ]  # ids are not cut
            lengths = (
                [len(row) for row in self.encode_texts(words, allow_overflow=True)] if words else []
            )
            if too_long := [length for length in lengths if length > longest]:
                one = f"the text is too long: of its {too_long[0]:,} tokens {longest:,} are read, and the rest is cut."
                many = f"texts of more than {longest:,} tokens are cut: {len(too_long)} of {len(given)}."
                warn(one if len(given) == 1 else many)
        return batch

    def score(self, text: TextInput, overflow: str = "refuse") -> Any:
        """How likely the model finds a text: the log-probability of each token after the first, and its perplexity.

        With overflow "slide", a text may exceed the context: it is read in pieces as long as the context, each
        beginning in the middle of the one before, so that every token is told from at least half a context.
        """
        check_can_generate(self.config.model)
        check_overflow(overflow)
        batch = self.make_batch(text, allow_overflow=overflow == "slide")
        scored = score_texts(self.net, batch.unpadded_rows())
        return scored[0] if batch.is_single else scored


def new(
    config: str | Config,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    **changes: object,
) -> Model:
    """A fresh model with random weights, from a preset's name or a configuration.

    Changes are options of the model: `width=64`, `position="rotary"`, `attention__n_heads=8`.
    """
    if isinstance(config, str):
        config = presets[config]
    check_type(config, Config, "a preset's name or a Config")
    check_type(tokenizer, Tokenizer | None, "a Tokenizer")
    check_int("seed", seed, most=MAX_SEED)
    config = config.replace(**changes)
    home = Placement.from_names(device, dtype)
    if home.int8:
        raise ClearheadError(
            "a fresh model is made to be trained, which int8 cannot be; load a trained one in int8."
        )
    net = build_transformer(config.model, seed, home.device, home.dtype or torch.float32)
    return Model(net.eval(), config, tokenizer)


def load(path: str | Path, *, device: str = "", dtype: str = "") -> Model:
    """The model in a folder of clearhead's or Hugging Face's, a .gguf file, or under a name of the hub's.

    It goes onto a GPU where there is one, unless `device` says otherwise; there in the `dtype` of its largest matrix,
    on a CPU in float32. With `dtype="stored"` every weight stays as it is in the file; with "int8" a CPU multiplies
    whole numbers, which is faster and needs less memory.
    """
    read = load_model(path, Placement.from_names(device, dtype))
    if not dtype:
        read.net.to(max(read.net.parameters(), key=lambda p: p.numel()).dtype)
    return Model(
        read.net, read.config, read.tokenizer, read.source_tokenizer, read.no_tokenizer_reason
    )


def save(model: Model, path: str | Path, format: str = "clearhead") -> None:
    """The model as a folder that `load` reads, or another engine: hf, gguf, ctranslate2, onnx."""
    check_type(model, Model, "a model")
    check_type(path, str | Path, "the name of a folder or file")
    save_model(
        path, Checkpoint(model.net, model.config, model.tokenizer, model.source_tokenizer), format
    )
