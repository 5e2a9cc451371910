"""Logit lens: the prediction of a layer is that of a model that ends there."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given

import clearhead as ch
from clearhead import config as c
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.lens.logit_lens import RESIDUAL_STREAMS, apply_head
from clearhead.model.transformer import build_transformer
from strategies import examples, models

IMAGE = torch.rand(1, 8, 8)


@given(models())
@examples(40)
def test_each_row_is_the_prediction_of_a_shorter_model(m):
    assume(not isinstance(m.head, c.NoHead))
    net = build_transformer(m, seed=1).eval()
    recorder = Recorder(RESIDUAL_STREAMS)
    inputs = ModelUnderTest(net).random_inputs()
    with torch.no_grad():
        net(**inputs, hooks=recorder)
        ids, probabilities = apply_head(net, recorder.values, None, top_k=10**6)
        assert ids.shape[:2] == (3, m.n_layers + 1)
        for n_layers in range(1, m.n_layers + 1):
            shorter = build_transformer(replace(m, n_layers=n_layers)).eval()
            state = {
                name: net.state_dict()[name][
                    tuple(map(slice, value.shape))
                ]  # some have a layer axis
                for name, value in shorter.state_dict().items()
            }
            shorter.load_state_dict(state)
            logits = shorter.compute_logits(shorter(**inputs)).float()
            is_regression = isinstance(m.head, c.RegressionHead)
            expected = logits if is_regression else logits.softmax(dim=-1)
            if expected.dim() == 2:
                expected = expected[:, None]
            expected = expected.gather(-1, ids[:, n_layers])
            torch.testing.assert_close(probabilities[:, n_layers], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("preset", "inputs"),
    [
        ("tiny-decoder", {"x": [3, 1, 4, 1, 5]}),
        ("tiny-encoder", {"x": [3, 1, 4, 1, 5]}),
        ("tiny-encoder-decoder", {"x": [3, 1, 4], "source": [2, 7, 1, 8]}),
        ("tiny-images", {"images": IMAGE}),
    ],
)
def test_the_last_row_is_the_models_own_prediction(preset, inputs):
    model = ch.new(preset, seed=3)
    lens = ch.lens.logit_lens(model, **inputs, top_k=3)
    best = model.logits(**inputs).softmax(dim=-1).reshape(lens.ids.shape[1], -1).topk(3)
    assert torch.equal(lens.ids[-1], best.indices)
    torch.testing.assert_close(lens.probabilities[-1], best.values)
    label, probability = lens.top_predictions()[-1][0]
    assert label == str(int(best.indices[-1, 0]))
    assert probability == pytest.approx(float(best.values[-1, 0]))
    label, probability = lens.top_predictions(0)[0][0]
    assert f"{label} {probability:.2f}" in str(lens).splitlines()[2]


def test_classes_have_names():
    model = ch.new("tiny-images", inference__labels=[f"class {i}" for i in range(10)])
    lens = ch.lens.logit_lens(model, images=IMAGE)
    assert lens.top_predictions()[0][0][0].startswith("class ")


def test_masked_language_model_predicts_at_the_mask():
    model = ch.new("tiny-encoder", seed=3, inference__mask_token=[9])
    lens = ch.lens.logit_lens(model, [3, 9, 4])
    assert lens.final_predictions().title == "top predictions at '9'"
    assert lens.top_predictions() == lens.top_predictions(1) != lens.top_predictions(2)


def test_title_names_the_token_before_a_prediction():
    lens = ch.lens.logit_lens(ch.new("tiny-decoder"), [3, 9, 4])
    assert lens.final_predictions().title == "top predictions after '4'"
    lens = ch.lens.logit_lens(ch.new("tiny-images"), images=IMAGE)
    assert lens.final_predictions().title == "top predictions"


@pytest.mark.parametrize("name", ["blocks.0.attn.z", "final_norm", "logits"])
def test_edits_reach_all_rows(name):
    model = ch.new("tiny-decoder", seed=3)
    edits = {name: ch.scale(3.0)}
    edited = ch.lens.logit_lens(model, [1, 2], top_k=3, edits=edits)
    original = ch.lens.logit_lens(model, [1, 2], top_k=3)
    best = model.logits([1, 2], edits=edits).softmax(dim=-1).topk(3)
    torch.testing.assert_close(edited.probabilities[-1], best.values)
    assert not torch.allclose(edited.probabilities[1], original.probabilities[1])


def test_regression_output_is_not_a_probability():
    model = ch.new("tiny-encoder", seed=3, head="regression")
    lens = ch.lens.logit_lens(model, [1, 2])
    assert repr(lens) == "<logit lens: number, 3 layer × 1 token>"
    assert "probability" not in str(lens)
    prediction = pytest.approx(float(model.logits([1, 2])))
    assert lens.final_predictions().table() == [{"answer": "number", "number": prediction}]


def test_view_has_the_top_prediction_of_each_layer_and_position():
    lens = ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2])
    assert repr(lens) == "<logit lens: probability, 3 layer × 2 token>"
    assert str(lens) == str(lens.terminal())
    for position in (0, 1):
        best = [predictions[0] for predictions in lens.top_predictions(position)]
        rows = lens.table()[position::2]
        assert [(row["word"], row["probability"]) for row in rows] == best


ERRORS = [
    (lambda: ch.lens.logit_lens(ch.new("tiny-decoder"), [[1, 2], [3, 4]]), "one text at a time"),
    (lambda: ch.lens.logit_lens(ch.new("tiny-encoder", head="none"), [1, 2]), "no head"),
    (lambda: ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2], top_k=0), "top_k must be"),
    (lambda: ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2]).top_predictions(2), "no token 2"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=message):
        call()
