"""What is written does not depend on who else writes, nor on when one joins or leaves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.config import Use
from clearhead.generate.engine import Engine, Request
from clearhead.generate.sampling import Draw, Sampling, key_of

NETS = {name: ch.new(name, seed=1).net for name in ("tiny-decoder", "tiny-llama")}
NETS["alibi"] = ch.new("tiny-decoder", position="alibi", attention__kv_heads=2).net
options = st.builds(
    Sampling,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 5),
)
wishes = st.lists(st.tuples(st.lists(st.integers(0, 63), min_size=1, max_size=8), options), min_size=1, max_size=5)


def written(net, wanted, slots, late=0):
    """The tokens of each; the last `late` of them are asked for only after two steps."""
    engine = Engine(net, Use(stop=(7,)), slots, 32)
    requests = [Request(list(prompt), sampling) for prompt, sampling in wanted]
    early = len(requests) - late
    for request in requests[:early]:
        engine.add(request)
    engine.step(), engine.step()
    for request in requests[early:]:
        engine.add(request)
    while engine.step():
        pass
    return [[chosen.token for chosen in request.written] for request in requests]


def spelled(net, prompt, sampling):
    """The same without cache, slots or batch: the definition."""
    ids, out = list(prompt), []
    draw = Draw([sampling], [key_of(sampling.seed)], torch.device("cpu"))
    while len(out) < sampling.max_tokens and 7 not in out:
        with torch.no_grad():
            logits = net.predict(net(torch.tensor([ids])))[:, -1]
        read, wrote = (torch.bincount(torch.tensor(x, dtype=torch.long), minlength=64)[None] for x in (prompt, out))
        out.append(int(draw(logits, torch.tensor([[len(out)]]), read, wrote)))
        ids.append(out[-1])
    return out


@given(wishes, st.integers(1, 4), st.integers(0, 3), st.sampled_from(sorted(NETS)))
@settings(max_examples=40, deadline=None)
def test_slots_arrival_and_company_change_nothing(wanted, slots, late, name):
    net = NETS[name]
    assert written(net, wanted, slots, min(late, len(wanted))) == [spelled(net, *wish) for wish in wanted]


def test_one_who_is_told_to_end_frees_its_slot():
    engine = Engine(NETS["tiny-llama"], Use(), 1, 32)
    first, second = (Request([1, 2], Sampling(max_tokens=20)) for _ in range(2))
    engine.add(first)
    engine.add(second)
    engine.step()
    first.end("stop")
    assert engine.step() == [second]
    assert (len(first.written), first.reason) == (1, "stop")


def test_log_probabilities_are_the_models_own():
    model = ch.new("tiny-llama", seed=3)
    made = model.generate([1, 2, 3], 6, temperature=2.0, top_k=4, seed=1, logprobs=3)
    expected = model.logits([1, 2, 3, *made.tokens]).log_softmax(-1)
    for place, chosen in enumerate(made.chosen):
        row = expected[2 + place]
        assert chosen.logprob == pytest.approx(float(row[chosen.token]), abs=1e-5)
        best = row.topk(3)
        assert [token for token, _ in chosen.top] == best.indices.tolist()
        assert [value for _, value in chosen.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_bias_bans_and_what_is_forced():
    model = ch.new("tiny-llama", seed=3)
    assert set(model.generate([1], 8, bias={5: 100.0}).tokens) == {5}
    free = model.generate([1], 12, seed=2).tokens
    assert not set(free) & set(model.generate([1], 12, seed=2, banned=tuple(set(free))).tokens)
    assert model.generate([1], 5, forced=(9, 8)).tokens[:2] == [9, 8]


def test_a_stop_text_ends_it_and_is_not_shown():
    model = ch.new("tiny-decoder", vocabulary=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    whole = model.generate("ab", 20, seed=4, temperature=3.0)
    stop = whole.text[6:8]
    cut = model.generate("ab", 20, seed=4, temperature=3.0, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def test_streamed_pieces_are_the_texts_of_the_batch():
    model = ch.new("tiny-decoder", vocabulary=256, tokenizer=ch.Tokenizer.bytes(), seed=2)
    prompts = ["ab", "c", "déjà"]
    whole = model.generate(prompts, 10, seed=4, n=2)
    texts = [""] * 6
    for piece in model.generate(prompts, 10, seed=4, n=2, stream=True):
        texts[piece.index] += piece.text
    assert texts == [made.text for group in whole for made in group]
    assert whole[1][0].text == model.generate("c", 10, seed=4).text
    assert whole[0][0].text != whole[0][1].text


def test_logits_that_are_no_numbers_stop_it_and_say_where():
    model = ch.new("tiny-decoder")
    with torch.no_grad():
        model.net.embed.tokens.weight[5] = torch.nan
    with pytest.raises(ch.ClearheadError, match="the logits of token 1 hold no numbers"):
        model.generate([1, 2], 3)
