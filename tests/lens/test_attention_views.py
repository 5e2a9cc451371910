"""Attention views: the right numbers with the right labels, and no more in memory than is shown."""

import re

import pytest
import torch

import clearhead as ch
from clearhead.errors import NonFiniteError
from clearhead.lens.attention import HEAD_SCORES, LayerPatterns

BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}
TEXT = "the cat, the cat"


def make_decoder(preset="tiny-decoder"):
    return ch.new(preset, seed=3, **BYTES)


def make_encoder_decoder():
    return ch.new("tiny-encoder-decoder", seed=3, **BYTES)


def test_attention_equals_watched_pattern():
    pattern = make_decoder().watch(TEXT, ["blocks.1.attn.pattern"])["blocks.1.attn.pattern"][0]
    head = ch.lens.attention(make_decoder(), TEXT, layer=1, head=2)
    assert torch.equal(head.values, pattern[2])
    assert head.axes[0].labels == tuple(TEXT.replace(" ", "·"))
    layer = ch.lens.attention(make_decoder(), TEXT, layer=1)
    assert torch.equal(layer.values, pattern)
    all_heads = ch.lens.attention(make_decoder(), TEXT)
    assert torch.allclose(all_heads.values[1], pattern, atol=1e-6)
    head_in_all_layers = ch.lens.attention(make_decoder(), TEXT, head=2)
    assert torch.allclose(head_in_all_layers.values[1], pattern[2], atol=1e-6)


def test_attention_of_one_head_keeps_only_that_head(monkeypatch):
    model = make_decoder()
    caches = []
    watch = model.watch

    def recording_watch(*args, **inputs):
        caches.append(watch(*args, **inputs))
        return caches[-1]

    monkeypatch.setattr(model, "watch", recording_watch)
    ch.lens.attention(model, TEXT, layer=1, head=2)
    ((name, value),) = caches[0].items()
    assert name == "blocks.1.attn.pattern"
    assert value.untyped_storage().nbytes() == 4 * len(TEXT) ** 2


@pytest.mark.parametrize(
    ("kind", "size"), [("attention", (3, 3)), ("cross", (3, 5)), ("encoder", (5, 5))]
)
def test_encoder_decoder_has_three_kinds_of_attention(kind, size):
    view = ch.lens.attention(make_encoder_decoder(), "abc", source="hello", kind=kind)
    assert view.values.shape[-2:] == size
    assert view.axes[-1].labels == tuple("abc" if kind == "attention" else "hello")
    assert torch.allclose(view.values.sum(dim=-1), torch.ones(()), atol=1e-5)


def test_softmax_steps_lead_from_scores_to_pattern():
    steps = ch.lens.softmax_steps(make_decoder(), TEXT, layer=0, head=1, position=4).values
    scores, masked_scores, exponentials, pattern = steps
    assert torch.equal(masked_scores[:5], scores[:5])
    assert bool((masked_scores[5:] == -torch.inf).all())
    assert torch.allclose(exponentials / exponentials.sum(), pattern, atol=1e-6)
    assert torch.allclose(masked_scores.softmax(dim=0), pattern, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        (make_decoder(), {}, "embed"),
        (make_decoder(), {"layer": -1}, "blocks.1.resid_post"),
        (make_decoder("tiny-encoder"), {"layer": 0}, "blocks.0.resid_post"),
        (make_encoder_decoder(), {"source": "hello", "kind": "encoder"}, "encoder.embed"),
    ],
)
def test_simple_attention_has_no_queries_keys_and_values(model, options, name):
    view = ch.lens.simple_attention(model, TEXT, **options)
    vectors = model.watch(TEXT, [name], source=options.get("source"))[name][0]
    is_causal = not (model.architecture == "encoder" or options.get("kind"))
    for i, x_i in enumerate(vectors):
        seen = vectors[: i + 1] if is_causal else vectors
        scores = torch.stack([x_i.dot(x_j) for x_j in seen])
        powers = (scores - scores.max()).exp()
        alpha = powers / powers.sum()
        assert torch.allclose(view.values[i, : len(seen)], alpha, atol=1e-5)
        assert torch.allclose(view.scores.values[i, : len(seen)], scores, rtol=1e-4)
        assert not view.values[i, len(seen) :].any()
        total = sum(a * x_j for a, x_j in zip(alpha, seen, strict=True))
        assert torch.allclose(view.outputs[i], total, atol=1e-5)
    assert view.line_view().visible_lines()


@pytest.mark.parametrize("activation", ["scores", "masked_scores"])
def test_scores_are_signed(activation):
    view = ch.lens.attention(make_decoder(), TEXT, layer=0, head=0, activation=activation)
    assert view.signed
    assert view.vmax is None


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-llama"])  # the second has grouped heads
def test_value_weighted_attention_and_output_norms_add_up_to_the_output(preset):
    model = make_decoder(preset)
    layer = 1
    weighted = ch.lens.value_weighted_attention(model, TEXT, layer=layer).values
    norms = ch.lens.head_output_norms(model, TEXT).values[layer]
    cache = model.watch(TEXT, [f"blocks.{layer}.attn.*"])
    pattern, v, out = (cache[f"blocks.{layer}.attn.{name}"][0] for name in ("pattern", "v", "out"))
    n_heads = len(pattern)
    d_head = v.shape[-1]
    weight = model.net.blocks[layer].attn.out.weight.detach()
    total = torch.zeros_like(out)
    for head in range(n_heads):
        w_o = weight[:, head * d_head : (head + 1) * d_head]
        moved = pattern[head][..., None] * (v[head * len(v) // n_heads] @ w_o.T)
        assert torch.allclose(weighted[head], moved.norm(dim=-1), atol=1e-5)
        assert torch.allclose(norms[head], moved.sum(dim=1).norm(dim=-1), atol=1e-5)
        total += moved.sum(dim=1)
    bias = model.net.blocks[layer].attn.out.bias
    assert torch.allclose(total + (0 if bias is None else bias.detach()), out, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "tokens"), [("attention", "abc"), ("cross", "abc"), ("encoder", "hello")]
)
def test_head_output_norms_have_the_tokens_of_the_queries(kind, tokens):
    view = ch.lens.head_output_norms(make_encoder_decoder(), "abc", source="hello", kind=kind)
    assert view.axes[2].labels == tuple(tokens)


def test_rollout_multiplies_the_layers():
    model = make_decoder()
    patterns = ch.lens.attention(model, TEXT).values.mean(dim=1)
    first, second = ((pattern + torch.eye(len(pattern))) / 2 for pattern in patterns)
    rollout = ch.lens.rollout(model, TEXT).values
    assert torch.allclose(rollout[1], second @ first, atol=1e-6)
    assert torch.allclose(rollout.sum(dim=-1), torch.ones(()), atol=1e-5)


def score(name, pattern, tokens):
    size = len(tokens)
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    not_self = ~torch.eye(size, dtype=torch.bool)
    layer = LayerPatterns(pattern[None, None], tokens, tokens, causal, not_self)
    return float(HEAD_SCORES[name][1](layer))


def test_heads_with_a_single_function_score_1():
    tokens = ["a", "b", ",", "a", "b"]
    identity = torch.eye(5)
    previous = identity[[0, 0, 1, 2, 3]]
    assert score("previous_token", previous, tokens) == 1
    assert score("relative_position", previous, tokens) > 0.7
    assert score("self", identity, tokens) == 1
    assert score("first_token", identity[[0] * 5], tokens) == 1
    assert score("duplicate_token", identity[[0, 0, 0, 0, 1]], tokens) == 1
    assert score("induction", identity[[0, 0, 0, 1, 2]], tokens) == 1
    assert score("punctuation", identity[[0, 0, 2, 2, 2]], tokens) == 1
    with_spaces = ["a", "·", "#", "·b", "↵"]  # a space alone is not punctuation
    assert score("punctuation", identity[[0, 0, 2, 2, 2]], with_spaces) == 1
    assert score("punctuation", identity[[0, 1, 1, 1, 4]], with_spaces) == 0
    assert score("entropy", identity, tokens) == 0
    uniform = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    assert score("entropy", uniform, tokens) == pytest.approx(1)
    assert torch.tensor(score("duplicate_token", identity, list("abcde"))).isnan()


def test_head_scores_rank_all_heads():
    scores = ch.lens.head_scores(make_decoder(), TEXT)
    assert len(scores.table()) == 8
    ranking = scores.ranking("first_token")
    assert ranking.values.tolist() == sorted(ranking.values.tolist(), reverse=True)
    layer, head = map(int, ranking.axes[0].labels[0].split("."))
    best = scores.patterns_by("first_token", top_k=3)
    patterns = ch.lens.attention(make_decoder(), TEXT).values
    assert torch.equal(best.values[0], patterns[layer, head])
    causal_scores = tuple(name for name in HEAD_SCORES if name != "next_token")
    assert scores.axes[0].labels == causal_scores
    assert all(f"{name}: {HEAD_SCORES[name][0]}" in scores.note for name in causal_scores)


def test_head_scores_of_cross_attention():
    scores = ch.lens.head_scores(make_encoder_decoder(), "abc", source="hello, b", kind="cross")
    assert scores.values.shape[0] == 5


def test_head_scores_leave_out_what_a_text_cannot_show():
    encoder = ch.new("tiny-encoder", seed=3, **BYTES)
    assert "next_token" in ch.lens.head_scores(encoder, TEXT).axes[0].labels
    scores = ch.lens.head_scores(make_decoder(), "ab")
    undefined = {"duplicate_token", "induction", "punctuation", "next_token"}
    assert not undefined & {*scores.axes[0].labels}
    assert scores.values.isfinite().all()
    assert "nan" not in str(scores.terminal())
    best = scores.best(top_k=2)
    layer, head = divmod(int(scores.values[0].argmax()), 4)
    assert best.words[0][0] == f"{layer}.{head}"
    assert best.cell_texts[0][0].startswith(f"{layer}.{head}: ")
    assert best.table()[0].keys() == {"name", "rank", "word", "score"}
    assert best.csv().splitlines()[1].startswith(f"{scores.axes[0].labels[0]},1,{layer}.{head},")
    assert float(best.values[0, 0]) == float(scores.values[0].max())


NAN_VIEWS = {
    "head_scores": lambda model: ch.lens.head_scores(model, TEXT),
    "attribution": lambda model: ch.lens.attribution(model, TEXT),
    "residual_norms": lambda model: ch.lens.residual_norms(model, TEXT),
    "context": lambda model: ch.lens.context(model, "a", ["b a", "c a"]),
    "vectors": lambda model: ch.vectors(model, layer=1).most_similar("a"),
}


@pytest.mark.parametrize("view", NAN_VIEWS)
def test_nan_is_an_error_that_names_the_activation(view):
    model = make_decoder()
    model.net.blocks[0].attn.v.weight.data.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"blocks\.\d\.\S+"):
        NAN_VIEWS[view](model)


def test_line_view_draws_the_weights_of_a_head():
    head = ch.lens.attention(make_decoder(), "abc", layer=0, head=1)
    assert len(head.line_view().figure().axes[0].lines) == int((head.values > 0.02).sum())
    single_query = head.line_view(position=-1)
    assert torch.equal(single_query.values[-1], head.values[-1])
    assert not single_query.values[:-1].any()
    assert single_query._repr_html_().count("<path") == int((head.values[-1] > 0.02).sum())


ERRORS = [
    (lambda m: ch.lens.attention(m, TEXT, layer=2), "no layer 2; this model has layers 0 to 1"),
    (lambda m: ch.lens.attention(m, TEXT, head=4), "no head 4; this layer has heads 0 to 3"),
    (lambda m: ch.lens.attention(m, TEXT, kind="cross"), "needs an encoder-decoder"),
    (lambda m: ch.lens.attention(m, TEXT, kind="crss"), "did you mean 'cross'?"),
    (lambda m: ch.lens.attention(m, TEXT, activation="score"), "did you mean 'scores'?"),
    (lambda m: ch.lens.attention(m, ["ab", "cd"]), "one text at a time, got 2"),
    (lambda m: ch.lens.softmax_steps(m, TEXT, layer=0, head=0, position=99), "no token 99"),
    (lambda m: ch.lens.attention(m, TEXT).line_view(), "single head"),
    (lambda m: ch.lens.simple_attention(m, TEXT, kind="cross"), "single stack"),
    (lambda m: ch.lens.simple_attention(m, TEXT, layer=9), "no layer 9"),
    (lambda m: ch.lens.rollout(m, TEXT, kind="cross"), "single stack"),
    (
        lambda m: ch.lens.head_scores(m, TEXT).patterns_by("first_tokn"),
        "did you mean 'first_token'?",
    ),
    (lambda m: ch.lens.head_scores(m, "abc").patterns_by("induction"), "cannot show 'induction'"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_decoder())
