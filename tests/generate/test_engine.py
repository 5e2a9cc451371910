"""A text does not depend on the rest of the batch, nor on when requests join and leave."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.config.model import InferenceConfig
from clearhead.generate import engine as engine_module
from clearhead.generate.engine import BatchEngine, Request, common_prefix_length
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from strategies import examples

NETS = {name: ch.new(name, seed=1).net for name in ("tiny-decoder", "tiny-llama")}
NETS["alibi"] = ch.new("tiny-decoder", position="alibi", attention__n_kv_heads=2).net
options = st.builds(
    SamplingConfig,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 5),
)
request_lists = st.lists(
    st.tuples(st.lists(st.integers(0, 63), min_size=1, max_size=8), options), min_size=1, max_size=5
)


def generate_batched(net, requested, slots, late=0):
    """The tokens of each request; the last `late` of them arrive after two steps."""
    engine = BatchEngine(net, InferenceConfig(eos_tokens=(7,)), slots, 32)
    requests = [Request(list(prompt), sampling) for prompt, sampling in requested]
    early = len(requests) - late
    for request in requests[:early]:
        engine.add_request(request)
    engine.step(), engine.step()
    for request in requests[early:]:
        engine.add_request(request)
    while engine.step():
        pass
    return [[chosen.token for chosen in request.output] for request in requests]


def generate_uncached(net, prompt, sampling):
    """The definition: no cache, no batch."""
    ids = list(prompt)
    out = []
    draw = Sampler([sampling], [rng_key(sampling.seed)], torch.device("cpu"))
    while len(out) < sampling.max_tokens and 7 not in out:
        with torch.no_grad():
            logits = net.compute_logits(net(torch.tensor([ids])))[:, -1]
        read, wrote = (
            torch.bincount(torch.tensor(x, dtype=torch.long), minlength=64)[None]
            for x in (prompt, out)
        )
        out.append(int(draw(logits, torch.tensor([[len(out)]]), counts=(read, wrote))[0]))
        ids.append(out[-1])
    return out


@given(request_lists, st.integers(1, 4), st.integers(0, 3), st.sampled_from(sorted(NETS)))
@examples(10)
def test_batching_and_arrival_change_nothing(requested, slots, late, name):
    net = NETS[name]
    assert generate_batched(net, requested, slots, min(late, len(requested))) == [
        generate_uncached(net, *request) for request in requested
    ]


def test_a_finished_request_frees_its_slot():
    engine = BatchEngine(NETS["tiny-llama"], InferenceConfig(), 1, 32)
    first, second = (Request([1, 2], SamplingConfig(max_tokens=20)) for _ in range(2))
    engine.add_request(first)
    engine.add_request(second)
    engine.step()
    first.finish("stop")
    assert engine.step() == [second]
    assert (len(first.output), first.finish_reason) == (1, "stop")


def test_logprobs_are_the_models_own():
    model = ch.new("tiny-llama", seed=3)
    made = model.generate([1, 2, 3], 6, temperature=2.0, top_k=4, seed=1, logprobs=3)
    expected = model.logits([1, 2, 3, *made.tokens]).log_softmax(-1)
    for place, chosen in enumerate(made.token_logprobs):
        row = expected[2 + place]
        assert chosen.logprob == pytest.approx(float(row[chosen.token]), abs=1e-5)
        best = row.topk(3)
        assert [token for token, _ in chosen.top] == best.indices.tolist()
        assert [value for _, value in chosen.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_logit_bias_suppress_tokens_and_prefix_tokens():
    model = ch.new("tiny-llama", seed=3)
    assert set(model.generate([1], 8, logit_bias={5: 100.0}).tokens) == {5}
    free = model.generate([1], 12, seed=2).tokens
    assert not set(free) & set(
        model.generate([1], 12, seed=2, suppress_tokens=tuple(set(free))).tokens
    )
    assert model.generate([1], 5, prefix_tokens=(9, 8)).tokens[:2] == [9, 8]


def test_non_finite_logits_stop_generation():
    model = ch.new("tiny-decoder")
    with torch.no_grad():
        model.net.embed.tokens.weight[5] = torch.nan
    with pytest.raises(ch.ClearheadError, match="token 1"):
        model.generate([1, 2], 3)


@given(request_lists, st.integers(1, 3), st.data())
@examples(6)
def test_prefix_cache_changes_nothing(requested, slots, data):
    """Prompts that share a prefix with others, or continue them, as conversations do."""
    net = NETS["tiny-llama"]
    engine = BatchEngine(NETS["tiny-llama"], InferenceConfig(eos_tokens=(7,)), slots, 32)
    texts = []
    with patch.object(engine_module, "MIN_SHARED_PREFIX", 1):
        for prompt, sampling in requested:
            start = data.draw(st.sampled_from(texts)) if texts and data.draw(st.booleans()) else []
            request = Request((start + prompt)[:20], sampling)
            engine.add_request(request)
            while engine.step():
                pass
            assert [chosen.token for chosen in request.output] == generate_uncached(
                net, request.prompt, sampling
            )
            texts += [request.tokens, request.prompt]


def test_prefix_cache_skips_known_tokens():
    net = NETS["tiny-llama"]
    read = []
    engine = BatchEngine(net, InferenceConfig(), 1, 32)
    inner = engine.runner.prefill
    engine.runner.prefill = lambda texts, row=0, common=0: (
        read.append(common) or inner(texts, row, common)
    )
    first = Request(list(range(20)), SamplingConfig(max_tokens=5))
    engine.add_request(first)
    while engine.step():
        pass
    second = Request([*first.tokens, 3, 4], SamplingConfig(max_tokens=3))
    engine.add_request(second)
    while engine.step():
        pass
    assert read == [0, 24]
    engine.clear_prefix_cache()
    engine.add_request(Request(list(first.prompt), SamplingConfig(max_tokens=1)))
    engine.step()
    assert read == [0, 24, 0]


def test_samples_share_one_prefill():
    net = NETS["tiny-llama"]
    read = []
    engine = BatchEngine(net, InferenceConfig(), 4, 32)
    inner = engine.runner.prefill
    engine.runner.prefill = lambda texts, row=0, common=0: (
        read.append(len(texts)) or inner(texts, row, common)
    )
    for sample in range(4):
        engine.add_request(Request([1, 2, 3], SamplingConfig(max_tokens=4), sample))
    while engine.step():
        pass
    assert read == [1]


@pytest.mark.parametrize("overflow", ["slide", "error"])
def test_context_of_two_tokens_slides(overflow):
    with pytest.raises(ch.ClearheadError, match="context"):
        ch.new("tiny-decoder", context_length=1).generate([3], max_tokens=4, overflow=overflow)
    assert (
        len(
            ch.new("tiny-decoder", context_length=2)
            .generate([3, 5], max_tokens=4, overflow="slide")
            .tokens
        )
        == 4
    )


@given(st.lists(st.integers(0, 63), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 3))
@examples(8)
def test_sliding_context_continues_from_its_second_half(prompt, more, seed):
    net = NETS["tiny-llama"]
    sampling = SamplingConfig(max_tokens=more, overflow="slide", seed=seed)
    engine = BatchEngine(net, InferenceConfig(), 2, 16)
    request = Request(list(prompt), sampling)
    engine.add_request(request)
    engine.add_request(Request([5], SamplingConfig(max_tokens=9, overflow="slide")))
    while engine.step():
        pass
    ids = list(prompt)
    start = 0
    draw = Sampler([sampling], [rng_key(seed)], torch.device("cpu"))
    for place in range(more):
        if len(ids) - start >= 16:
            start = len(ids) - 8
        with torch.no_grad():
            logits = net.compute_logits(net(torch.tensor([ids[start:]])))[:, -1]
        ids.append(int(draw(logits, torch.tensor([[place]]))[0]))
    assert request.tokens == ids


def test_shared_prefix_of_new_prompts_is_read_once():
    net = NETS["tiny-llama"]
    read = []
    engine = BatchEngine(net, InferenceConfig(eos_tokens=(7,)), 8, 32)
    inner = engine.runner.prefill

    def watched(texts, row=0, common=0):
        read.append((len(texts), common))
        return inner(texts, row, common)

    engine.runner.prefill = watched
    requests = [
        Request([*range(20), 30 + i, 40 + i], SamplingConfig(max_tokens=4, seed=i))
        for i in range(8)
    ]
    for request in requests:
        engine.add_request(request)
    while engine.step():
        pass
    assert read == [(1, 0), (7, 20)]
    for request in requests:
        assert [chosen.token for chosen in request.output] == generate_uncached(
            net, request.prompt, request.config
        )


def test_non_finite_logits_of_one_text_leave_others_alone():
    engine = BatchEngine(ch.new("tiny-decoder").net, InferenceConfig(), 3, 32)
    well = [Request([1 + i, 2], SamplingConfig(max_tokens=6, seed=i)) for i in range(3)]
    for request in well:
        engine.add_request(request)
    engine.step()
    engine.runner.logits[1] = torch.nan
    with pytest.raises(ch.ClearheadError, match="token 2"):
        engine.step()
    while engine.step():
        pass
    assert well[1].finish_reason == "error"
    for request in (well[0], well[2]):
        expected = generate_uncached(engine.runner.net, request.prompt, request.config)
        assert [chosen.token for chosen in request.output][: len(expected)] == expected
        assert request.finish_reason == "length"


def test_logprobs_include_tokens_outside_the_tokenizer():
    model = ch.new("tiny-decoder", vocab_size=300, tokenizer=ch.Tokenizer.bytes(), seed=2)
    made = model.generate("abc", 4, temperature=0, echo=True)
    expected = model.score(list(b"abc") + made.tokens).logprobs
    assert [c.logprob for c in (*made.prompt_logprobs, *made.token_logprobs)] == pytest.approx(
        expected, abs=1e-5
    )


def test_long_prompts_join_over_several_steps():
    """Prefilling many long prompts at once would stall the texts that are being generated."""
    net = ch.new("tiny-decoder", context_length=256).net
    engine = BatchEngine(net, InferenceConfig(), 9, 256)
    shared = list(range(60)) * 3
    running = Request([1, 2], SamplingConfig(max_tokens=50))
    engine.add_request(running)
    engine.step()
    with patch.object(engine_module, "MAX_PREFILL_TOKENS", 400):
        for i in range(8):
            engine.add_request(Request([*shared, i], SamplingConfig(max_tokens=50)))
        counts = []
        for _ in range(6):
            engine.step()
            counts.append(len(engine.running))
    assert len(running.output) == 7
    assert counts[0] < 5
    assert counts[-1] == 9


def test_tokens_in_the_cache_do_not_delay_a_prompt():
    net = ch.new("tiny-decoder", context_length=256).net
    engine = BatchEngine(net, InferenceConfig(), 9, 256)
    prompts = [[i, *range(60), *range(60), *range(60)] for i in range(4)]
    for prompt in prompts:
        engine.add_request(Request(prompt, SamplingConfig(max_tokens=1)))
    while engine.step():
        pass
    engine.add_request(Request([63, 62], SamplingConfig(max_tokens=50)))
    engine.step()
    with (
        patch.object(engine_module, "MAX_PREFILL_TOKENS", 200),
        patch.object(engine_module, "MIN_PASS_TOKENS", 1),
    ):
        for prompt in prompts:
            engine.add_request(Request([*prompt, 5, 6], SamplingConfig(max_tokens=50)))
        engine.step()
    assert len(engine.running) == 5


def test_short_prompts_do_not_overtake_a_long_one_again_and_again():
    net = ch.new("tiny-decoder", context_length=256).net
    engine = BatchEngine(net, InferenceConfig(), 4, 256)
    engine.add_request(Request([1, 2], SamplingConfig(max_tokens=50)))
    engine.step()
    long = Request([*range(60)] * 3, SamplingConfig(max_tokens=1))
    engine.add_request(long)
    shorts = []
    with patch.object(engine_module, "MAX_PREFILL_TOKENS", 100):
        for i in range(0, 12, 2):
            for first in (i, i + 1):
                shorts.append(Request([first, *[first + 20] * 59], SamplingConfig(max_tokens=1)))
                engine.add_request(shorts[-1])
            engine.step()
    assert long.output
    assert not shorts[-1].output


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.integers(0, 2), max_size=5),
    st.lists(st.integers(0, 2), max_size=5),
)
def test_common_prefix_length_counts_equal_tokens(prefix, a, b):
    expected = len(prefix)
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        expected += 1
    assert common_prefix_length(prefix + a, prefix + b) == expected


def test_generation_restores_training_mode():
    model = ch.new("tiny-decoder", seed=1)
    expected = model.generate([1, 2], 4, temperature=0).tokens
    model = ch.new("tiny-decoder", seed=1, dropout__residual=0.5)
    model.net.train()
    model.net.blocks[0].eval()
    assert model.generate([1, 2], 4, temperature=0).tokens == expected
    model.beam_search([1, 2], max_tokens=3)
    model.score([1, 2, 3])
    model.embed([[1, 2]])
    assert model.net.training
    assert model.net.blocks[1].training
    assert not model.net.blocks[0].training
