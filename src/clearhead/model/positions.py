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
At = Int[Tensor, "#batch token"]
Queries = Int[Tensor, "#batch query"]
Keys = Int[Tensor, "#batch key"]

THETA = 10000.0  # base of the wave lengths, where no option tells it


class Place:
    """Nowhere in particular: attention sees a set, not a sequence (L2.1)."""

    def turn(self, x: Heads) -> Heads:
        """The queries or keys, turned by their position."""
        return x

    def bias(self, q: Heads, scale: float) -> Float[Tensor, "#batch head query key"] | None:
        """What is added to the scores."""
        return None


NOWHERE = Place()


class Positions(nn.Module):
    """No positions at all; the base of every scheme."""

    def embed(self, at: At, dtype: torch.dtype) -> Float[Tensor, "#batch token d"] | None:
        """What is added to the embeddings."""
        return None

    def places(self, queries: Queries, keys: Keys, layers: int) -> list[Place]:
        return [NOWHERE] * layers


class Learned(Positions):
    """X = E[w] + E_pos (L2.2)."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(context, width))

    def embed(self, at: At, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(at, self.table)


class Sinusoidal(Positions):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (L2.3)."""

    def __init__(self, width: int, layout: str) -> None:
        super().__init__()
        self.width, self.layout = width, layout

    def embed(self, at: At, dtype: torch.dtype) -> Tensor:
        angle = at[..., None] * wave_rates(self.width, THETA, at.device)
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype)


def wave_rates(width: int, theta: float, device: torch.device) -> Float[Tensor, " half"]:
    """1 / theta^(2i/width): radians a position, falling from 1."""
    return 1.0 / theta ** (torch.arange(0, width, 2, device=device).float() / width)


class Rotary(Positions):
    """Turn q and k by angles that grow with position, so that q·k depends on the distance only (L2.5).

    Dimension i turns with dimension i + width/2, as Llama has it.
    """

    def __init__(self, width: int, theta: float, scaling: c.NoScaling | c.Linear | c.Llama3) -> None:
        super().__init__()
        self.width, self.theta, self.scaling = width, theta, scaling

    def rates(self, device: torch.device) -> Tensor:
        rates = wave_rates(self.width, self.theta, device)
        if isinstance(s := self.scaling, c.Llama3):
            waves = s.context * rates / (2 * math.pi)  # full turns within the old context
            keep = ((waves - s.low) / (s.high - s.low)).clamp(0, 1)
            rates = rates * (keep + (1 - keep) / s.factor)
        return rates / s.factor if isinstance(s, c.Linear) else rates

    def places(self, queries: Queries, keys: Keys, layers: int) -> list[Place]:
        angle = (queries[..., None] * self.rates(queries.device))[:, None]  # batch 1 query half
        return [Turned(angle.cos(), angle.sin())] * layers


class Turned(Place):
    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin

    def turn(self, x: Heads) -> Heads:
        half = self.cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1).to(x.dtype)
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class Biased(Place):
    """A bias that is the same in all layers."""

    def __init__(self, grid: Float[Tensor, "#batch head query key"]) -> None:
        self.grid = grid

    def bias(self, q: Heads, scale: float) -> Tensor:
        return self.grid.to(q.dtype)


class Relative(Positions):
    """A learned bias for each head and bucket of distances, exact when near, logarithmic when far (L2.4, T5)."""

    def __init__(self, heads: int, buckets: int, distance: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.causal = buckets, distance, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def bucket(self, back: Int[Tensor, "batch query key"]) -> Int[Tensor, "batch query key"]:
        """Which bucket a distance falls into; `back` is how far the key lies before the query."""
        if self.causal:
            buckets, side = self.buckets, torch.zeros_like(back)
            back = back.clamp(min=0)
        else:
            buckets, side = self.buckets // 2, (back < 0).long() * (self.buckets // 2)
            back = back.abs()
        near = buckets // 2
        octaves = torch.log(back.clamp(min=1).float() / near) / math.log(self.distance / near)
        far = (near + (octaves * (buckets - near)).long()).clamp(max=buckets - 1)
        return side + torch.where(back < near, back, far)

    def places(self, queries: Queries, keys: Keys, layers: int) -> list[Place]:
        bucket = self.bucket(queries[:, :, None] - keys[:, None, :])
        return [Biased(nn.functional.embedding(bucket, self.table).permute(0, 3, 1, 2))] * layers


class Alibi(Positions):
    """−slope · distance, a slope for each head (Press et al.)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def places(self, queries: Queries, keys: Keys, layers: int) -> list[Place]:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return [Biased(-slopes(self.heads, queries.device)[:, None, None] * distance)] * layers


def slopes(heads: int, device: torch.device) -> Float[Tensor, " head"]:
    """2^(−8i/n) for n heads; between powers of two, every other slope of the next power fills up."""
    whole = 2 ** int(math.log2(heads))
    first, between = torch.arange(1, whole + 1, device=device), torch.arange(heads - whole, device=device) + 0.5
    return 2.0 ** (-8 * torch.cat((first, between)) / whole)


class Shaw(Positions):
    """q·(k + a) for a learned key a of the clipped distance, in each layer (L2.4, Shaw et al.)."""

    def __init__(self, layers: int, distance: int, width: int) -> None:
        super().__init__()
        self.distance = distance
        self.table = nn.Parameter(torch.empty(layers, 2 * distance + 1, width))

    def places(self, queries: Queries, keys: Keys, layers: int) -> list[Place]:
        back = queries[:, None, :, None] - keys[:, None, None, :]
        index = back.clamp(-self.distance, self.distance) + self.distance
        return [ShawPlace(table, index) for table in self.table.unbind()]


class ShawPlace(Place):
    def __init__(self, table: Float[Tensor, "distance d"], index: Int[Tensor, "#batch 1 query key"]) -> None:
        self.table, self.index = table, index

    def bias(self, q: Heads, scale: float) -> Tensor:
        by_distance = (q * scale) @ self.table.mT
        return by_distance.gather(-1, self.index.expand(*q.shape[:2], -1, -1))


def make(m: c.ModelConfig, context: int, layers: int, causal: bool) -> Positions:
    """The scheme of the configuration, for one stack."""
    match p := m.position:
        case c.NoPositions():
            return Positions()
        case c.Learned():
            return Learned(context, m.width)
        case c.Sinusoidal():
            return Sinusoidal(m.width, p.layout)
        case c.Relative():
            return Relative(m.attention.heads, p.buckets, p.distance, causal)
        case c.Shaw():
            return Shaw(layers, p.distance, m.head_width)
        case c.Alibi():
            return Alibi(m.attention.heads)
        case c.Rotary():
            return Rotary(p.width or m.head_width, p.theta, p.scaling)
