"""Ablation and patching give what one edit after another would."""

import re
from functools import partial
from importlib import import_module

import pytest
import torch

import clearhead as ch

BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}
TEXT = "the cat"
OTHER_TEXT = "the dog"
TOKEN = 100
SOURCES = {"tiny-encoder-decoder": {"source": "hello"}}
PRESETS = ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"]


def make_model(preset="tiny-decoder", **changes):
    return ch.new(preset, seed=3, **BYTES, **changes)


def effects_one_by_one(model, edits, source):
    def logit(edit):
        return model.logits(TEXT, edits=edit, **source)[-1, TOKEN]

    return torch.stack([logit(edit) - logit(None) for edit in edits])


@pytest.mark.parametrize("preset", PRESETS)
def test_ablation_of_heads_equals_one_edit_after_another(preset):
    model = make_model(preset)
    source = SOURCES.get(preset, {})
    m = model.config.model
    effects = ch.lens.ablation(model, TEXT, token=TOKEN, **source)
    edits = [
        {f"blocks.{layer}.attn.z": ch.ablate(head=head)}
        for layer in range(m.n_layers)
        for head in range(m.attention.n_heads)
    ]
    expected = effects_one_by_one(model, edits, source).reshape(m.n_layers, -1)
    assert torch.allclose(effects.values, expected, atol=1e-5)
    baseline = float(model.logits(TEXT, **source)[-1, TOKEN])
    assert effects.baseline == pytest.approx(baseline, abs=1e-5)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("preset", PRESETS)
def test_edits_of_any_value_in_small_batches(preset, monkeypatch):
    monkeypatch.setattr(import_module("clearhead.lens.ablation"), "MAX_BATCH_TOKENS", 20)
    model = make_model(preset)
    source = SOURCES.get(preset, {})
    effects = ch.lens.ablation(
        model,
        TEXT,
        ["full_embed", "blocks.*.resid_pre", "blocks.1.ffn.out", "final_norm"],
        split_by="position",
        make_edit=partial(ch.scale, 0.5),
        token=TOKEN,
        **source,
    )
    residuals = [f"blocks.{i}.resid_pre" for i in range(model.config.model.n_layers)]
    names = ["full_embed", *residuals, "blocks.1.ffn.out", "final_norm"]
    edits = [
        {name: ch.scale(0.5, position=position)}
        for name in names
        for position in range(effects.values.shape[1])
    ]
    expected = effects_one_by_one(model, edits, source).reshape(len(names), -1)
    assert torch.allclose(effects.values, expected, atol=1e-5)
    assert effects.axes[0].labels == tuple(names)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("encoder.blocks.0.resid_pre", "hello"),
        ("blocks.0.cross_attn.v", "hello"),
        ("blocks.1.cross_attn.z", "the·cat"),
    ],
)
def test_ablation_in_an_encoder_decoder(name, tokens):
    model = make_model("tiny-encoder-decoder")
    source = SOURCES["tiny-encoder-decoder"]
    effects = ch.lens.ablation(model, TEXT, name, split_by="position", token=TOKEN, **source)
    edits = [{name: ch.ablate(position=position)} for position in range(len(tokens))]
    expected = effects_one_by_one(model, edits, source)
    assert torch.allclose(effects.values[0], expected, atol=1e-5)
    assert effects.axes[1].labels == tuple(tokens)


def test_position_embeddings_shared_by_rows_are_edited_in_one_row():
    effects = ch.lens.ablation(make_model(), TEXT, "pos_embed", split_by="position", token=TOKEN)
    edits = [{"pos_embed": ch.ablate(position=position)} for position in range(7)]
    expected = effects_one_by_one(make_model(), edits, {})
    assert torch.allclose(effects.values[0], expected, atol=1e-5)


def test_ablation_in_an_image_classifier():
    model = ch.new("tiny-images", seed=3)
    image = torch.rand(1, 8, 8)
    name = "blocks.1.resid_pre"
    effects = ch.lens.ablation(
        model, names=name, split_by="position", images=image, token=4, against=6
    )
    logits = model.logits(images=image, edits={name: ch.ablate(position=3)})
    edited = float(effects.values[0, 3]) + effects.baseline
    assert edited == pytest.approx(float(logits[4] - logits[6]), abs=1e-5)
    effects = ch.lens.ablation(model, images=image, token=4)
    logits = model.logits(images=image, edits={"blocks.0.attn.z": ch.ablate(head=1)})
    edited = float(effects.values[0, 1]) + effects.baseline
    assert edited == pytest.approx(float(logits[4]), abs=1e-5)


def test_pairs_of_texts_keep_their_token_types():
    model = make_model("tiny-encoder", input__token_types=2, inference__sep_tokens=[9])
    pair = ("the cat", "a dog")
    effects = ch.lens.ablation(model, pair, token=TOKEN)
    logits = model.logits(pair, edits={"blocks.1.attn.z": ch.ablate(head=2)})
    edited = float(effects.values[1, 2]) + effects.baseline
    assert edited == pytest.approx(float(logits[-1, TOKEN]), abs=1e-5)
    effects = ch.lens.ablation(model, pair, "embed", split_by=(), token=TOKEN)
    assert effects.baseline == pytest.approx(float(model.logits(pair)[-1, TOKEN]), abs=1e-5)


def test_split_by_head_and_position_with_a_metric():
    model = make_model()

    def cross_entropy(logits):
        return -logits.log_softmax(dim=-1)[:, 5]

    effects = ch.lens.ablation(
        model,
        TEXT,
        "blocks.1.attn.z",
        split_by=("head", "position"),
        metric=cross_entropy,
        position=3,
    )
    edits = {"blocks.1.attn.z": ch.ablate(head=2, position=3)}
    edited = cross_entropy(model.logits(TEXT, edits=edits)[3][None])
    assert effects.values.shape == (1, 4, 7)
    effect = float(effects.values[0, 2, 3])
    assert effect == pytest.approx(float(edited) - effects.baseline, abs=1e-5)
    assert not effects.values[0, :, 4:].any()  # later positions have no effect


def test_print_shows_the_largest_effects():
    effects = ch.lens.ablation(make_model(), TEXT, token=TOKEN)
    lines = str(effects).splitlines()
    assert lines[0] == effects.title
    shown = [float(line.split()[-1]) for line in lines[1:9]]
    largest = effects.values.abs().flatten().sort().values.flip(0)[:8]
    assert [abs(value) for value in shown] == pytest.approx(largest, rel=1e-3)
    words = lines[1].split()
    layer, head = int(words[1]), int(words[3])
    assert shown[0] == pytest.approx(float(effects.values[layer, head]), rel=1e-3)


def test_patching_the_whole_stream_recovers_the_other_answer():
    model = make_model()
    effects = ch.lens.patching(
        model, TEXT, OTHER_TEXT, "blocks.*.resid_pre", split_by=(), token=7, against=9
    )
    logits = model.logits(TEXT)[-1]
    other_logits = model.logits(OTHER_TEXT)[-1]
    assert effects.baseline == pytest.approx(float(logits[7] - logits[9]), abs=1e-5)
    other_difference = float(other_logits[7] - other_logits[9])
    assert effects.patch_from_baseline == pytest.approx(other_difference, abs=1e-5)
    assert torch.allclose(effects.recovery().values, torch.ones(2), atol=1e-3)


def test_patching_one_position_equals_one_replacement():
    model = make_model()
    effects = ch.lens.patching(model, TEXT, OTHER_TEXT, token=7)
    other = model.watch(OTHER_TEXT, "blocks.1.resid_pre")
    edits = {"blocks.1.resid_pre": ch.replace(with_=other, position=5)}
    patched = float(model.logits(TEXT, edits=edits)[-1, 7])
    effect = float(effects.values[1, 5])
    assert effect == pytest.approx(patched - effects.baseline, abs=1e-5)
    assert not effects.values[0, :4].any()  # both texts begin alike


def test_default_token_of_patching_is_the_top_prediction_of_the_other_run():
    model = make_model()
    best = int(model.logits(OTHER_TEXT)[-1].argmax())
    default = ch.lens.patching(model, TEXT, OTHER_TEXT)
    assert default.title == ch.lens.patching(model, TEXT, OTHER_TEXT, token=best).title


def test_patching_from_another_source():
    model = make_model("tiny-encoder-decoder")
    effects = ch.lens.patching(
        model,
        TEXT,
        {"x": TEXT, "source": "hallo"},
        "encoder.blocks.0.resid_pre",
        split_by=(),
        token=7,
        source="hello",
    )
    assert effects.recovery().values.item() == pytest.approx(1, abs=1e-3)


ERRORS = [
    (lambda m: ch.lens.ablation(m, TEXT, "blocks.*.atn.z"), "did you mean"),
    (lambda m: ch.lens.ablation(m, TEXT, "blocks.0.resid_post"), "is not split by head"),
    (lambda m: ch.lens.ablation(m, TEXT, 5), "names must be activations"),
    (lambda m: ch.lens.ablation(m, TEXT, make_edit=None), "such as ablate, got None"),
    (lambda m: ch.lens.ablation(m, TEXT, split_by=None), "got None"),
    (lambda m: ch.lens.ablation(m, TEXT, split_by="layer"), "got 'layer'"),
    (lambda m: ch.lens.ablation(m, TEXT, "logits", split_by=()), "before the logits"),
    (lambda m: ch.lens.ablation(m, [TEXT, OTHER_TEXT]), "one text at a time, got 2"),
    (lambda m: ch.lens.ablation(m, TEXT, token="xyz"), "'xyz' is 3 tokens"),
    (lambda m: ch.lens.ablation(m, TEXT, metric=lambda logits: logits), "got shape (1, 256)"),
    (
        lambda m: ch.lens.ablation(m, TEXT, make_edit=lambda **_: lambda z: z[:, :1]),
        "must return a tensor of shape 1 × 4 × 7 ×",
    ),
    (
        lambda m: ch.lens.patching(m, TEXT, "the dogs"),
        "same number of tokens, got 7 (t h e · c a t) and 8 (t h e · d o g s)",
    ),
    (lambda m: ch.lens.ablation(m, TEXT, token=7).recovery(), "needs the result of patching"),
    (lambda m: ch.lens.patching(m, TEXT, TEXT, token=7).recovery(), "nothing to recover"),
    (lambda m: ch.lens.ablation(ch.new("tiny-encoder", head="none"), [1, 2]), "no head"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
