"""Text, pictures and sound become `batch × tokens × d`; from there on there is one code path (L1.1, L6.4)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import Hooks
from clearhead.model.layers import make_dropout, make_norm

Stream = Float[Tensor, "batch token d"]


class InputEmbedding(nn.Module):
    """What every input shares: positions are added, the sum is normalised or not, and dropped out."""

    def __init__(self, m: c.ModelConfig, norm: bool = False) -> None:
        super().__init__()
        self.norm = make_norm(m.norm, m.d_model) if norm else nn.Identity()
        self.drop = make_dropout(m.dropout.embedding)

    def add_positions(self, x: Stream, positions: Tensor | None, hooks: Hooks) -> Stream:
        x = hooks("embed", x)
        if positions is not None:
            x = x + hooks("pos_embed", positions)  # L2.2
        return hooks("full_embed", self.drop(self.norm(x)))


class TokenEmbedding(InputEmbedding):
    """One-hot rows times E is the same as picking rows of E (L1.3)."""

    def __init__(self, m: c.ModelConfig, source: c.Tokens, table: nn.Embedding) -> None:
        super().__init__(m, source.norm)
        self.tokens = table
        self.token_types = (
            nn.Embedding(source.token_types, m.d_model) if source.token_types else None
        )
        self.scale = m.d_model**0.5 if source.scale_embeddings else 1.0

    def forward(
        self, ids: Int[Tensor, "batch token"], kinds: Int[Tensor, "batch token"] | None = None
    ) -> Stream:
        x: Tensor = self.tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(ids) if kinds is None else kinds)
        elif kinds is not None:
            raise ClearheadError("this model knows no kinds of sentence; leave kinds out.")
        return x


class PatchEmbedding(InputEmbedding):
    """Square pieces of a picture, or of a spectrogram, each flattened and multiplied by one matrix."""

    def __init__(
        self,
        m: c.ModelConfig,
        channels: int,
        size: tuple[int, int],
        patch: tuple[int, int],
        first: bool,
    ) -> None:
        super().__init__(m)
        self.input_size = (channels, *size)
        self.patch_size = patch
        self.projection = nn.Linear(channels * patch[0] * patch[1], m.d_model)
        self.cls_token = nn.Parameter(torch.empty(m.d_model)) if first else None

    def forward(self, picture: Float[Tensor, "batch channel height width"]) -> Stream:
        check_shape(picture, self.input_size, "channels x height x width")
        x: Tensor = self.projection(F.unfold(picture, self.patch_size, stride=self.patch_size).mT)
        return (
            x
            if self.cls_token is None
            else torch.cat((self.cls_token.expand(x.shape[0], 1, -1), x), dim=1)
        )


class SpectrogramEmbedding(PatchEmbedding):
    """A spectrogram is a picture with one colour."""

    def __init__(self, m: c.ModelConfig, source: c.Spectrogram) -> None:
        size = (source.n_mels, source.n_frames)
        patch = (source.patch_mels, source.patch_frames)
        super().__init__(m, 1, size, patch, source.cls_token)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        return super().forward(mels[:, None])


class AudioEmbedding(InputEmbedding):
    """Log-mel frames through two convolutions, the second of stride two, as Whisper has them."""

    def __init__(self, m: c.ModelConfig, source: c.Audio) -> None:
        super().__init__(m)
        self.input_size = (source.n_mels, source.n_frames)
        self.conv1 = nn.Conv1d(source.n_mels, m.d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(m.d_model, m.d_model, kernel_size=3, stride=2, padding=1)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        check_shape(mels, self.input_size, "mels x frames")
        return F.gelu(self.conv2(F.gelu(self.conv1(mels)))).mT


def check_shape(x: Tensor, size: tuple[int, ...], words: str) -> None:
    """Pictures and sounds come in the one size the model was made for."""
    if tuple(x.shape[1:]) != size:
        got, want = (" x ".join(map(str, s)) for s in (tuple(x.shape[1:]), size))
        raise ClearheadError(f"the model reads {words} of {want}, not {got}.")


def make_input_embedding(
    m: c.ModelConfig, source: c.Input, vocabulary: int, shared: nn.Embedding | None = None
) -> InputEmbedding:
    """The input of one stack; `shared` is another stack's embedding matrix to use as its own."""
    match source:
        case c.Tokens():
            return TokenEmbedding(m, source, shared or nn.Embedding(vocabulary, m.d_model))
        case c.Images():
            size = (source.image_size, source.image_size)
            return PatchEmbedding(
                m,
                source.num_channels,
                size,
                (source.patch_size, source.patch_size),
                source.cls_token,
            )
        case c.Audio():
            return AudioEmbedding(m, source)
        case c.Spectrogram():
            return SpectrogramEmbedding(m, source)
