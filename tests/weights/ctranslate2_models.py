"""Models that CTranslate2 can express, and the difference between its results and ours."""

import numpy as np
import pytest
import torch

from clearhead import config as c
from clearhead.model.transformer import build_transformer
from clearhead.weights.checkpoint import Checkpoint

ct2 = pytest.importorskip("ctranslate2")

Decoder = c.Decoder()
Encoder = c.Encoder()
EncoderDecoder = c.EncoderDecoder
Tokens = c.Tokens
Rotary = c.Rotary
Llama3 = c.Llama3Scaling
Linear = c.LinearScaling
RMSNorm = c.RMSNorm
LayerNorm = c.LayerNorm
UNTIED = c.LMHead(tie_embeddings=False)
TOLERANCE = 1e-5


def model(**options) -> c.ModelConfig:
    return c.ModelConfig(
        **{"vocab_size": 29, "context_length": 20, "d_model": 24, "n_layers": 2} | options
    )


DECODERS = {
    "gpt2": model(ffn=c.FeedForward("gelu-tanh", 40), attention=c.Attention(3)),
    "llama": model(
        position=Rotary(theta=500.0, scaling=Llama3(4.0, 1.5, 3.0, 16)),
        attention=c.Attention(6, 2, 8, bias=()),
        ffn=c.FeedForward("swiglu", 40, bias=False),
        norm=RMSNorm(eps=1e-2),
        head=UNTIED,
    ),
    "qwen3": model(
        position=Rotary(theta=100.0),
        # a window of the whole context is none
        attention=c.Attention(4, 1, 6, 20, ("q", "k", "v"), qk_norm=True),
        ffn=c.FeedForward("swiglu", 40, bias=False),
        norm=RMSNorm(eps=1e-3),
        head=UNTIED,
    ),
    "partial rotary": model(
        position=Rotary(rotary_dim=4, scaling=Linear(3.0)), attention=c.Attention(3), head=UNTIED
    ),
    "layer qk-norm": model(
        position=Rotary(),
        attention=c.Attention(3, qk_norm=True),
        norm=LayerNorm(eps=1e-2, bias=False),
        ffn=c.FeedForward("silu"),
        head=UNTIED,
    ),
    "alibi": model(
        position=c.ALiBi(), attention=c.Attention(6, 3), input=Tokens(norm=True), head=UNTIED
    ),
    "shaw": model(
        position=c.Shaw(max_distance=3),
        attention=c.Attention(3, scale=False),
        norm_position="post",
        head=UNTIED,
    ),
    "no positions": model(
        position=c.NoPosition(), head=c.LMHead(tie_embeddings=False, bias=True, scale_logits=True)
    ),
    "sinusoidal": model(
        position=c.Sinusoidal(),
        input=Tokens(scale_embeddings=True),
        ffn=c.FeedForward("geglu"),
        head=UNTIED,
    ),
}
ENCODERS = {
    "bert": model(
        architecture=Encoder,
        norm_position="post",
        input=Tokens(token_types=3, scale_embeddings=True, norm=True),
        ffn=c.FeedForward("gelu", 40),
        norm=LayerNorm(eps=1e-3),
        head=c.NoHead(),
    ),
    "modern": model(
        architecture=Encoder,
        position=Rotary(scaling=Llama3(4.0, original_context_length=16)),
        attention=c.Attention(4, 2, qk_norm=True),
        ffn=c.FeedForward("geglu-tanh", 40),
        norm=RMSNorm(),
        head=c.NoHead(),
    ),
    "relative": model(
        architecture=Encoder, position=c.T5(8, 12), attention=c.Attention(3), head=c.NoHead()
    ),
    "shaw": model(
        architecture=Encoder,
        position=c.Shaw(max_distance=3),
        attention=c.Attention(4, 1),
        head=c.NoHead(),
    ),
}
ENCODER_DECODERS = {
    "vaswani": model(
        architecture=EncoderDecoder(1, 20, source_input=Tokens(scale_embeddings=True)),
        norm_position="post",
        input=Tokens(scale_embeddings=True),
        position=c.Sinusoidal(),
        attention=c.Attention(3, bias=()),
    ),
    "marian": model(
        architecture=EncoderDecoder(2, 20, 31, Tokens(scale_embeddings=True)),
        norm_position="post",
        input=Tokens(scale_embeddings=True),
        position=c.Sinusoidal(layout="halves"),
        ffn=c.FeedForward("silu", 40),
        head=c.LMHead(bias=True),
    ),
    "t5": model(
        architecture=EncoderDecoder(3, 20),
        position=c.T5(8, 12),
        attention=c.Attention(3, d_head=6, bias=(), scale=False),
        ffn=c.FeedForward("geglu-tanh", 40, bias=False),
        norm=RMSNorm(),
        head=c.LMHead(scale_logits=True),
    ),
    "grouped": model(
        architecture=EncoderDecoder(1, 20, 31, Tokens(norm=True)),
        position=Rotary(rotary_dim=4),
        attention=c.Attention(6, 2, 8, bias=("q", "v", "out")),
        norm=LayerNorm(bias=False),
        head=c.LMHead(tie_embeddings=False, bias=True),
    ),
    "learned": model(
        architecture=EncoderDecoder(2, 18),
        attention=c.Attention(4, 1),
        norm=RMSNorm(eps=1e-2),
        head=UNTIED,
    ),
}


def checkpoint(m, seed=1, tokenizer=None, source_tokenizer=None, **inference) -> Checkpoint:
    """Random weights, biases and gains; with large logits, so that the best token is clear."""
    net = build_transformer(m, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if (
                name.endswith("bias")
                or "norm." in name
                or "position" in name
                or "token_types" in name
            ):
                p.add_(torch.randn(p.shape, generator=generator) * 0.3)
            elif "embed" in name:
                p.mul_(40)
    config = c.Config(m, c.InferenceConfig(**inference))
    return Checkpoint(net, config, tokenizer, source_tokenizer)


def random_ids(vocab_size, *lengths) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [
        torch.randint(5, vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]


def token_names(ids) -> list[str]:
    return [f"<unused{i}>" for i in ids]


def max_difference(theirs, ours) -> float:
    """The largest difference, relative to the largest value if that exceeds 1."""
    return float(
        (torch.tensor(np.array(theirs)) - ours).abs().max() / ours.abs().max().clamp(min=1)
    )


@torch.no_grad()
def greedy(net, ids, count, source=None, suppress_tokens=(), begin_suppress_tokens=()) -> list[int]:
    """Greedy decoding without a cache; refuses near ties, which would say nothing."""
    tokens = []
    for _ in range(count):
        inputs = {} if source is None else {"source": torch.as_tensor(source)[None]}
        logits = net.compute_logits(net(torch.tensor([ids + tokens]), **inputs))[0, -1]
        logits[[*suppress_tokens, *(() if tokens else begin_suppress_tokens)]] = -torch.inf
        best = logits.topk(2)
        assert best.values[0] - best.values[1] > 1e-3
        tokens.append(int(best.indices[0]))
    return tokens


def open_engine(engine, folder, **options):
    return engine(str(folder), compute_type="float32", intra_threads=1, **options)


@torch.no_grad()
def engine_difference(folder, model) -> float:
    """The largest difference between CTranslate2 and ours, in a batch of different lengths."""
    net = model.net
    m = model.config.model
    inference = model.config.inference
    if isinstance(m.architecture, c.EncoderDecoder):
        engine = open_engine(ct2.Translator, folder)
        sources = random_ids(m.architecture.source_vocab_size or m.vocab_size, 11, 6)
        targets = random_ids(m.vocab_size, 5, 9)
        scored = engine.score_batch(
            [token_names(ids) for ids in sources], [token_names(ids) for ids in targets]
        )
        worst = 0.0
        for source, target, theirs in zip(sources, targets, scored, strict=True):
            ids = torch.tensor([[*inference.decoder_start_tokens, *target, *inference.eos_tokens]])
            log_probs = net.compute_logits(net(ids[:, :-1], source=torch.tensor([source])))[
                0
            ].log_softmax(-1)
            worst = max(
                worst, max_difference(theirs.log_probs, log_probs.gather(1, ids[0, 1:, None])[:, 0])
            )
        return worst
    texts = random_ids(m.vocab_size, 11, 6)
    if isinstance(m.architecture, c.Encoder):
        token_types = (
            [[i % m.input.token_types for i in ids] for ids in texts]
            if m.input.token_types
            else None
        )
        theirs = (
            open_engine(ct2.Encoder, folder)
            .forward_batch(texts, token_type_ids=token_types)
            .last_hidden_state
        )
        ours = [
            net(
                torch.tensor([ids]),
                token_type_ids=torch.tensor([token_types[i]]) if token_types else None,
            )
            for i, ids in enumerate(texts)
        ]
    else:
        theirs = open_engine(ct2.Generator, folder).forward_batch(texts)
        ours = [net.compute_logits(net(torch.tensor([ids]))) for ids in texts]
    return max(
        max_difference(row[: len(ids)], own[0])
        for row, own, ids in zip(np.array(theirs), ours, texts, strict=True)
    )


TRANSLATOR = model(architecture=EncoderDecoder(1, 20), attention=c.Attention(3))
WHISPER = model(
    vocab_size=40,
    architecture=EncoderDecoder(1, 5, source_input=c.Audio(n_mels=6, n_frames=9)),
    attention=c.Attention(4, 2, 6, bias=("q", "v", "out")),
    ffn=c.FeedForward("gelu", 40),
    norm=LayerNorm(eps=1e-3),
    head=c.LMHead(tie_embeddings=False, bias=True),
)
