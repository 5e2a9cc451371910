"""What people hold in their hands: a model with its tokenizer, text or ids in, tensors out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch, read_batch
from clearhead.config import Config
from clearhead.errors import ClearheadError
from clearhead.generate import chat as chats
from clearhead.generate.answers import pooled
from clearhead.generate.sampling import sampling
from clearhead.generate.write import Translated, Writer, check_writes, translations
from clearhead.lens.edits import as_edit
from clearhead.lens.names import matching
from clearhead.lens.seen import Seen, labels
from clearhead.model.transformer import Transformer, build
from clearhead.presets import presets
from clearhead.tap import SILENT, Select, Tap, Watch
from clearhead.tokens.text import Tokenizer
from clearhead.weights import formats
from clearhead.weights.checkpoint import Checkpoint, Home

Text = str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
Dense = Tensor | str | Path | Sequence[str | Path]  # numbers, or files that hold them
Messages = Sequence[chats.Message]
Edits = Mapping[str, Callable[..., Tensor]]


class Model:
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def __init__(
        self,
        net: Transformer,
        config: Config,
        tokenizer: Tokenizer | None = None,
        source_tokenizer: Tokenizer | None = None,  # where a source is cut by another rule
        why: str = "",  # it cannot read text, where it has no tokenizer
    ) -> None:
        self.net, self.config, self.tokenizer = net, config, tokenizer
        self.source_tokenizer, self._why = source_tokenizer, why
        if tokenizer is not None and len(tokenizer) > config.model.vocabulary:
            size = f"{len(tokenizer)} tokens, the model only {config.model.vocabulary}"
            raise ClearheadError(f"the tokenizer has {size}; give the model vocabulary={len(tokenizer)}.")

    @property
    def kind(self) -> str:
        """decoder, encoder or encoder-decoder."""
        return self.config.model.shape.kind

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net.parameters())

    def __repr__(self) -> str:
        m, size = self.config.model, f"{self.parameters:,} parameters"
        return f"<{self.kind}: {m.layers} layers, {m.attention.heads} heads, width {m.width}, {size}>"

    def hidden(
        self,
        x: Text | None = None,
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """The last hidden states: tokens × width for one text, batch × tokens × width for several."""
        if edits and "logits" in edits:
            raise ClearheadError("logits come after the hidden states; an edit of them changes nothing here.")
        batch, tap = self._batch(x, source, pictures, sound), self._tap((), edits)
        with _mode(gradients, tap):
            return batch.unwrap(self._run(batch, tap))

    def logits(
        self,
        x: Text | None = None,
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Tensor:
        """Logits at every position (language, masked-word), or one row for the whole text (classes, number).

        Several texts are padded on the right to the longest; what comes out beyond a text's end means nothing.
        `source` is what an encoder-decoder reads; `pictures` and `sound` (tensors or files) take its place or that of
        text. `edits` map names of values to `ablate`, `scale`, `replace` or any function of a tensor.
        """
        if isinstance(self.config.model.head, c.Hidden):
            raise ClearheadError("this model has no head, so it has no logits; hidden(…) gives its hidden states.")
        batch, tap = self._batch(x, source, pictures, sound), self._tap((), edits)
        with _mode(gradients, tap):
            return batch.unwrap(self.net.predict(self._run(batch, tap), batch.segments, tap))

    def watch(
        self,
        x: Text | None = None,
        names: str | Iterable[str] | Mapping[str, Select] = "**",
        *,
        source: Text | None = None,
        pictures: Dense | None = None,
        sound: Dense | None = None,
        edits: Edits | None = None,
        gradients: bool = False,
    ) -> Seen:
        """The values of those names (`blocks.*.attn.pattern`), by name, always with the batch as first dimension."""
        batch = self._batch(x, source, pictures, sound)
        tap = self._tap([names] if isinstance(names, str) else names, edits)
        with _mode(gradients, tap):
            self.net.predict(self._run(batch, tap), batch.segments, tap)
        values = tap.values if isinstance(tap, Watch) else {}
        tokens = labels(batch.ids, batch.segments, self.tokenizer)
        source_tokens = labels(batch.source, batch.source_segments, self.source_tokenizer or self.tokenizer)
        return Seen(values, self.config.model, tokens, source_tokens)

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
        return batch.unwrap(pooled(hidden, batch.segments, pooling or self.config.use.pooling, unit))

    def _batch(
        self, x: object, source: object = None, pictures: object = None, sound: object = None, longest: int = 0
    ) -> Batch:
        like, words = next(self.net.parameters()), (self.tokenizer, self.source_tokenizer or self.tokenizer)
        dense = {"picture": pictures, "sound": sound}
        return read_batch(self.config, words, like, x, source=source, **dense, longest=longest, why=self._why)

    def _run(self, batch: Batch, tap: Tap) -> Tensor:
        return self.net(
            batch.ids, segments=batch.segments, source=batch.source, source_segments=batch.source_segments, tap=tap
        )

    def _tap(self, names: Iterable[str] | Mapping[str, Select], edits: Edits | None) -> Tap:
        names = names if isinstance(names, Mapping) else list(names)
        if not isinstance(edits or {}, Mapping) or not all(isinstance(name, str) for name in (*names, *(edits or {}))):
            raise ClearheadError("values are asked for by name, and edits are {name: change}.")
        if not names and not edits:
            return SILENT
        for pattern in (*names, *(edits or {})):
            matching(self.config.model, pattern)
        return Watch(names, {name: as_edit(edit) for name, edit in (edits or {}).items()})


@contextmanager
def _mode(gradients: bool, tap: Tap) -> Iterator[None]:
    """Gradients or not; a watched pass is never compiled."""
    eager = nullcontext() if tap is SILENT else torch.compiler.set_stance("force_eager")
    with torch.set_grad_enabled(gradients), eager:
        yield


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
