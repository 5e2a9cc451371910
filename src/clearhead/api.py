"""What people hold in their hands: a model with its tokenizer, at work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.batch import Batch
from clearhead.config import Config
from clearhead.errors import ClearheadError, check_kind, check_whole, warn
from clearhead.generate import answers, engines
from clearhead.generate import chat as chats
from clearhead.generate.beamed import best_texts, prefixes, unlisted, wishes
from clearhead.generate.edited import Edited
from clearhead.generate.sampling import LARGEST_SEED, check_overflow, sampling
from clearhead.generate.talk import Talk
from clearhead.generate.translate import Translator
from clearhead.generate.write import Engines, Writer, check_samples, check_writes
from clearhead.inside import Dense, Edits, Inside, Text
from clearhead.model.transformer import Transformer, build
from clearhead.presets import presets
from clearhead.tap import SILENT
from clearhead.tokens.text import Tokenizer
from clearhead.weights import formats
from clearhead.weights.checkpoint import Checkpoint, Home

Messages = Sequence[chats.Message]


class Model(Inside):
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._engines = Engines()

    def generate(
        self, prompt: Text, max_tokens: int = 40, temperature: float = 1.0, top_k: int = 0, seed: int = 0, *,
        n: int = 1, logprobs: int = 0, echo: bool = False, stream: bool = False, edits: Edits | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """What follows the prompt, as `Generated`; a list of them for several prompts, or for `n` samples of one.

        More options are those of `Sampling` (top_p, stop …). `logprobs` tells so many of the likeliest tokens with
        each, `echo` repeats the prompt. With `stream`, pieces of text as they are written. `edits` change values of
        the model while it writes, each token by itself, as steering does.
        """
        check_writes(self.config.model)
        how = sampling(max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed, **options)
        batch = self._batch(prompt, endless=True)  # the engine refuses, or slides
        check_samples(n, logprobs)
        rows, known = batch.rows(), len(self.tokenizer) if self.tokenizer else None
        longest, use = max(map(len, rows)) + max_tokens, self.config.use
        engine = self._engines(self._edited(edits), use, known, len(rows) * n, longest, how)
        writer = Writer(engine, self.tokenizer, rows, how, n, logprobs, echo)
        if stream:
            return iter(writer)
        written = writer.results()
        grouped = written if n == 1 else [written[i : i + n] for i in range(0, len(written), n)]
        return grouped[0] if batch.single else grouped

    def chat(self, messages: Messages, max_tokens: int = 200, temperature: float = 0.7, **options: Any) -> Any:
        """The assistant's answer to `[{"role": "user", "content": "…"}, …]`; a system prompt comes first."""
        ids = chats.encode(self.config.use.chat, messages, self.tokenizer)
        options["seed"] = chats.turned(options.get("seed", 0), messages)
        return self.generate(ids, chats.room(max_tokens, ids, self.net.context, options), temperature, **options)

    def talk(self, system: str = "", **options: Any) -> Talk:
        """A conversation that goes on: `say` a message, and hear the answer; what was read is not read again."""
        return Talk(self, system, **options)

    def conversation(self, messages: Messages) -> str:
        """The very text that the model reads of a conversation, special tokens spelled out."""
        return chats.shown(self.config.use.chat, messages, self.tokenizer)

    def beams(
        self, prompt: Text, beam: int = 5, max_tokens: int = 40, length_penalty: float = 1.0, *,
        edits: Edits | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """The best text after the prompt that beam search finds, as `Written`; a list with `n_best` (see `Wishes`)."""
        check_writes(self.config.model)
        how = wishes(beam=beam, max_tokens=max_tokens, length_penalty=length_penalty, **options)
        batch = self._batch(prompt)
        begins = prefixes(how.prefix, len(batch.ids), self.tokenizer)
        found = best_texts(self._edited(edits), self.tokenizer, self.config.use, batch.rows(), how, begins)
        return unlisted(found, how.n_best)[0] if batch.single else unlisted(found, how.n_best)

    def translate(
        self, texts: Text | None = None, beam: int = 5, max_tokens: int = 0, length_penalty: float = 1.0, *,
        sound: Dense | None = None, split: bool = False, align: int | str | None = None,
        logprobs: int | None = None, edits: Edits | None = None, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """The best output for each source by beam search, as `Translated`; with `n_best`, a list of them for each.

        Sources are texts, or sounds for a model that listens. Long texts, and all with `split`, are translated
        sentence by sentence. `align` tells for each token the source token that a layer of the decoder attends to most
        (-2, or "all"), `logprobs` how likely it was, with so many of the likeliest. More options are those of
        `Wishes`: n_best, prefix, no_repeat, alternatives …
        """
        how = wishes(beam=beam, max_tokens=max_tokens, length_penalty=length_penalty, **options)
        listed = [texts] if isinstance(texts, str) else texts
        translator = Translator(self._edited(edits), self.config, self.tokenizers, how, align, split, logprobs)
        reads = sound is None and self.tokenizers[1] and self.config.model.reads.kind == "tokens"
        if reads and isinstance(listed, list | tuple) and all(isinstance(text, str) for text in listed):
            return unlisted(translator.texts(listed), how.n_best)
        return unlisted(translator.batch(self._batch(None, source=texts, sound=sound)), how.n_best)

    def _edited(self, edits: Edits | None) -> Transformer:
        """The net, edited wherever it writes."""
        net = self.net.eval()
        return net if not edits else Edited(net, self._changes(edits, alone=True))

    def through(self, engine: str, dtype: str = "") -> engines.Elsewhere:
        """The same model, its texts written by another engine: `generate` and `translate` of ctranslate2, onnxruntime.

        CTranslate2 takes a `dtype` of its own, int8 among them. What an engine cannot do as we do is refused.
        """
        return engines.through(self, engine, dtype)

    def embed(self, texts: str | Sequence[str], pooling: str = "", normalised: bool | None = None) -> Tensor:
        """One vector for each text: the mean of its hidden states, or the first, as the model was made for.

        Models of sentence-transformers cut long texts (`config.use.longest`); others refuse what exceeds the context.
        """
        answers.check_embeds(self.config.model)
        batch, pooling = self._cut(texts, self.config.use.longest), pooling or self.config.use.pooling
        unit = self.config.use.normalised if normalised is None else normalised
        with torch.no_grad():
            return batch.unwrap(
                batch.each(lambda part: answers.pooled(self._run(part, SILENT), part.segments, pooling, unit))
            )

    def fill(self, text: str, top: int = 5, *, edits: Edits | None = None) -> Any:
        """The likeliest words for [MASK], best first; a list of such lists where there are several gaps."""
        net = Edited(self.net, self._changes(edits)) if edits else self.net
        found = answers.fill(net, self.tokenizer, self.config, text, top)
        return found[0] if len(found) == 1 else found

    def classify(self, texts: Text | None = None, *, pictures: Dense | None = None, sound: Dense | None = None) -> Any:
        """The class of each text, picture or sound with its probability; a number where the model gives numbers.

        A tuple of two texts is judged as a pair. What exceeds the context, or the length that was trained, is cut; of a
        pair, the longer text.
        """
        answers.check_judges(self.config.model)
        answers.check_said([texts] if isinstance(texts, str) else texts)
        batch = self._cut(texts, answers.judged_tokens(self.config), pictures=pictures, sound=sound)
        with torch.no_grad():
            logits = batch.each(lambda part: self.net.predict(self._run(part, SILENT), part.segments).float())
        judged = answers.judged(logits, self.config)
        return judged[0] if batch.single else judged

    def _cut(self, texts: Any, longest: int, **others: Any) -> Batch:
        """The batch, its long texts cut, of which a warning tells."""
        batch = self._batch(texts, longest=longest, **others)
        if longest and not batch.dense and batch.ids.shape[1] >= longest and not isinstance(texts, Tensor):
            given = [texts] if batch.single else texts
            words = [text for text in given if isinstance(text, str) or isinstance(text[0], str)]  # ids are not cut
            lengths = [len(row) for row in self._rows(words, endless=True)] if words else []
            if too_long := [length for length in lengths if length > longest]:
                one = f"the text is too long: of its {too_long[0]:,} tokens {longest:,} are read, and the rest is cut."
                many = f"texts of more than {longest:,} tokens are cut: {len(too_long)} of {len(given)}."
                warn(one if len(given) == 1 else many)
        return batch

    def score(self, text: Text, overflow: str = "refuse") -> Any:
        """How likely the model finds a text: the log-probability of each token after the first, and its perplexity.

        With overflow "slide", a text may exceed the context: it is read in pieces as long as the context, each
        beginning in the middle of the one before, so that every token is told from at least half a context.
        """
        check_writes(self.config.model)
        check_overflow(overflow)
        batch = self._batch(text, endless=overflow == "slide")
        scored = answers.scored(self.net, batch.rows())
        return scored[0] if batch.single else scored


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

    Changes are options of the model: `width=64`, `position="rotary"`, `attention__heads=8`.
    """
    if isinstance(config, str):
        config = presets[config]
    check_kind(config, Config, "a preset's name or a Config")
    check_kind(tokenizer, Tokenizer | None, "a Tokenizer")
    check_whole("seed", seed, most=LARGEST_SEED)
    config, home = config.change(**changes), Home.of(device, dtype)
    if home.int8:
        raise ClearheadError("a fresh model is made to be trained, which int8 cannot be; load a trained one in int8.")
    net = build(config.model, seed, home.device, home.dtype or torch.float32)
    return Model(net.eval(), config, tokenizer)


def load(where: str | Path, *, device: str = "", dtype: str = "") -> Model:
    """The model in a folder of clearhead's or Hugging Face's, a .gguf file, or under a name of the hub's.

    It goes onto a GPU where there is one, unless `device` says otherwise; there in the `dtype` of its largest matrix,
    on a CPU in float32. With `dtype="stored"` every weight stays as it is in the file; with "int8" a CPU multiplies
    whole numbers, which is faster and needs less memory.
    """
    read = formats.read(where, Home.of(device, dtype))
    if not dtype:
        read.net.to(max(read.net.parameters(), key=lambda p: p.numel()).dtype)
    return Model(read.net, read.config, read.tokenizer, read.source_tokenizer, read.why)


def save(model: Model, where: str | Path, format: str = "clearhead") -> None:
    """The model as a folder that `load` reads, or another engine: hf, gguf, ctranslate2, onnx."""
    check_kind(model, Model, "a model")
    check_kind(where, str | Path, "the name of a folder or file")
    formats.write(where, Checkpoint(model.net, model.config, model.tokenizer, model.source_tokenizer), format)
