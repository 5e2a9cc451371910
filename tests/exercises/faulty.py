"""One kind of failure per function."""

import os

import numpy as np


def helper(x):
    return x[100]


def bpe(word, merges):
    return word


def embed(ids, E):
    while True:
        pass


def positional_encoding(n, d):
    return np.zeros((d, n + 1))


def rotary(x, positions):
    return helper(x)


def softmax(x):
    return x


def causal_mask(n):
    print("printed by the file")
    return np.tril(np.ones((n, n), dtype=bool))


def simple_attention(x):
    os._exit(3)


def attention(q, k, v, mask=None):
    scores = q @ k.T / np.sqrt(q.shape[1])
    masked_scores = scores if mask is None else scores * np.isfinite(mask)
    return {"scores": scores, "masked_scores": masked_scores, "z": q}


def masked_attention(q, k, v):
    raise SystemExit


def layer_norm(x, gamma, beta, eps=1e-5):
    x[:] = 0  # does not change the arguments of the check
    return x * np.nan


feed_forward = 3


def unembed(h, E):
    raise NotImplementedError


def cross_entropy(logits, targets):
    np.log(targets)


def beam_search(next_logprobs, num_beams, max_tokens, eos):
    return [int(np.argmax(next_logprobs([])))]
