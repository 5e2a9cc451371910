"""Positions (L2), as objects that override exactly one thing: `embed`, or the `turn` or the `bias` of their places.

A `Positions` belongs to a stack. For each pass it makes one `Place` per layer: what attention needs to know of
where its queries and keys stand. Angles and waves are computed in the pass, in fp32, so no model carries
tables that a change of dtype could spoil.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead import config as c

Heads = Float[Tensor, "batch head query d"]
PositionIds = Int[Tensor, "#batch token"]
Queries = Int[Tensor, "#batch query"]
Keys = Int[Tensor, "#batch key"]

DEFAULT_THETA = 10000.0  # base of the wave lengths, where no option tells it


class Position:
    """Nowhere in particular: attention sees a set, not a sequence (L2.1)."""

    def rotate(self, x: Heads) -> Heads:
        """The queries or keys, turned by their position."""
        return x

    def bias(self, q: Heads, scale: float) -> Float[Tensor, "#batch head query key"] | None:
        """What is added to the scores."""
        return None


NO_POSITION = Position()


class PositionEncoding(nn.Module):
    """No positions at all; the base of every scheme."""

    def embed(self, at: PositionIds, dtype: torch.dtype) -> Float[Tensor, "#batch token d"] | None:
        """What is added to the embeddings."""
        return None

    def layer_positions(self, queries: Queries, keys: Keys, layers: int) -> list[Position]:
        return [NO_POSITION] * layers


class Learned(PositionEncoding):
    """X = E[w] + E_pos (L2.2)."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(context, width))

    def embed(self, at: PositionIds, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(at, self.table)


class Sinusoidal(PositionEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (L2.3)."""

    def __init__(self, width: int, layout: str) -> None:
        super().__init__()
        self.width = width
        self.layout = layout

    def embed(self, at: PositionIds, dtype: torch.dtype) -> Tensor:
        angle = at[..., None] * inverse_frequencies(self.width, DEFAULT_THETA, at.device)
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype)


def inverse_frequencies(width: int, theta: float, device: torch.device) -> Float[Tensor, " half"]:
    """1 / theta^(2i/width): radians a position, falling from 1."""
    return 1.0 / theta ** (torch.arange(0, width, 2, device=device).float() / width)


class Rotary(PositionEncoding):
    """Turn q and k by angles that grow with position, so that q·k depends on the distance only (L2.5).

    Dimension i turns with dimension i + width/2, as Llama has it.
    """

    def __init__(
        self, width: int, theta: float, scaling: c.NoScaling | c.LinearScaling | c.Llama3Scaling
    ) -> None:
        super().__init__()
        self.rotary_dim = width
        self.theta = theta
        self.scaling = scaling

    def frequencies(self, device: torch.device) -> Tensor:
        rates = inverse_frequencies(self.rotary_dim, self.theta, device)
        if isinstance(s := self.scaling, c.Llama3Scaling):
            waves = (
                s.original_context_length * rates / (2 * math.pi)
            )  # full turns within the old context
            keep = ((waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(
                0, 1
            )
            rates = rates * (keep + (1 - keep) / s.factor)
        return rates / s.factor if isinstance(s, c.LinearScaling) else rates

    def layer_positions(self, queries: Queries, keys: Keys, layers: int) -> list[Position]:
        angle = (queries[..., None] * self.frequencies(queries.device))[
            :, None
        ]  # batch 1 query half
        return [RotaryPosition(angle.cos(), angle.sin())] * layers


class RotaryPosition(Position):
    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos = cos
        self.sin = sin

    def rotate(self, x: Heads) -> Heads:
        half = self.cos.shape[-1]
        a = x[..., :half]
        b = x[..., half : 2 * half]
        rest = x[..., 2 * half :]
        turned = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1).to(
            x.dtype
        )
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class BiasedPosition(Position):
    """A bias that is the same in all layers."""

    def __init__(self, grid: Float[Tensor, "#batch head query key"]) -> None:
        self.grid = grid

    def bias(self, q: Heads, scale: float) -> Tensor:
        return self.grid.to(q.dtype)


class T5(PositionEncoding):
    """A learned bias for each head and bucket of distances, exact when near, logarithmic when far (L2.4, T5)."""

    def __init__(self, heads: int, buckets: int, distance: int, is_causal: bool) -> None:
        super().__init__()
        self.num_buckets = buckets
        self.max_distance = distance
        self.is_causal = is_causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def relative_position_bucket(
        self, back: Int[Tensor, "batch query key"]
    ) -> Int[Tensor, "batch query key"]:
        """Which bucket a distance falls into; `back` is how far the key lies before the query."""
        if self.is_causal:
            buckets = self.num_buckets
            side = torch.zeros_like(back)
            back = back.clamp(min=0)
        else:
            buckets = self.num_buckets // 2
            side = (back < 0).long() * (self.num_buckets // 2)
            back = back.abs()
        near = buckets // 2
        octaves = torch.log(back.clamp(min=1).float() / near) / math.log(self.max_distance / near)
        far = (near + (octaves * (buckets - near)).long()).clamp(max=buckets - 1)
        return side + torch.where(back < near, back, far)

    def layer_positions(self, queries: Queries, keys: Keys, layers: int) -> list[Position]:
        bucket = self.relative_position_bucket(queries[:, :, None] - keys[:, None, :])
        return [
            BiasedPosition(nn.functional.embedding(bucket, self.table).permute(0, 3, 1, 2))
        ] * layers


class ALiBi(PositionEncoding):
    """−slope · distance, a slope for each head (Press et al.)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.n_heads = heads

    def layer_positions(self, queries: Queries, keys: Keys, layers: int) -> list[Position]:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return [
            BiasedPosition(-alibi_slopes(self.n_heads, queries.device)[:, None, None] * distance)
        ] * layers


def alibi_slopes(heads: int, device: torch.device) -> Float[Tensor, " head"]:
    """2^(−8i/n) for n heads; between powers of two, every other slope of the next power fills up."""
    whole = 2 ** int(math.log2(heads))
    first = torch.arange(1, whole + 1, device=device)
    between = torch.arange(heads - whole, device=device) + 0.5
    return 2.0 ** (-8 * torch.cat((first, between)) / whole)


class Shaw(PositionEncoding):
    """q·(k + a) for a learned key a of the clipped distance, in each layer (L2.4, Shaw et al.)."""

    def __init__(self, layers: int, distance: int, width: int) -> None:
        super().__init__()
        self.max_distance = distance
        self.table = nn.Parameter(torch.empty(layers, 2 * distance + 1, width))

    def layer_positions(self, queries: Queries, keys: Keys, layers: int) -> list[Position]:
        back = queries[:, None, :, None] - keys[:, None, None, :]
        index = back.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return [ShawPosition(table, index) for table in self.table.unbind()]


class ShawPosition(Position):
    def __init__(
        self, table: Float[Tensor, "distance d"], index: Int[Tensor, "#batch 1 query key"]
    ) -> None:
        self.table = table
        self.index = index

    def bias(self, q: Heads, scale: float) -> Tensor:
        by_distance = (q * scale) @ self.table.mT
        return by_distance.gather(-1, self.index.expand(*q.shape[:2], -1, -1))


def make_position_encoding(
    m: c.ModelConfig, context: int, layers: int, causal: bool
) -> PositionEncoding:
    """The scheme of the configuration, for one stack."""
    match p := m.position:
        case c.NoPosition():
            return PositionEncoding()
        case c.Learned():
            return Learned(context, m.d_model)
        case c.Sinusoidal():
            return Sinusoidal(m.d_model, p.layout)
        case c.T5():
            return T5(m.attention.n_heads, p.num_buckets, p.max_distance, causal)
        case c.Shaw():
            return Shaw(layers, p.max_distance, m.d_head)
        case c.ALiBi():
            return ALiBi(m.attention.n_heads)
        case c.Rotary():
            return Rotary(p.rotary_dim or m.d_head, p.theta, p.scaling)
