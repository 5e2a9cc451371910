"""Interventions: a sweep is what one edit after another would have given, and nothing else."""

import re
from functools import partial
from importlib import import_module

import pytest
import torch

import clearhead as ch

WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}
TEXT = "the cat"
OTHER = "the dog"
GIVEN = {"tiny-encoder-decoder": {"source": "hello"}}
MODELS = ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"]


def new(name="tiny-decoder"):
    return ch.new(name, seed=3, **WORDS)


def one_by_one(model, edits, answer, given):
    plain = model.logits(TEXT, **given)[-1, answer]
    return torch.stack(
        [model.logits(TEXT, edits=edit, **given)[-1, answer] - plain for edit in edits]
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_sweep_of_heads_is_one_edit_after_another(name):
    model = new(name)
    given = GIVEN.get(name, {})
    m = model.config.model
    swept = ch.lens.ablation(model, TEXT, token=100, **given)
    edits = [
        {f"blocks.{i}.attn.z": ch.ablate(head=h)}
        for i in range(m.n_layers)
        for h in range(m.attention.n_heads)
    ]
    want = one_by_one(model, edits, 100, given).reshape(m.n_layers, -1)
    assert torch.allclose(swept.values, want, atol=1e-5)
    assert swept.baseline == pytest.approx(float(model.logits(TEXT, **given)[-1, 100]), abs=1e-5)
    assert want.abs().max() > 1e-3


def test_print_shows_the_largest_effects():
    swept = ch.lens.ablation(new(), TEXT, token=100)
    shown = str(swept).splitlines()
    assert shown[0] == swept.title
    values = [float(line.split()[-1]) for line in shown[1:9]]
    assert [abs(value) for value in values] == pytest.approx(
        swept.values.abs().flatten().sort().values.flip(0)[:8], rel=1e-3
    )
    layer, head = (int(shown[1].split()[i]) for i in (1, 3))
    assert values[0] == pytest.approx(float(swept.values[layer, head]), rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_any_value_can_be_swept_by_token_however_few_fit_a_batch(name, monkeypatch):
    monkeypatch.setattr(import_module("clearhead.lens.patching"), "TOKENS", 20)
    model = new(name)
    given = GIVEN.get(name, {})
    names = ["full_embed", "blocks.*.resid_pre", "blocks.1.ffn.out", "norm"]
    paths = [
        "full_embed",
        *(f"blocks.{i}.resid_pre" for i in range(model.config.model.n_layers)),
        "blocks.1.ffn.out",
        "norm",
    ]
    half = partial(ch.scale, 0.5)
    swept = ch.lens.ablation(model, TEXT, names, by="token", change=half, token=100, **given)
    edits = [{path: ch.scale(0.5, token=t)} for path in paths for t in range(swept.values.shape[1])]
    want = one_by_one(model, edits, 100, given).reshape(len(paths), -1)
    assert torch.allclose(swept.values, want, atol=1e-5)
    assert swept.axes[0].labels == tuple(paths)


def test_what_a_decoder_sees_of_its_source_can_be_swept():
    model = new("tiny-encoder-decoder")
    given = GIVEN["tiny-encoder-decoder"]
    for name, count in (
        ("encoder.blocks.0.resid_pre", 5),
        ("blocks.0.cross_attn.v", 5),
        ("blocks.1.cross_attn.z", len(TEXT)),
    ):
        swept = ch.lens.ablation(model, TEXT, name, by="token", token=100, **given)
        edits = [{name: ch.ablate(token=t)} for t in range(count)]
        assert torch.allclose(swept.values[0], one_by_one(model, edits, 100, given), atol=1e-5)
        assert swept.axes[1].labels == tuple("hello" if count == 5 else TEXT.replace(" ", "·"))


def test_positions_shared_by_all_rows_are_changed_in_one_only():
    swept = ch.lens.ablation(new(), TEXT, "pos_embed", by="token", token=100)
    want = one_by_one(new(), [{"pos_embed": ch.ablate(token=t)} for t in range(7)], 100, {})
    assert torch.allclose(swept.values[0], want, atol=1e-5)


def test_pictures_and_their_classes_are_swept():
    model = ch.new("tiny-pictures", seed=3)
    picture = torch.rand(1, 8, 8)
    swept = ch.lens.ablation(
        model, names="blocks.1.resid_pre", by="token", pictures=picture, token=4, against=6
    )
    logits = model.logits(images=picture, edits={"blocks.1.resid_pre": ch.ablate(token=3)})
    assert float(swept.values[0, 3]) + swept.baseline == pytest.approx(
        float(logits[4] - logits[6]), abs=1e-5
    )
    heads = ch.lens.ablation(model, pictures=picture, token=4)
    logits = model.logits(images=picture, edits={"blocks.0.attn.z": ch.ablate(head=1)})
    assert float(heads.values[0, 1]) + heads.baseline == pytest.approx(float(logits[4]), abs=1e-5)


def test_a_pair_of_texts_keeps_its_kinds():
    model = ch.new(
        "tiny-encoder", seed=3, **{"input.token_types": 2, "inference.sep_tokens": [9]}, **WORDS
    )
    pair = ("the cat", "a dog")
    swept = ch.lens.ablation(model, pair, token=100)
    want = model.logits(pair, edits={"blocks.1.attn.z": ch.ablate(head=2)})[-1, 100]
    assert float(swept.values[1, 2]) + swept.baseline == pytest.approx(float(want), abs=1e-5)
    embedded = ch.lens.ablation(model, pair, "embed", by=(), token=100)
    assert embedded.baseline == pytest.approx(float(model.logits(pair)[-1, 100]), abs=1e-5)


def test_a_sweep_by_head_and_token_and_of_another_measure():
    model = new()

    def surprise(logits):
        return -logits.log_softmax(dim=-1)[:, 5]

    swept = ch.lens.ablation(
        model, TEXT, "blocks.1.attn.z", by=("head", "token"), measure=surprise, at=3
    )
    edited = model.logits(TEXT, edits={"blocks.1.attn.z": ch.ablate(head=2, token=3)})[3]
    assert swept.values.shape == (1, 4, 7)
    assert float(swept.values[0, 2, 3]) == pytest.approx(
        float(surprise(edited[None])) - swept.baseline, abs=1e-5
    )
    assert not swept.values[0, :, 4:].any()  # what comes later cannot matter


def test_patching_the_whole_stream_brings_the_other_answer():
    model = new()
    patched = ch.lens.patching(model, TEXT, OTHER, "blocks.*.resid_pre", by=(), token=7, against=9)
    here, there = (model.logits(text)[-1] for text in (TEXT, OTHER))
    assert patched.baseline == pytest.approx(float(here[7] - here[9]), abs=1e-5)
    assert patched.patch_from_baseline == pytest.approx(float(there[7] - there[9]), abs=1e-5)
    assert torch.allclose(patched.recovery().values, torch.ones(2), atol=1e-3)


def test_patching_one_place_is_one_replacement():
    model = new()
    patched = ch.lens.patching(model, TEXT, OTHER, token=7)
    there = model.watch(OTHER, "blocks.1.resid_pre")
    edited = model.logits(TEXT, edits={"blocks.1.resid_pre": ch.replace(with_=there, token=5)})[
        -1, 7
    ]
    assert float(patched.values[1, 5]) == pytest.approx(float(edited) - patched.baseline, abs=1e-5)
    assert not patched.values[0, :4].any()  # the texts begin alike
    assert (
        ch.lens.patching(model, TEXT, OTHER).title
        == ch.lens.patching(model, TEXT, OTHER, token=int(model.logits(OTHER)[-1].argmax())).title
    )


def test_patching_another_source():
    model = new("tiny-encoder-decoder")
    other = {"x": TEXT, "source": "hallo"}
    patched = ch.lens.patching(
        model, TEXT, other, "encoder.blocks.0.resid_pre", by=(), token=7, source="hello"
    )
    assert patched.recovery().values.item() == pytest.approx(1, abs=1e-3)


def test_the_mean_takes_a_value_s_place():
    model = new()
    seen = model.watch(
        TEXT, "blocks.0.attn.z", edits={"blocks.0.attn.z": ch.ablate(head=1, mean=True)}
    )
    plain = model.watch(TEXT, "blocks.0.attn.z")["blocks.0.attn.z"][0]
    assert torch.allclose(
        seen["blocks.0.attn.z"][0, 1], plain[1].mean(dim=0).expand(7, -1), atol=1e-6
    )
    assert torch.equal(seen["blocks.0.attn.z"][0, 0], plain[0])
    many = model.watch(["some more", "texts 123"], "blocks.0.resid_post")
    edited = model.watch(
        TEXT, "blocks.0.resid_post", edits={"blocks.0.resid_post": ch.ablate(token=2, mean=many)}
    )["blocks.0.resid_post"]
    assert torch.allclose(edited[0, 2], many["blocks.0.resid_post"].mean(dim=(0, 1)), atol=1e-6)


def test_steering_adds_the_mean_difference_of_the_pairs():
    model = new()
    name = "blocks.0.resid_post"
    pairs = [("good", "bad"), ("very nice", "ugly")]
    steered = ch.lens.steering(model, pairs, name)
    ends = {text: model.watch(text, name)[name][0, -1] for pair in pairs for text in pair}
    want = (ends["good"] - ends["bad"] + ends["very nice"] - ends["ugly"]) / 2
    assert torch.allclose(steered.vector, want, atol=1e-6)
    pushed = model.watch(TEXT, name, edits=steered.edits(3.0))[name]
    assert torch.allclose(pushed, model.watch(TEXT, name)[name] + 3 * want, atol=1e-5)


def test_an_encoder_decoder_is_steered_by_sources():
    model = new("tiny-encoder-decoder")
    name = "encoder.blocks.0.resid_post"
    good, bad = ({"x": "a", "source": source} for source in ("good", "bad"))
    want = (
        model.watch(**good, names=name)[name][0, -1] - model.watch(**bad, names=name)[name][0, -1]
    )
    assert torch.allclose(ch.lens.steering(model, [(good, bad)], name).vector, want, atol=1e-6)


def test_steering_is_the_same_with_a_memory():
    from clearhead.hooks import Recorder
    from clearhead.lens.edits import checked_edit

    model = new()
    ((name, push),) = (
        ch.lens.steering(model, [("good", "bad")], "blocks.0.resid_post").edits(2.0).items()
    )
    ids = model.make_batch(TEXT).inputs
    hooks = Recorder(edits={name: checked_edit(push)})
    with torch.no_grad():
        memory = model.net.init_cache(1, 7)
        steps = [
            model.net(part, cache=memory, hooks=hooks)
            for part in (ids[:, :4], ids[:, 4:5], ids[:, 5:])
        ]
    assert torch.allclose(
        torch.cat(steps, dim=1)[0], model.hidden(TEXT, edits={name: push}), atol=1e-5
    )


MISTAKES = [
    (lambda m: ch.lens.ablation(m, TEXT, edits={"norm": ch.ablate()}), "sweep has no 'edits'"),
    (lambda m: ch.lens.steering(m, [5], "blocks.0.resid_post"), "steering needs pairs of prompts"),
    (
        lambda m: ch.lens.ablation(m, TEXT, "blocks.*.atn.z"),
        "names no value of this model; did you mean",
    ),
    (
        lambda m: ch.lens.ablation(m, TEXT, "blocks.0.resid_post"),
        "blocks.0.resid_post is not split by head",
    ),
    (
        lambda m: ch.lens.ablation(m, TEXT, 5),
        "names of values are needed, such as blocks.*.attn.z; not 5.",
    ),
    (lambda m: ch.lens.ablation(m, TEXT, change=None), "as ablate does; it is not None."),
    (
        lambda m: ch.lens.ablation(m, TEXT, by=None),
        "values are cut by head or by token, not by None.",
    ),
    (
        lambda m: ch.lens.ablation(m, TEXT, by="layer"),
        "values are cut by head or by token, not by 'layer'.",
    ),
    (lambda m: ch.lens.ablation(m, TEXT, "logits", by=()), "come before the logits"),
    (lambda m: ch.lens.ablation(m, [TEXT, OTHER]), "one text at a time, not 2"),
    (lambda m: ch.lens.ablation(m, TEXT, token="xyz"), "'xyz' is 3 tokens here"),
    (
        lambda m: ch.lens.ablation(m, TEXT, measure=lambda logits: logits),
        "into 1 numbers, not (1, 256)",
    ),
    (
        lambda m: ch.lens.ablation(m, TEXT, change=lambda **_: lambda z: z[:, :1]),
        "must return a tensor of 1 x 4 x 7 x",
    ),
    (
        lambda m: ch.lens.patching(m, TEXT, "the dogs"),
        "tokens here and of 8 in the other run; they need as many",
    ),
    (lambda m: ch.lens.ablation(m, TEXT, token=7).recovery(), "nothing can be recovered"),
    (lambda m: ch.lens.steering(m, [], "blocks.0.resid_post"), "steering needs pairs of prompts"),
    (
        lambda m: ch.lens.steering(m, ["ab"], "blocks.0.resid_post"),
        "steering needs pairs of prompts",
    ),
    (lambda m: ch.lens.steering(m, [("a", "b")], "blocks.*.resid_post"), "names 2 values"),
    (
        lambda m: ch.lens.steering(m, [("a", "b")], "blocks.0.attn.z"),
        "is not one vector for each token",
    ),
    (lambda m: ch.lens.ablation(ch.new("tiny-encoder", head="none"), [1, 2]), "no head"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(new())


def test_steering_is_told_in_a_line():
    model = ch.new("tiny-decoder", seed=3)
    steered = ch.lens.steering(model, [([1, 2], [3, 4])], "blocks.0.resid_post")
    assert (
        repr(steered)
        == f"<steering of blocks.0.resid_post: 32 numbers, length {float(steered.vector.norm()):.3g}>"
    )
