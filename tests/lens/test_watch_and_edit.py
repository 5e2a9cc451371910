"""Every value visible and editable, by name, in every shape, with and without a cache."""

import re

import pytest
import torch
from hypothesis import given, settings

import clearhead as ch
from clearhead.config.model import Config
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import NO_HOOKS, Recorder, matches
from clearhead.lens.activations import activation_table
from clearhead.lens.attention import cached_attention
from clearhead.model.transformer import build_transformer
from strategies import models


def sizes(m, shape):
    """What the words of the table mean for this model; token and key are free."""
    return {
        "batch|1": {1, shape[0]},
        "batch": {shape[0]},
        "head": {m.attention.n_heads},
        "kv_head": {m.n_kv_heads},
        "d_head": {m.d_head},
        "width": {m.d_model},
        "ffn_width": {m.d_ff},
        "vocabulary": {m.vocab_size},
        "outputs": {getattr(m.head, "classes", 1)},
    }


@given(models())
@settings(max_examples=60)
def test_the_table_names_every_value_with_its_shape(m):
    subject = ModelUnderTest(build_transformer(m))
    watch = Recorder(["**"])
    x = subject.random_inputs()
    with torch.no_grad():
        subject.net.eval().compute_logits(subject.net(**x, hooks=watch), hooks=watch)
    table = activation_table(m)
    assert set(watch.values) == set(table)
    for path, value in watch.values.items():
        words = table[path].shape.split()
        assert len(words) == value.dim(), path
        for word, size in zip(words, value.shape, strict=True):
            assert size in sizes(m, value.shape).get(word, {size}), f"{path}: {word} is {size}"


def model(name="tiny-decoder", **changes):
    return ch.new(name, seed=3, **changes)


IDS = [3, 1, 4, 1, 5, 9]


def test_star_is_one_part_and_two_stars_any_number():
    assert matches("blocks.*.resid_pre", "blocks.3.resid_pre")
    assert not matches("blocks.*.resid_pre", "blocks.3.ffn.pre")
    assert matches("blocks.1.**", "blocks.1.attn.q")
    assert not matches("full_embed", "embed")
    assert not matches("blocks.1", "blocksx1")


def test_watching_keeps_what_was_asked_for_and_nothing_else():
    seen = model().watch(IDS, ["blocks.*.attn.pattern", "blocks.1.resid_post"])
    assert set(seen) == {"blocks.0.attn.pattern", "blocks.1.attn.pattern", "blocks.1.resid_post"}


def test_watching_the_stream_keeps_the_fused_kernel(monkeypatch):
    from clearhead.model import attention

    monkeypatch.setattr(attention, "spelled", None)  # would fail if called
    model().watch(IDS, ["blocks.*.resid_post", "blocks.*.attn.z"])
    with pytest.raises(TypeError):
        model().watch(IDS, ["blocks.1.attn.pattern"])


def test_only_the_watched_layer_is_written_out(monkeypatch):
    from clearhead.model import attention

    calls = []
    honest = attention.eager_attention
    monkeypatch.setattr(attention, "spelled", lambda *a: calls.append(1) or honest(*a))
    model().watch(IDS, ["blocks.1.attn.scores"])
    assert len(calls) == 1


def test_a_part_of_a_value_can_be_kept_without_the_rest():
    seen = model().watch(IDS, {"blocks.0.attn.pattern": lambda p: p[:, 2]})
    whole = model().watch(IDS, ["blocks.0.attn.pattern"])["blocks.0.attn.pattern"]
    assert torch.equal(seen["blocks.0.attn.pattern"], whole[:, 2])
    assert seen["blocks.0.attn.pattern"].untyped_storage().nbytes() == whole[:, 2].numel() * 4


@given(models())
@settings(max_examples=40)
def test_an_edit_that_changes_nothing_changes_nothing(m):
    """At every name at once: scores, patterns and the stream included."""
    net = ch.Model(build_transformer(m).eval(), Config(m))
    subject = ModelUnderTest(net.net)
    x = subject.random_inputs()
    watch = Recorder(edits={"**": lambda value, name: value.clone()})
    with torch.no_grad():
        assert torch.allclose(net.net(**x, hooks=watch), net.net(**x), atol=2e-4, rtol=1e-3)


EDITABLE = [
    "full_embed", "blocks.0.resid_pre", "blocks.0.resid_mid", "blocks.1.resid_post", "blocks.0.attn.q", "blocks.0.attn.rot_k",
    "blocks.0.attn.v", "blocks.0.attn.scores", "blocks.0.attn.pattern", "blocks.0.attn.z", "blocks.0.attn.out",
    "blocks.0.ffn.pre", "blocks.0.ffn.post", "blocks.0.ffn.out", "norm", "logits",
]  # fmt: skip


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_at_any_name_is_felt(name):
    changed = model().logits(IDS, edits={name: lambda v: v * torch.linspace(0.2, 3, v.shape[-1])})
    assert not torch.allclose(changed, model().logits(IDS), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["encoder.blocks.0.attn.z", "blocks.1.cross_attn.pattern", "blocks.0.cross_attn.out"]
)
def test_an_edit_on_either_side_of_a_translator_is_felt(name):
    both = model("tiny-encoder-decoder")
    changed = both.logits(IDS, source=IDS[::-1], edits={name: ch.scale(3.0)})
    assert not torch.allclose(changed, both.logits(IDS, source=IDS[::-1]), atol=1e-4)


def test_edits_work_with_a_cache_as_without():
    net = model().net
    ids = torch.tensor([IDS])
    edits = {"blocks.0.attn.z": ch.ablate(head=1), "blocks.1.attn.scores": lambda v, name: v * 2}
    with torch.no_grad():
        full = net(ids, hooks=Recorder(edits=edits))
        memory = net.init_cache(1, 6)
        steps = [
            net(ids[:, i : i + 1], cache=memory, hooks=Recorder(edits=edits)) for i in range(6)
        ]
        watch = Recorder(["blocks.0.attn.pattern"])
        memory = net.init_cache(1, 6)
        net(ids[:, :5], cache=memory)
        net(ids[:, 5:], cache=memory, hooks=watch)
    assert torch.allclose(torch.cat(steps, 1), full, atol=1e-5)
    alone = model().watch(IDS, ["blocks.0.attn.pattern"])["blocks.0.attn.pattern"]
    assert torch.allclose(watch.values["blocks.0.attn.pattern"], alone[:, :, -1:], atol=1e-6)


def test_ablating_a_head_equals_a_head_of_zeros_in_the_output_matrix():
    plain = model()
    cut = model()
    with torch.no_grad():
        cut.net.blocks[1].attn.out.weight[:, 8:16] = 0  # head 1 of width 8
    assert torch.allclose(
        plain.logits(IDS, edits={"blocks.1.attn.z": ch.ablate(head=1)}), cut.logits(IDS), atol=1e-6
    )


def test_replacing_the_whole_stream_gives_the_other_run():
    other = model().watch([2, 7, 1, 8, 2, 8], ["blocks.0.resid_post", "logits"])
    patched = model().logits(IDS, edits={"blocks.0.resid_post": ch.replace(with_=other)})
    assert torch.allclose(patched, other["logits"][0], atol=1e-6)


def test_replacing_one_token_leaves_the_tokens_before_it_alone():
    other = model().watch([2, 7, 1, 8, 2, 8], ["blocks.0.resid_post"])
    patched = model().logits(IDS, edits={"blocks.0.resid_post": ch.replace(with_=other, token=-2)})
    assert torch.equal(patched[:4], model().logits(IDS)[:4])
    assert not torch.allclose(patched[4:], model().logits(IDS)[4:], atol=1e-4)


def test_gradients_flow_to_watched_values():
    seen = model().watch(
        IDS, ["blocks.0.attn.pattern", "blocks.1.resid_pre", "logits"], gradients=True
    )
    wanted = (seen["blocks.0.attn.pattern"], seen["blocks.1.resid_pre"])
    for grad, value in zip(
        torch.autograd.grad(seen["logits"][0, -1, 5], wanted), wanted, strict=True
    ):
        assert grad.shape == value.shape
        assert grad.abs().max() > 0


def test_gradients_flow_through_a_cache():
    net = model().net
    ids = torch.tensor([IDS])
    memory = net.init_cache(1, 6)
    watch = Recorder(["blocks.0.attn.v"])
    net(ids[:, :4], cache=memory, hooks=watch)
    last = net(ids[:, 4:], cache=memory)[0, -1].sum()
    (cached,) = torch.autograd.grad(last, watch.values["blocks.0.attn.v"])
    seen = Recorder(["blocks.0.attn.v"])
    (full,) = torch.autograd.grad(net(ids, hooks=seen)[0, -1].sum(), seen.values["blocks.0.attn.v"])
    assert torch.allclose(cached, full[:, :, :4], atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder-decoder"])
def test_each_value_can_be_watched_alone(name):
    made = ch.new(name, seed=1)
    given = {"source": IDS} if made.architecture == "encoder-decoder" else {}
    everything = made.watch(IDS, **given)
    for path in everything:
        alone = made.watch(IDS, [path], **given)
        assert [*alone] == [path]
        torch.testing.assert_close(alone[path], everything[path])


def test_a_scope_that_nobody_asks_about_is_silent():
    watch = Recorder(
        ["blocks.*.resid_post", "**.scores"], {"blocks.1.ffn.*": lambda value, name: value}
    )
    assert watch.scope("norm") is not NO_HOOKS  # ** may mean anything below
    watch = Recorder(["blocks.*.resid_post"], {"blocks.1.ffn.*": lambda value, name: value})
    assert watch.scope("blocks", 0).scope("ffn") is NO_HOOKS
    assert watch.scope("blocks", 1).scope("attn") is NO_HOOKS
    assert watch.scope("blocks", 1).scope("ffn") is not NO_HOOKS
    assert watch.scope("encoder") is NO_HOOKS


def test_an_edit_in_place_reaches_nothing_else():
    def cut(value):
        value[:, 1] = 0
        return value

    encoder = model("tiny-encoder")
    for name, beside in (
        ("blocks.1.resid_pre", "blocks.0.resid_post"),
        ("blocks.0.attn.in", "blocks.0.resid_pre"),
    ):
        kept = encoder.watch(IDS, [beside])[beside]
        assert torch.equal(encoder.watch(IDS, [beside], edits={name: cut})[beside], kept)
        assert torch.equal(
            encoder.logits(IDS, edits={name: cut}),
            encoder.logits(IDS, edits={name: lambda v: cut(v.clone())}),
        )


def test_names_may_come_one_by_one():
    assert list(model().watch(IDS, (name for name in ["full_embed"]))) == ["full_embed"]
    assert list(model().watch(IDS, "full_embed")) == ["full_embed"]


def test_padding_has_no_label():
    padded = ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()).watch(
        ["a", "abc"], "blocks.0.attn.pattern"
    )
    assert padded.tokens == ["a"]
    assert len(ch.lens.attention_figure(padded, 0, 1).axes[0].get_xticklabels()) == 3
    pictures = ch.new("tiny-pictures").watch(
        images=torch.rand(1, 8, 8), names="blocks.0.attn.pattern"
    )
    assert len(cached_attention(pictures, 0, 0).values) == 17


def test_what_has_no_name_goes_by_its_number():
    roomy = ch.new("tiny-decoder", vocab_size=300, tokenizer=ch.Tokenizer.bytes())
    assert roomy.watch([65, 299], "full_embed").tokens == ["A", "299"]
    assert ch.lens.position_shift(roomy, [65, 299]).axes[1].labels == ("A", "299")


def test_a_part_of_a_pattern_is_kept_and_not_drawn_as_if_it_were_all():
    seen = model().watch(IDS, {"blocks.0.attn.pattern": lambda p: p[:, 3]})
    assert seen["blocks.0.attn.pattern"].shape == (1, 6, 6)
    assert "<svg" not in seen._repr_html_()
    with pytest.raises(ch.ClearheadError, match="was not watched whole"):
        ch.lens.attention_figure(seen, 0)


def test_all_three_attentions_are_drawn():
    seen = model("tiny-encoder-decoder").watch(IDS, "**.1.*.pattern", source=[2, 7])
    assert seen._repr_html_().count("<svg") == 3 * 4
    assert "cross-attention, layer 1" in seen._repr_html_()
    assert (
        ch.lens.attention_figure(seen, 1, 0, part="encoder").get_suptitle()
        == "encoder, layer 1, head 0"
    )


def test_edits_that_come_later_stay_within_their_scope():
    hooks = (
        Recorder(["blocks.0.resid_pre", "pre"])
        .scope("blocks", 0)
        .with_edits({"blocks.0.resid_pre": lambda value, name: value + 1})
    )
    hooks("pre", torch.zeros(1))
    assert {name: float(value) for name, value in hooks.values.items()} == {"blocks.0.resid_pre": 1}


def test_a_pattern_edited_on_purpose_is_what_the_head_uses():
    def uniform(pattern):
        return torch.ones_like(pattern).tril() / torch.arange(1, 7)[:, None]

    seen = model().watch(
        IDS, ["blocks.0.attn.v", "blocks.0.attn.z"], edits={"blocks.0.attn.pattern": uniform}
    )
    v = seen["blocks.0.attn.v"]
    assert torch.allclose(seen["blocks.0.attn.z"][0, :, 3], v[0, :, :4].mean(1), atol=1e-6)


MISTAKES = [
    (lambda m: m.watch(IDS, None), "values are asked for by name, not by NoneType"),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.attn.z": ch.ablate(head="1")}),
        "has 4 heads; there is no head '1'",
    ),
    (
        lambda m: m.watch(IDS, ["blocks.7.resid_post"]),
        "names no value of this model; there it has layers 0 to 1.",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.*.atn.z": ch.ablate()}),
        "did you mean 'blocks.*.attn.z'?",
    ),
    (lambda m: m.watch(IDS, "blocks.1.atn.z"), "did you mean 'blocks.1.attn.z'?"),
    (lambda m: ch.ablate(hed=1), "ablate has no 'hed'; did you mean 'head'?"),
    (lambda m: m.watch(IDS, "patern"), "did you mean 'blocks.*.attn.pattern'?"),
    (
        lambda m: m.watch(IDS, "???"),
        "known: embed, pos_embed, embed, blocks.*.resid_pre, blocks.*.attn.in",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.resid_post": ch.ablate(head=1)}),
        "is not split by head",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.attn.z": ch.ablate(head=4)}),
        "has 4 heads; there is no head 4",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.attn.z": ch.ablate(token=6)}),
        "has 6 tokens; there is no token 6",
    ),
    (
        lambda m: m.logits(IDS, edits={"blocks.0.attn.z": lambda v: v[:, :1]}),
        "must return a tensor of 1 x 4 x 6 x 8",
    ),
    (lambda m: m.logits(IDS, edits={"blocks.0.attn.z": lambda v: None}), "not NoneType"),
    (
        lambda m: m.logits(IDS, edits={"norm": ch.replace(with_=m.watch(IDS, ["full_embed"]))}),
        "did not keep norm",
    ),
    (
        lambda m: m.logits(IDS, edits={"norm": ch.replace(with_=m.watch([1], ["norm"]))}),
        "they need as many",
    ),
    (lambda m: m.watch(IDS, ["full_embed"])["norm"], "'norm' was not watched; known: embed"),
    (lambda m: m.hidden(IDS, edits={"logits": ch.ablate()}), "logits come after the hidden states"),
    (
        lambda m: ch.new("tiny-pictures").logits(
            images=torch.rand(1, 8, 8), edits={"logits": ch.ablate(token=0)}
        ),
        "one row",
    ),
    (
        lambda m: m.logits([IDS] * 3, edits={"norm": ch.replace(with_=m.watch([IDS] * 2, "norm"))}),
        "in the other run",
    ),
    (lambda m: ch.lens.attention_figure(m.watch(IDS, ["full_embed"]), 0), "was not watched"),
    (
        lambda m: ch.lens.attention_figure(m.watch(IDS, ["blocks.0.attn.pattern"]), 0, 9),
        "there is no head 9",
    ),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(model())


def test_what_was_seen_tells_of_itself():
    seen = model().watch(IDS, ["blocks.0.attn.pattern"])
    assert "1 × 4 × 6 × 6" in repr(seen)
    assert "rows add up to 1" in seen._repr_html_()
    assert seen._repr_html_().count("<svg") == 4
    assert "<svg" not in model().watch(IDS, "full_embed")._repr_html_()
    assert seen.tokens == [str(i) for i in IDS]
    assert ch.lens.attention_figure(seen, 0, 1).get_suptitle() == "layer 0, head 1"
    assert len(ch.lens.attention_figure(seen, 0).axes) == 5  # and the scale


def test_no_pattern_takes_long():
    path = "blocks.0.attn.rot_k"
    assert not matches("**" * 40 + "!", path)
    assert not matches("*k" * 2000, path)
    assert matches("*" * 41, path)
    assert matches("bl*.*.*n.k_*d", path)
    assert not matches("bl*d", path)
