"""Hooks: name patterns, scopes, and what a recorder keeps."""

import torch

from clearhead.hooks import NO_HOOKS, Recorder, matches


def test_star_matches_one_part_and_two_stars_any_number():
    assert matches("blocks.*.resid_pre", "blocks.3.resid_pre")
    assert not matches("blocks.*.post", "blocks.3.ffn.post")
    assert matches("blocks.1.**", "blocks.1.attn.q")
    assert not matches("embed", "embed.norm")
    assert not matches("blocks.1", "blocksx1")
    assert matches("*" * 41, "blocks.0.attn.rot_k")
    assert matches("bl*.*.*n.rot_*", "blocks.0.attn.rot_k")
    assert not matches("bl*k", "blocks.0.attn.rot_k")


def test_long_patterns_are_fast():
    name = "blocks.0.attn.rot_k"
    assert not matches("**" * 40 + "!", name)
    assert not matches("*k" * 2000, name)


def test_scopes_without_a_matching_name_have_no_hooks():
    identity = {"blocks.1.ffn.*": lambda value, name: value}
    recorder = Recorder(["blocks.*.resid_post", "**.scores"], identity)
    assert recorder.scope("norm") is not NO_HOOKS  # ** may match anything below
    recorder = Recorder(["blocks.*.resid_post"], identity)
    assert recorder.scope("blocks", 0).scope("ffn") is NO_HOOKS
    assert recorder.scope("blocks", 1).scope("attn") is NO_HOOKS
    assert recorder.scope("blocks", 1).scope("ffn") is not NO_HOOKS
    assert recorder.scope("encoder") is NO_HOOKS


def test_edits_added_later_stay_within_their_scope():
    hooks = Recorder(["blocks.0.resid_pre", "resid_pre"]).scope("blocks", 0)
    hooks = hooks.with_edits({"blocks.0.resid_pre": lambda value, name: value + 1})
    hooks("resid_pre", torch.zeros(1))
    values = {name: float(value) for name, value in hooks.values.items()}
    assert values == {"blocks.0.resid_pre": 1}


def test_edits_apply_in_their_order_whether_names_or_patterns():
    applied = []

    def edit(label):
        return lambda value, name: applied.append(label) or value

    patterns = ("**.out", "blocks.0.attn.out", "blocks.*.attn.out", "blocks.1.attn.out")
    hooks = Recorder(edits={pattern: edit(pattern) for pattern in patterns})
    hooks.scope("blocks", 0).scope("attn")("out", torch.zeros(1))
    assert tuple(applied) == patterns[:3]
