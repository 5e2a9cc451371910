"""Attention, seen: the right numbers under the right names, and no more kept than is shown."""

import re

import pytest
import torch

import clearhead as ch
from clearhead.errors import NonFiniteError
from clearhead.lens.attention import HEAD_SCORES, LayerPatterns

WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}
TEXT = "the cat, the cat"


def decoder(name="tiny-decoder"):
    return ch.new(name, seed=3, **WORDS)


def both():
    return ch.new("tiny-encoder-decoder", seed=3, **WORDS)


def test_a_head_is_the_pattern_that_was_watched():
    seen = decoder().watch(TEXT, ["blocks.1.attn.pattern"])["blocks.1.attn.pattern"][0]
    one = ch.lens.attention(decoder(), TEXT, layer=1, head=2)
    assert torch.equal(one.values, seen[2])
    assert one.axes[0].labels == tuple(TEXT.replace(" ", "·"))
    assert torch.equal(ch.lens.attention(decoder(), TEXT, layer=1).values, seen)
    assert torch.allclose(ch.lens.attention(decoder(), TEXT).values[1], seen, atol=1e-6)
    assert torch.allclose(ch.lens.attention(decoder(), TEXT, head=2).values[1], seen[2], atol=1e-6)


def test_of_one_head_no_other_is_kept(monkeypatch):
    model = decoder()
    runs = []
    watch = model.watch
    monkeypatch.setattr(
        model, "watch", lambda *x, **given: runs.append(watch(*x, **given)) or runs[-1]
    )
    ch.lens.attention(model, TEXT, layer=1, head=2)
    ((name, value),) = runs[0].items()
    assert name == "blocks.1.attn.pattern"
    assert value.untyped_storage().nbytes() == 4 * len(TEXT) ** 2


@pytest.mark.parametrize(
    ("part", "size"), [("attention", (3, 3)), ("cross", (3, 5)), ("encoder", (5, 5))]
)
def test_an_encoder_decoder_has_three_attentions(part, size):
    view = ch.lens.attention(both(), "abc", source="hello", part=part)
    assert view.values.shape[-2:] == size
    assert view.axes[-1].labels == tuple("abc" if part == "attention" else "hello")
    assert torch.allclose(view.values.sum(dim=-1), torch.ones(()), atol=1e-5)


def test_a_row_goes_from_scores_to_softmax():
    steps = ch.lens.softmax_steps(decoder(), TEXT, layer=0, head=1, token=4).values
    scores, masked, raised, share = steps
    assert torch.equal(masked[:5], scores[:5])
    assert bool((masked[5:] == -torch.inf).all())
    assert torch.allclose(raised / raised.sum(), share, atol=1e-6)
    assert torch.allclose(masked.softmax(dim=0), share, atol=1e-6)


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-llama"])  # the second has grouped heads
def test_contributions_are_lengths_of_what_heads_write(name):
    model = decoder(name)
    layer = 1
    moved = ch.lens.value_weighted_attention(model, TEXT, layer=layer).values
    seen = model.watch(TEXT, [f"blocks.{layer}.attn.*"])
    pattern, v, out = (seen[f"blocks.{layer}.attn.{x}"][0] for x in ("pattern", "v", "out"))
    heads = len(pattern)
    d = v.shape[-1]
    weight = model.net.blocks[layer].attn.out.weight.detach()
    lengths = ch.lens.head_output_norms(model, TEXT).values[layer]
    total = torch.zeros_like(out)
    for h in range(heads):
        one = pattern[h][..., None] * (v[h * len(v) // heads] @ weight[:, h * d : (h + 1) * d].T)
        assert torch.allclose(moved[h], one.norm(dim=-1), atol=1e-5)
        assert torch.allclose(lengths[h], one.sum(dim=1).norm(dim=-1), atol=1e-5)
        total += one.sum(dim=1)
    bias = model.net.blocks[layer].attn.out.bias
    assert torch.allclose(total + (0 if bias is None else bias.detach()), out, atol=1e-5)


def test_rollout_multiplies_the_layers():
    model = decoder()
    patterns = ch.lens.attention(model, TEXT).values.mean(dim=1)
    first, second = ((p + torch.eye(len(p))) / 2 for p in patterns)
    told = ch.lens.rollout(model, TEXT).values
    assert torch.allclose(told[1], second @ first, atol=1e-6)
    assert torch.allclose(told.sum(dim=-1), torch.ones(()), atol=1e-5)


def scored(pattern, tokens):
    size = len(tokens)
    visible = torch.ones(size, size, dtype=torch.bool).tril()
    other = ~torch.eye(size, dtype=torch.bool)
    scene = LayerPatterns(pattern[None, None], tuple(tokens), tuple(tokens), visible, other)
    return {name: float(score(scene)) for name, (_, score) in HEAD_SCORES.items()}


def test_heads_that_do_one_thing_score_1_there():
    tokens = ["a", "b", ",", "a", "b"]
    one = torch.eye(5)
    previous = one[[0, 0, 1, 2, 3]]
    assert scored(previous, tokens)["previous"] == 1
    assert scored(previous, tokens)["position"] > 0.7
    assert scored(one, tokens)["itself"] == 1
    assert scored(one[[0] * 5], tokens)["first"] == 1
    assert scored(one[[0, 0, 0, 0, 1]], tokens)["same"] == 1
    assert scored(one[[0, 0, 0, 1, 2]], tokens)["induction"] == 1
    assert scored(one[[0, 0, 2, 2, 2]], tokens)["punctuation"] == 1
    signs = ["a", "·", "#", "·b", "↵"]  # a blank alone is none
    assert scored(one[[0, 0, 2, 2, 2]], signs)["punctuation"] == 1
    assert scored(one[[0, 1, 1, 1, 4]], signs)["punctuation"] == 0
    assert scored(one, tokens)["entropy"] == 0
    even = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    assert scored(even, tokens)["entropy"] == pytest.approx(1)
    assert (
        scored(one, ["a", "b", "c", "d", "e"])["same"]
        != scored(one, ["a", "b", "c", "d", "e"])["same"]
    )  # no number


def test_the_atlas_sorts_all_heads_and_tells_its_definitions():
    atlas = ch.lens.head_scores(decoder(), TEXT)
    assert len(atlas.table()) == 8
    first = atlas.ranking("first")
    assert first.values.tolist() == sorted(first.values.tolist(), reverse=True)
    layer, head = map(int, first.axes[0].labels[0].split("."))
    best = atlas.patterns_by("first", top=3)
    assert torch.equal(best.values[0], ch.lens.attention(decoder(), TEXT).values[layer, head])
    assert atlas.axes[0].labels == tuple(
        name for name in HEAD_SCORES if name != "next"
    )  # where nobody may look ahead
    assert all(f"{name}: {HEAD_SCORES[name][0]}" in atlas.note for name in atlas.axes[0].labels)
    assert ch.lens.head_scores(both(), "abc", source="hello, b", part="cross").values.shape[0] == 5


def test_the_atlas_leaves_out_what_nothing_in_a_text_shows():
    encoder = ch.new("tiny-encoder", seed=3, **WORDS)
    assert "next" in ch.lens.head_scores(encoder, TEXT).axes[0].labels
    short = ch.lens.head_scores(decoder(), "ab")
    assert not {"same", "induction", "punctuation", "next"} & {*short.axes[0].labels}
    assert short.values.isfinite().all()
    shown = str(short.terminal())
    assert "nan" not in shown
    best = short.best(top=2)
    assert best.words[0][0] == "{}.{}:".format(*divmod(int(short.values[0].argmax()), 4))
    assert float(best.values[0, 0]) == float(short.values[0].max())


VIEWS = {
    "atlas": lambda model: ch.lens.head_scores(model, TEXT),
    "attribution": lambda model: ch.lens.attribution(model, TEXT),
    "residual": lambda model: ch.lens.residual_norms(model, TEXT),
    "context": lambda model: ch.lens.context(model, "a", ["b a", "c a"]),
    "vectors": lambda model: ch.lens.vectors(model, layer=1).most_similar("a"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_values_that_are_no_numbers_are_not_shown(view):
    model = decoder()
    model.net.blocks[0].attn.v.weight.data.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"the values of blocks\.\d\.\S+ hold no numbers"):
        VIEWS[view](model)


def test_lines_show_the_weights_of_a_head():
    head = ch.lens.attention(decoder(), "abc", layer=0, head=1)
    assert len(head.line_view().figure().axes[0].lines) == int((head.values > 0.02).sum())
    alone = head.line_view(position=-1)
    assert torch.equal(alone.values[-1], head.values[-1])
    assert not alone.values[:-1].any()
    assert alone._repr_html_().count("<path") == int((head.values[-1] > 0.02).sum())


def test_what_heads_write_is_told_of_all_attentions():
    for part, tokens in (("attention", "abc"), ("cross", "abc"), ("encoder", "hello")):
        assert ch.lens.head_output_norms(both(), "abc", source="hello", part=part).axes[
            2
        ].labels == tuple(tokens)


def test_the_residual_stream_is_told_part_by_part():
    model = both()
    view = ch.lens.residual_norms(model, "abc", source="hello")
    seen = model.watch("abc", ["blocks.1.cross_attn.out", "blocks.1.resid_cross"], source="hello")
    at = view.axes[1].labels.index("1 cross")
    for i, name in enumerate(("blocks.1.cross_attn.out", "blocks.1.resid_cross")):
        assert torch.allclose(view.values[i, at], seen[name][0].norm(dim=-1))
    assert ch.lens.residual_norms(model, "abc", source="hello", encoder=True).axes[
        2
    ].labels == tuple("hello")


MISTAKES = [
    (
        lambda m: ch.lens.attention(m, TEXT, layer=2),
        "there is no layer 2; this model has layers 0 to 1.",
    ),
    (
        lambda m: ch.lens.attention(m, TEXT, head=4),
        "there is no head 4; this layer has heads 0 to 3.",
    ),
    (
        lambda m: ch.lens.attention(m, TEXT, part="cross"),
        "cross is a part of encoder-decoders; this model is of shape decoder",
    ),
    (
        lambda m: ch.lens.attention(m, TEXT, part="crss"),
        "there is no part 'crss'; did you mean 'cross'?",
    ),
    (
        lambda m: ch.lens.attention(m, TEXT, what="score"),
        "attention has no 'score' to show; did you mean 'scores'?",
    ),
    (lambda m: ch.lens.attention(m, ["ab", "cd"]), "one text at a time, not at 2"),
    (
        lambda m: ch.lens.softmax_steps(m, TEXT, layer=0, head=0, token=99),
        "there is no token 99; the text has tokens 0 to 15.",
    ),
    (lambda m: ch.lens.attention(m, TEXT).line_view(), "lines are drawn of one head"),
    (lambda m: ch.lens.rollout(m, TEXT, part="cross"), "rollout follows one stack"),
    (
        lambda m: ch.lens.head_scores(m, TEXT).patterns_by("frist"),
        "heads have no score 'frist'; did you mean 'first'?",
    ),
    (
        lambda m: ch.lens.head_scores(m, "abc").patterns_by("induction"),
        "nothing in this text shows 'induction'",
    ),
    (
        lambda m: ch.lens.head_scores(m, TEXT, prt="cross"),
        "atlas has no 'prt'; did you mean 'part'?",
    ),
    (lambda m: ch.lens.rollout(m, TEXT, edit={}), "rollout has no 'edit'; did you mean 'edits'?"),
]


@pytest.mark.parametrize("name", ch.lens.__all__)
def test_no_function_takes_a_name_that_it_does_not_know(name):
    with pytest.raises(ch.ClearheadError, match=f"{name} has no 'nonsense'"):
        getattr(ch.lens, name)(nonsense=1)


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(decoder())


def test_the_stream_begins_with_the_tokens_alone():
    for name in ("tiny-decoder", "tiny-llama"):  # with and without positions that are added
        model = ch.new(name, seed=3)
        seen = model.watch([1, 2, 3], ["full_embed", "embed"])
        added, stream = ch.lens.residual_norms(model, [1, 2, 3]).values
        torch.testing.assert_close(stream[0], seen["embed"][0].norm(dim=-1))
        torch.testing.assert_close(added[0], stream[0])
        last = (
            list(ch.lens.residual_norms(model, [1, 2, 3]).axes[1].labels).index("0 attention") - 1
        )
        torch.testing.assert_close(stream[last], seen["full_embed"][0].norm(dim=-1))
