"""Measurements with controls: the page's numbers are those of the lens."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead.lens.head_contrast import attention_to_words
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


def test_adjectives_are_measured_for_each_kind_of_control(model):
    pairs = ch.lens.read_contrast("adjectives")
    kinds = [control.attended for _, control in pairs]
    assert kinds[0::3][1:4] == ["dog cake", "house window", "water box"]
    assert kinds[1::3][1:4] == ["saw found", "ate slept", "played sat"]
    assert kinds[2::3][1:4] == ["soon suddenly", "never slowly", "again always"]
    *steps, result = measurements.measure_heads(model, "adjectives")
    assert steps == [None] * 5
    layer, head = result["heads"][0]
    assert [control["kind"] for control in result["by_control"]] == ["nouns", "verbs", "adverbs"]
    for i, control in enumerate(result["by_control"]):
        held_out = pairs[i::3][-(6 if i == 1 else 7) :]
        weights = attention_to_words(model, [example for pair in held_out for example in pair])
        effect, other = weights[:, layer, head].unflatten(0, (-1, 2)).mean(dim=0).tolist()
        found = control["statistics"]
        assert found[:3] == pytest.approx([effect, other, effect - other], abs=1e-5)
        assert found[3] <= found[2] <= found[4]
    *_, result = measurements.measure_heads(model, "it")
    assert result["by_control"] == []


def test_senses_are_measured_with_controls(model):
    *_, result = measurements.measure_senses(model)
    senses = [sense for sense, texts in MOLE_SENSES.items() for _ in texts]
    texts = [text for texts in MOLE_SENSES.values() for text in texts]
    assert [control["word"] for control in result["controls"]] == ["thing", "table", "one"]
    for word in (result, *result["controls"]):
        sentences = [text.replace("mole", word["word"]) for text in texts]
        expected = ch.context(model, word["word"], sentences).by_sense(senses).values[-1]
        assert word["statistics"] == pytest.approx(expected.tolist(), abs=1e-5)
    for control in result["controls"]:
        *means, low, high = control["excess"]
        differences = [
            a - b for a, b in zip(result["statistics"], control["statistics"], strict=True)
        ][:3]
        assert means == pytest.approx(differences, abs=1e-5)
        assert low < means[2] < high


def test_mole_exceeds_words_that_do_not_change_with_the_sense(model, monkeypatch):
    """Planted vectors: the interval is above 0 if only "mole" differs between its senses."""
    by_sense = torch.eye(18)[[0] * 6 + [1] * 6 + [2] * 6]

    def planted(model, word, sentences):
        seed = torch.manual_seed(len(word))
        vectors = torch.randn(18, 18, generator=seed) / 9 + by_sense * (word in planted.separate)
        cosines = torch.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
        view = ch.context(model, word, sentences)
        return replace(view, values=cosines[*torch.triu_indices(18, 18, 1)].expand(3, -1))

    monkeypatch.setattr(measurements, "context", planted)
    for planted.separate, exceeds in ((["mole"], True), (["mole", "thing", "table", "one"], False)):
        *_, result = measurements.measure_senses(model)
        assert result["statistics"][3] > 0
        assert all((control["excess"][3] > 0) == exceeds for control in result["controls"])


def test_same_measurement_is_made_once(model, monkeypatch):
    calls = []

    def measure(model):
        calls.append(model)
        if len(calls) == 1:
            raise ch.ClearheadError("no such word")
        time.sleep(0.05)
        yield None
        yield {"same": 1.0}

    monkeypatch.setattr(measurements, "measure_senses", measure)
    with page_client({"m": model}) as client, ThreadPoolExecutor(2) as pool:
        assert client.get("/api/models/m/senses").status_code == 400  # not kept
        for response in pool.map(client.get, 3 * ["/api/models/m/senses"]):
            assert response.json() == {"same": 1.0}
    assert len(calls) == 2
