"""What people hold in their hands: a model with its tokenizer, text or ids in, tensors out."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.batch import Batch, read_batch
from clearhead.config import Config
from clearhead.errors import ClearheadError, nearest
from clearhead.generate.sample import sample
from clearhead.lens.edits import as_edit
from clearhead.lens.names import matching
from clearhead.lens.seen import Seen
from clearhead.model.transformer import Transformer, build
from clearhead.presets import presets
from clearhead.tap import SILENT, Select, Tap, Watch
from clearhead.tokens.text import Tokenizer
from clearhead.weights import folder

Text = str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
Dense = Tensor | str | Path | Sequence[str | Path]  # numbers, or files that hold them
Edits = Mapping[str, Callable[..., Tensor]]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt."""

    text: str
    tokens: list[int]
    finish_reason: str


class Model:
    """A Transformer with its configuration and tokenizer; `net` is the torch module itself."""

    def __init__(self, net: Transformer, config: Config, tokenizer: Tokenizer | None = None) -> None:
        self.net, self.config, self.tokenizer = net, config, tokenizer
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
        m = self.config.model
        size = f"{m.layers} layers, {m.attention.heads} heads, width {m.width}, {self.parameters:,} parameters"
        return f"<{self.kind}: {size}>"

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
        `source` is what an encoder-decoder reads; `pictures` and `sound` (tensors or files) take its
        place or that of text. `edits` map
        names of values to `ablate`, `scale`, `replace` or any function of a tensor.
        """
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
        tokens = self._labels(batch.ids, batch.segments)
        return Seen(values, self.config.model, tokens, self._labels(batch.source, batch.source_segments))

    def generate(
        self, prompt: Text, max_tokens: int = 40, temperature: float = 1.0, top_k: int = 0, seed: int = 0
    ) -> Generated:
        """What follows the prompt."""
        if not isinstance(self.config.model.head, c.Language) or self.kind != "decoder":
            raise ClearheadError(f"this {self.kind} does not write text after a prompt; a decoder language model does.")
        if not 0 <= temperature < math.inf:
            raise ClearheadError(f"temperature = {temperature} must be a number of at least 0.")
        for name, value, least in (("max_tokens", max_tokens, 1), ("top_k", top_k, 0)):
            if not isinstance(value, int) or value < least:
                raise ClearheadError(f"{name} = {value} must be a whole number of at least {least}.")
        batch = self._batch(prompt)
        if not batch.single:
            raise ClearheadError("generate writes on from one prompt; give a text or one row of ids.")
        ids = batch.ids
        if ids.shape[1] + max_tokens > self.net.context:
            room = f"the context of {self.net.context}; ask for at most {max(0, self.net.context - ids.shape[1])}"
            raise ClearheadError(f"{ids.shape[1]} tokens of prompt and {max_tokens} to write exceed {room}.")
        tokens = list(
            sample(self.net, ids, max_tokens, temperature, top_k, seed, len(self.tokenizer) if self.tokenizer else None)
        )
        return Generated(self.tokenizer.decode(tokens) if self.tokenizer else "", tokens, "length")

    def _batch(self, x: object, source: object = None, pictures: object = None, sound: object = None) -> Batch:
        like = next(self.net.parameters())
        return read_batch(self.config.model, self.tokenizer, like, x, source=source, picture=pictures, sound=sound)

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

    def _labels(self, ids: Tensor | None, segments: Tensor | None) -> list[str]:
        """The first text's tokens, for people to read."""
        if ids is None or ids.is_floating_point():
            return []
        first = (ids[0] if segments is None else ids[0][segments[0] != 0]).tolist()
        return self.tokenizer.pieces(first) if self.tokenizer else [str(i) for i in first]


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
    config = config.change(**changes)
    net = build(config.model, seed, checked_device(device), checked_dtype(dtype))
    return Model(net.eval(), config, tokenizer)


def load(where: str | Path, *, device: str = "", dtype: str = "") -> Model:
    """The model in a clearhead folder; on a GPU where there is one, unless `device` says otherwise."""
    path = Path(where)
    if not (path / folder.CONFIG).is_file():
        if str(where) in presets:
            raise ClearheadError(
                f"{where} is a preset, not a saved model; in Python, clearhead.new({str(where)!r}) makes one."
            )
        why = f"there is no {folder.CONFIG} in it" if path.exists() else "there is no such folder"
        raise ClearheadError(f"{where} is no clearhead model: {why}.")
    net, config, tokenizer = folder.read(path, checked_device(device), checked_dtype(dtype) if dtype else None)
    return Model(net, config, tokenizer)


def save(model: Model, where: str | Path) -> None:
    """The model as a folder that `load` reads."""
    if not isinstance(model, Model):
        raise ClearheadError(f"a model is needed, not {type(model).__name__}.")
    folder.write(where, model.net, model.config, model.tokenizer)


def checked_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ClearheadError(f"dtype {name!r} is unknown; {nearest(name, DTYPES)}")
    return DTYPES[name]


def checked_device(name: str) -> str:
    """The device of that name, or the best there is."""
    if not name:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ClearheadError(f"there is no device {name!r} here; cpu always works.") from None
    return name
