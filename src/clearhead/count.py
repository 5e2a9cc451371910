"""Parameters by part, from the configuration alone. A law in the tests holds it to the built model."""

from typing import TYPE_CHECKING

from clearhead import variants as c

if TYPE_CHECKING:
    from clearhead.config import ModelConfig


def parts(m: "ModelConfig") -> dict[str, int]:
    """{"embedding": …, "positions": …, "attention": …, …}: adds up to the whole model."""
    deep = m.shape.layers if isinstance(m.shape, c.EncoderDecoder) else 0
    blocks, cross = m.layers + deep, m.layers if deep else 0
    norms = 2 * blocks + cross + ((2 if deep else 1) if m.wiring == "pre" else 0)
    sides = [(m.input, m.vocabulary, m.context, m.layers)]
    if isinstance(m.shape, c.EncoderDecoder):
        sides.append((m.shape.input, m.shape.vocabulary, m.shape.context, deep))
    return {
        "embedding": sum(_input(m, source, vocabulary) for source, vocabulary, _, _ in sides),
        "positions": sum(_positions(m, context, layers) for _, _, context, layers in sides),
        "attention": (blocks + cross) * _attention(m),
        "feed-forward": blocks * _feed_forward(m),
        "norms": norms * _norm(m.norm, m.width),
        "head": _head(m),
    }


def _norm(norm: c.Norm, width: int) -> int:
    return 2 * width if isinstance(norm, c.LayerNorm) and norm.bias else width


def _input(m: "ModelConfig", source: c.Input, vocabulary: int) -> int:
    d = m.width
    match source:
        case c.Tokens():
            return (vocabulary + source.kinds) * d + (_norm(m.norm, d) if source.norm else 0)
        case c.Pictures():
            return (source.channels * source.patch**2 + 1 + source.first_token) * d
        case c.Sound():
            return (3 * source.mels + 1) * d + (3 * d + 1) * d
        case c.Spectrogram():
            return (source.patch_mels * source.patch_frames + 1 + source.first_token) * d


def _positions(m: "ModelConfig", context: int, layers: int) -> int:
    match m.position:
        case c.Learned():
            return context * m.width
        case c.Relative():
            return m.position.buckets * m.attention.heads
        case c.Shaw():
            return layers * (2 * m.position.distance + 1) * m.head_width
        case _:
            return 0


def _attention(m: "ModelConfig") -> int:
    d, q, kv = m.width, m.attention.heads * m.head_width, m.kv_heads * m.head_width
    biases = {"q": q, "k": kv, "v": kv, "out": d}
    normed = 2 * _norm(m.norm, m.head_width) if m.attention.qk_norm else 0
    return 2 * d * q + 2 * d * kv + sum(biases[name] for name in set(m.attention.bias)) + normed


def _feed_forward(m: "ModelConfig") -> int:
    d, wide, ups = m.width, m.ffn_width, 2 if m.ffn.gated else 1
    return (ups + 1) * d * wide + (ups * wide + d if m.ffn.bias else 0)


def _head(m: "ModelConfig") -> int:
    d, head = m.width, m.head
    match head:
        case c.Language():
            return (0 if head.tied else m.vocabulary * d) + (m.vocabulary if head.bias else 0)
        case c.MaskedWord():
            return d * d + d + _norm(m.norm, d) + m.vocabulary
        case c.Classes() | c.Number():
            outputs = head.classes if isinstance(head, c.Classes) else 1
            return (d + 1) * outputs + (d * d + d if head.pooler else 0)
        case c.Hidden():
            return 0
