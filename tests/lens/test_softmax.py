"""Softmax of typed and of a model's logits, against torch.softmax and math.exp."""

import math

import pytest
import torch

import clearhead as ch

LECTURE = [6.0, -5.0, 4.0, 1.5, 9.9]


@pytest.fixture(scope="module")
def decoder():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes(), seed=3)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.0, 10.0])
def test_columns_follow_the_equation(temperature):
    table = ch.lens.softmax(LECTURE, [temperature])
    powers = [math.exp(logit / temperature) for logit in LECTURE]
    expected = [power / sum(powers) for power in powers]
    assert table.probabilities[0].tolist() == pytest.approx(expected, rel=1e-5)
    logit, scaled, exponential, probability = table.values.T
    assert logit.tolist() == pytest.approx(LECTURE)
    assert torch.allclose(scaled, logit / temperature)
    assert torch.allclose(exponential / exponential.sum(), probability)
    assert torch.allclose(exponential, (scaled - scaled.max()).exp())


def test_every_temperature_has_its_columns():
    table = ch.lens.softmax(torch.tensor(LECTURE), [1, 10])
    assert table.probabilities.shape == (2, 5)
    for row, temperature in zip(table.probabilities, (1, 10), strict=True):
        assert torch.allclose(row, torch.softmax(torch.tensor(LECTURE) / temperature, dim=0))
    row = table.table()[0]
    assert row["answer"] == "0"
    assert row["probability (T=10)"] == pytest.approx(float(table.probabilities[1, 0]))


def test_temperature_0_is_greedy_as_in_generation():
    table = ch.lens.softmax([1.0, 3.0, 3.0], [0])
    assert table.probabilities[0].tolist() == [0, 1, 0]


def test_large_and_masked_logits():
    table = ch.lens.softmax({"a": 1e30, "b": 1e30, "masked": -math.inf}, [1, 1e-30])
    assert table.probabilities.tolist() == [[0.5, 0.5, 0]] * 2
    assert table.words[2][0] == "−∞"


def test_the_logits_of_a_model(decoder):
    text = "the cat"
    row = decoder.logits(text)[-1]
    table = ch.lens.logits(decoder, text, temperatures=[1, 2], top_k=3)
    best = row.topk(3)
    assert torch.allclose(table.values[:, 0], best.values)
    for probabilities, temperature in zip(table.probabilities, (1, 2), strict=True):
        expected = torch.softmax(row / temperature, dim=0)[best.indices]
        assert torch.allclose(probabilities, expected, atol=1e-6)
    assert "after 't'" in table.title
    assert "after 'h'" in ch.lens.logits(decoder, text, position=1).title


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ch.lens.softmax([]), "at least one finite"),
        (lambda: ch.lens.softmax([-math.inf]), "at least one finite"),
        (lambda: ch.lens.softmax([1.0, math.nan]), "finite number"),
        (lambda: ch.lens.softmax([1.0, math.inf]), "finite number"),
        (lambda: ch.lens.softmax(["6"]), "finite number"),
        (lambda: ch.lens.softmax("6 5"), "list of numbers"),
        (lambda: ch.lens.softmax([1.0], [-1]), "temperature"),
        (lambda: ch.lens.softmax([1.0], []), "temperatures"),
        (lambda: ch.lens.logits(ch.new("tiny-decoder", vocab_size=9), [1], top_k=0), "top_k"),
        (lambda: ch.lens.logits(ch.new("tiny-decoder", vocab_size=9, head="none"), [1]), "none"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=message):
        call()
