"""The grid of variants: how values are written, how variants are named, and what is refused."""

import pytest

import clearhead as ch
from clearhead.lab.experiment import expand_grid, format_vary

BASE = ch.presets["tiny-decoder"]


def names(*vary):
    return [variant.name for variant in expand_grid(BASE, vary)]


def test_grid_is_the_product_of_all_values():
    assert names("model.position=none,rotary", "model.attention.n_heads=1,2") == [
        "position=none,n_heads=1",
        "position=none,n_heads=2",
        "position=rotary,n_heads=1",
        "position=rotary,n_heads=2",
    ]
    assert names() == ["base"]


def test_unique_option_needs_no_section():
    assert names("model.n_heads=1,2") == names("model.attention.n_heads=1,2")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("runs/learned/{seed}/best,runs/rotary/{seed}/best", ["learned", "rotary"]),
        ("a,a/b", ["a", "a-b"]),
        ("runs/learned", ["runs-learned"]),
    ],
)
def test_paths_are_named_by_their_differences(values, expected):
    assert names(f"train.init_from={values}") == [f"init_from={name}" for name in expected]


def test_names_are_short_and_valid_folder_names():
    assert names("model.vocab_size=16,32", "data.vocab_size=8")[0] == (
        "model.vocab_size=16,data.vocab_size=8"
    )
    assert names("data.train=a/b.txt,c d") == ["train=a-b.txt", "train=cd"]


def test_variant_is_the_base_with_overrides():
    vary = ['model.position={kind = "rotary", theta = 500},learned']
    vary.append('model.attention.bias=[],["q","k"]')
    variants = expand_grid(BASE, vary)
    rotary = {"kind": "rotary", "theta": 500.0}
    assert [variant.config for variant in variants] == [
        BASE.replace(position=position, attention__bias=bias)
        for position in (rotary, "learned")
        for bias in ([], ["q", "k"])
    ]
    assert [variant.name for variant in variants[:2]] == [
        "position=rotary,theta=500,bias=empty",
        "position=rotary,theta=500,bias=q,k",
    ]


def test_python_values_survive_formatting():
    vary = {
        "model__position": ["none", {"kind": "rotary", "theta": 500.0}],
        "attention.bias": [[], ["q", "k"]],
        "train.grad_clip": [0.0, 1],
        "data.train": ["a,b", "it's"],
        "model.attention.scale": [True, False],
    }
    variants = expand_grid(BASE, format_vary(vary))
    assert len(variants) == 32
    configs = [variant.config for variant in variants]
    assert {config.data.train for config in configs} == {("a,b",), ("it's",)}
    assert {config.model.attention.scale for config in configs} == {True, False}
    assert configs[-1].model.position.theta == 500.0


def test_override_without_section_is_never_dropped_by_another():
    rotary = BASE.replace(position="rotary")
    assert rotary.replace(theta=500.0).model.position.theta == 500.0
    for overrides in ({"theta": 500.0, "position": "alibi"}, {"position": "alibi", "theta": 500.0}):
        with pytest.raises(ch.ClearheadError, match=r"model\.position\.theta"):
            rotary.replace(**overrides)
    with pytest.raises(ch.ClearheadError, match=r"model\.attention\.n_heads"):
        BASE.replace(n_heads=2, attention__n_heads=1)


@pytest.mark.parametrize(
    ("vary", "keyword"),
    [
        (["model.bias=true,false"], "did you mean 'model.attention.bias'"),
        (["model.position=rotry,none"], "did you mean 'rotary'"),
        (["model.position=none,rotary", "model.attention.n_heads=3"], "position=none,n_heads=3: "),
        (["model.position=rotary,rotary"], "same name, position=rotary"),
        (["train.grad_clip=1,1.0"], "same configuration"),
        (["model.position"], "has no values"),
        (["model.position=none", "model.position=rotary"], "model.position is given twice"),
        (["train.seed=1,2"], "use --seeds"),
        (["train.max_steps=1,"], "train.max_steps"),
        (["train.seq_len=16,999"], "train.seq_len = 999 exceeds model.context_length"),
        (["train.init_from=some/model", "model.d_model=16,32"], "has no effect"),
    ],
)
def test_invalid_variation_is_refused(vary, keyword):
    with pytest.raises(ch.ClearheadError) as error:
        expand_grid(BASE, vary)
    assert keyword in str(error.value)
