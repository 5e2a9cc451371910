"""What people hold in their hands: a model with its tokenizer, at work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.generate import answers
from clearhead.generate import chat as chats
from clearhead.generate.sampling import sampling
from clearhead.generate.write import Translated, Writer, check_writes, translations
from clearhead.inside import Dense, Inside, Text
from clearhead.model.transformer import build
from clearhead.presets import presets
from clearhead.tap import SILENT
from clearhead.tokens.text import Tokenizer
from clearhead.weights import formats
from clearhead.weights.checkpoint import Checkpoint, Home

Messages = Sequence[chats.Message]


class Model(Inside):
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def generate(
        self, prompt: Text, max_tokens: int = 40, temperature: float = 1.0, top_k: int = 0, seed: int = 0, *,
        n: int = 1, logprobs: int = 0, stream: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        """What follows the prompt, as `Generated`; a list of them for several prompts, or for `n` samples of one.

        More options are those of `Sampling` (top_p, stop …). `logprobs` tells so many of the likeliest tokens with
        each. With `stream`, pieces of text as they are written.
        """
        check_writes(self.config.model)
        how = sampling(max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed, **options)
        batch = self._batch(prompt)
        writer = Writer(self.net, self.tokenizer, self.config.use, batch.rows(), how, n, logprobs)
        if stream:
            return iter(writer)
        written = writer.results()
        grouped = written if n == 1 else [written[i : i + n] for i in range(0, len(written), n)]
        return grouped[0] if batch.single else grouped

    def chat(self, messages: Messages, max_tokens: int = 200, temperature: float = 0.7, **options: Any) -> Any:
        """The assistant's answer to `[{"role": "user", "content": "…"}, …]`; a system prompt comes first."""
        ids = chats.encode(self.config.use.chat, messages, self.tokenizer)
        return self.generate(ids, min(max_tokens, max(1, self.net.context - len(ids))), temperature, **options)

    def conversation(self, messages: Messages) -> str:
        """The very text that the model reads of a conversation, special tokens spelled out."""
        return chats.shown(self.config.use.chat, messages, self.tokenizer)

    def translate(
        self,
        texts: str | Sequence[str] | None = None,
        beam: int = 5,
        max_tokens: int = 0,
        length_penalty: float = 1.0,
        *,
        sound: Dense | None = None,
    ) -> list[Translated]:
        """The best output for each source by beam search; texts, or sounds for a model that listens."""
        if self.kind != "encoder-decoder":
            raise ClearheadError(f"this {self.kind} has no source to read; an encoder-decoder translates.")
        if not self.config.use.start:
            raise ClearheadError("it is not known which token an output starts with; give the model use__start=[id].")
        batch = self._batch(None, source=texts, sound=sound)
        return translations(self.net, self.tokenizer, self.config.use, batch, beam, max_tokens, length_penalty)

    def embed(self, texts: str | Sequence[str], pooling: str = "", normalised: bool | None = None) -> Tensor:
        """One vector for each text: the mean of its hidden states, or the first, as the model was made for.

        Models of sentence-transformers cut long texts (`config.use.longest`); others refuse what exceeds the context.
        """
        batch = self._batch(texts, longest=self.config.use.longest)
        unit = self.config.use.normalised if normalised is None else normalised
        with torch.no_grad():
            hidden = self._run(batch, SILENT)
        return batch.unwrap(answers.pooled(hidden, batch.segments, pooling or self.config.use.pooling, unit))

    def fill(self, text: str, top: int = 5) -> Any:
        """The likeliest words for [MASK], best first; a list of such lists where there are several."""
        found = answers.fill(self.net, self.tokenizer, self.config, text, top)
        return found[0] if len(found) == 1 else found

    def classify(self, texts: Text | None = None, *, pictures: Dense | None = None, sound: Dense | None = None) -> Any:
        """The class of each text, picture or sound with its probability; a number where the model gives numbers."""
        answers.check_judges(self.config.model)
        batch = self._batch(texts, pictures=pictures, sound=sound, longest=self.net.context)
        with torch.no_grad():
            logits = self.net.predict(self._run(batch, SILENT), batch.segments).float()
        judged = answers.judged(logits, self.config)
        return judged[0] if batch.single else judged

    def score(self, text: Text) -> Any:
        """How likely the model finds a text: the log-probability of each token after the first, and its perplexity."""
        check_writes(self.config.model)
        batch = self._batch(text)
        with torch.no_grad():
            logits = self.net.predict(self._run(batch, SILENT)).float()
        scored = [answers.scored(row, ids) for row, ids in zip(logits, batch.rows(), strict=True)]
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
    if not isinstance(config, Config):
        raise ClearheadError(f"a preset's name or a Config is needed, not {type(config).__name__}.")
    config, home = config.change(**changes), Home.of(device, dtype)
    net = build(config.model, seed, home.device, home.dtype or torch.float32)
    return Model(net.eval(), config, tokenizer)


def load(where: str | Path, *, device: str = "", dtype: str = "") -> Model:
    """The model in a folder of clearhead's or Hugging Face's, a .gguf file, or under a name of the hub's.

    It goes onto a GPU where there is one, unless `device` says otherwise; there in the `dtype` of its largest matrix,
    on a CPU in float32. With `dtype="stored"` every weight stays as it is in the file.
    """
    read = formats.read(where, Home.of(device, dtype))
    if not dtype:
        read.net.to(max(read.net.parameters(), key=lambda p: p.numel()).dtype)
    return Model(read.net, read.config, read.tokenizer, read.source_tokenizer, read.why)


def save(model: Model, where: str | Path, format: str = "clearhead") -> None:
    """The model as a folder that `load` reads, or another engine: hf, gguf, ctranslate2, onnx."""
    if not isinstance(model, Model):
        raise ClearheadError(f"a model is needed, not {type(model).__name__}.")
    formats.write(where, Checkpoint(model.net, model.config, model.tokenizer, model.source_tokenizer), format)
