"""Measurements with controls: the page's numbers are those of the lens."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import clearhead as ch
from clearhead.serve.explorer.example_inputs import MOLE_SENSES
from clearhead.serve.explorer.routes import measurements
from page_models import byte_model
from page_site import page_client


@pytest.fixture(scope="module")
def model():
    return byte_model("tiny-encoder", context_length=128)


def test_heads_are_those_of_find_heads(model):
    expected = ch.lens.find_heads(model, "pronouns")
    with page_client({"m": model}) as client:
        found = client.get("/api/models/m/contrasts/pronouns").json()
        assert client.get("/api/models/m/contrasts/nonsense").status_code == 400
    assert [tuple(head) for head in found["heads"]] == list(expected.heads)
    assert found["num_pairs"] == expected.num_pairs
    assert found["has_clear_effect"] == expected.has_clear_effect


class FakeContext:
    """Cosines of 1 within a sense, and of `other` between senses."""

    def __init__(self, other):
        senses = [sense for sense, texts in MOLE_SENSES.items() for _ in texts]
        pairs = [(i, j) for j in range(len(senses)) for i in range(j)]
        cosines = [1.0 if senses[i] == senses[j] else other for i, j in pairs]
        self.values = torch.tensor([cosines])
        self.axes = (None, type("Axis", (), {"labels": [f"{i}·{j}" for i, j in pairs]}))


@pytest.mark.parametrize(("other", "is_clear"), [(0.5, True), (1.0, False), (1.5, False)])
def test_senses_are_compared_within_and_between(model, monkeypatch, other, is_clear):
    monkeypatch.setattr(measurements, "context", lambda *_: FakeContext(other))
    result = measurements.measure_senses(model)
    assert (result["same"], result["different"]) == pytest.approx((1, other))
    assert result["has_clear_effect"] is is_clear
    assert (result["num_correct"] == result["num_sentences"]) == is_clear


def test_same_measurement_is_made_once(model, monkeypatch):
    calls = []

    def measure(model):
        calls.append(model)
        if len(calls) == 1:
            raise ch.ClearheadError("no such word")
        time.sleep(0.05)
        return {"same": 1.0}

    monkeypatch.setattr(measurements, "measure_senses", measure)
    with page_client({"m": model}) as client, ThreadPoolExecutor(2) as pool:
        assert client.get("/api/models/m/senses").status_code == 400  # not kept
        for response in pool.map(client.get, 3 * ["/api/models/m/senses"]):
            assert response.json() == {"same": 1.0}
    assert len(calls) == 2
