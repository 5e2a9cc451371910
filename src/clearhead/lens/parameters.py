"""Parameters, counted part by part: the matrices of the equations with their shapes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from clearhead import config as c
from clearhead.lens.argument_checks import check_model
from clearhead.lens.view import Row, View, label_axes
from clearhead.model.embeddings import TokenEmbedding
from clearhead.model.transformer import build_transformer

if TYPE_CHECKING:
    from clearhead.api import Model

T = TypeVar("T")
NORM_SYMBOLS = {"weight": "γ", "bias": "β"}
NORM_PARTS = {
    "attn_norm": "attention norm",
    "cross_attn_norm": "cross-attention norm",
    "ffn_norm": "feed-forward norm",
    "embed.norm": "norm of embeddings",
    "head.norm": "masked-token head norm",
    "q_norm": "norm of queries",
    "k_norm": "norm of keys",
    "final_norm": "final norm",
}
# End of a parameter's name -> its part, its symbol and the formula of its shape, in row form.
KNOWN_PARAMETERS = {  # the first that fits
    "embed.tokens.weight": ("embedding", "E", "|V| × d"),
    "embed.token_types.weight": ("token types", "E_type", "types × d"),
    "embed.cls_token": ("embedding", "x_CLS", "d"),
    "embed.projection.weight": ("embedding of patches", "W", "patch × d"),
    "embed.projection.bias": ("embedding of patches", "b", "d"),
    "embed.conv1.weight": ("embedding of audio", "W_1", "d × mels × 3"),
    "embed.conv1.bias": ("embedding of audio", "b_1", "d"),
    "embed.conv2.weight": ("embedding of audio", "W_2", "d × d × 3"),
    "embed.conv2.bias": ("embedding of audio", "b_2", "d"),
    "head.unembed.weight": ("unembedding", "W_U", "d × |V|"),
    "head.bias": ("unembedding", "b_U", "|V|"),
    "head.dense.weight": ("masked-token head", "W", "d × d"),
    "head.dense.bias": ("masked-token head", "b", "d"),
    "head.pooler.weight": ("pooler", "W", "d × d"),
    "head.pooler.bias": ("pooler", "b", "d"),
    "head.out.weight": ("classifier", "W", "d × labels"),
    "head.out.bias": ("classifier", "b", "labels"),
    "q.weight": ("attention", "W_Q", "d × h·d_k"),
    "k.weight": ("attention", "W_K", "d × h_kv·d_k"),
    "v.weight": ("attention", "W_V", "d × h_kv·d_k"),
    "out.weight": ("attention", "W_O", "h·d_k × d"),
    "q.bias": ("attention", "b_Q", "h·d_k"),
    "k.bias": ("attention", "b_K", "h_kv·d_k"),
    "v.bias": ("attention", "b_V", "h_kv·d_k"),
    "out.bias": ("attention", "b_O", "d"),
    "ffn.up.weight": ("feed-forward", "W_up", "d × d_ff"),
    "ffn.up.bias": ("feed-forward", "b_up", "d_ff"),
    "ffn.down.weight": ("feed-forward", "W_down", "d_ff × d"),
    "ffn.down.bias": ("feed-forward", "b_down", "d"),
    "ffn.gate.weight": ("feed-forward", "W_gate", "d × d_ff"),
    "ffn.gate.bias": ("feed-forward", "b_gate", "d_ff"),
}
POSITION_TABLES = {
    "learned": ("E_pos", "N_max × d"),
    "t5": ("relative bias", "buckets × h"),
    "shaw": ("relative keys", "L × distances × d_k"),
}
NOTE = (
    "row form, x W: d = d_model, h heads of size d_k, d_ff neurons, W_1 = W_up, W_2 = W_down; in "
    "column form, W x, each matrix is transposed: W_E is d × |V|"
)


@dataclass(frozen=True)
class ParameterGroup:
    """One matrix or vector of the equations; the same one in several layers."""

    part: str
    symbol: str
    formula: str  # of its shape
    shape: tuple[int, ...]  # in row form
    layers: int
    is_tied: bool = False  # another part's matrix, counted there

    @property
    def count(self) -> int:
        """The number of parameters in all layers."""
        return 0 if self.is_tied else self.layers * math.prod(self.shape)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ParameterTable(View):
    """Number of parameters by part; `table()` has their shapes and formulas."""

    groups: tuple[ParameterGroup, ...]

    @property
    def total(self) -> int:
        """The number of all parameters."""
        return sum(group.count for group in self.groups)

    def table(self) -> list[Row]:
        """A row for each matrix or vector, with its number of parameters in all layers."""
        return [
            {
                "part": group.part,
                "symbol": group.symbol,
                "formula": group.formula,
                "shape": " × ".join(map(str, group.shape)),
                "layers": group.layers,
                "parameters": group.count,
            }
            for group in self.groups
        ]


def parameters(model: "Model") -> ParameterTable:
    """The parameters of a model, part by part, with shapes and formulas.

    Shapes are those of the row form, x W. In column form, W x, they are transposed: the embedding
    matrix W_E is d × |V|, a column for each token.
    """
    check_model(model)
    m = model.config.model
    net = build_transformer(m, seed=None)  # shapes without weights; int8 models have the same
    shapes: dict[str, list[torch.Size]] = {}
    for name, parameter in net.named_parameters():
        shapes.setdefault(re.sub(r"blocks\.\d+", "blocks.*", name), []).append(parameter.shape)
    groups = [_group(m, name, sizes[0], len(sizes)) for name, sizes in shapes.items()]
    if isinstance(m.head, c.LMHead | c.MLMHead) and "head.unembed.weight" not in shapes:
        assert isinstance(net.embed, TokenEmbedding)
        size = net.embed.tokens.weight.shape
        groups.append(ParameterGroup("unembedding", "W_U = Eᵀ", "d × |V|", (*size[::-1],), 1, True))
    counts = torch.tensor([group.count for group in groups])
    return ParameterTable(
        counts,
        label_axes({"part": [f"{group.part} {group.symbol}" for group in groups]}),
        f"{sum(group.count for group in groups):,} parameters",
        "parameters",
        note=NOTE,
        groups=tuple(groups),
    )


def _group(m: c.ModelConfig, name: str, size: torch.Size, layers: int) -> ParameterGroup:
    module, _, kind = name.rpartition(".")
    owner = "encoder " if name.startswith("encoder.") else ""
    owner += "cross-" if ".cross_attn." in name else ""
    if name.endswith("position.table"):
        part = "positions"
        symbol, formula = POSITION_TABLES[m.position.kind]
    elif module.endswith("norm"):
        part = _find_end(module, NORM_PARTS)
        symbol = NORM_SYMBOLS[kind]
        formula = "d_k" if part in ("norm of queries", "norm of keys") else "d"
    else:
        part, symbol, formula = _find_end(name, KNOWN_PARAMETERS)
    if m.n_kv_heads == m.attention.n_heads:
        formula = formula.replace("h_kv", "h")
    is_transposed = len(size) == 2 and not name.endswith(
        ("tokens.weight", "token_types.weight", "table")
    )
    shape = tuple(reversed(size)) if is_transposed else tuple(size)
    return ParameterGroup(f"{owner}{part}", symbol, formula, shape, layers)


def _find_end(name: str, values: Mapping[str, T]) -> T:
    """The value of the first key that is the end of a dotted name."""
    return next(value for end, value in values.items() if f".{name}".endswith(f".{end}"))
