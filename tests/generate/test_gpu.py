"""On a GPU: kernels, CUDA graphs and fused decoding equal their plain forms."""

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from beams import beam_search
from clearhead.config.model import InferenceConfig
from clearhead.generate.engine import BatchEngine, Request
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WIDE = [(0.9, 0.0), (1.0, 0.05), (1.0, 0.0), (0.5, 0.01)]


@pytest.mark.parametrize(
    ("rows", "heads", "groups", "keys", "d"),
    [(1, 12, 12, 512, 64), (64, 12, 12, 512, 64), (3, 8, 2, 1000, 80), (40, 8, 8, 64, 64)],
)
def test_single_query_attention_equals_attention(rows, heads, groups, keys, d):
    from clearhead.kernels.decode import single_query_attention

    torch.manual_seed(0)
    q, k, v = (
        torch.randn(rows, h, n, d, device="cuda")
        for h, n in ((heads, 1), (groups, keys), (groups, keys))
    )
    kv_lengths = torch.randint(1, keys + 1, (rows,), device="cuda")
    owner = torch.randint(0, rows, (rows, keys), device="cuda", dtype=torch.int32)
    allowed = (torch.arange(keys, device="cuda") < kv_lengths[:, None])[:, None, None]
    for whose in (None, owner):
        at = torch.arange(keys, device="cuda")
        theirs = [x if whose is None else x[whose.long(), :, at].transpose(1, 2) for x in (k, v)]
        expected = F.scaled_dot_product_attention(
            q, *theirs, attn_mask=allowed, enable_gqa=heads != groups
        )
        torch.testing.assert_close(
            single_query_attention(q, k, v, kv_lengths, d**-0.5, whose),
            expected,
            atol=1e-5,
            rtol=1e-5,
        )


@pytest.mark.parametrize("vocabulary", [65, 50257, 152000])
def test_sampling_kernel_equals_torch(vocabulary):
    configs = [
        SamplingConfig(temperature=t, top_k=k, top_p=p, min_p=m)
        for t in (0, 0.7, 1.5)
        for k in (0, 5, 50, 1)
        for p, m in WIDE
    ]
    keys = [rng_key(i) for i in range(len(configs))]
    device = torch.device("cuda")
    plain = Sampler(configs, keys, device)
    kernel = Sampler(configs, keys, device, use_kernel=True)
    places = torch.arange(len(configs), device=device)[:, None]
    for _ in range(10):
        logits = torch.randn(len(configs), vocabulary, device=device) * 3
        for one, other in zip(plain(logits, places), kernel(logits, places), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny-decoder", {}),
        ("tiny-decoder", {"ffn__activation": "geglu-tanh", "norm": "rmsnorm"}),
        ("tiny-llama", {}),
        ("tiny-llama", {"attention__qk_norm": True}),
    ],
)
def test_fused_decoder_equals_the_net(preset, changes, rows):
    from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode

    net = ch.new(preset, device="cuda", **changes).net
    for p in net.parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p.data, 1.0, 0.1)
    assert supports_fused_decode(net)
    ids = torch.randint(net.config.vocab_size, (rows, 9), device="cuda")
    with torch.no_grad():
        plain = net.init_cache(rows, 32)
        fused = net.init_cache(rows, 32)
        net(ids[:, :8], cache=plain), net(ids[:, :8], cache=fused)
        fused.rows.is_static = True
        expected = net.compute_logits(net(ids[:, 8:], cache=plain))[:, 0]
        torch.testing.assert_close(
            FusedDecoder(net)(ids[:, 8:], fused), expected, atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(
        fused.layers[-1][0].keys, plain.layers[-1][0].keys, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("changes", [{}, {"position": "alibi"}, {"norm_position": "post"}])
def test_cuda_graph_engine_equals_cpu(changes):
    """Requests join, leave and slide, with penalties and prefixes, one graph step ahead."""
    configs = [
        SamplingConfig(max_tokens=20, seed=1),
        SamplingConfig(max_tokens=9, temperature=0),
        SamplingConfig(max_tokens=20, top_k=5, top_p=0.9, seed=2, repetition_penalty=1.3),
        SamplingConfig(max_tokens=60, seed=3, overflow="slide"),
        SamplingConfig(
            max_tokens=12, seed=4, prefix_tokens=(5, 6), logit_bias={3: 2.0}, suppress_tokens=(9,)
        ),
    ]
    written = []
    for device in ("cpu", "cuda"):
        net = ch.new("tiny-decoder", device=device, **changes).net
        engine = BatchEngine(
            net,
            InferenceConfig(eos_tokens=(7,), begin_suppress_tokens=(8,)),
            3,
            32,
            use_cuda_graphs=device == "cuda",
        )
        requests = [
            Request([1 + i, 2, 3], sampling, num_logprobs=i % 2)
            for i, sampling in enumerate(configs * 2)
        ]
        for request in requests:
            engine.add_request(request)
            engine.step()
        while engine.step():
            pass
        written.append([([c.token for c in r.output], r.finish_reason) for r in requests])
        assert engine.is_idle
    assert written[0] == written[1]


def test_cached_engine_sees_new_weights():
    model = ch.new("tiny-llama", device="cuda")
    first = model.generate([1, 2], 20, seed=1).tokens
    engine = model._engines.cached
    assert model.generate([1, 2], 20, seed=1).tokens == first
    assert model._engines.cached is engine
    with torch.no_grad():
        for p in model.net.parameters():
            p.mul_(1.5)
    other = ch.new("tiny-llama")
    other.net.load_state_dict({name: p.cpu() for name, p in model.net.state_dict().items()})
    assert model.generate([1, 2], 20, seed=1).tokens == other.generate([1, 2], 20, seed=1).tokens
    assert model._engines.cached is engine


@pytest.mark.parametrize("beams", [1, 3])
def test_cuda_graph_beam_search_equals_cpu(beams):
    nets = [ch.new("tiny-encoder-decoder", device=device).net for device in ("cpu", "cuda")]
    for seed in range(4):
        source = torch.randint(
            3, nets[0].config.vocab_size, (4, 9), generator=torch.Generator().manual_seed(seed)
        )
        options = {"num_beams": beams, "max_tokens": 12, "eos_tokens": (1,), "n_best": beams}
        found = [
            beam_search(n, [[2]] * 4, source=source.to(next(n.parameters()).device), **options)
            for n in nets
        ]
        for one, other in zip(*found, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]
            assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)
