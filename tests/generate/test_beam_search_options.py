"""Options of beam search: no_repeat_ngram_size, prefix, alternatives, return_tree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_beam_search import PROMPTS, full_pass_logprobs, peer, sharp, tiny, tokens

import clearhead as ch
from beams import beam_search
from clearhead.errors import ClearheadError
from clearhead.generate.beam_search import BeamRules, BeamSearch, blockwise_topk
from clearhead.generate.beam_search_texts import beam_alternatives

OPTIONS = {"num_beams": 3, "n_best": 3, "max_tokens": 8}
EVEN = [
    [3, 4, 5, 3],
    [6, 7, 8, 9],
    [11, 3, 11, 3],
    [12, 13, 12, 12],
]  # transformers counts padding as tokens


def ngrams(text, size):
    return [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]


# ---------------------------------------------------------------- no repeats
@pytest.mark.parametrize("seed", range(3))
def test_no_repeat_ngram_size_equals_transformers(seed, monkeypatch):
    monkeypatch.setattr("test_beam_search.PROMPTS", EVEN)
    net, generate = peer(seed)
    stop = (beam_search(net, EVEN, num_beams=1, max_tokens=6)[0][0].tokens[5],)
    changed = False
    for size in (1, 2, 3):
        for beams in (1, 2, 4):
            ours = beam_search(
                net,
                EVEN,
                num_beams=beams,
                n_best=beams,
                max_tokens=10,
                eos_tokens=stop,
                no_repeat_ngram_size=size,
            )
            assert tokens(ours) == generate(stop, beams, num_beams=beams, no_repeat_ngram_size=size)
            changed |= tokens(ours) != tokens(
                beam_search(
                    net, EVEN, num_beams=beams, n_best=beams, max_tokens=10, eos_tokens=stop
                )
            )
    assert changed


@given(size=st.integers(1, 4), beams=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=5)
def test_no_ngram_repeats_in_a_batch(size, beams, seed):
    net = tiny(seed=seed, n_layers=1, vocab_size=23)
    options = {"num_beams": beams, "max_tokens": 9, "no_repeat_ngram_size": size}
    prompts = [list(dict.fromkeys(prompt)) for prompt in PROMPTS]
    together = beam_search(net, prompts, **options)
    for prompt, found in zip(prompts, together, strict=True):
        assert tokens([found]) == tokens(beam_search(net, [prompt], **options))
        all_ngrams = ngrams(prompt + found[0].tokens, size)
        assert len(all_ngrams) == len(set(all_ngrams))


# ---------------------------------------------------------------- a beginning
@given(
    name=st.sampled_from(["tiny-decoder", "tiny-llama", "tiny-encoder-decoder"]),
    seed=st.integers(0, 9),
    begins=st.lists(st.lists(st.integers(3, 28), max_size=4), min_size=4, max_size=4),
    penalty=st.sampled_from([0.0, 1.0, 2.0]),
)
@settings(max_examples=5)
def test_prefix_equals_a_longer_prompt_and_counts_for_the_score(name, seed, begins, penalty):
    net = tiny(name, seed, n_layers=1)
    source = {"source": torch.arange(12).view(4, 3) + 3} if net.encoder is not None else {}
    found = beam_search(net, PROMPTS, prefix=begins, length_penalty=penalty, **source, **OPTIONS)
    for i, (prompt, begin, hypotheses) in enumerate(zip(PROMPTS, begins, found, strict=True)):
        one = {key: value[i : i + 1] for key, value in source.items()}
        bare = beam_search(net, [prompt + begin], length_penalty=penalty, **one, **OPTIONS)
        assert [begin + h.tokens for h in bare[0]] == [
            h.tokens for h in hypotheses
        ]  # no stop: all are as long
        for h in hypotheses:
            logprob = float(
                full_pass_logprobs(net, prompt, h.tokens, **one)[
                    range(len(h.tokens)), h.tokens
                ].sum()
            )
            assert h.logprob == pytest.approx(logprob, abs=1e-4)
            assert h.score == pytest.approx(logprob / len(h.tokens) ** penalty, abs=1e-4)


def test_begin_suppress_tokens_may_follow_a_prefix():
    net = tiny()
    first = beam_search(net, [[3, 4, 5]], num_beams=1, max_tokens=1)[0][0].tokens[0]
    [[h]] = beam_search(
        net, [[3, 4]], prefix=[[5]], num_beams=1, max_tokens=1, begin_suppress_tokens=(first,)
    )
    assert h.tokens == [5, first]


# ---------------------------------------------------------------- alternatives
@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder-decoder"])
@pytest.mark.parametrize("prefix", [[], [7, 8]])
def test_alternatives_differ_at_a_position(name, prefix):
    net = tiny(name, seed=2, n_layers=1, head__tie_embeddings=False)
    prompt = [6, 7]
    options = {"source": torch.tensor([[3, 4, 5]])} if net.encoder is not None else {}
    [[free]] = beam_search(net, [prompt], num_beams=3, max_tokens=8, prefix=[prefix], **options)
    likely = full_pass_logprobs(net, prompt, free.tokens, **options)[3].topk(6).indices.tolist()
    stop = next(token for token in likely if token not in free.tokens)
    search = {"num_beams": 3, "eos_tokens": (stop,), **options}
    [[best]] = beam_search(net, [prompt], max_tokens=8, prefix=[prefix], **search)
    rules = BeamRules(torch.device("cpu"), 3, 8, eos_tokens=(stop,))
    num_finished = 0
    for at in (0, *range(1, len(best.tokens), 2)):
        found = beam_alternatives(
            net,
            rules,
            prompt,
            position=at,
            n_best=6,
            prefix=prefix,
            source=options.get("source"),
        )
        chances = full_pass_logprobs(net, prompt, best.tokens[: at + 1], **options)[-1]
        assert [h.tokens[at] for h in found] == chances.topk(6).indices.tolist()
        for h in found:
            assert h.tokens[:at] == best.tokens[:at]
            assert h.tokens[-1] == stop or len(h.tokens) == len(prefix) + 8
            if h.tokens[at] == stop:
                num_finished += 1
            elif left := len(prefix) + 7 - at:
                [[again]] = beam_search(
                    net, [prompt], prefix=[h.tokens[: at + 1]], max_tokens=left, **search
                )
                assert again.tokens == h.tokens
    assert num_finished


# ---------------------------------------------------------------- the tree
@given(beams=st.integers(1, 4), stops=st.integers(0, 2), seed=st.integers(0, 9))
@settings(max_examples=5)
def test_tree_contains_all_hypotheses_and_steps(beams, stops, seed):
    net = tiny(seed=seed, n_layers=1)
    free = beam_search(net, PROMPTS, num_beams=2, max_tokens=8)
    stop = tuple({free[i][0].tokens[3] for i in range(stops)})
    options = {"num_beams": beams, "n_best": beams, "max_tokens": 8, "eos_tokens": stop}
    found = beam_search(net, PROMPTS, return_tree=True, **options)
    assert tokens(found) == tokens(beam_search(net, PROMPTS, **options))
    for prompt, hypotheses in zip(PROMPTS, found, strict=True):
        tree = hypotheses[0].tree
        finished = {
            tuple(tree.path_tokens(i)): node
            for i, node in enumerate(tree.nodes)
            if node.status == "finished"
        }
        for h in hypotheses:
            assert finished[tuple(h.tokens)].logprob == pytest.approx(h.logprob)
        parents = {node.parent for node in tree.nodes}
        for number, row in enumerate(tree.table()):
            assert (row["node"], row["step"]) == (number, len(tree.path_tokens(number)))
            assert row["status"] == "kept" or number not in parents
        for step in range(1, 9):
            assert sum(node.step == step and node.status == "kept" for node in tree.nodes) <= beams
        deep = max(range(len(tree.nodes)), key=lambda i: tree.nodes[i].step)
        chances = full_pass_logprobs(net, prompt, tree.path_tokens(deep))[
            range(tree.nodes[deep].step), tree.path_tokens(deep)
        ]
        assert tree.nodes[deep].logprob == pytest.approx(float(chances.sum()), abs=1e-4)


# ---------------------------------------------------------------- inside
@pytest.mark.parametrize("vocabulary", [29, 64 * 20, 64 * 20 + 1, 5000])
def test_blockwise_topk_equals_topk(vocabulary):
    chances = torch.randn(3, 2, vocabulary).round(decimals=2)
    values, places = blockwise_topk(chances, 7)
    assert torch.equal(values, chances.topk(7).values)
    assert torch.equal(chances.gather(-1, places), values)


def test_beams_share_one_source_cache(monkeypatch):
    net = tiny("tiny-encoder-decoder")
    caches = []
    init_cache = net.init_cache
    monkeypatch.setattr(
        net, "init_cache", lambda *sizes: caches.append(init_cache(*sizes)) or caches[-1]
    )
    beam_search(net, [[1]] * 3, source=torch.arange(12).view(3, 4), num_beams=5, max_tokens=6)
    [cache] = caches
    assert all(len(cross.keys_values[0]) == 3 for _, cross in cache.layers)
    assert len(cache.rows.lengths) == 15


def test_steps_keep_tensor_addresses():
    net = tiny()
    with torch.no_grad():
        search = BeamSearch(
            net,
            BeamRules(torch.device("cpu"), 3, 8),
            PROMPTS,
            [[]] * 4,
            None,
            None,
            return_tree=False,
        )
        values = [
            *vars(search.state).values(),
            search.cache.rows.lengths,
            search.cache.layers[0][0].keys,
        ]
        before = [value.data_ptr() for value in values]
        search.prefill()
        for _ in range(3):
            search.step()
        after = [
            *vars(search.state).values(),
            search.cache.rows.lengths,
            search.cache.layers[0][0].keys,
        ]
    assert [value.data_ptr() for value in after] == before


# ---------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"no_repeat_ngram_size": 1, "vocab_size": 3, "max_tokens": 5}, "no token to generate"),
        ({"prefix": [[1], [2]]}, "expected 1 prefixes"),
        ({"prefix": [[29]]}, "token 29"),
        ({"prefix": [[4, 5]], "eos_tokens": (5,)}, "EOS"),
        ({"prefix": [[4] * 22]}, "context"),
    ],
)
def test_invalid_options_are_refused(change, sentence):
    with pytest.raises(ClearheadError, match=sentence):
        beam_search(tiny(), **{"prompt": [[1]], "num_beams": 3, "max_tokens": 4, **change})


def test_invalid_alternative_positions_are_refused():
    rules = BeamRules(torch.device("cpu"), 3, 4)
    for at, sentence in (
        (-1, "alternatives must be"),
        (4, "4 tokens of the best text"),
    ):
        with pytest.raises(ClearheadError, match=sentence):
            beam_alternatives(tiny(), rules, [1], position=at, n_best=2, prefix=[])


def test_non_finite_weights_are_reported():
    net = sharp(ch.presets["tiny-decoder"].replace(vocab_size=29).model)
    with torch.no_grad():
        net.final_norm.scale.fill_(torch.nan) if hasattr(
            net.final_norm, "scale"
        ) else net.final_norm.weight.fill_(torch.nan)
    with pytest.raises(ClearheadError, match="NaN"):
        beam_search(net, [[1, 2]], num_beams=3, max_tokens=4, eos_tokens=(5,))
