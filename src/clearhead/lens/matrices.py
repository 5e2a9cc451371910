"""The matrices of heads, one by one, as they meet the residual stream: with the weights of the norm before them."""

from dataclasses import dataclass

from torch import Tensor, nn

from clearhead.model.attention import Attention
from clearhead.model.block import Block
from clearhead.model.heads import LanguageHead
from clearhead.model.transformer import Transformer


@dataclass(frozen=True)
class HeadMatrices:
    """Of one layer. Grouped heads share k and v: each has them here."""

    q: Tensor  # head d width
    k: Tensor
    v: Tensor
    o: Tensor  # head width d
    scale: float  # of the scores


def head_matrices(net: Transformer, layer: int) -> HeadMatrices:
    block: Block = net.blocks[layer]  # type: ignore[assignment]
    attention, heads = block.attn, net.config.attention.heads

    def read(linear: nn.Linear, norm: nn.Module | None = None) -> Tensor:
        weight = plain(linear.weight).unflatten(0, (-1, attention.head_width))
        if norm is not None and isinstance(norm, nn.LayerNorm | nn.RMSNorm):  # of queries and keys
            weight = weight * plain(norm.weight)[:, None]
        if net.config.wiring == "pre":
            weight = after_norm(weight, block.attn_norm)
        return weight.repeat_interleave(heads // len(weight), dim=0)

    q, k = read(attention.q, attention.q_norm), read(attention.k, attention.k_norm)
    return HeadMatrices(q, k, read(attention.v), out_of(attention), attention.scale)


def out_of(attention: Attention) -> Tensor:
    """W_O by head, head × width × d: what a head writes to the stream is z W_O[head]ᵀ."""
    return plain(attention.out.weight).unflatten(1, (-1, attention.head_width)).transpose(0, 1)


def after_norm(weight: Tensor, norm: nn.Module) -> Tensor:
    """A matrix that reads what a norm gives, as one that reads what the norm is given; all but the norm's scale."""
    if isinstance(norm, nn.LayerNorm):
        weighted = weight * plain(norm.weight)
        return weighted - weighted.mean(dim=-1, keepdim=True)  # the norm takes the mean away
    return weight * plain(norm.weight) if isinstance(norm, nn.RMSNorm) else weight


def unembedding(net: Transformer) -> Tensor:
    """vocabulary × width: how the stream becomes logits."""
    assert isinstance(net.head, LanguageHead)
    return after_norm(plain(net.head.unembed.weight) * net.head.scale, net.norm)


def plain(weight: Tensor) -> Tensor:
    return weight.detach().float().cpu()
