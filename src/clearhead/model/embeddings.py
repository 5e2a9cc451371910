"""Input embeddings: text, images and audio become `batch × token × d` (L1.1, L6.4)."""

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
    """Base class: adds positions, then applies norm (if configured) and dropout."""

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
    """One-hot rows times E, computed as a lookup of rows of E (L1.3)."""

    def __init__(self, m: c.ModelConfig, source: c.Tokens, table: nn.Embedding) -> None:
        super().__init__(m, source.norm)
        self.tokens = table
        self.token_types = (
            nn.Embedding(source.token_types, m.d_model) if source.token_types else None
        )
        self.scale = m.d_model**0.5 if source.scale_embeddings else 1.0

    def forward(
        self,
        ids: Int[Tensor, "batch token"],
        token_type_ids: Int[Tensor, "batch token"] | None = None,
    ) -> Stream:
        x: Tensor = self.tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.token_types is not None:
            x = x + self.token_types(
                torch.zeros_like(ids) if token_type_ids is None else token_type_ids
            )
        elif token_type_ids is not None:
            raise ClearheadError("this model has no token types. Do not pass token_type_ids.")
        return x


class PatchEmbedding(InputEmbedding):
    """Patches of an image or a spectrogram, each flattened and multiplied by one matrix."""

    def __init__(
        self,
        m: c.ModelConfig,
        channels: int,
        input_size: tuple[int, int],
        patch_size: tuple[int, int],
        cls_token: bool,
    ) -> None:
        super().__init__(m)
        self.input_size = (channels, *input_size)
        self.patch_size = patch_size
        self.projection = nn.Linear(channels * patch_size[0] * patch_size[1], m.d_model)
        self.cls_token = nn.Parameter(torch.empty(m.d_model)) if cls_token else None

    def forward(self, image: Float[Tensor, "batch channel height width"]) -> Stream:
        check_shape(image, self.input_size, "channels x height x width")
        x: Tensor = self.projection(F.unfold(image, self.patch_size, stride=self.patch_size).mT)
        if self.cls_token is None:
            return x
        return torch.cat((self.cls_token.expand(x.shape[0], 1, -1), x), dim=1)


class SpectrogramEmbedding(PatchEmbedding):
    """A log-mel spectrogram as an image with one channel."""

    def __init__(self, m: c.ModelConfig, source: c.Spectrogram) -> None:
        input_size = (source.n_mels, source.n_frames)
        patch_size = (source.patch_mels, source.patch_frames)
        super().__init__(m, 1, input_size, patch_size, source.cls_token)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        return super().forward(mels[:, None])


class AudioEmbedding(InputEmbedding):
    """Log-mel frames through two convolutions, the second with stride two, as in Whisper."""

    def __init__(self, m: c.ModelConfig, source: c.Audio) -> None:
        super().__init__(m)
        self.input_size = (source.n_mels, source.n_frames)
        self.conv1 = nn.Conv1d(source.n_mels, m.d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(m.d_model, m.d_model, kernel_size=3, stride=2, padding=1)

    def forward(self, mels: Float[Tensor, "batch mel frame"]) -> Stream:
        check_shape(mels, self.input_size, "mels x frames")
        return F.gelu(self.conv2(F.gelu(self.conv1(mels)))).mT


def check_shape(x: Tensor, expected: tuple[int, ...], axes: str) -> None:
    """Raise unless images or audio have the size that the model was built for."""
    shape = tuple(x.shape[1:])
    if shape != expected:
        got, want = (" x ".join(map(str, sizes)) for sizes in (shape, expected))
        raise ClearheadError(f"the input must be {want} ({axes}), got {got}.")


def make_input_embedding(
    m: c.ModelConfig, source: c.Input, vocab_size: int, shared: nn.Embedding | None = None
) -> InputEmbedding:
    """The input embedding of one stack; `shared` is an embedding matrix to use, not a new one."""
    match source:
        case c.Tokens():
            return TokenEmbedding(m, source, shared or nn.Embedding(vocab_size, m.d_model))
        case c.Images():
            input_size = (source.image_size, source.image_size)
            patch_size = (source.patch_size, source.patch_size)
            return PatchEmbedding(m, source.num_channels, input_size, patch_size, source.cls_token)
        case c.Audio():
            return AudioEmbedding(m, source)
        case c.Spectrogram():
            return SpectrogramEmbedding(m, source)
