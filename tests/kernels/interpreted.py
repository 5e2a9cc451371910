"""Our kernels without a GPU: triton interprets them, and what they give is compared with torch's own operations."""

import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.generate.draw import Draw, key_of
from clearhead.generate.sampling import Sampling
from clearhead.generate.swift import Swift, suits
from clearhead.kernels import draw, products, vocabulary
from clearhead.kernels.across import across
from clearhead.kernels.one_query import one_query


def attention() -> None:
    q, k, v = torch.randn(3, 4, 1, 16), torch.randn(3, 2, 40, 16), torch.randn(3, 2, 40, 16)
    seen, at = torch.tensor([40, 7, 23]), torch.arange(40)
    owner = torch.randint(0, 3, (3, 40), dtype=torch.int32)
    for whose in (None, owner):
        theirs = [x if whose is None else x[whose.long(), :, at].transpose(1, 2) for x in (k, v)]
        allowed = (at < seen[:, None])[:, None, None]
        expected = F.scaled_dot_product_attention(q, *theirs, attn_mask=allowed, enable_gqa=True)
        torch.testing.assert_close(one_query(q, k, v, seen, 16**-0.5, whose), expected)


def cross_attention() -> None:
    k, v, real = torch.randn(3, 2, 21, 12), torch.randn(3, 2, 21, 12), torch.randint(0, 2, (3, 21))
    real[0] = 0  # who sees nothing finds nothing
    for beams in (1, 5):
        q = torch.randn(3 * beams, 4 * 12)
        queries = q.view(3, beams, 4, 12).transpose(1, 2)
        for seen in (None, real):
            allowed = None if seen is None else (seen != 0)[:, None, None]
            expected = F.scaled_dot_product_attention(queries, k, v, attn_mask=allowed, enable_gqa=True)
            expected = expected.transpose(1, 2).reshape(3 * beams, 48)
            if seen is not None:
                expected[:beams] = 0
            torch.testing.assert_close(across(q, k, v, seen, 12**-0.5), expected)


def drawing() -> None:
    wide = [(1.0, 0.0), (0.9, 0.0), (1.0, 0.05)]
    how = [Sampling(temperature=t, top_k=k, top_p=p, min_p=m) for t in (0, 0.7) for k in (0, 5) for p, m in wide]
    by, places = Draw(how, [key_of(i) for i in range(len(how))], torch.device("cpu")), torch.arange(len(how))[:, None]
    for size, known in ((65, 65), (500, 450)):
        logits, extra = torch.randn(len(how), size) * 3, torch.zeros(len(how), known)
        extra[:, 3] = -torch.inf
        expected = by(logits, places, known, None, extra)
        found = draw.draw(logits[:, :known] + extra, logits, by.options, by.keys, places)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def rows_of_logits() -> None:
    x = torch.randn(4, 700)
    torch.testing.assert_close(vocabulary.log_total(x), x.logsumexp(-1, keepdim=True))
    assert torch.equal(vocabulary.tops(x, 10, 64), x[:, :640].unflatten(1, (10, 64)).amax(-1))


@torch.no_grad()
def around_products() -> None:
    weight, bias, norm = torch.randn(40, 24), torch.randn(40), nn.LayerNorm(24)
    nn.init.normal_(norm.weight)
    for rows in (1, 3, products.MANY + 1):
        x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
        torch.testing.assert_close(products.normed(x, norm, more=x), norm(2 * x))
        up = F.linear(norm(x), weight, bias)
        gated = products.product(x, (weight, bias), (weight, bias), norm, "gelu-tanh", residual)
        torch.testing.assert_close(gated, F.gelu(up, approximate="tanh") * up + residual, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(products.product(x, (weight, None)), F.linear(x, weight), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def whole_steps() -> None:
    for changes in ({}, {"attention__qk_norm": True, "ffn__activation": "geglu-tanh"}, {"position": "learned"}):
        net = ch.new("tiny-llama", **changes).net
        assert suits(net)
        for rows in (1, 3):
            ids = torch.randint(net.config.vocabulary, (rows, 6))
            plain, swift = net.remember(rows, 16), net.remember(rows, 16)
            net(ids[:, :5], memory=plain), net(ids[:, :5], memory=swift)
            swift.rows.fixed = True
            expected = net.predict(net(ids[:, 5:], memory=plain))[:, 0]
            torch.testing.assert_close(Swift(net)(ids[:, 5:], swift), expected, atol=1e-5, rtol=1e-5)
            for one, other in zip(swift.layers, plain.layers, strict=True):
                torch.testing.assert_close(one[0].keys[:, :, :6], other[0].keys[:, :, :6], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def whole_steps_of_beams() -> None:
    for changes in ({}, {"wiring": "pre", "norm": "rms", "attention__qk_norm": True, "attention__kv_heads": 2}):
        net = ch.new("tiny-encoder-decoder", **changes).net
        assert suits(net)
        ids, source = torch.randint(net.config.vocabulary, (6, 5)), torch.randint(net.config.vocabulary, (2, 7))
        real = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
        given = {"encoded": net.encode(source, real), "source_segments": real}
        plain, swift = net.remember(6, 16), net.remember(6, 16)
        net(ids[:, :4], memory=plain, **given), net(ids[:, :4], memory=swift, **given)
        swift.rows.fixed = True
        expected = net(ids[:, 4:], memory=plain, **given)[:, 0]
        found = net.norm(Swift(net).hidden(ids[:, 4:], swift, real))
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
