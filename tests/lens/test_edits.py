"""Edits: ablate, scale, replace and functions, at every name, with and without a cache."""

import re

import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.model.transformer import build_transformer
from strategies import examples, models

IDS = [3, 1, 4, 1, 5, 9]
OTHER_IDS = [2, 7, 1, 8, 2, 8]
TEXTS = [IDS, [2, 7]]  # one is padded
NAMES = ["blocks.0.resid_post", "blocks.0.attn.z", "blocks.1.attn.k", "pos_embed"]
ENCODER_DECODER_NAMES = [
    *NAMES,
    "encoder.blocks.0.resid_post",
    "encoder.blocks.1.attn.z",
    "blocks.1.cross_attn.v",
    "blocks.0.cross_attn.q",
]


def make_model(preset="tiny-decoder", **changes):
    return ch.new(preset, seed=3, **changes)


@given(models())
@examples(40)
def test_identity_edit_of_all_names_changes_nothing(m):
    net = build_transformer(m).eval()
    inputs = ModelUnderTest(net).random_inputs()
    recorder = Recorder(edits={"**": lambda value, name: value.clone()})
    with torch.no_grad():
        assert torch.allclose(net(**inputs, hooks=recorder), net(**inputs), atol=2e-4, rtol=1e-3)


EDITABLE = [
    "full_embed",
    "blocks.0.resid_pre",
    "blocks.0.resid_mid",
    "blocks.1.resid_post",
    "blocks.0.attn.q",
    "blocks.0.attn.rot_k",
    "blocks.0.attn.v",
    "blocks.0.attn.scores",
    "blocks.0.attn.pattern",
    "blocks.0.attn.z",
    "blocks.0.attn.out",
    "blocks.0.ffn.up",
    "blocks.0.ffn.post",
    "blocks.0.ffn.out",
    "final_norm",
    "logits",
]


@pytest.mark.parametrize("name", EDITABLE)
def test_edit_changes_the_logits(name):
    def edit(value):
        return value * torch.linspace(0.2, 3, value.shape[-1])

    edited = make_model().logits(IDS, edits={name: edit})
    assert not torch.allclose(edited, make_model().logits(IDS), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["encoder.blocks.0.attn.z", "blocks.1.cross_attn.pattern", "blocks.0.cross_attn.out"]
)
def test_edit_changes_the_logits_of_an_encoder_decoder(name):
    model = make_model("tiny-encoder-decoder")
    edited = model.logits(IDS, source=IDS[::-1], edits={name: ch.scale(3.0)})
    assert not torch.allclose(edited, model.logits(IDS, source=IDS[::-1]), atol=1e-4)


def test_edits_with_a_cache_equal_edits_without():
    net = make_model().net
    ids = torch.tensor([IDS])
    edits = {"blocks.0.attn.z": ch.ablate(head=1), "blocks.1.attn.scores": lambda v, name: v * 2}
    with torch.no_grad():
        full = net(ids, hooks=Recorder(edits=edits))
        cache = net.init_cache(1, 6)
        steps = [net(ids[:, i : i + 1], cache=cache, hooks=Recorder(edits=edits)) for i in range(6)]
        recorder = Recorder(["blocks.0.attn.pattern"])
        cache = net.init_cache(1, 6)
        net(ids[:, :5], cache=cache)
        net(ids[:, 5:], cache=cache, hooks=recorder)
    assert torch.allclose(torch.cat(steps, 1), full, atol=1e-5)
    pattern = make_model().watch(IDS, ["blocks.0.attn.pattern"])["blocks.0.attn.pattern"]
    assert torch.allclose(recorder.values["blocks.0.attn.pattern"], pattern[:, :, -1:], atol=1e-6)


def test_ablated_head_equals_zeros_in_its_output_matrix():
    model = make_model()
    zeroed = make_model()
    with torch.no_grad():
        zeroed.net.blocks[1].attn.out.weight[:, 8:16] = 0  # head 1 of width 8
    ablated = model.logits(IDS, edits={"blocks.1.attn.z": ch.ablate(head=1)})
    assert torch.allclose(ablated, zeroed.logits(IDS), atol=1e-6)


def test_replacing_the_residual_stream_gives_the_other_run():
    other = make_model().watch(OTHER_IDS, ["blocks.0.resid_post", "logits"])
    patched = make_model().logits(IDS, edits={"blocks.0.resid_post": ch.replace(with_=other)})
    assert torch.allclose(patched, other["logits"][0], atol=1e-6)


def test_replacing_one_position_does_not_change_earlier_ones():
    other = make_model().watch(OTHER_IDS, ["blocks.0.resid_post"])
    edits = {"blocks.0.resid_post": ch.replace(with_=other, position=-2)}
    patched = make_model().logits(IDS, edits=edits)
    logits = make_model().logits(IDS)
    assert torch.equal(patched[:4], logits[:4])
    assert not torch.allclose(patched[4:], logits[4:], atol=1e-4)


def test_in_place_edit_changes_no_other_value():
    def zero_second(value):
        value[:, 1] = 0
        return value

    model = make_model("tiny-encoder")
    for name, other in (
        ("blocks.1.resid_pre", "blocks.0.resid_post"),
        ("blocks.0.attn.in", "blocks.0.resid_pre"),
    ):
        edits = {name: zero_second}
        assert torch.equal(
            model.watch(IDS, [other], edits=edits)[other], model.watch(IDS, [other])[other]
        )
        copying = {name: lambda value: zero_second(value.clone())}
        assert torch.equal(model.logits(IDS, edits=edits), model.logits(IDS, edits=copying))


def test_edited_pattern_is_used_by_the_head():
    def uniform(pattern):
        return torch.ones_like(pattern).tril() / torch.arange(1, 7)[:, None]

    names = ["blocks.0.attn.v", "blocks.0.attn.z"]
    cache = make_model().watch(IDS, names, edits={"blocks.0.attn.pattern": uniform})
    mean = cache["blocks.0.attn.v"][0, :, :4].mean(1)
    assert torch.allclose(cache["blocks.0.attn.z"][0, :, 3], mean, atol=1e-6)


def test_mean_ablation_replaces_a_head_by_its_mean():
    model = make_model()
    name = "blocks.0.attn.z"
    z = model.watch(IDS, name)[name][0]
    edited = model.watch(IDS, name, edits={name: ch.ablate(head=1, mean=True)})[name][0]
    assert torch.allclose(edited[1], z[1].mean(dim=0).expand(len(IDS), -1), atol=1e-6)
    assert torch.equal(edited[0], z[0])


def test_ablation_of_several_heads_equals_one_after_another():
    model = make_model()
    name = "blocks.0.attn.z"
    for options in ({}, {"position": 2}, {"mean": True}):
        together = model.logits(IDS, edits={name: ch.ablate(head=[1, -1], **options)})
        one_by_one = [ch.ablate(head=1, **options), ch.ablate(head=3, **options)]
        assert torch.equal(together, model.logits(IDS, edits={name: one_by_one}))
        assert not torch.allclose(together, model.logits(IDS, edits={name: one_by_one[:1]}))


def test_edits_of_one_value_are_applied_in_order():
    model = make_model()
    name = "blocks.0.resid_post"
    value = model.watch(IDS, name)[name]
    edits = {name: [ch.scale(2.0), lambda value: value + 1]}
    assert torch.equal(model.watch(IDS, name, edits=edits)[name], 2 * value + 1)
    generated = model.generate(IDS, 3, temperature=0, edits={name: [ch.scale(0.5), torch.relu]})
    assert len(generated.tokens) == 3


def test_mean_ablation_may_use_the_mean_of_another_run():
    model = make_model()
    name = "blocks.0.resid_post"
    other = model.watch([IDS, OTHER_IDS], name)
    edits = {name: ch.ablate(position=2, mean=other)}
    edited = model.watch(IDS, name, edits=edits)[name]
    assert torch.allclose(edited[0, 2], other[name].mean(dim=(0, 1)), atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        *(("tiny-decoder", name) for name in NAMES),
        *(("tiny-encoder-decoder", name) for name in ENCODER_DECODER_NAMES),
    ],
)
def test_mean_of_another_run_ignores_padding(preset, name):
    model = ch.new(preset, seed=3, position="learned")

    def inputs(*rows):
        if model.architecture == "encoder-decoder":
            return {"x": [row[:1] * 2 + row for row in rows], "source": [*rows]}
        return {"x": [*rows]}

    single = [model.watch(**inputs(row), names=name)[name][0].movedim(-2, 0) for row in TEXTS]
    mean = torch.cat(single).mean(dim=0)
    other = model.watch(**inputs(*TEXTS), names=name)
    edits = {name: ch.ablate(mean=other)}
    edited = model.watch(**inputs([8, 8, 8]), names=name, edits=edits)[name]
    torch.testing.assert_close(edited, mean.unsqueeze(-2).expand_as(edited), atol=1e-6, rtol=1e-5)


def test_mean_over_one_row_per_text_is_over_texts():
    model = ch.new("tiny-encoder", seed=3, head="classification")
    edited = model.logits([1], edits={"logits": ch.ablate(mean=model.watch(TEXTS, "logits"))})
    torch.testing.assert_close(edited, model.logits(TEXTS).mean(dim=0))


def test_mean_of_padded_values_is_an_error():
    model = make_model()
    name = "blocks.0.resid_post"
    part = model.watch(TEXTS, {name: lambda value: value[:, 1:]})
    with pytest.raises(ch.ClearheadError, match="padding"):
        model.logits([1], edits={name: ch.ablate(mean=part)})
    own_mean = {name: ch.ablate(mean=True)}
    for run in (model.logits, model.hidden, model.watch):
        with pytest.raises(ch.ClearheadError, match="equal length"):
            run(TEXTS, edits=own_mean)
    batch = model.logits([IDS, IDS[::-1]], edits=own_mean)
    torch.testing.assert_close(batch[0], model.logits(IDS, edits=own_mean))


def edit_z(edit):
    return {"blocks.0.attn.z": edit}


def other_run(m, ids, name="final_norm"):
    return ch.replace(with_=m.watch(ids, [name]))


ERRORS = [
    (lambda m: m.logits(IDS, edits=edit_z(ch.ablate(head="1"))), "there is no head '1'"),
    (lambda m: m.logits(IDS, edits=edit_z(ch.ablate(head=4))), "there is no head 4"),
    (lambda m: m.logits(IDS, edits=edit_z(ch.ablate(position=6))), "there is no token 6"),
    (lambda m: m.logits(IDS, edits=edit_z(lambda v: v[:, :1])), "1 × 4 × 6 × 8, got 1 × 1 × 6 × 8"),
    (lambda m: m.logits(IDS, edits=edit_z(lambda v: None)), "got NoneType"),
    (lambda m: m.logits(IDS, edits=edit_z(lambda v, hook: v)), "takes one argument"),
    (lambda m: m.logits(IDS, edits=edit_z(ch.ablate(head=[1, 4]))), "there is no head 4"),
    (lambda m: m.logits(IDS, edits=edit_z(ch.ablate(head=[]))), "empty list"),
    (lambda m: m.generate(IDS, edits=edit_z([ch.ablate(position=1)])), "one token at a time"),
    (lambda m: m.logits(IDS, edits=edit_z([5])), "got int"),
    (
        lambda m: m.logits(IDS, edits={"blocks.*.atn.z": ch.ablate()}),
        "did you mean 'blocks.*.attn.z'?",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.resid_post": ch.ablate(head=1)}),
        "is not split by head",
    ),
    (
        lambda m: m.logits(IDS, edits={"final_norm": other_run(m, IDS, "full_embed")}),
        "final_norm was not watched in the other run",
    ),
    (
        lambda m: m.logits(IDS, edits={"final_norm": other_run(m, [1])}),
        "same number of tokens",
    ),
    (
        lambda m: m.logits([IDS] * 3, edits={"final_norm": other_run(m, [IDS] * 2)}),
        "shapes must be equal",
    ),
    (lambda m: m.hidden(IDS, edits={"logits": ch.ablate()}), "logits"),
    (
        lambda m: ch.new("tiny-images").logits(
            images=torch.rand(1, 8, 8), edits={"logits": ch.ablate(position=0)}
        ),
        "one row per text",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
