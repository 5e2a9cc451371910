"""The logit lens: a layer's answer is that of a model that ends there."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings

import clearhead as ch
from clearhead import config as c
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.lens.logit_lens import RESIDUAL_STREAMS, apply_head
from clearhead.model.transformer import build_transformer
from strategies import models


@given(models())
@settings(max_examples=40)
def test_each_row_is_the_answer_of_a_model_that_ends_after_that_layer(m):
    assume(not isinstance(m.head, c.NoHead))
    net = build_transformer(m, seed=1).eval()
    watch = Recorder(RESIDUAL_STREAMS)
    x = ModelUnderTest(net).random_inputs()
    with torch.no_grad():
        net(**x, hooks=watch)
        ids, shares = apply_head(net, watch.values, None, top=10**6)
        assert ids.shape[:2] == (3, m.n_layers + 1)
        for layers in range(1, m.n_layers + 1):
            short = build_transformer(replace(m, n_layers=layers))
            state = net.state_dict()
            sizes = {
                name: tuple(map(slice, value.shape)) for name, value in short.state_dict().items()
            }
            short.load_state_dict(
                {name: state[name][size] for name, size in sizes.items()}
            )  # some tables have layers
            logits = short.eval().compute_logits(short(**x)).float()
            want = logits if isinstance(m.head, c.RegressionHead) else logits.softmax(dim=-1)
            want = want if want.dim() == 3 else want[:, None]
            torch.testing.assert_close(
                shares[:, layers], want.gather(-1, ids[:, layers]), atol=1e-5, rtol=1e-4
            )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("tiny-decoder", {"x": [3, 1, 4, 1, 5]}),
        ("tiny-encoder", {"x": [3, 1, 4, 1, 5]}),
        ("tiny-encoder-decoder", {"x": [3, 1, 4], "source": [2, 7, 1, 8]}),
        ("tiny-pictures", {"pictures": torch.rand(1, 8, 8)}),
    ],
)
def test_the_last_row_is_what_the_model_itself_answers(name, given):
    model = ch.new(name, seed=3)
    lens = ch.lens.logit_lens(model, **given, top=3)
    want = model.logits(**given).softmax(dim=-1).reshape(lens.ids.shape[1], -1).topk(3)
    assert torch.equal(lens.ids[-1], want.indices)
    torch.testing.assert_close(lens.probabilities[-1], want.values)
    assert lens.top_predictions()[-1][0] == (
        str(int(want.indices[-1, 0])),
        pytest.approx(float(want.values[-1, 0])),
    )
    assert (
        f"{lens.top_predictions(0)[0][0][0]} {lens.top_predictions(0)[0][0][1]:.2f}"
        in str(lens).splitlines()[2]
    )


def test_classes_go_by_their_names():
    model = ch.new("tiny-pictures", **{"use.labels": [f"class {i}" for i in range(10)]})
    assert (
        ch.lens.logit_lens(model, pictures=torch.rand(1, 8, 8))
        .top_predictions()[0][0][0]
        .startswith("class ")
    )


def test_what_the_lens_cannot_show_is_told():
    with pytest.raises(ch.ClearheadError, match="one text at a time, not at 2"):
        ch.lens.logit_lens(ch.new("tiny-decoder"), [[1, 2], [3, 4]])
    with pytest.raises(ch.ClearheadError, match="no head"):
        ch.lens.logit_lens(ch.new("tiny-encoder", head="none"), [1, 2])
    with pytest.raises(ch.ClearheadError, match="top = 0 must be at least 1"):
        ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2], top=0)
    with pytest.raises(ch.ClearheadError, match="there is no token 2; the text has tokens 0 to 1"):
        ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2]).top_predictions(2)


def test_an_encoder_answers_at_a_token_and_first_at_a_hidden_one():
    lens = ch.lens.logit_lens(ch.new("tiny-encoder", seed=3, inference__mask_token=[9]), [3, 9, 4])
    assert lens.final_predictions().title == "likeliest answers at '9'"
    assert lens.top_predictions() == lens.top_predictions(1) != lens.top_predictions(2)
    assert (
        ch.lens.logit_lens(ch.new("tiny-decoder"), [3, 9, 4]).final_predictions().title
        == "likeliest answers after '4'"
    )
    pictured = ch.lens.logit_lens(ch.new("tiny-pictures"), pictures=torch.rand(1, 8, 8))
    assert pictured.final_predictions().title == "likeliest answers"


@pytest.mark.parametrize("name", ["blocks.0.attn.z", "norm", "logits"])
def test_edits_reach_the_rows_and_the_last_is_still_the_models_own_answer(name):
    model = ch.new("tiny-decoder", seed=3)
    edits = {name: ch.scale(3.0)}
    lens, plain = (ch.lens.logit_lens(model, [1, 2], top=3, edits=given) for given in (edits, None))
    best = model.logits([1, 2], edits=edits).softmax(dim=-1).topk(3)
    torch.testing.assert_close(lens.probabilities[-1], best.values)
    assert not torch.allclose(lens.probabilities[1], plain.probabilities[1])


def test_a_number_is_not_called_a_probability():
    model = ch.new("tiny-encoder", seed=3, head="regression")
    lens = ch.lens.logit_lens(model, [1, 2])
    assert repr(lens) == "<logit lens: number, 3 layer × 1 token>"
    assert "probability" not in str(lens)
    assert lens.final_predictions().table() == [
        {"answer": "number", "number": pytest.approx(float(model.logits([1, 2])))}
    ]


def test_the_picture_of_a_lens_has_the_first_answer_of_each_layer_and_position():
    lens = ch.lens.logit_lens(ch.new("tiny-decoder"), [1, 2])
    assert repr(lens) == "<logit lens: probability, 3 layer × 2 token>"
    assert str(lens) == str(lens.terminal())
    for position in (0, 1):
        firsts = [best[0] for best in lens.top_predictions(position)]
        assert [(row["word"], row["probability"]) for row in lens.table()[position::2]] == firsts
