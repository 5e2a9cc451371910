"""All exercises, as a student would write them in NumPy."""

from collections import Counter
from itertools import pairwise

import numpy as np


def bpe_merges(words, num_merges):
    texts = [list(word) for word in words]
    merges = []
    for _ in range(num_merges):
        counts = Counter(pair for text in texts for pair in pairwise(text))
        merges.append(max(counts, key=counts.get))
        texts = [merge(text, merges[-1]) for text in texts]
    return merges


def merge(tokens, pair):
    out = []
    while tokens:
        n = 2 if tuple(tokens[:2]) == tuple(pair) else 1
        out.append("".join(tokens[:n]))
        tokens = tokens[n:]
    return out


def bpe(word, merges):
    tokens = list(word)
    for pair in merges:
        tokens = merge(tokens, pair)
    return tokens


def embed(ids, E):
    return np.eye(len(E))[ids] @ E


def positional_encoding(n, d):
    pe = np.zeros((n, d))
    for pos in range(n):
        for i in range(d // 2):
            pe[pos, 2 * i] = np.sin(pos / 10000 ** (2 * i / d))
            pe[pos, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / d))
    return pe


def rotary(x, positions):
    half = x.shape[1] // 2
    phi = positions[:, None] / 10000 ** (np.arange(half) / half)
    number = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * phi)
    return np.concatenate([number.real, number.imag], axis=1)


def softmax(x, temperature=1.0):
    x = x / temperature
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal_mask(n):
    return np.triu(np.full((n, n), -np.inf), 1)


def simple_attention(x):
    return softmax(x @ x.T + causal_mask(len(x))) @ x


def attention(q, k, v, mask=None):
    scores = q @ k.T / np.sqrt(q.shape[1])
    masked_scores = scores if mask is None else scores + mask
    pattern = softmax(masked_scores)
    steps = {"scores": scores, "masked_scores": masked_scores, "pattern": pattern}
    return steps | {"z": pattern @ v}


def masked_attention(q, k, v):
    return attention(q, k, v, causal_mask(len(q)))["z"]


def multi_head(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return heads(x, x, w_q, w_k, w_v, w_o, n_heads, mask)


def cross_attention(x, encoder_output, w_q, w_k, w_v, w_o, n_heads):
    return heads(x, encoder_output, w_q, w_k, w_v, w_o, n_heads)


def heads(x, y, w_q, w_k, w_v, w_o, n_heads, mask=None):
    split = [np.split(m, n_heads, axis=1) for m in (x @ w_q, y @ w_k, y @ w_v)]
    z = [attention(q, k, v, mask)["z"] for q, k, v in zip(*split, strict=True)]
    return np.concatenate(z, axis=1) @ w_o


def layer_norm(x, gamma, beta, eps=1e-5):
    mu = x.mean(axis=1, keepdims=True)
    return gamma * (x - mu) / np.sqrt(x.var(axis=1, keepdims=True) + eps) + beta


def feed_forward(x, w1, b1, w2, b2):
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def sublayers(weights, n_heads, mask):
    w = weights

    def attend(x):
        return multi_head(x, w["w_q"], w["w_k"], w["w_v"], w["w_o"], n_heads, mask)

    def process(x):
        return feed_forward(x, w["w1"], w["b1"], w["w2"], w["b2"])

    def norm1(x):
        return layer_norm(x, w["gamma1"], w["beta1"])

    def norm2(x):
        return layer_norm(x, w["gamma2"], w["beta2"])

    return attend, process, norm1, norm2


def block(x, weights, n_heads):
    attend, process, norm1, norm2 = sublayers(weights, n_heads, causal_mask(len(x)))
    z = x + attend(norm1(x))
    return z + process(norm2(z))


def post_norm_block(x, weights, n_heads):
    attend, process, norm1, norm2 = sublayers(weights, n_heads, None)
    z = norm1(x + attend(x))
    return norm2(z + process(z))


def unembed(h, E):
    return h @ E.T


def cross_entropy(logits, targets):
    p = softmax(logits)
    return float(np.mean([-np.log(p[i, t]) for i, t in enumerate(targets)]))


def beam_search(next_logprobs, num_beams, max_tokens, eos):
    beams = [(0.0, [])]
    finished = []
    for _ in range(max_tokens):
        longer = [
            (total + logprob, [*tokens, token])
            for total, tokens in beams
            for token, logprob in enumerate(next_logprobs(tokens))
        ]
        longer.sort(key=lambda beam: beam[0], reverse=True)
        done = [tokens[-1] == eos or len(tokens) == max_tokens for _, tokens in longer]
        finished += [beam for beam, ended in zip(longer[:num_beams], done, strict=False) if ended]
        beams = [beam for beam, ended in zip(longer, done, strict=True) if not ended][:num_beams]
    return max(finished, key=lambda beam: beam[0] / len(beam[1]))[1]
