"""The block (L4): parts that read the residual stream and add to it."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from clearhead import config as c
from clearhead.model.attention import Attention
from clearhead.model.caches import Fresh, Frozen, Growing
from clearhead.model.layers import make_dropout, make_feed_forward, make_norm
from clearhead.model.masks import Mask
from clearhead.model.positions import NOWHERE, Place
from clearhead.tap import Tap

Stream = Float[Tensor, "batch token d"]
Part = Callable[[Stream], Stream]


@dataclass(frozen=True)
class Scene:
    """What a block needs to know besides the stream: where tokens stand, whom they see, what is remembered.

    No field has a default: the compiler cannot trace objects as defaults of a dataclass.
    """

    place: Place
    mask: Mask
    cache: Fresh | Growing
    source: Float[Tensor, "batch key d"] | None  # the encoder's output
    source_mask: Mask
    source_cache: Fresh | Frozen


def pre(x: Stream, norm: Part, part: Part) -> Stream:
    return x + part(norm(x))


def post(x: Stream, norm: Part, part: Part) -> Stream:
    return norm(x + part(x))


class Block(nn.Module):
    """Attention moves information between tokens, the feed-forward layer works on each alone (L4.1, L4.3).

        pre ──▶ attention ──▶ mid [──▶ cross-attention ──▶ crossed] ──▶ feed-forward ──▶ post

    Each arrow through a part is wired one of two ways:

        pre:   x ──┬── norm ── part ── + ──▶          post:   x ──┬── part ── + ── norm ──▶
                   └───────────────────┘                          └───────────┘
    """

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__()
        self.wire = pre if m.wiring == "pre" else post
        self.attn_norm, self.attn = make_norm(m.norm, m.width), Attention(m)
        self.ffn_norm, self.ffn = make_norm(m.norm, m.width), make_feed_forward(m)
        self.drop = make_dropout(m.dropout.residual)

    def forward(self, x: Stream, scene: Scene, tap: Tap) -> Stream:
        attn, ffn = tap.at("attn"), tap.at("ffn")

        def attend(h: Stream) -> Stream:
            h = attn("in", h)
            return self.drop(self.attn(h, h, scene.place, scene.mask, scene.cache, attn))

        def feed(h: Stream) -> Stream:
            return self.drop(self.ffn(ffn("in", h), ffn))

        x = tap("mid", self.wire(tap("pre", x), self.attn_norm, attend))
        x = self.look(x, scene, tap)
        return tap("post", self.wire(x, self.ffn_norm, feed))

    def look(self, x: Stream, scene: Scene, tap: Tap) -> Stream:
        """At nothing else."""
        return x


class CrossBlock(Block):
    """A block that also looks at an encoded source (L3.8)."""

    def __init__(self, m: c.ModelConfig) -> None:
        super().__init__(m)
        self.cross_norm, self.cross = make_norm(m.norm, m.width), Attention(m)

    def look(self, x: Stream, scene: Scene, tap: Tap) -> Stream:
        cross = tap.at("cross")

        def attend(h: Stream) -> Stream:
            source = scene.source
            assert source is not None
            beams = cross("in", h).reshape(source.shape[0], -1, h.shape[-1])  # of one sentence, as so many queries
            seen = self.cross(beams, source, NOWHERE, scene.source_mask, scene.source_cache, cross)
            return self.drop(seen.reshape(h.shape))

        return tap("crossed", self.wire(x, self.cross_norm, attend))
