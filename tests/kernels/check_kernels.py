"""A script that compares the Triton kernels with torch, on a GPU or in Triton's interpreter."""

import os

import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from clearhead.kernels.decode import (
    MAX_FUSED_ROWS,
    beam_cross_attention,
    fused_linear,
    fused_norm,
    single_query_attention,
)
from clearhead.kernels.logsumexp import block_max, logsumexp_rows
from clearhead.kernels.sampling import sample_tokens

DEVICE = torch.device("cpu" if "TRITON_INTERPRET" in os.environ else "cuda")


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def check_single_query_attention() -> None:
    q = torch.randn(3, 4, 1, 16)
    k = torch.randn(3, 2, 40, 16)
    v = torch.randn(3, 2, 40, 16)
    kv_lengths = torch.tensor([40, 7, 23])
    position = torch.arange(40)
    owner = torch.randint(0, 3, (3, 40), dtype=torch.int32)
    allowed = (position < kv_lengths[:, None])[:, None, None]
    for kv_owner in (None, owner):
        keys_values = (k, v)
        if kv_owner is not None:
            keys_values = (x[kv_owner.long(), :, position].transpose(1, 2) for x in (k, v))
        expected = F.scaled_dot_product_attention(
            q, *keys_values, attn_mask=allowed, enable_gqa=True
        )
        close(single_query_attention(q, k, v, kv_lengths, 16**-0.5, kv_owner), expected)


def check_beam_cross_attention() -> None:
    k = torch.randn(3, 2, 21, 12)
    v = torch.randn(3, 2, 21, 12)
    padded = torch.randint(0, 2, (3, 21))
    padded[0] = 0  # fully masked queries give zeros
    for beams in (1, 5):
        q = torch.randn(3 * beams, 4 * 12)
        queries = q.view(3, beams, 4, 12).transpose(1, 2)
        for source_mask in (None, padded):
            allowed = None if source_mask is None else (source_mask != 0)[:, None, None]
            expected = F.scaled_dot_product_attention(
                queries, k, v, attn_mask=allowed, enable_gqa=True
            )
            expected = expected.transpose(1, 2).reshape(3 * beams, 48)
            if source_mask is not None:
                expected[:beams] = 0
            close(beam_cross_attention(q, k, v, source_mask, 12**-0.5), expected)


def check_sampling() -> None:
    configs = [
        SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        for temperature in (0, 0.7)
        for top_k in (0, 5)
        for top_p, min_p in ((1.0, 0.0), (0.9, 0.0), (1.0, 0.05))
    ]
    rows = len(configs)
    sampler = Sampler(configs, [rng_key(i) for i in range(rows)], DEVICE)
    steps = torch.arange(rows)[:, None]
    for columns, vocab_size in ((65, 65), (500, 450)):
        logits = torch.randn(rows, columns) * 3
        logit_bias = torch.zeros(rows, vocab_size)
        logit_bias[:, 3] = -torch.inf
        expected = sampler(logits, steps, vocab_size, None, logit_bias)
        processed = logits[:, :vocab_size] + logit_bias
        actual = sample_tokens(processed, logits, sampler.options, sampler.rng_keys, steps)
        for one, other in zip(actual, expected, strict=True):
            close(one, other)


def check_reductions_of_logits() -> None:
    x = torch.randn(4, 700)
    close(logsumexp_rows(x), x.logsumexp(-1, keepdim=True))
    assert torch.equal(block_max(x, 10, 64), x[:, :640].unflatten(1, (10, 64)).amax(-1))


@torch.no_grad()
def check_fused_linear_and_norm() -> None:
    gate = torch.randn(40, 24)
    up = torch.randn(40, 24)
    bias = torch.randn(40)
    norm = nn.LayerNorm(24)
    nn.init.normal_(norm.weight)
    for rows in (1, 3, MAX_FUSED_ROWS + 1):
        x = torch.randn(rows, 24)
        residual = torch.randn(rows, 40)
        close(fused_norm(x, norm, residual=x), norm(2 * x))
        close(fused_linear(x, (gate, None)), F.linear(x, gate), 1e-4)
        actual = fused_linear(x, (gate, bias), (up, bias), norm, "gelu-tanh", residual)
        activated = F.gelu(F.linear(norm(x), gate, bias), approximate="tanh")
        close(actual, activated * F.linear(norm(x), up, bias) + residual, 1e-4)


@torch.no_grad()
def check_decoding_steps() -> None:
    for changes in (
        {},
        {"attention__qk_norm": True, "ffn__activation": "geglu-tanh"},
        {"position": "learned"},
    ):
        net = ch.new("tiny-llama", device=DEVICE.type, **changes).net
        assert supports_fused_decode(net)
        for rows in (1, 3):
            ids = torch.randint(net.config.vocab_size, (rows, 6))
            cache = net.init_cache(rows, 16)
            static_cache = net.init_cache(rows, 16)
            net(ids[:, :5], cache=cache)
            net(ids[:, :5], cache=static_cache)
            static_cache.rows.is_static = True
            expected = net.compute_logits(net(ids[:, 5:], cache=cache))[:, 0]
            close(FusedDecoder(net)(ids[:, 5:], static_cache), expected)
            for (actual, _), (own, _) in zip(static_cache.layers, cache.layers, strict=True):
                close(actual.keys[:, :, :6], own.keys[:, :, :6])


@torch.no_grad()
def check_decoding_steps_of_beams() -> None:
    pre_norm = {"norm_position": "pre", "norm": "rmsnorm"}
    heads = {"attention__qk_norm": True, "attention__n_kv_heads": 2}
    for changes in ({}, {**pre_norm, **heads}):
        net = ch.new("tiny-encoder-decoder", device=DEVICE.type, **changes).net
        assert supports_fused_decode(net)
        ids = torch.randint(net.config.vocab_size, (6, 5))
        source = torch.randint(net.config.vocab_size, (2, 7))
        source_mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
        encoder_output = net.encode(source, source_mask)
        inputs = {"encoder_output": encoder_output, "source_segment_ids": source_mask}
        cache = net.init_cache(6, 16)
        static_cache = net.init_cache(6, 16)
        net(ids[:, :4], cache=cache, **inputs)
        net(ids[:, :4], cache=static_cache, **inputs)
        static_cache.rows.is_static = True
        expected = net(ids[:, 4:], cache=cache, **inputs)[:, 0]
        hidden = FusedDecoder(net).hidden_states(ids[:, 4:], static_cache, source_mask)
        close(net.final_norm(hidden), expected)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_device(DEVICE)
    check_single_query_attention()
    check_beam_cross_attention()
    check_sampling()
    check_reductions_of_logits()
    check_fused_linear_and_norm()
    check_decoding_steps()
    check_decoding_steps_of_beams()
    print("kernels equal torch")
