"""Position encodings (L2), each of which overrides exactly one thing: `embed`, `rotate` or `bias`.

A `PositionEncoding` belongs to a stack. For each pass it creates one `Position` per layer: what
attention needs to know about the positions of its queries and keys. Angles are computed in the
pass, in fp32, so that a change of the model's dtype cannot degrade them.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead import config as c

HeadVectors = Float[Tensor, "batch head query d"]
PositionIds = Int[Tensor, "#batch token"]
QueryPositions = Int[Tensor, "#batch query"]
KeyPositions = Int[Tensor, "#batch key"]

DEFAULT_THETA = 10000.0  # base of the wavelengths of sinusoidal positions


class Position:
    """No position: attention treats the tokens as a set (L2.1)."""

    def rotate(self, x: HeadVectors) -> HeadVectors:
        """Queries or keys, rotated by their position."""
        return x

    def bias(self, q: HeadVectors, scale: float) -> Float[Tensor, "#batch head query key"] | None:
        """Additive bias on attention scores."""
        return None


NO_POSITION = Position()


class PositionEncoding(nn.Module):
    """No position encoding; base class of all schemes."""

    def embed(
        self, position_ids: PositionIds, dtype: torch.dtype
    ) -> Float[Tensor, "#batch token d"] | None:
        """Position embeddings."""
        return None

    def layer_positions(
        self, queries: QueryPositions, keys: KeyPositions, layers: int
    ) -> list[Position]:
        """What attention needs to know about positions, for each layer."""
        return [NO_POSITION] * layers


class Learned(PositionEncoding):
    """X = E[w] + E_pos (L2.2)."""

    def __init__(self, context_length: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(context_length, d_model))

    def embed(self, position_ids: PositionIds, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(position_ids, self.table)


class Sinusoidal(PositionEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (L2.3)."""

    def __init__(self, d_model: int, layout: str) -> None:
        super().__init__()
        self.d_model = d_model
        self.layout = layout

    def embed(self, position_ids: PositionIds, dtype: torch.dtype) -> Tensor:
        angle = position_ids[..., None] * inverse_frequencies(
            self.d_model, DEFAULT_THETA, position_ids.device
        )
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype)


def inverse_frequencies(d: int, theta: float, device: torch.device) -> Float[Tensor, " half"]:
    """1 / theta^(2i/d): radians per position, falling from 1."""
    return 1.0 / theta ** (torch.arange(0, d, 2, device=device).float() / d)


class Rotary(PositionEncoding):
    """Rotate q and k by angles proportional to position: q·k depends on distance only (L2.5).

    Dimension i is paired with dimension i + rotary_dim/2, as in Llama.
    """

    def __init__(
        self,
        rotary_dim: int,
        theta: float,
        scaling: c.NoScaling | c.LinearScaling | c.Llama3Scaling,
    ) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim
        self.theta = theta
        self.scaling = scaling

    def frequencies(self, device: torch.device) -> Float[Tensor, " half"]:
        """Radians per position of each pair of dimensions, after scaling."""
        frequencies = inverse_frequencies(self.rotary_dim, self.theta, device)
        if isinstance(s := self.scaling, c.Llama3Scaling):
            # within the original context
            rotations = s.original_context_length * frequencies / (2 * math.pi)
            keep = (
                (rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
            ).clamp(0, 1)
            return frequencies * (keep + (1 - keep) / s.factor)
        return frequencies / s.factor if isinstance(s, c.LinearScaling) else frequencies

    def layer_positions(
        self, queries: QueryPositions, keys: KeyPositions, layers: int
    ) -> list[Position]:
        # batch 1 query half
        angle = (queries[..., None] * self.frequencies(queries.device))[:, None]
        return [RotaryPosition(angle.cos(), angle.sin())] * layers


class RotaryPosition(Position):
    """Rotation of queries and of the keys computed with them."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos = cos
        self.sin = sin

    def rotate(self, x: HeadVectors) -> HeadVectors:
        half = self.cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        rotated = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1).to(
            x.dtype
        )
        return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated


class BiasedPosition(Position):
    """A bias on the scores that does not depend on the queries."""

    def __init__(self, scores_bias: Float[Tensor, "#batch head query key"]) -> None:
        self.scores_bias = scores_bias

    def bias(self, q: HeadVectors, scale: float) -> Tensor:
        return self.scores_bias.to(q.dtype)


class T5(PositionEncoding):
    """T5's relative position bias, learned per head and bucket of distances (L2.4)."""

    def __init__(self, n_heads: int, num_buckets: int, max_distance: int, is_causal: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_causal = is_causal
        self.table = nn.Parameter(torch.empty(num_buckets, n_heads))

    def relative_position_bucket(
        self, distance: Int[Tensor, "batch query key"]
    ) -> Int[Tensor, "batch query key"]:
        """The bucket of query − key: exact when near, logarithmic when far."""
        if self.is_causal:
            num_buckets = self.num_buckets
            first = torch.zeros_like(distance)
            distance = distance.clamp(min=0)
        else:
            num_buckets = self.num_buckets // 2
            first = (distance < 0).long() * num_buckets
            distance = distance.abs()
        num_exact = num_buckets // 2
        log_ratio = torch.log(distance.clamp(min=1).float() / num_exact) / math.log(
            self.max_distance / num_exact
        )
        far = (num_exact + (log_ratio * (num_buckets - num_exact)).long()).clamp(
            max=num_buckets - 1
        )
        return first + torch.where(distance < num_exact, distance, far)

    def layer_positions(
        self, queries: QueryPositions, keys: KeyPositions, layers: int
    ) -> list[Position]:
        bucket = self.relative_position_bucket(queries[:, :, None] - keys[:, None, :])
        return [
            BiasedPosition(nn.functional.embedding(bucket, self.table).permute(0, 3, 1, 2))
        ] * layers


class ALiBi(PositionEncoding):
    """−slope · distance, with one slope per head (Press et al.)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def layer_positions(
        self, queries: QueryPositions, keys: KeyPositions, layers: int
    ) -> list[Position]:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        slopes = alibi_slopes(self.n_heads, queries.device)[:, None, None]
        return [BiasedPosition(-slopes * distance)] * layers


def alibi_slopes(n_heads: int, device: torch.device) -> Float[Tensor, " head"]:
    """2^(−8i/n) for n heads, if n is a power of two; further slopes lie halfway between these."""
    power = 2 ** int(math.log2(n_heads))
    exponents = torch.arange(1, power + 1, device=device)
    between = torch.arange(n_heads - power, device=device) + 0.5
    return 2.0 ** (-8 * torch.cat((exponents, between)) / power)


class Shaw(PositionEncoding):
    """q·(k + a) with a learned key a for each clipped distance, per layer (L2.4, Shaw et al.)."""

    def __init__(self, layers: int, max_distance: int, d_head: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(layers, 2 * max_distance + 1, d_head))

    def layer_positions(
        self, queries: QueryPositions, keys: KeyPositions, layers: int
    ) -> list[Position]:
        distance = queries[:, None, :, None] - keys[:, None, None, :]
        index = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return [ShawPosition(table, index) for table in self.table.unbind()]


class ShawPosition(Position):
    """The learned keys of one layer and which of them belongs to each query and key."""

    def __init__(
        self, table: Float[Tensor, "distance d"], index: Int[Tensor, "#batch 1 query key"]
    ) -> None:
        self.table = table
        self.index = index

    def bias(self, q: HeadVectors, scale: float) -> Tensor:
        by_distance = (q * scale) @ self.table.mT
        return by_distance.gather(-1, self.index.expand(*q.shape[:2], -1, -1))


def make_position_encoding(
    m: c.ModelConfig, context_length: int, layers: int, is_causal: bool
) -> PositionEncoding:
    """The configured scheme, for one stack."""
    match p := m.position:
        case c.NoPosition():
            return PositionEncoding()
        case c.Learned():
            return Learned(context_length, m.d_model)
        case c.Sinusoidal():
            return Sinusoidal(m.d_model, p.layout)
        case c.T5():
            return T5(m.attention.n_heads, p.num_buckets, p.max_distance, is_causal)
        case c.Shaw():
            return Shaw(layers, p.max_distance, m.d_head)
        case c.ALiBi():
            return ALiBi(m.attention.n_heads)
        case c.Rotary():
            return Rotary(p.rotary_dim or m.d_head, p.theta, p.scaling)
