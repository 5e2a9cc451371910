"""The file whose check `docs/guides/check.md` shows."""

import numpy as np


def softmax(x, temperature=1.0):
    x = x / temperature
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v, mask=None):
    scores = q @ k.T
    return softmax(scores if mask is None else scores + mask) @ v


def layer_norm(x, gamma, beta, eps=1e-5):
    mu = x.mean(axis=1, keepdims=True)
    sigma = np.sqrt(x.var(axis=1, keepdims=True)) + eps
    return gamma * (x - mu) / sigma + beta


def rotary(x, positions):
    a, b = np.split(x, 2)
    return a * np.cos(positions) - b * np.sin(positions)
