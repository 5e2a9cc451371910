"""Some of the exercises, as a student would write them in torch."""

import torch
from torch import nn
from torch.nn.functional import softmax  # not an exercise of this file


def embed(ids, E):
    return E[ids]


def positional_encoding(n, d):
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


def causal_mask(n):
    return torch.full((n, n), -torch.inf).triu(1)


def attention(q, k, v, mask=None):
    mask = torch.zeros(len(q), len(k)) if mask is None else mask
    return softmax(q @ k.T / q.shape[1] ** 0.5 + mask, dim=-1) @ v


def multi_head(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    layer = nn.MultiheadAttention(len(w_q), n_heads, bias=False)
    layer.in_proj_weight = nn.Parameter(torch.cat([w_q.T, w_k.T, w_v.T]))
    layer.out_proj.weight = nn.Parameter(w_o.T)
    return layer(x, x, x, attn_mask=mask)[0]


def layer_norm(x, gamma, beta, eps=1e-5):
    return nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)


def cross_entropy(logits, targets):
    return nn.functional.cross_entropy(logits, targets)
