"""Common mistakes, by exercise: a description, and a function that makes the mistake.

The functions take the arguments of the exercise and return the wrong result, in the precision of
the arguments. A description completes the sentence "the results are those of …".
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from clearhead.exercises.reference import NextTokenModel, Result
from clearhead.model.attention import softmax as row_softmax

Mistakes = Mapping[str, Callable[..., Result]]
Combine = Callable[[Tensor, Tensor], Tensor]


# --- tokens
def _learn_merges(
    words: list[str], num_merges: int, *, distinct: bool = False, recount: bool = True
) -> list[tuple[str, str]]:
    texts = [[*word] for word in (sorted({*words}) if distinct else words)]
    merges: list[tuple[str, str]] = []
    first_counts = Counter(pair for text in texts for pair in pairwise(text))
    for _ in range(num_merges):
        counts = Counter(pair for text in texts for pair in pairwise(text))
        if not recount:
            counts = Counter({pair: n for pair, n in first_counts.items() if pair not in merges})
        if not counts:
            break
        merges.append(counts.most_common(1)[0][0])
        texts = [merge_pair(text, merges[-1]) for text in texts]
    return merges


def merge_pair(tokens: list[str], pair: tuple[str, str], only_first: bool = False) -> list[str]:
    """Join a pair wherever it occurs, from left to right."""
    merged: list[str] = []
    position = 0
    has_merged = False
    while position < len(tokens):
        is_pair = tuple(tokens[position : position + 2]) == pair
        if is_pair and not (only_first and has_merged):
            merged.append("".join(pair))
            has_merged = True
            position += 2
        else:
            merged.append(tokens[position])
            position += 1
    return merged


def _merge_only_first(word: str, merges: list[tuple[str, str]]) -> list[str]:
    tokens = [*word]
    for pair in merges:
        tokens = merge_pair(tokens, pair, only_first=True)
    return tokens


def _longest_match(word: str, merges: list[tuple[str, str]]) -> list[str]:
    known = {*word, *("".join(pair) for pair in merges)}
    tokens = []
    while word:
        end = max(end for end in range(1, len(word) + 1) if word[:end] in known)
        tokens.append(word[:end])
        word = word[end:]
    return tokens


def _embed_from_one(ids: Tensor, E: Tensor) -> Tensor:
    return E[ids - 1]


# --- positions
def _encode_positions(
    n: int,
    d: int,
    *,
    first: int = 0,
    halves: bool = False,
    swap: bool = False,
    exponents: str = "2i/d",
) -> Tensor:
    pos = torch.arange(first, first + n).double()[:, None]
    i = torch.arange(d // 2).double()
    if exponents == "i/d":
        sine = (pos / 10000 ** (i / d)).sin()
        cosine = (pos / 10000 ** (i / d)).cos()
    elif exponents == "column":
        sine = (pos / 10000 ** (2 * (2 * i) / d)).sin()
        cosine = (pos / 10000 ** (2 * (2 * i + 1) / d)).cos()
    else:
        sine = (pos / 10000 ** (2 * i / d)).sin()
        cosine_exponent = 2 * i / d if exponents == "2i/d" else (2 * i + 1) / d
        cosine = (pos / 10000**cosine_exponent).cos()
    waves = [cosine, sine] if swap else [sine, cosine]
    return torch.cat(waves, dim=1) if halves else torch.stack(waves, dim=-1).flatten(1)


def _rotate(
    x: Tensor,
    positions: Tensor,
    *,
    direction: int = 1,
    neighbors: bool = False,
    exponent: int = 2,
    first: int = 0,
) -> Tensor:
    d = x.shape[1]
    frequencies = 10000 ** (-exponent * torch.arange(d // 2).double() / d)
    angle = direction * (positions[:, None] + first) * frequencies
    a, b = (x[:, 0::2], x[:, 1::2]) if neighbors else x.chunk(2, dim=1)
    rotated = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    return torch.stack(rotated, dim=-1).flatten(1) if neighbors else torch.cat(rotated, dim=1)


def _rotate_by_index(x: Tensor, positions: Tensor) -> Tensor:
    return _rotate(x, torch.arange(len(x)))


# --- softmax and attention
def _softmax(x: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim=dim)


def _softmax_of_everything(x: Tensor) -> Tensor:
    return torch.softmax(x.flatten(), dim=0).view_as(x)


def _unstable_softmax(x: Tensor, temperature: float = 1.0) -> Tensor:
    exps = (x / temperature).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


def _no_temperature(x: Tensor, temperature: float = 1.0) -> Tensor:
    return _softmax(x)


def _multiplied_temperature(x: Tensor, temperature: float = 1.0) -> Tensor:
    return _softmax(x * temperature)


def _divided_probabilities(x: Tensor, temperature: float = 1.0) -> Tensor:
    return _softmax(x) / temperature


def _first_axis(x: Tensor, temperature: float = 1.0) -> Tensor:
    return _softmax(x / temperature, dim=0)


def _all_numbers(x: Tensor, temperature: float = 1.0) -> Tensor:
    return _softmax_of_everything(x / temperature)


def _add(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    softmax: Callable[[Tensor], Tensor] = _softmax,
    combine: Combine = _add,
    mask_pattern: bool = False,
    scale_pattern: bool = False,
) -> Tensor:
    """Attention with one of its parts replaced."""
    scores = q @ k.T * (q.shape[1] ** -0.5 if scale is None else scale)
    if scale_pattern:
        scores = q @ k.T
    if mask is not None and not mask_pattern:
        scores = combine(scores, mask)
    pattern = softmax(scores)
    if mask is not None and mask_pattern:
        pattern = pattern.masked_fill(mask != 0, 0.0)
    if scale_pattern:
        pattern = pattern * q.shape[1] ** -0.5
    return pattern @ v


Attend = Callable[..., Tensor]


def _causal(n: int, *, diagonal: int = 0) -> Tensor:
    allowed = torch.ones(n, n, dtype=torch.bool).tril(diagonal)
    return torch.zeros(n, n).masked_fill(~allowed, -inf)


def _masked(q: Tensor, k: Tensor, v: Tensor, *, attend: Attend = _attend) -> Tensor:
    return attend(q, k, v, _causal(len(q)))


def _zero_scores(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask != 0, 0.0)


def _scale_by_d(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return _attend(q, k, v, mask, scale=1 / q.shape[1])


def _scale_by_tokens(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return _attend(q, k, v, mask, scale=len(k) ** -0.5)


def _no_softmax(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores == -inf, 0.0)


ATTENTION: Mapping[str, Attend] = {
    "attention without the division by √d_k": partial(_attend, scale=1.0),
    "a division by d_k, not by √d_k": _scale_by_d,
    "a division by √n, the number of tokens, not by √d_k": _scale_by_tokens,
    "a division by √d_k after softmax, not before": partial(_attend, scale_pattern=True),
    "softmax over the queries (the columns); it belongs over the keys (each row)": partial(
        _attend, softmax=partial(_softmax, dim=0)
    ),
    "softmax over all scores; each row needs its own": partial(
        _attend, softmax=_softmax_of_everything
    ),
    "attention without softmax": partial(_attend, softmax=_no_softmax),
}
UNSTABLE = "softmax without subtracting the largest score of the row first, so that exp overflows"
MASKED_ATTENTION: Mapping[str, Attend] = {
    **ATTENTION,
    "a mask after softmax, so that rows do not sum to 1; add it to the scores": partial(
        _attend, mask_pattern=True
    ),
    "masked scores of 0; they must be −∞": partial(_attend, combine=_zero_scores),
}


def _no_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return _attend(q, k, v)


def _masked_diagonal(q: Tensor, k: Tensor, v: Tensor, *, diagonal: int) -> Tensor:
    pattern = row_softmax(q @ k.T * q.shape[1] ** -0.5 + _causal(len(q), diagonal=diagonal))
    return pattern @ v


def _mask_of_past(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attend(q, k, v, _causal(len(q)).T)


def _simple(
    x: Tensor, *, attend: Attend | None = None, mask: Callable[[int], Tensor] | None = _causal
) -> Tensor:
    attend = attend or partial(_attend, scale=1.0)
    return attend(x, x, x, None if mask is None else mask(len(x)))


def _split(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(1, (n_heads, -1)).transpose(0, 1)


def _split_by_reshape(x: Tensor, n_heads: int) -> Tensor:
    return x.reshape(n_heads, len(x), -1)


def _split_by_turns(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(1, (-1, n_heads)).permute(2, 0, 1)


def _join(z: Tensor) -> Tensor:
    return z.transpose(0, 1).flatten(1)


def _join_by_reshape(z: Tensor) -> Tensor:
    return z.reshape(z.shape[1], -1)


def _use_out(z: Tensor, w_o: Tensor) -> Tensor:
    return z @ w_o


def _no_out(z: Tensor, w_o: Tensor) -> Tensor:
    return z


def _transposed_out(z: Tensor, w_o: Tensor) -> Tensor:
    return z @ w_o.T


def _many_heads(
    x: Tensor,
    encoder_output: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    mask: Tensor | None = None,
    *,
    attend: Attend = _attend,
    split: Callable[[Tensor, int], Tensor] = _split,
    join: Callable[[Tensor], Tensor] = _join,
    project: Callable[[Tensor, Tensor], Tensor] = _use_out,
    one_head: bool = False,
    transposed: bool = False,
) -> Tensor:
    """Multi-head attention with one of its parts replaced."""
    if one_head:
        n_heads = 1
    if transposed:
        w_q, w_k, w_v, w_o = w_q.T, w_k.T, w_v.T, w_o.T
    q, k, v = (
        split(stream @ weight, n_heads)
        for stream, weight in ((x, w_q), (encoder_output, w_k), (encoder_output, w_v))
    )
    z = torch.stack([attend(q[h], k[h], v[h], mask) for h in range(n_heads)])
    return project(join(z), w_o)


def _scale_by_width(x: Tensor, encoder_output: Tensor, *weights: Any) -> Tensor:
    attend = partial(_attend, scale=x.shape[1] ** -0.5)
    return _many_heads(x, encoder_output, *weights, attend=attend)


def _self_attention(x: Tensor, *weights: Any, heads: Attend) -> Tensor:
    return heads(x, x, *weights)


MANY_HEADS: Mapping[str, Attend] = {
    "multi-head attention without W_O": partial(_many_heads, project=_no_out),
    "a division by √d, the width of all heads together; each head divides by √d_k, d_k = d/h": (
        _scale_by_width
    ),
    "one head of width d; split Q, K and V into n_heads heads": partial(_many_heads, one_head=True),
    "heads split by reshape(n_heads, n, d_k), which mixes tokens; use reshape(n, n_heads, d_k) and "
    "transpose": partial(_many_heads, split=_split_by_reshape),
    "heads that take every n_heads-th column; head h has columns h·d_k to (h+1)·d_k": partial(
        _many_heads, split=_split_by_turns
    ),
    "heads joined by reshape without a transpose, which mixes tokens": partial(
        _many_heads, join=_join_by_reshape
    ),
    "transposed weights; in row form, Q = X W_Q": partial(_many_heads, transposed=True),
    "multiplication by W_Oᵀ, not W_O": partial(_many_heads, project=_transposed_out),
    **{name: partial(_many_heads, attend=attend) for name, attend in ATTENTION.items()},
}
MASKED_HEADS: Mapping[str, Attend] = {
    **MANY_HEADS,
    **{name: partial(_many_heads, attend=attend) for name, attend in MASKED_ATTENTION.items()},
}


def _from_encoder_only(x: Tensor, encoder_output: Tensor, *weights: Any) -> Tensor:
    return _many_heads(encoder_output, encoder_output, *weights)


def _from_decoder_only(x: Tensor, encoder_output: Tensor, *weights: Any) -> Tensor:
    return _many_heads(x, x, *weights)


def _swapped_streams(x: Tensor, encoder_output: Tensor, *weights: Any) -> Tensor:
    return _many_heads(encoder_output, x, *weights)


def _causal_cross(x: Tensor, encoder_output: Tensor, *weights: Any) -> Tensor:
    allowed = torch.ones(len(x), len(encoder_output), dtype=torch.bool).tril()
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, -inf)
    heads = partial(_many_heads, mask=mask)
    return heads(x, encoder_output, *weights)


# --- the block
def _normalize(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float = 1e-5,
    *,
    dim: int | tuple[int, ...] = -1,
    is_sample: bool = False,
    eps_outside: bool = False,
    use_root: bool = True,
    use_mean: bool = True,
    use_gamma: bool = True,
    use_beta: bool = True,
) -> Tensor:
    """Layer normalization with one of its parts replaced."""
    squares = (x - x.mean(dim=dim, keepdim=True)).square()
    variance = squares.mean(dim=dim, keepdim=True)
    if is_sample:
        variance = squares.sum(dim=dim, keepdim=True) / torch.tensor(x.shape[-1] - 1)
    if eps_outside:
        divisor = variance.sqrt() + eps
    else:
        divisor = (variance + eps).sqrt() if use_root else variance + eps
    normalized = (x - x.mean(dim=dim, keepdim=True) if use_mean else x) / divisor
    return normalized * (gamma if use_gamma else 1.0) + (beta if use_beta else 0.0)


def _no_eps(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return _normalize(x, gamma, beta, 0.0)


def _fixed_eps(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return _normalize(x, gamma, beta)


def _swapped_gain(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return _normalize(x, beta, gamma, eps)


def _rms_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gamma + beta


EPS_OUTSIDE = partial(_normalize, eps_outside=True)
LAYER_NORM: Mapping[str, Attend] = {
    "the sample variance, Σ (x − μ)² / (d − 1); divide by d": partial(_normalize, is_sample=True),
    "ε outside the root, σ + ε; it is √(σ² + ε)": EPS_OUTSIDE,
    "a division by the variance, not by its root": partial(_normalize, use_root=False),
    "μ and σ over the tokens (the columns); they belong to each token (each row)": partial(
        _normalize, dim=0
    ),
    "μ and σ of the whole matrix; each token has its own": partial(_normalize, dim=(0, 1)),
    "a norm without subtracting μ": partial(_normalize, use_mean=False),
    "RMSNorm, x / √mean(x²); subtract μ first": _rms_norm,
    "a norm without γ": partial(_normalize, use_gamma=False),
    "a norm without β": partial(_normalize, use_beta=False),
    "a norm with γ and β swapped": _swapped_gain,
    "a norm without ε, which divides by 0 if all numbers of a token are equal": _no_eps,
}


def _apply_ffn(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    activation: Callable[[Tensor], Tensor] = torch.relu,
    output: Callable[[Tensor], Tensor] | None = None,
    late_b1: bool = False,
    use_b1: bool = True,
    use_b2: bool = True,
) -> Tensor:
    """A feed-forward layer with one of its parts replaced."""
    hidden = activation(x @ w1) + b1 if late_b1 else activation(x @ w1 + (b1 if use_b1 else 0.0))
    out = hidden @ w2 + (b2 if use_b2 else 0.0)
    return output(out) if output else out


def _identity(x: Tensor) -> Tensor:
    return x


FEED_FORWARD: Mapping[str, Attend] = {
    "a feed-forward layer without ReLU": partial(_apply_ffn, activation=_identity),
    "GELU, not ReLU": partial(_apply_ffn, activation=torch.nn.functional.gelu),
    "sigmoid, not ReLU": partial(_apply_ffn, activation=torch.sigmoid),
    "tanh, not ReLU": partial(_apply_ffn, activation=torch.tanh),
    "another ReLU at the end": partial(_apply_ffn, output=torch.relu),
    "b_1 added after ReLU": partial(_apply_ffn, late_b1=True),
    "a feed-forward layer without b_1": partial(_apply_ffn, use_b1=False),
    "a feed-forward layer without b_2": partial(_apply_ffn, use_b2=False),
}
Wire = Callable[[Tensor, Attend, Attend], Tensor]


def _pre(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return x + sublayer(norm(x))


def _post(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return norm(x + sublayer(x))


def _no_residual(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return sublayer(norm(x))


def _normed_residual(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return norm(x) + sublayer(norm(x))


def _no_norm(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return x + sublayer(x)


def _norm_of_sublayer(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return x + norm(sublayer(x))


def _post_without_residual(x: Tensor, norm: Attend, sublayer: Attend) -> Tensor:
    return norm(sublayer(x))


def _wire_block(
    x: Tensor,
    weights: dict[str, Tensor],
    n_heads: int,
    *,
    first: Wire,
    second: Wire | None = None,
    is_causal: bool,
    heads: Attend = _many_heads,
    norm: Attend = _normalize,
    ffn: Attend = _apply_ffn,
    one_norm: bool = False,
    parallel: bool = False,
) -> Tensor:
    """A block with one of its parts replaced."""
    w = weights
    attention_weights = [w[name] for name in ("w_q", "w_k", "w_v", "w_o")]
    mask = _causal(len(x)) if is_causal else None

    def attend(h: Tensor) -> Tensor:
        return heads(h, h, *attention_weights, n_heads, mask)

    def feed_forward(h: Tensor) -> Tensor:
        return ffn(h, w["w1"], w["b1"], w["w2"], w["b2"])

    norm1 = partial(norm, gamma=w["gamma1"], beta=w["beta1"])
    norm2 = norm1 if one_norm else partial(norm, gamma=w["gamma2"], beta=w["beta2"])
    if parallel:
        return x + attend(norm1(x)) + feed_forward(norm2(x))
    return (second or first)(first(x, norm1, attend), norm2, feed_forward)


def _block_mistakes(make_block: Attend, heads: Mapping[str, Attend]) -> dict[str, Attend]:
    """The mistakes in the parts of a block that its inputs reveal."""
    mistakes: dict[str, Attend] = {
        "a block that uses the first norm twice; the second has its own γ and β": partial(
            make_block, one_norm=True
        )
    }
    mistakes |= {name: partial(make_block, heads=part) for name, part in heads.items()}
    mistakes |= {
        name: partial(make_block, norm=part)
        for name, part in LAYER_NORM.items()
        if part is not EPS_OUTSIDE
    }
    return mistakes | {name: partial(make_block, ffn=part) for name, part in FEED_FORWARD.items()}


_pre_block = partial(_wire_block, first=_pre, is_causal=True)
_post_block = partial(_wire_block, first=_post, is_causal=False)
BLOCK: Mapping[str, Attend] = {
    "a post-norm block, LayerNorm(x + sublayer(x)); pre-norm is x + sublayer(LayerNorm(x))": (
        partial(_pre_block, first=_post)
    ),
    "a block without the first residual connection, x + attention": partial(
        _pre_block, first=_no_residual, second=_pre
    ),
    "a block without the second residual connection, z + FFN": partial(
        _pre_block, second=_no_residual
    ),
    "a block without residual connections": partial(_pre_block, first=_no_residual),
    "a block that adds the normalized vectors; the residual stream itself is not normalized": (
        partial(_pre_block, first=_normed_residual)
    ),
    "a block without the norm before attention": partial(_pre_block, first=_no_norm, second=_pre),
    "a block without the norm before the feed-forward layer": partial(_pre_block, second=_no_norm),
    "a block without norms": partial(_pre_block, first=_no_norm),
    "a block with a norm after each sublayer, x + LayerNorm(sublayer(x))": partial(
        _pre_block, first=_norm_of_sublayer
    ),
    "attention and feed-forward layer in parallel; the second reads the sum with the first": (
        partial(_pre_block, parallel=True)
    ),
    "a block without the causal mask": partial(_pre_block, is_causal=False),
    **_block_mistakes(_pre_block, MASKED_HEADS),
}
POST_NORM_BLOCK: Mapping[str, Attend] = {
    "a pre-norm block, x + sublayer(LayerNorm(x)); post-norm is LayerNorm(x + sublayer(x))": (
        partial(_post_block, first=_pre)
    ),
    "a block without the first residual connection, x + attention": partial(
        _post_block, first=_post_without_residual, second=_post
    ),
    "a block without the second residual connection, z + FFN": partial(
        _post_block, second=_post_without_residual
    ),
    "a block without residual connections": partial(_post_block, first=_post_without_residual),
    "a block without the first norm": partial(_post_block, first=_no_norm, second=_post),
    "a block without the second norm": partial(_post_block, second=_no_norm),
    "a block without norms": partial(_post_block, first=_no_norm),
    "x + LayerNorm(sublayer(x)); the norm is applied to the sum": partial(
        _post_block, first=_norm_of_sublayer
    ),
    "a block with a causal mask; the encoder has none": partial(_post_block, is_causal=True),
    **_block_mistakes(_post_block, MANY_HEADS),
}


# --- output
def _unembed_to_probabilities(h: Tensor, E: Tensor) -> Tensor:
    return (h @ E.T).softmax(-1)


def _log_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    mean: bool = True,
    sign: int = -1,
    base: float = torch.e,
    shift: int = 0,
) -> Tensor:
    logprobs = logits.log_softmax(-1)[torch.arange(len(targets)), targets.roll(-shift)]
    total = sign * (logprobs.mean() if mean else logprobs.sum())
    return total / torch.tensor(base).double().log()


def _unstable_loss(logits: Tensor, targets: Tensor) -> Tensor:
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return -probabilities[torch.arange(len(targets)), targets].log().mean()


def _loss_without_log(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits.softmax(-1)[torch.arange(len(targets)), targets].mean()


def _loss_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits[torch.arange(len(targets)), targets].mean()


# --- beam search
def search(
    next_logprobs: NextTokenModel,
    num_beams: int,
    max_tokens: int,
    eos: int,
    *,
    score: Callable[[float, int], float] = lambda total, length: total / length,
    stops_at_first: bool = False,
    ignores_eos: bool = False,
) -> list[int]:
    """Beam search as in a textbook: no stop before `max_tokens`, which cannot change the result
    unless a mistake is made.
    """
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for step in range(1, max_tokens + 1):
        extended = [
            (total + logprob, [*tokens, token])
            for total, tokens in beams
            for token, logprob in enumerate(next_logprobs(tokens).tolist())
        ]
        extended.sort(key=lambda beam: -beam[0])

        def is_final(tokens: list[int], step: int = step) -> bool:
            return (tokens[-1] == eos and not ignores_eos) or step == max_tokens

        finished += [
            (score(total, len(tokens)), tokens)
            for total, tokens in extended[:num_beams]
            if is_final(tokens)
        ]
        beams = [beam for beam in extended if not is_final(beam[1])][:num_beams]
        if not beams or (stops_at_first and finished):
            break
    return max(finished, key=lambda beam: beam[0])[1]


def search_greedily(
    next_logprobs: NextTokenModel, num_beams: int, max_tokens: int, eos: int
) -> list[int]:
    return search(next_logprobs, 1, max_tokens, eos)


def _without_eos(
    next_logprobs: NextTokenModel, num_beams: int, max_tokens: int, eos: int
) -> list[int]:
    tokens = search(next_logprobs, num_beams, max_tokens, eos)
    return tokens[:-1] if tokens[-1] == eos else tokens


def _sum(total: float, length: int) -> float:
    return total


def _by_root(total: float, length: int) -> float:
    return total / sqrt(length)


def _length_without_eos(total: float, length: int) -> float:
    return total / max(1, length - 1)


# --- all of them
def _bool_mask(n: int) -> Tensor:
    return torch.ones(n, n).tril()


def _finite_mask(n: int) -> Tensor:
    return _causal(n).clamp(min=-1e9)


def _transposed_mask(n: int) -> Tensor:
    return _causal(n).T


def _next_only(n: int) -> Tensor:
    return _causal(n, diagonal=-1)


MISTAKES: dict[str, Mistakes] = {
    "bpe_merges": {
        "counts of distinct words; a word counts as often as it occurs": partial(
            _learn_merges, distinct=True
        ),
        "the counts before the first merge; count again after each merge": partial(
            _learn_merges, recount=False
        ),
    },
    "bpe": {
        "merges applied only at their first place in the word": _merge_only_first,
        "the longest known token first; the merges apply in order": _longest_match,
    },
    "embed": {"ids that count from 1; the first row of E has id 0": _embed_from_one},
    "positional_encoding": {
        "all sines first, then all cosines; they alternate": partial(
            _encode_positions, halves=True
        ),
        "sine and cosine swapped; even columns are sines": partial(_encode_positions, swap=True),
        "positions that start at 1; the first is 0": partial(_encode_positions, first=1),
        "the exponent i/d; it is 2i/d, where 2i is the column": partial(
            _encode_positions, exponents="i/d"
        ),
        "another frequency for the cosine; the columns 2i and 2i+1 share one": partial(
            _encode_positions, exponents="own"
        ),
        "the exponent 2·column/d; 2i is the column itself": partial(
            _encode_positions, exponents="column"
        ),
    },
    "rotary": {
        "pairs of neighbors, 2i with 2i + 1, as in the RoFormer paper; pair i with i + d/2": (
            partial(_rotate, neighbors=True)
        ),
        "a rotation in the other direction": partial(_rotate, direction=-1),
        "the exponent i/d; it is 2i/d": partial(_rotate, exponent=1),
        "positions that are one too high": partial(_rotate, first=1),
        "positions 0, 1, 2 …; use the argument `positions`": _rotate_by_index,
    },
    "softmax": {
        "softmax without subtracting the largest logit first, so that exp overflows": (
            _unstable_softmax
        ),
        "softmax over the first axis; it belongs over the last": _first_axis,
        "softmax over all numbers; each row needs its own": _all_numbers,
        "softmax that ignores the temperature": _no_temperature,
        "logits multiplied by the temperature; divide them": _multiplied_temperature,
        "probabilities divided by the temperature; divide the logits": _divided_probabilities,
    },
    "causal_mask": {
        "1 for tokens that may be seen and 0 for others; it must be 0 and −∞": _bool_mask,
        "−1e9, with which softmax is not exactly 0; use −∞": _finite_mask,
        "the transposed mask; −∞ belongs above the diagonal": _transposed_mask,
        "a mask that hides the token itself; the diagonal is 0": _next_only,
    },
    "simple_attention": {
        "a division by √d; the simplest attention has none": partial(_simple, attend=_attend),
        "attention without the causal mask": partial(_simple, mask=None),
        "a mask that hides the past; j ≤ i may be seen": partial(_simple, mask=_transposed_mask),
        **{
            name: partial(_simple, attend=partial(MASKED_ATTENTION[name], scale=1.0))
            for name in MASKED_ATTENTION
            if ("softmax" in name and "division" not in name) or "masked scores" in name
        },
    },
    "attention": {
        "attention that ignores the mask": _no_mask,
        UNSTABLE: partial(_attend, softmax=_unstable_softmax),
        **MASKED_ATTENTION,
    },
    "masked_attention": {
        UNSTABLE: partial(_masked, attend=partial(_attend, softmax=_unstable_softmax)),
        "attention without the causal mask": _no_mask,
        "a mask that hides the past; j ≤ i may be seen": _mask_of_past,
        "a mask that hides the token itself; j ≤ i may be seen": partial(
            _masked_diagonal, diagonal=-1
        ),
        "a mask that shows the next token; only j ≤ i may be seen": partial(
            _masked_diagonal, diagonal=1
        ),
        **{name: partial(_masked, attend=attend) for name, attend in MASKED_ATTENTION.items()},
    },
    "multi_head": {
        "attention that ignores the mask": partial(
            _self_attention, heads=partial(_many_heads, attend=_no_mask)
        ),
        **{name: partial(_self_attention, heads=heads) for name, heads in MASKED_HEADS.items()},
    },
    "cross_attention": {
        "self-attention of the decoder; keys and values come from the encoder": _from_decoder_only,
        "self-attention of the encoder; queries come from the decoder": _from_encoder_only,
        "queries from the encoder, keys and values from the decoder; it is the other way round": (
            _swapped_streams
        ),
        "a causal mask; the decoder may see the whole source": _causal_cross,
        **MANY_HEADS,
    },
    "layer_norm": {
        **LAYER_NORM,
        "ε = 1e-5 whatever the argument `eps` is": _fixed_eps,
    },
    "feed_forward": FEED_FORWARD,
    "block": BLOCK,
    "post_norm_block": POST_NORM_BLOCK,
    "unembed": {"probabilities; logits come before softmax": _unembed_to_probabilities},
    "cross_entropy": {
        "the sum over the tokens; take the mean": partial(_log_softmax_loss, mean=False),
        "the log-probability; the loss is its negative": partial(_log_softmax_loss, sign=1),
        "the logarithm to base 2; use the natural logarithm": partial(_log_softmax_loss, base=2.0),
        "targets shifted by one; they are shifted already": partial(_log_softmax_loss, shift=1),
        "softmax without subtracting the largest logit first, so that exp overflows": (
            _unstable_loss
        ),
        "probabilities without the logarithm": _loss_without_log,
        "the logits of the targets; apply log softmax first": _loss_of_logits,
    },
    "beam_search": {
        "scores that are not divided by the length, which prefers short texts": partial(
            search, score=_sum
        ),
        "scores divided by the length without eos; |y| includes eos": partial(
            search, score=_length_without_eos
        ),
        "scores divided by the root of the length": partial(search, score=_by_root),
        "greedy search, one beam": search_greedily,
        "a search that stops at the first finished text": partial(search, stops_at_first=True),
        "texts that continue after eos": partial(search, ignores_eos=True),
        "a text without its eos": _without_eos,
    },
}
