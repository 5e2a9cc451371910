"""A mean over tokens holds no padding, on either side of a translator."""

import pytest
import torch

import clearhead as ch

TEXTS = [[3, 1, 4, 1, 5, 9], [2, 7]]
NAMES = ["blocks.0.resid_post", "blocks.0.attn.z", "blocks.1.attn.k", "pos_embed"]
OF_TWO = [
    *NAMES,
    "encoder.blocks.0.resid_post",
    "encoder.blocks.1.attn.z",
    "blocks.1.cross_attn.v",
    "blocks.0.cross_attn.q",
]


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        *(("tiny-decoder", name) for name in NAMES),
        *(("tiny-encoder-decoder", name) for name in OF_TWO),
    ],
)
def test_the_mean_of_another_run_is_that_of_its_texts_alone(preset, name):
    model = ch.new(preset, seed=3, position="learned")
    both = model.architecture == "encoder-decoder"

    def given(*rows):
        return (
            {"x": [row[:1] * 2 + row for row in rows], "source": [*rows]}
            if both
            else {"x": [*rows]}
        )

    alone = torch.cat(
        [model.watch(**given(row), names=name)[name][0].movedim(-2, 0) for row in TEXTS]
    ).mean(dim=0)
    seen = model.watch(**given(*TEXTS), names=name)
    edited = model.watch(**given([8, 8, 8]), names=name, edits={name: ch.ablate(mean=seen)})[name]
    torch.testing.assert_close(edited, alone.unsqueeze(-2).expand_as(edited), atol=1e-6, rtol=1e-5)


def test_what_has_one_row_for_each_text_has_a_mean_too():
    model = ch.new("tiny-encoder", seed=3, head="classification")
    changed = model.logits([1], edits={"logits": ch.ablate(mean=model.watch(TEXTS, "logits"))})
    torch.testing.assert_close(changed, model.logits(TEXTS).mean(dim=0))


def test_where_padding_would_be_counted_a_sentence_says_so():
    model = ch.new("tiny-decoder", seed=3)
    part = model.watch(TEXTS, {"blocks.0.resid_post": lambda value: value[:, 1:]})
    with pytest.raises(ch.ClearheadError, match="the other run kept a part"):
        model.logits([1], edits={"blocks.0.resid_post": ch.ablate(mean=part)})
    own = {"blocks.0.resid_post": ch.ablate(mean=True)}
    for run in (model.logits, model.hidden, model.watch):
        with pytest.raises(
            ch.ClearheadError, match="the mean of a text; give texts of equal length"
        ):
            run(TEXTS, edits=own)
    even = model.logits([TEXTS[0], TEXTS[0][::-1]], edits=own)
    torch.testing.assert_close(even[0], model.logits(TEXTS[0], edits=own))
