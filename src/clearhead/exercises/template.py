"""Write these functions, then run `clearhead check` on this file. Delete those you do not need.

X is n × d: one row per token. Arguments are NumPy arrays; if this file imports torch, they are
tensors (float32). A function that computes attention may return a dict of its steps instead of
the result alone: {"scores": …, "masked_scores": …, "pattern": …, "z": …}, in multi_head also "q",
"k", "v" (heads × n × d_k) and "out". Then the first step that differs is named.
"""

from collections.abc import Callable

import numpy as np

Array = np.ndarray  # or torch.Tensor


# --- tokens
def bpe_merges(words: list[str], num_merges: int) -> list[tuple[str, str]]:
    """Learn byte-pair encoding: the most frequent pair of neighbors becomes one token, and so on.

    `words` repeats frequent words. Each starts as single characters. No two pairs are ever equally
    frequent.

    Equation: merge argmax over (a, b) of count(a b), num_merges times
    Returns: the merged pairs in order, such as [("l", "o"), ("lo", "w")].
    """
    raise NotImplementedError


def bpe(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Split a word into tokens with learned merges.

    Equation: start with single characters; apply each merge in order, everywhere, left to right
    Returns: the tokens, such as ["low", "er"].
    """
    raise NotImplementedError


def embed(ids: Array, E: Array) -> Array:
    """Look up the embeddings of n token ids in the embedding matrix.

    Equation: X = E[w], one-hot rows times E
    Shapes: ids n, E vocabulary × d
    Returns: n × d.
    """
    raise NotImplementedError


# --- positions
def positional_encoding(n: int, d: int) -> Array:
    """Compute the sinusoidal positional encodings of positions 0 to n − 1; d is even.

    Equation: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))
    Returns: n × d.
    """
    raise NotImplementedError


def rotary(x: Array, positions: Array) -> Array:
    """Rotate the vectors of n tokens by their positions (RoPE); d is even.

    Dimension i is paired with dimension i + d/2, as in Llama.

    Equation: (a, b) ↦ (a cos φ − b sin φ, b cos φ + a sin φ), φ = pos / 10000^(2i/d)
    Shapes: x n × d, positions n
    Returns: n × d.
    """
    raise NotImplementedError


# --- attention
def softmax(x: Array, temperature: float = 1.0) -> Array:
    """Turn logits into probabilities, over the last axis. Large logits must not overflow.

    Equation: exp(x_i / T) / Σ_j exp(x_j / T)
    Shapes: x n, or n × m
    Returns: the shape of x.
    """
    raise NotImplementedError


def causal_mask(n: int) -> Array:
    """Compute the causal mask, which is added to the scores.

    Equation: M(i, j) = 0 for j ≤ i, −∞ for j > i
    Returns: n × n numbers, 0 or −∞.
    """
    raise NotImplementedError


def simple_attention(x: Array) -> Array:
    """Compute the simplest attention, without queries, keys and values.

    Equation: score(x_i, x_j) = x_i·x_j, α_ij = softmax over j ≤ i, a_i = Σ_j α_ij x_j
    Shapes: x n × d
    Returns: n × d.
    """
    raise NotImplementedError


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """Compute one head of attention; the mask, 0 or −∞, is added to the scores.

    Equation: softmax(QKᵀ / √d_k + M) V
    Shapes: q n × d_k, k m × d_k, v m × d_k, mask n × m
    Returns: n × d_k.
    """
    raise NotImplementedError


def masked_attention(q: Array, k: Array, v: Array) -> Array:
    """Compute one head of causal attention: token i attends to the tokens j ≤ i.

    Equation: softmax(QKᵀ / √d_k + M) V, M(i, j) = 0 for j ≤ i, −∞ for j > i
    Shapes: q n × d_k, k n × d_k, v n × d_k
    Returns: n × d_k.
    """
    raise NotImplementedError


def multi_head(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    n_heads: int,
    mask: Array | None = None,
) -> Array:
    """Compute multi-head self-attention. Head h uses columns h·d_k to (h+1)·d_k of W_Q, W_K, W_V.

    Equation: concat(head_1, …, head_h) W_O, head = softmax(QKᵀ / √d_k + M) V, d_k = d/h
    Shapes: x n × d, weights d × d, mask n × n
    Returns: n × d.
    """
    raise NotImplementedError


def cross_attention(
    x: Array,
    encoder_output: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    n_heads: int,
) -> Array:
    """Compute multi-head cross-attention, from a decoder to the output of an encoder.

    Equation: Q = X W_Q, K = Y W_K, V = Y W_V, Y the encoder's output; then as in multi_head
    Shapes: x n × d, encoder_output m × d, weights d × d
    Returns: n × d.
    """
    raise NotImplementedError


# --- the block
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """Normalize the vector of each token.

    Equation: γ (x − μ) / √(σ² + ε) + β, σ² = Σ (x_i − μ)² / d
    Shapes: x n × d, gamma d, beta d
    Returns: n × d.
    """
    raise NotImplementedError


def feed_forward(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """Compute the feed-forward layer, the same for each token.

    Equation: ReLU(x W_1 + b_1) W_2 + b_2
    Shapes: x n × d, w1 d × d_ff, b1 d_ff, w2 d_ff × d, b2 d
    Returns: n × d.
    """
    raise NotImplementedError


def block(x: Array, weights: dict[str, Array], n_heads: int) -> Array:
    """Compute a pre-norm block of a decoder, with causal attention and ε = 1e-5.

    Equation: z = x + MultiHead(LayerNorm_1(x)); h = z + FFN(LayerNorm_2(z))
    Weights: w_q, w_k, w_v, w_o, w1, b1, w2, b2, gamma1, beta1, gamma2, beta2, with the shapes of
    multi_head, feed_forward and layer_norm
    Returns: n × d.
    """
    raise NotImplementedError


def post_norm_block(x: Array, weights: dict[str, Array], n_heads: int) -> Array:
    """Compute a post-norm block of the encoder of 2017, without a mask and with ε = 1e-5.

    Equation: z = LayerNorm_1(x + MultiHead(x)); h = LayerNorm_2(z + FFN(z))
    Weights: w_q, w_k, w_v, w_o, w1, b1, w2, b2, gamma1, beta1, gamma2, beta2, with the shapes of
    multi_head, feed_forward and layer_norm
    Returns: n × d.
    """
    raise NotImplementedError


# --- output
def unembed(h: Array, E: Array) -> Array:
    """Compute the logits of all words with the embedding matrix.

    Equation: u = h Eᵀ
    Shapes: h n × d, E vocabulary × d
    Returns: n × vocabulary.
    """
    raise NotImplementedError


def cross_entropy(logits: Array, targets: Array) -> float:
    """Compute the mean loss of n predictions. Large logits must not overflow.

    Equation: −(1/n) Σ_i log softmax(logits_i)[target_i], with the natural logarithm
    Shapes: logits n × vocabulary, targets n
    Returns: one number.
    """
    raise NotImplementedError


def beam_search(
    next_logprobs: Callable[[list[int]], Array], num_beams: int, max_tokens: int, eos: int
) -> list[int]:
    """Search for the text with the highest log-probability per token.

    Start with one empty text. In each step, extend every text by every token and sort the extended
    texts by the sum of their log-probabilities. A text is finished if it ends with `eos` or has
    `max_tokens` tokens; it counts if it is among the `num_beams` best of its step. The `num_beams`
    best unfinished texts continue. `next_logprobs(tokens)` returns the log-probability of each next
    token.

    Equation: score(y) = (1/|y|) Σ_t log p(y_t | y_<t), |y| includes eos
    Returns: the tokens of the text with the highest score, including eos.
    """
    raise NotImplementedError
