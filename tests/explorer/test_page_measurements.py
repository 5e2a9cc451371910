"""Measurements with controls: the page's numbers are those of the lens."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

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


def test_senses_are_measured_with_a_control(model):
    result = measurements.measure_senses(model)
    senses = [sense for sense, texts in MOLE_SENSES.items() for _ in texts]
    texts = [text for texts in MOLE_SENSES.values() for text in texts]
    assert [word["word"] for word in result["words"]] == ["mole", "thing"]
    for word in result["words"]:
        sentences = [text.replace("mole", word["word"]) for text in texts]
        expected = ch.context(model, word["word"], sentences).by_sense(senses).values[-1]
        assert word["statistics"] == pytest.approx(expected.tolist(), abs=1e-5)


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
