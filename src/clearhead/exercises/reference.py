"""The exercises computed by clearhead's own modules, the ones that its models consist of.

Each function takes the arguments of its stub in `template.py`, in float64, and returns its steps by
activation name. The last step is the result.
"""

import json
from collections.abc import Mapping

import torch
from tokenizers import Tokenizer as BPETokenizer
from tokenizers import models
from torch import Tensor, nn

from clearhead import config as c
from clearhead.config.presets import presets
from clearhead.generate.beam_search import BeamRules
from clearhead.generate.beam_search import beam_search as search_beams
from clearhead.hooks import Recorder
from clearhead.model.attention import NO_MASK, Attention, Mask, eager_attention
from clearhead.model.attention import softmax as row_softmax
from clearhead.model.embeddings import TokenEmbedding
from clearhead.model.heads import cross_entropy_sum
from clearhead.model.kv_cache import NO_CACHE
from clearhead.model.layers import FeedForward, make_norm
from clearhead.model.layers import unembed as compute_logits
from clearhead.model.positions import DEFAULT_THETA, NO_POSITION, Rotary, Sinusoidal
from clearhead.model.transformer import Block, BlockInputs, Transformer
from clearhead.tokenizers.tokenizer import BYTE_CHARACTERS, Tokenizer

Result = Tensor | list[str] | list[tuple[str, str]] | list[int]
Steps = Mapping[str, Result]
RESULT = "result"  # the only step of functions without hooks
CAUSAL = Mask(is_causal=True)


class NextTokenModel:
    """A small decoder as the function that `beam_search` receives: tokens so far → log p(next)."""

    START = 0

    def __init__(self, net: Transformer) -> None:
        self.net = net
        self.known: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def __call__(self, tokens: list[int]) -> Tensor:
        key = (self.START, *tokens)
        if key not in self.known:
            hidden = self.net(torch.tensor([key]))
            self.known[key] = self.net.compute_logits(hidden)[0, -1].log_softmax(-1)
        return self.known[key]


# --- tokens
def learn_merges(words: list[str], num_merges: int) -> list[tuple[str, str]]:
    """The merges of a trained tokenizer."""
    tokenizer = Tokenizer.train_bpe(words, len(BYTE_CHARACTERS) + num_merges, special_tokens=())
    merges = json.loads(tokenizer.backend.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def bpe_merges(words: list[str], num_merges: int) -> Steps:
    return {RESULT: learn_merges(words, num_merges)}


def bpe(word: str, merges: list[tuple[str, str]]) -> Steps:
    tokens = sorted({*word, *(character for pair in merges for character in "".join(pair))})
    tokens += ["".join(pair) for pair in merges]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPETokenizer(models.BPE(vocab, merges)))
    return {RESULT: tokenizer.to_str_tokens(tokenizer.encode(word))}


def embed(ids: Tensor, E: Tensor) -> Steps:
    m = _model(vocab_size=len(E), d_model=E.shape[1], attention__n_heads=1)
    layer = TokenEmbedding(m, c.Tokens(), nn.Embedding.from_pretrained(E))
    return {RESULT: layer(ids[None])[0]}


# --- positions
def positional_encoding(n: int, d: int) -> Steps:
    scheme = Sinusoidal(d, "interleaved")
    return {RESULT: scheme.embed(torch.arange(n)[None], torch.float64)[0]}


def rotary(x: Tensor, positions: Tensor) -> Steps:
    scheme = Rotary(x.shape[1], DEFAULT_THETA, c.NoScaling())
    [position] = scheme.layer_positions(positions[None], positions[None], layers=1)
    return {RESULT: position.rotate(x[None, None])[0, 0]}


# --- attention
def softmax(x: Tensor, temperature: float = 1.0) -> Steps:
    return {RESULT: row_softmax(x / temperature)}


def causal_mask(n: int) -> Steps:
    no_scores = torch.zeros(n, 1, dtype=torch.float64)
    return {RESULT: _attend(no_scores, no_scores, no_scores, CAUSAL)["masked_scores"]}


def simple_attention(x: Tensor) -> Steps:
    return _attend(x, x, x, CAUSAL, scale=1.0)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Steps:
    return _attend(q, k, v, _as_mask(mask), q.shape[1] ** -0.5)


def masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Steps:
    return _attend(q, k, v, CAUSAL, q.shape[1] ** -0.5)


def multi_head(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    mask: Tensor | None = None,
) -> Steps:
    return _multi_head(x, x, w_q, w_k, w_v, w_o, n_heads, _as_mask(mask))


def cross_attention(
    x: Tensor,
    encoder_output: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
) -> Steps:
    return _multi_head(x, encoder_output, w_q, w_k, w_v, w_o, n_heads, NO_MASK)


# --- the block
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Steps:
    norm = _with_weights(make_norm(c.LayerNorm(eps=eps), len(gamma)), weight=gamma, bias=beta)
    return {RESULT: norm(x)}


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Steps:
    d, d_ff = w1.shape
    layer = _with_weights(
        FeedForward(_model(d_model=d, attention__n_heads=1, ffn__d_ff=d_ff)),
        **_ffn_weights(w1, b1, w2, b2),
    )
    hooks = Recorder(["**"])
    layer(x[None], hooks)
    return _steps(hooks)


def block(x: Tensor, weights: dict[str, Tensor], n_heads: int) -> Steps:
    return _block(x, weights, n_heads, "pre", CAUSAL)


def post_norm_block(x: Tensor, weights: dict[str, Tensor], n_heads: int) -> Steps:
    return _block(x, weights, n_heads, "post", NO_MASK)


# --- output
def unembed(h: Tensor, E: Tensor) -> Steps:
    return {RESULT: compute_logits(h, nn.Embedding.from_pretrained(E), None)}


def cross_entropy(logits: Tensor, targets: Tensor) -> Steps:
    total, count = cross_entropy_sum(logits, targets, label_smoothing=0.0)
    return {RESULT: total.double() / count}


def beam_search(next_logprobs: NextTokenModel, num_beams: int, max_tokens: int, eos: int) -> Steps:
    rules = BeamRules(torch.device("cpu"), num_beams, max_tokens, eos_tokens=(eos,))
    [[best]] = search_beams(next_logprobs.net, rules, [[next_logprobs.START]])
    return {RESULT: best.tokens}


# --- modules with given weights
def _model(**options: object) -> c.ModelConfig:
    return presets["tiny-decoder"].replace(attention__bias=(), **options).model


def _with_weights(module: nn.Module, **weights: Tensor) -> nn.Module:
    module.double().load_state_dict(weights)
    return module


def _attention_weights(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> dict[str, Tensor]:
    weights = {"q": w_q, "k": w_k, "v": w_v, "out": w_o}
    return {f"{name}.weight": weight.T for name, weight in weights.items()}


def _ffn_weights(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> dict[str, Tensor]:
    return {"up.weight": w1.T, "up.bias": b1, "down.weight": w2.T, "down.bias": b2}


def _as_mask(mask: Tensor | None) -> Mask:
    return NO_MASK if mask is None else Mask(allowed=(mask == 0)[None, None])


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float = 1.0) -> Steps:
    """One head, step by step."""
    hooks = Recorder(["**"])
    q, k, v = (x[None, None] for x in (q, k, v))
    z = eager_attention(q, k, v, None, mask, scale, 0.0, hooks)
    return {name: value[0, 0] for name, value in hooks.values.items()} | {"z": z[0, 0]}


def _multi_head(
    x: Tensor,
    key_stream: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    mask: Mask,
) -> Steps:
    layer = _with_weights(
        Attention(_model(d_model=len(w_q), attention__n_heads=n_heads)),
        **_attention_weights(w_q, w_k, w_v, w_o),
    )
    hooks = Recorder(["**"])
    queries = x[None]
    keys = queries if key_stream is x else key_stream[None]
    layer(queries, keys, NO_POSITION, mask, NO_CACHE, hooks)
    return _steps(hooks)


def _block(
    x: Tensor, weights: dict[str, Tensor], n_heads: int, norm_position: str, mask: Mask
) -> Steps:
    w = weights
    d, d_ff = w["w1"].shape
    m = _model(d_model=d, attention__n_heads=n_heads, ffn__d_ff=d_ff, norm_position=norm_position)
    attention_weights = _attention_weights(w["w_q"], w["w_k"], w["w_v"], w["w_o"])
    ffn_weights = _ffn_weights(w["w1"], w["b1"], w["w2"], w["b2"])
    layer = _with_weights(
        Block(m),
        **{f"attn.{name}": value for name, value in attention_weights.items()},
        **{f"ffn.{name}": value for name, value in ffn_weights.items()},
        **{"attn_norm.weight": w["gamma1"], "attn_norm.bias": w["beta1"]},
        **{"ffn_norm.weight": w["gamma2"], "ffn_norm.bias": w["beta2"]},
    )
    hooks = Recorder(["**"])
    layer(x[None], BlockInputs(NO_POSITION, mask, NO_CACHE, None, NO_MASK, NO_CACHE), hooks)
    return _steps(hooks)


def _steps(hooks: Recorder) -> Steps:
    """The activations of the only row of a batch, without those of rotary positions."""
    return {name: value[0] for name, value in hooks.values.items() if "rot_" not in name}
