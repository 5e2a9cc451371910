"""Steering vectors: the mean difference of an activation over pairs of prompts."""

import re

import pytest
import torch

import clearhead as ch
from clearhead.hooks import Recorder
from clearhead.lens.edits import checked_edit

TEXT = "the cat"
NAME = "blocks.0.resid_post"


def make_model(preset="tiny-decoder"):
    return ch.new(preset, seed=3, vocab_size=256, tokenizer=ch.Tokenizer.bytes())


def test_vector_is_the_mean_difference_and_edits_add_it():
    model = make_model()
    steering = ch.lens.steering(model, [("good", "bad"), ("very nice", "ugly")], NAME)
    texts = ("good", "bad", "very nice", "ugly")
    good, bad, nice, ugly = (model.watch(text, NAME)[NAME][0, -1] for text in texts)
    expected = (good - bad + nice - ugly) / 2
    assert torch.allclose(steering.vector, expected, atol=1e-6)
    steered = model.watch(TEXT, NAME, edits=steering.edits(3.0))[NAME]
    assert torch.allclose(steered, model.watch(TEXT, NAME)[NAME] + 3 * expected, atol=1e-5)


def test_encoder_decoder_prompts_have_sources():
    model = make_model("tiny-encoder-decoder")
    name = "encoder.blocks.0.resid_post"
    good, bad = ({"x": "a", "source": source} for source in ("good", "bad"))
    steering = ch.lens.steering(model, [(good, bad)], name)
    ends = [model.watch(**prompt, names=name)[name][0, -1] for prompt in (good, bad)]
    assert torch.allclose(steering.vector, ends[0] - ends[1], atol=1e-6)


def test_steering_with_a_cache_equals_steering_without():
    model = make_model()
    edits = ch.lens.steering(model, [("good", "bad")], NAME).edits(2.0)
    ids = model.make_batch(TEXT).inputs
    recorder = Recorder(edits={NAME: checked_edit(edits[NAME])})
    with torch.no_grad():
        cache = model.net.init_cache(1, 7)
        chunks = (ids[:, :4], ids[:, 4:5], ids[:, 5:])
        steps = [model.net(chunk, cache=cache, hooks=recorder) for chunk in chunks]
    assert torch.allclose(torch.cat(steps, dim=1)[0], model.hidden(TEXT, edits=edits), atol=1e-5)


def test_repr_is_one_line():
    model = ch.new("tiny-decoder", seed=3)
    steering = ch.lens.steering(model, [([1, 2], [3, 4])], NAME)
    norm = float(steering.vector.norm())
    assert repr(steering) == f"<steering vector for {NAME}: 32 dimensions, norm {norm:.3g}>"


ERRORS = [
    (lambda m: ch.lens.steering(m, [], NAME), "pairs must be"),
    (lambda m: ch.lens.steering(m, [5], NAME), "pairs must be"),
    (lambda m: ch.lens.steering(m, ["ab"], NAME), "pairs must be"),
    (lambda m: ch.lens.steering(m, [("a", "b")], 5), "got int"),
    (lambda m: ch.lens.steering(m, [("a", "b")], "blocks.*.resid_post"), "matches 2 activations"),
    (lambda m: ch.lens.steering(m, [("a", "b")], "blocks.0.attn.z"), "one vector per token"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
