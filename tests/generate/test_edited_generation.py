"""Generation with edits equals edited passes over the whole text."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError

NAMES = {
    "tiny-decoder": [
        "embed",
        "blocks.0.resid_post",
        "blocks.1.attn.z",
        "blocks.*.attn.k",
        "blocks.0.attn.pattern",
        "logits",
    ],
    "tiny-llama": [
        "blocks.1.attn.rot_k",
        "blocks.*.ffn.post",
        "blocks.0.attn.scores",
        "final_norm",
    ],
}


def nudge(value):
    return value * 1.5 + 0.25 * (value != 0)  # what is masked stays so


def greedy_full_passes(model, ids, count, edits):
    """Greedy tokens, each from a pass over the whole text."""
    for _ in range(count):
        ids = [*ids, int(model.logits([ids], edits=edits)[0, -1].argmax())]
    return ids[-count:]


@pytest.mark.parametrize(("preset", "name"), [(p, n) for p, names in NAMES.items() for n in names])
def test_edited_generation_equals_edited_full_passes(preset, name):
    model = ch.new(preset, seed=3)
    edits = {name: nudge}
    prompts = [[5, 9, 2, 7], [1, 2, 3, 4, 5, 6, 7]]
    written = model.generate(prompts, max_tokens=6, temperature=0, edits=edits)
    assert [w.tokens for w in written] == [greedy_full_passes(model, p, 6, edits) for p in prompts]
    beams = model.beam_search(prompts, num_beams=1, max_tokens=6, edits=edits)
    assert [b.tokens for b in beams] == [w.tokens for w in written]


def test_edits_change_the_text_but_not_the_model():
    model = ch.new("tiny-decoder", seed=0)
    plain = model.generate([5, 9, 2], max_tokens=8, temperature=0)
    changed = model.generate(
        [5, 9, 2], max_tokens=8, temperature=0, edits={"blocks.0.attn.z": ch.ablate(head=0)}
    )
    assert changed.logprobs != plain.logprobs
    assert model.generate([5, 9, 2], max_tokens=8, temperature=0).tokens == plain.tokens


def test_steering_vector_changes_the_text():
    model = ch.new("tiny-decoder", seed=0)
    word = 17
    push = ch.lens.steering(model, [([1, 2, word], [1, 2, 3])], "final_norm")
    toward = model.net.head.unembed.weight[word].detach()
    steered = type(push)("final_norm", toward / toward.norm() * 1e3)
    written = model.generate([1, 2, 3], max_tokens=5, temperature=0, edits=steered.edits())
    assert written.tokens == [word] * 5
    assert model.generate([1, 2, 3], max_tokens=5, temperature=0, edits=push.edits(0.0)).tokens == (
        model.generate([1, 2, 3], max_tokens=5, temperature=0).tokens
    )


@pytest.mark.parametrize(
    "name", ["encoder.blocks.0.resid_post", "blocks.0.cross_attn.z", "blocks.1.resid_post"]
)
def test_translations_are_edited_in_encoder_and_decoder(name):
    model = ch.new(
        "tiny-encoder-decoder",
        seed=1,
        inference__decoder_start_tokens=[2],
        inference__eos_tokens=[1],
    )
    edits = {name: nudge}
    source = torch.tensor([[5, 9, 4, 7], [3, 3, 8, 6]])
    found = model.translate(source, num_beams=3, max_tokens=6, edits=edits, align=-1)
    for row, one in zip(source, found, strict=True):
        target = torch.tensor([[2, *one.tokens]])
        chances = model.logits(target, source=row[None], edits=edits)[0].log_softmax(-1)
        logprob = sum(float(chances[i, token]) for i, token in enumerate(one.tokens))
        assert one.logprob == pytest.approx(logprob, abs=1e-4)
        cache = model.watch(target, "blocks.*.cross_attn.pattern", source=row[None], edits=edits)
        best = (
            cache[f"blocks.{model.net.config.n_layers - 1}.cross_attn.pattern"][0]
            .mean(0)
            .argmax(-1)
            .tolist()
        )
        assert one.alignment == best[: len(one.tokens)]


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"blocks.0.resid_post": ch.ablate(position=2)}, "one token at a time"),
        ({"blocks.0.resid_post": ch.ablate(mean=True)}, "one token at a time"),
        ({"blocks.0.resid_post": ch.replace(torch.zeros(1, 3, 32))}, "one token at a time"),
        ({"blocks.0.pots": ch.ablate()}, "no activation"),
        ({"blocks.0.resid_post": lambda x: x[:1, :1, :1]}, "tensor"),
        ([1], "list"),
        ({3: ch.ablate()}, "names of activations"),
    ],
)
def test_edits_that_need_the_whole_text_are_refused(edits, words):
    model = ch.new("tiny-decoder", seed=0)
    with pytest.raises(ClearheadError, match=words):
        model.generate([1, 2, 3], max_tokens=3, edits=edits)
