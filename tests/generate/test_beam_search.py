"""Beam search equals an exhaustive ranking and Hugging Face transformers."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from beams import beam_search
from clearhead.config.model import Attention, Learned, Rotary, Shaw
from clearhead.errors import ClearheadError
from clearhead.generate import beam_search_cuda
from clearhead.model.transformer import build_transformer
from strategies import POSITIONS

PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11], [12, 13]]


def sharp(m, seed=0):
    """A network with peaked distributions in fp64, so that rounding never decides between texts."""
    net = build_transformer(m, seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return net


def tiny(name="tiny-decoder", seed=0, **changes):
    return sharp(
        ch.presets[name].replace(**{"vocab_size": 29, "context_length": 24, **changes}).model, seed
    )


def pick_eos_tokens(net, count, **given):
    """EOS tokens that the network generates at different steps, so texts differ in length."""
    free = beam_search(net, **{"prompt": PROMPTS, **given}, num_beams=4, n_best=4, max_tokens=10)
    return tuple({free[i % len(free)][i].tokens[2 + i] for i in range(count)})


def test_kernel_supports_schemes_that_depend_on_positions_only(monkeypatch):
    monkeypatch.setattr(beam_search_cuda, "TRITON_AVAILABLE", True)
    for position, is_supported in (
        (Rotary(), True),
        (Learned(), True),
        (Shaw(), False),
        (object(), False),
    ):
        assert (
            beam_search_cuda.supports_kv_owner(
                SimpleNamespace(position=position, attention=Attention())
            )
            is is_supported
        )


def tokens(found):
    return [[h.tokens for h in sentence] for sentence in found]


@torch.no_grad()
def full_pass_logprobs(net, prompt, written, **source):
    """Log-probabilities at each output token, from one pass over the whole text."""
    logits = net.compute_logits(net(torch.tensor([prompt + written]), **source))
    return logits.log_softmax(-1)[0, len(prompt) - 1 : -1]


# ---------------------------------------------------------------- transformers
def peer(seed):
    pytest.importorskip("transformers")
    from peers import HuggingFace

    net = tiny("gpt2-124m", seed, d_model=24, n_layers=2, attention__n_heads=3)
    theirs = HuggingFace(net).double().eval().model

    def generate(stop, n_best, **options):
        longest = max(map(len, PROMPTS))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS])
        real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS])
        rows = theirs.generate(
            ids,
            attention_mask=real,
            do_sample=False,
            max_new_tokens=10,
            eos_token_id=list(stop),
            pad_token_id=0,
            num_return_sequences=n_best,
            use_cache=True,
            **options,
        )[:, longest:].tolist()
        ends = ([i + 1 for i, token in enumerate(row) if token in stop] for row in rows)
        cut = [row[: end[0]] if end else row for row, end in zip(rows, ends, strict=True)]
        return [cut[i : i + n_best] for i in range(0, len(cut), n_best)]

    return net, generate


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_beam_search_equals_transformers(seed):
    net, generate = peer(seed)
    stop = pick_eos_tokens(net, 1 + seed % 3)
    lengths = set()
    for beams, length_penalty, early in itertools.product(
        range(2, 6), (0.0, 0.5, 1.0, 2.0), (False, True)
    ):
        n_best = 1 + (beams + seed) % beams
        ours = beam_search(
            net,
            PROMPTS,
            num_beams=beams,
            max_tokens=10,
            eos_tokens=stop,
            length_penalty=length_penalty,
            n_best=n_best,
            early_stopping=early,
        )
        theirs = generate(
            stop, n_best, num_beams=beams, length_penalty=length_penalty, early_stopping=early
        )
        assert tokens(ours) == theirs
        lengths |= {len(h.tokens) for found in ours for h in found}
    assert len(lengths) > 3


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_equals_greedy_decoding_in_transformers(seed):
    net, generate = peer(seed)
    stop = pick_eos_tokens(net, 2)
    for length_penalty in (0.0, 1.0, 2.0):
        ours = beam_search(
            net, PROMPTS, num_beams=1, max_tokens=10, eos_tokens=stop, length_penalty=length_penalty
        )
        assert tokens(ours) == generate(stop, 1)


@pytest.mark.parametrize("beams", [1, 3])
def test_suppressed_tokens_equal_transformers(beams):
    net, generate = peer(0)
    stop = pick_eos_tokens(net, 2)
    free = [h.tokens for [h] in beam_search(net, PROMPTS, num_beams=beams, max_tokens=10)]
    never = (free[0][0], free[1][1])
    never_first = (free[1][0], free[2][0], free[3][0])
    ours = beam_search(
        net,
        PROMPTS,
        num_beams=beams,
        max_tokens=10,
        eos_tokens=stop,
        suppress_tokens=never,
        begin_suppress_tokens=never_first,
        vocab_size=25,
    )
    suppressed = {
        "suppress_tokens": [*never, *range(25, 29)],
        "begin_suppress_tokens": list(never_first),
    }
    assert tokens(ours) == generate(stop, 1, num_beams=beams, **suppressed)
    written = [h.tokens for found in ours for h in found]
    assert not {token for text in written for token in text} & {*never, *range(25, 29)}
    assert not {text[0] for text in written} & set(never_first)
    assert {token for text in written for token in text[1:]} & set(never_first)


# ---------------------------------------------------------------- every text there is
def every_text(vocabulary, stop, length):
    """Every possible output: up to EOS or the maximum length."""
    for n in range(1, length + 1):
        for text in itertools.product(range(vocabulary), repeat=n):
            if stop not in text[:-1] and (n == length or text[-1] == stop):
                yield list(text)


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-llama", "tiny-encoder-decoder"])
def test_enough_beams_find_an_exhaustive_ranking(name):
    net = tiny(name, vocab_size=4)
    more = {"source": torch.tensor([[3, 1, 2]])} if net.encoder is not None else {}
    texts = list(every_text(4, stop=0, length=4))
    logprobs = [
        float(full_pass_logprobs(net, [2, 1], text, **more)[range(len(text)), text].sum())
        for text in texts
    ]
    for length_penalty in (0.0, 1.0, 2.0):
        best = sorted(
            zip(texts, logprobs, strict=True),
            key=lambda found: -found[1] / len(found[0]) ** length_penalty,
        )
        options = {"max_tokens": 4, "eos_tokens": (0,), "length_penalty": length_penalty, **more}
        [found] = beam_search(net, [[2, 1]], num_beams=128, n_best=128, **options)
        assert [h.tokens for h in found] == [text for text, _ in best]
        assert [h.logprob for h in found] == pytest.approx(
            [logprob for _, logprob in best], abs=1e-4
        )
        for beams in (1, 2, 5):
            [[fewer]] = beam_search(net, [[2, 1]], num_beams=beams, **options)
            assert fewer.score <= found[0].score + 1e-6


# ---------------------------------------------------------------- laws
TEXT = st.lists(st.integers(3, 28), min_size=1, max_size=6)
SEARCHES = {
    "name": st.sampled_from(["tiny-decoder", "tiny-llama", "tiny-encoder-decoder"]),
    "position": st.sampled_from(POSITIONS),
    "window": st.sampled_from([0, 0, 3]),
    "seed": st.integers(0, 9),
    "pairs": st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=4),
    "stops": st.integers(0, 3),
    "options": st.fixed_dictionaries(
        {
            "num_beams": st.integers(1, 5),
            "length_penalty": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
            "early_stopping": st.booleans(),
            "max_tokens": st.just(8),
        }
    ),
}


@given(**SEARCHES)
@settings(max_examples=8)
def test_batched_searches_equal_single_ones(name, position, window, seed, pairs, stops, options):
    """Tokens, scores and log-probabilities of each prompt equal those of a search of its own."""
    m = ch.presets[name].replace(vocab_size=29, context_length=24, n_layers=1).model
    net = sharp(
        replace(m, position=position, attention=replace(m.attention, sliding_window=window)), seed
    )
    prompts = [prompt for prompt, _ in pairs]
    sources = [source for _, source in pairs]
    more = {}
    alone = [{}] * len(pairs)
    if net.encoder is not None:
        longest = max(map(len, sources))
        ids = torch.tensor([source + [0] * (longest - len(source)) for source in sources])
        more = {"source": ids, "source_segment_ids": (ids > 0).long()}
        alone = [{"source": torch.tensor([s])} for s in sources]
    stop = pick_eos_tokens(net, stops, prompt=prompts, **more)
    options |= {"eos_tokens": stop, "n_best": options["num_beams"]}
    together = beam_search(net, prompts, **more, **options)
    assert len(together) == len(prompts)
    for prompt, source, found in zip(prompts, alone, together, strict=True):
        [single] = beam_search(net, [prompt], **source, **options)
        assert [h.tokens for h in found] == [h.tokens for h in single]
        assert [h.score for h in found] == pytest.approx([h.score for h in single], abs=1e-5)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({tuple(h.tokens) for h in found}) == options["num_beams"]
        for h in found:
            chances = full_pass_logprobs(net, prompt, h.tokens, **source)
            picked = chances[range(len(h.tokens)), h.tokens]
            assert h.logprob == pytest.approx(float(picked.sum()), abs=1e-4)
            assert h.score == pytest.approx(h.logprob / len(h.tokens) ** options["length_penalty"])
            assert not set(h.tokens[:-1]) & set(stop)
            assert h.tokens[-1] in stop or len(h.tokens) == options["max_tokens"]
            if options["num_beams"] == 1:
                assert h.tokens == chances.argmax(-1).tolist()


def test_one_pass_per_step_and_one_source_encoding(monkeypatch):
    net = tiny("tiny-encoder-decoder")
    passes = []
    encodes = []
    forward = net.forward
    encode = net.encode
    monkeypatch.setattr(
        net, "forward", lambda ids, **more: passes.append(len(ids)) or forward(ids, **more)
    )
    monkeypatch.setattr(net, "encode", lambda *given: encodes.append(given) or encode(*given))
    beam_search(net, [[1]] * 3, source=torch.arange(12).view(3, 4), num_beams=5, max_tokens=6)
    assert passes == [3] + [15] * 5  # prompts are the same for all beams
    assert len(encodes) == 1


def test_finished_texts_leave_the_batch(monkeypatch):
    net = tiny()
    passes = []
    free = beam_search(net, PROMPTS, num_beams=1, max_tokens=10)
    stop = (free[0][0].tokens[2], free[1][0].tokens[5])
    found = beam_search(net, PROMPTS, num_beams=1, max_tokens=10, eos_tokens=stop)
    lengths = [len(h.tokens) for [h] in found]
    assert len(set(lengths)) > 1
    forward = net.forward
    monkeypatch.setattr(
        net, "forward", lambda ids, **more: passes.append(len(ids)) or forward(ids, **more)
    )
    beam_search(net, PROMPTS, num_beams=1, max_tokens=10, eos_tokens=stop)
    assert passes == [sum(length > step for length in lengths) for step in range(max(lengths))]


def test_a_text_may_fill_the_context():
    [[h]] = beam_search(
        tiny(context_length=8), [[1, 2, 3]], num_beams=2, max_tokens=6
    )  # the last token is never read
    assert len(h.tokens) == 6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [[1], []]}, "empty"),
        ({"max_tokens": 30}, "context"),
        ({"source": torch.tensor([[1], [2]])}, "one prompt per source"),
        ({"source": torch.tensor([[1]])}, "encoder"),
        ({"suppress_tokens": tuple(range(29))}, "no token to generate"),
        ({"suppress_tokens": tuple(range(9)), "vocab_size": 9}, "no token to generate"),
    ],
)
def test_invalid_searches_are_refused(change, sentence):
    with pytest.raises(ClearheadError, match=sentence):
        beam_search(tiny(), **{"prompt": [[1]], "num_beams": 3, "max_tokens": 4, **change})
