"""A network with inputs to try it on, whatever its shape."""

from collections.abc import Iterable

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.data.packed import IGNORE
from clearhead.model.transformer import Transformer

Inputs = dict[str, Tensor]


class DoesNotApply(Exception):
    """Why a law says nothing about a model."""


class Subject:
    def __init__(self, net: Transformer, seed: int = 0) -> None:
        self.net, self.m = net, net.config
        self.like = next(net.parameters())
        self.generator = torch.Generator().manual_seed(seed)
        source = net.encoder.context if net.encoder is not None else net.context
        self.length = min(11, net.context, source)

    @property
    def tolerance(self) -> float:
        """Relative to the largest value; sums in another order differ by a few units of the last place."""
        return {torch.float64: 1e-6, torch.float32: 1e-4}.get(self.like.dtype, 5e-2)

    @property
    def text(self) -> bool:
        return isinstance(self.m.input, c.Tokens)

    def need_text(self) -> None:
        if not self.text:
            raise DoesNotApply(f"the input is {self.m.input.kind}, always of one size")

    def need_causal(self) -> None:
        if not self.net.causal:
            raise DoesNotApply("an encoder sees the whole sentence at once")

    def ids(self, rows: int, tokens: int, vocabulary: int | None = None) -> Tensor:
        size = (rows, tokens)
        return torch.randint(vocabulary or self.m.vocabulary, size, generator=self.generator).to(self.like.device)

    def inputs(self, rows: int = 3, tokens: int = 0) -> Inputs:
        """Arguments for the network: `tokens`, and `source` where there is one."""
        made = {"tokens": self._input(self.m.input, rows, tokens or self.length, self.m.vocabulary)}
        if isinstance(s := self.m.shape, c.EncoderDecoder):
            length = max(1, (tokens or self.length) - 1)  # not the target's, and never too long for two in a row
            made["source"] = self._input(s.input, rows, length, s.vocabulary or self.m.vocabulary)
        return made

    def _input(self, source: c.Input, rows: int, tokens: int, vocabulary: int) -> Tensor:
        match source:
            case c.Tokens():
                return self.ids(rows, tokens, vocabulary)
            case c.Pictures():
                size: tuple[int, ...] = (rows, source.channels, source.size, source.size)
            case c.Sound() | c.Spectrogram():
                size = (rows, source.mels, source.frames)
        return torch.randn(size, generator=self.generator).to(self.like)

    def targets(self, inputs: Inputs) -> Tensor:
        """Something to learn, with one target that teaches nothing where there are several."""
        match self.m.head:
            case c.Language() | c.MaskedWord():
                targets = self.ids(*inputs["tokens"].shape)
                targets[0, 0] = IGNORE
                return targets
            case c.Classes(classes=classes):
                return torch.randint(classes, (len(inputs["tokens"]),), generator=self.generator).to(self.like.device)
            case c.Number():
                return torch.randn(len(inputs["tokens"]), generator=self.generator).to(self.like.device)
            case c.Hidden():
                raise DoesNotApply("without a head there is no loss")


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    a, b = a.detach().double(), b.detach().double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def worst(differences: Iterable[float]) -> float:
    """The largest; unlike `max`, never deaf to a NaN."""
    return torch.tensor(list(differences)).max().item()
