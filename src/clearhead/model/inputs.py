"""Text, pictures and sound become `batch × tokens × d`; from there on there is one code path (L1.1, L6.4)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.model.layers import make_dropout, make_norm
from clearhead.tap import Tap

Stream = Float[Tensor, "batch token d"]


class Input(nn.Module):
    """What every input shares: positions are added, the sum is normalised or not, and dropped out."""

    def __init__(self, m: c.ModelConfig, norm: bool = False) -> None:
        super().__init__()
        self.norm = make_norm(m.norm, m.width) if norm else nn.Identity()
        self.drop = make_dropout(m.dropout.embedding)

    def join(self, x: Stream, positions: Tensor | None, tap: Tap) -> Stream:
        x = tap("embed.tokens", x)
        if positions is not None:
            x = x + tap("embed.positions", positions)  # L2.2
        return tap("embed", self.drop(self.norm(x)))


class TokenInput(Input):
    """One-hot rows times E is the same as picking rows of E (L1.3)."""

    def __init__(self, m: c.ModelConfig, source: c.Tokens, table: nn.Embedding) -> None:
        super().__init__(m, source.norm)
        self.tokens = table
        self.kinds = nn.Embedding(source.kinds, m.width) if source.kinds else None
        self.scale = m.width**0.5 if source.scaled else 1.0

    def forward(self, ids: Int[Tensor, "batch token"], kinds: Int[Tensor, "batch token"] | None = None) -> Stream:
        x: Tensor = self.tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.kinds is not None:
            x = x + self.kinds(torch.zeros_like(ids) if kinds is None else kinds)
        elif kinds is not None:
            raise ClearheadError("this model knows no kinds of sentence; leave kinds out.")
        return x


class PatchInput(Input):
    """Square pieces of a picture, or of a spectrogram, each flattened and multiplied by one matrix."""

    def __init__(
        self, m: c.ModelConfig, channels: int, size: tuple[int, int], patch: tuple[int, int], first: bool
    ) -> None:
        super().__init__(m)
        self.size, self.patch = (channels, *size), patch
        self.project = nn.Linear(channels * patch[0] * patch[1], m.width)
        self.first = nn.Parameter(torch.empty(m.width)) if first else None

    def forward(self, picture: Float[Tensor, "batch channel height width"]) -> Stream:
        expect(picture, self.size, "channels x height x width")
        x: Tensor = self.project(F.unfold(picture, self.patch, stride=self.patch).mT)
        return x if self.first is None else torch.cat((self.first.expand(x.shape[0], 1, -1), x), dim=1)


class SpectrogramInput(PatchInput):
    """A spectrogram is a picture with one colour."""

    def __init__(self, m: c.ModelConfig, source: c.Spectrogram) -> None:
        size, patch = (source.mels, source.frames), (source.patch_mels, source.patch_frames)
        super().__init__(m, 1, size, patch, source.first_token)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        return super().forward(mels[:, None])


class SoundInput(Input):
    """Log-mel frames through two convolutions, the second of stride two, as Whisper has them."""

    def __init__(self, m: c.ModelConfig, source: c.Sound) -> None:
        super().__init__(m)
        self.size = (source.mels, source.frames)
        self.near = nn.Conv1d(source.mels, m.width, kernel_size=3, padding=1)
        self.halve = nn.Conv1d(m.width, m.width, kernel_size=3, stride=2, padding=1)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        expect(mels, self.size, "mels x frames")
        return F.gelu(self.halve(F.gelu(self.near(mels)))).mT


def expect(x: Tensor, size: tuple[int, ...], words: str) -> None:
    """Pictures and sounds come in the one size the model was made for."""
    if tuple(x.shape[1:]) != size:
        got, want = (" x ".join(map(str, s)) for s in (tuple(x.shape[1:]), size))
        raise ClearheadError(f"the model reads {words} of {want}, not {got}.")


def make(m: c.ModelConfig, source: c.Input, vocabulary: int, shared: nn.Embedding | None = None) -> Input:
    """The input of one stack; `shared` is another stack's embedding matrix to use as its own."""
    match source:
        case c.Tokens():
            return TokenInput(m, source, shared or nn.Embedding(vocabulary, m.width))
        case c.Pictures():
            size = (source.size, source.size)
            return PatchInput(m, source.channels, size, (source.patch, source.patch), source.first_token)
        case c.Sound():
            return SoundInput(m, source)
        case c.Spectrogram():
            return SpectrogramInput(m, source)
