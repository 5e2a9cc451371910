"""Threads that share a model: cached engines and graphs serve one of them at a time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import clearhead as ch
from clearhead.generate import beam_search_cuda, engine
from clearhead.generate.beam_search import BeamRules, BeamSearch
from clearhead.generate.engine import BatchEngine


@pytest.fixture
def model(monkeypatch):
    """A model that caches its engine as on a GPU."""
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    monkeypatch.setattr(
        engine, "BatchEngine", lambda *args, use_cuda_graphs=False: BatchEngine(*args)
    )
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=2)


def streamed(model, seed):
    return "".join(piece.text for piece in model.stream("ab", 20, seed=seed))


@pytest.mark.slow
def test_two_threads_equal_one(model):
    alone = [streamed(model, seed) for seed in range(8)]
    begin = Barrier(2)

    def some(seeds):
        begin.wait()
        return [streamed(model, seed) for seed in seeds]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(some, (range(4), range(4, 8)))
    assert first + second == alone


def test_engine_is_reused_but_not_shared(model):
    streamed(model, 1)
    kept = model._engines.cached
    model.generate("ab", 20)
    with pytest.raises(ch.ClearheadError, match="suppress_tokens"):
        model.generate("ab", 20, suppress_tokens=tuple(range(256)))
    assert model._engines.cached is kept
    one, other = (model.stream("ab", 20, seed=seed) for seed in (1, 2))  # neither has started
    assert model._engines.cached is not kept
    assert "".join(piece.text for piece in one) == streamed(model, 1)
    assert "".join(piece.text for piece in other) == streamed(model, 2)


def test_a_graph_serves_one_search_at_a_time(monkeypatch):
    used = []
    begin = Barrier(2)

    class FakeGraph:
        def __init__(self, search):
            self.busy = False

        def run(self, search):
            assert not self.busy
            self.busy = True
            begin.wait(timeout=10)
            self.busy = False
            return used.append(self)

    monkeypatch.setattr(beam_search_cuda, "BeamSearchGraph", FakeGraph)
    monkeypatch.setattr(BeamSearch, "run", lambda search: begin.wait(timeout=10) and None)
    net = ch.new("tiny-decoder").net

    def search(length=1):
        rules = BeamRules(torch.device("cpu"), num_beams=1, max_tokens=4)
        return beam_search_cuda.run_with_graphs(
            BeamSearch(net, rules, [[1] * length], [[]], None, None, return_tree=False)
        )

    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            for done in [threads.submit(search), threads.submit(search)]:
                done.result()
    kept = beam_search_cuda.GRAPH_CACHES[net]
    assert [*kept.values()] == used[-1:]
    begin = Barrier(1)
    for length in range(2, 2 + beam_search_cuda.MAX_GRAPHS):
        search(length)
    assert len(kept) == beam_search_cuda.MAX_GRAPHS
    assert used[-1] not in kept.values()
