"""The weights a model starts with."""

import math
import re

import torch
from torch import nn

from clearhead import config as c

_NORMAL = 0.02


def initialise(net: nn.Module, m: c.ModelConfig, seed: int) -> None:
    """Fills every parameter, the same for the same seed.

    | what                                                     | starts as                          |
    |----------------------------------------------------------|------------------------------------|
    | token embedding (and a tied unembedding)                 | N(0, 0.02²), or N(0, 1/d) where it |
    |                                                          | is multiplied by √d                |
    | own unembedding, sentence kinds, first token,            | N(0, 0.02²)                        |
    | learned, relative and Shaw positions, class outputs      |                                    |
    | W_Q, W_K, W_V, W_1, W_G, patches, convolutions, other    | N(0, 1/inputs)                     |
    | W_O, W_2: what writes into the stream                    | N(0, 1/(inputs · parts written)),  |
    |                                                          | 2 or 3 for each layer of the stack |
    | gains of norms                                           | 1                                  |
    | biases                                                   | 0                                  |
    """
    generator = torch.Generator().manual_seed(seed)
    sides = {"": (m.input, m.layers * 2)}
    if isinstance(m.shape, c.EncoderDecoder):
        sides = {"": (m.input, m.layers * 3), "encoder.": (m.shape.input, m.shape.layers * 2)}
    with torch.no_grad():
        for name, p in net.named_parameters():
            source, parts = sides["encoder." if name.startswith("encoder.") else ""]
            if name.endswith("bias"):
                p.zero_()
            elif "norm." in name:
                p.fill_(1.0)
            else:
                p.copy_(torch.randn(p.shape, generator=generator) * _deviation(name, p, source, parts))


def _deviation(name: str, p: nn.Parameter, source: c.Input, parts: int) -> float:
    if name.endswith("embed.tokens.weight"):
        return p.shape[1] ** -0.5 if isinstance(source, c.Tokens) and source.scaled else _NORMAL
    if re.search(r"(embed\.kinds|unembed|head\.out)\.weight$|embed\.first$|position\.table$", name):
        return _NORMAL
    inputs = math.prod(p.shape[1:])
    return (inputs * (parts if re.search(r"(attn|cross)\.out\.weight$|ffn\.down\.weight$", name) else 1)) ** -0.5
