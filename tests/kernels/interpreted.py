"""Our kernels without a GPU: triton interprets them, and what they give is compared with torch's own operations."""

import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from clearhead.kernels.cross_entropy import block_max, logsumexp_rows
from clearhead.kernels.decode import (
    MAX_FUSED_ROWS,
    beam_cross_attention,
    fused_linear,
    fused_norm,
    single_query_attention,
)
from clearhead.kernels.sampling import sample_tokens


def attention() -> None:
    q = torch.randn(3, 4, 1, 16)
    k = torch.randn(3, 2, 40, 16)
    v = torch.randn(3, 2, 40, 16)
    seen = torch.tensor([40, 7, 23])
    at = torch.arange(40)
    owner = torch.randint(0, 3, (3, 40), dtype=torch.int32)
    for whose in (None, owner):
        theirs = [x if whose is None else x[whose.long(), :, at].transpose(1, 2) for x in (k, v)]
        allowed = (at < seen[:, None])[:, None, None]
        expected = F.scaled_dot_product_attention(q, *theirs, attn_mask=allowed, enable_gqa=True)
        torch.testing.assert_close(single_query_attention(q, k, v, seen, 16**-0.5, whose), expected)


def cross_attention() -> None:
    k = torch.randn(3, 2, 21, 12)
    v = torch.randn(3, 2, 21, 12)
    real = torch.randint(0, 2, (3, 21))
    real[0] = 0  # who sees nothing finds nothing
    for beams in (1, 5):
        q = torch.randn(3 * beams, 4 * 12)
        queries = q.view(3, beams, 4, 12).transpose(1, 2)
        for seen in (None, real):
            allowed = None if seen is None else (seen != 0)[:, None, None]
            expected = F.scaled_dot_product_attention(
                queries, k, v, attn_mask=allowed, enable_gqa=True
            )
            expected = expected.transpose(1, 2).reshape(3 * beams, 48)
            if seen is not None:
                expected[:beams] = 0
            torch.testing.assert_close(beam_cross_attention(q, k, v, seen, 12**-0.5), expected)


def drawing() -> None:
    wide = [(1.0, 0.0), (0.9, 0.0), (1.0, 0.05)]
    how = [
        SamplingConfig(temperature=t, top_k=k, top_p=p, min_p=m)
        for t in (0, 0.7)
        for k in (0, 5)
        for p, m in wide
    ]
    by = Sampler(how, [rng_key(i) for i in range(len(how))], torch.device("cpu"))
    places = torch.arange(len(how))[:, None]
    for size, known in ((65, 65), (500, 450)):
        logits = torch.randn(len(how), size) * 3
        extra = torch.zeros(len(how), known)
        extra[:, 3] = -torch.inf
        expected = by(logits, places, known, None, extra)
        found = sample_tokens(logits[:, :known] + extra, logits, by.options, by.rng_keys, places)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def rows_of_logits() -> None:
    x = torch.randn(4, 700)
    torch.testing.assert_close(logsumexp_rows(x), x.logsumexp(-1, keepdim=True))
    assert torch.equal(block_max(x, 10, 64), x[:, :640].unflatten(1, (10, 64)).amax(-1))


@torch.no_grad()
def around_products() -> None:
    weight = torch.randn(40, 24)
    bias = torch.randn(40)
    norm = nn.LayerNorm(24)
    nn.init.normal_(norm.weight)
    for rows in (1, 3, MAX_FUSED_ROWS + 1):
        x = torch.randn(rows, 24)
        residual = torch.randn(rows, 40)
        torch.testing.assert_close(fused_norm(x, norm, residual=x), norm(2 * x))
        up = F.linear(norm(x), weight, bias)
        gated = fused_linear(x, (weight, bias), (weight, bias), norm, "gelu-tanh", residual)
        torch.testing.assert_close(
            gated, F.gelu(up, approximate="tanh") * up + residual, atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(
            fused_linear(x, (weight, None)), F.linear(x, weight), atol=1e-4, rtol=1e-4
        )


@torch.no_grad()
def whole_steps() -> None:
    for changes in (
        {},
        {"attention__qk_norm": True, "ffn__activation": "geglu-tanh"},
        {"position": "learned"},
    ):
        net = ch.new("tiny-llama", **changes).net
        assert supports_fused_decode(net)
        for rows in (1, 3):
            ids = torch.randint(net.config.vocab_size, (rows, 6))
            plain = net.init_cache(rows, 16)
            swift = net.init_cache(rows, 16)
            net(ids[:, :5], cache=plain), net(ids[:, :5], cache=swift)
            swift.rows.is_static = True
            expected = net.compute_logits(net(ids[:, 5:], cache=plain))[:, 0]
            torch.testing.assert_close(
                FusedDecoder(net)(ids[:, 5:], swift), expected, atol=1e-5, rtol=1e-5
            )
            for one, other in zip(swift.layers, plain.layers, strict=True):
                torch.testing.assert_close(
                    one[0].keys[:, :, :6], other[0].keys[:, :, :6], atol=1e-5, rtol=1e-5
                )


@torch.no_grad()
def whole_steps_of_beams() -> None:
    for changes in (
        {},
        {
            "wiring": "pre",
            "norm": "rmsnorm",
            "attention__qk_norm": True,
            "attention__n_kv_heads": 2,
        },
    ):
        net = ch.new("tiny-encoder-decoder", **changes).net
        assert supports_fused_decode(net)
        ids = torch.randint(net.config.vocab_size, (6, 5))
        source = torch.randint(net.config.vocab_size, (2, 7))
        real = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
        given = {"encoded": net.encode(source, real), "source_segments": real}
        plain = net.init_cache(6, 16)
        swift = net.init_cache(6, 16)
        net(ids[:, :4], cache=plain, **given), net(ids[:, :4], cache=swift, **given)
        swift.rows.is_static = True
        expected = net(ids[:, 4:], cache=plain, **given)[:, 0]
        found = net.final_norm(FusedDecoder(net).hidden_states(ids[:, 4:], swift, real))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    torch.manual_seed(0)
    for part in (
        attention,
        cross_attention,
        drawing,
        rows_of_logits,
        around_products,
        whole_steps,
        whole_steps_of_beams,
    ):
        part()
    print("all as torch has them")
