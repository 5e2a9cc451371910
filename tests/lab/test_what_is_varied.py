"""What is varied: how values are written, what the combinations are called, and that each is checked beforehand."""

import pytest

import clearhead as ch
from clearhead.lab.experiment import expand_grid, format_vary

BASE = ch.presets["tiny-decoder"]


def names(*vary):
    return [variant.name for variant in expand_grid(BASE, vary)]


def test_the_grid_is_the_product_of_all_values():
    assert names("model.position=none,rotary", "model.attention.n_heads=1,2") == [
        "position=none,heads=1",
        "position=none,heads=2",
        "position=rotary,heads=1",
        "position=rotary,heads=2",
    ]
    assert names() == ["base"]
    assert names("model.n_heads=1,2") == names(
        "model.attention.n_heads=1,2"
    )  # no other part of a model has heads


def test_paths_are_called_by_what_tells_them_apart():
    assert names("train.init_from=runs/learned/{seed}/best,runs/rotary/{seed}/best") == [
        "start=learned",
        "start=rotary",
    ]
    assert names("train.init_from=a,a/b") == ["start=a", "start=a-b"]
    assert names("train.init_from=runs/learned") == ["start=runs-learned"]


def test_an_option_without_its_section_is_never_dropped_by_another():
    rotary = BASE.replace(position="rotary")
    assert rotary.replace(theta=500.0).model.position.theta == 500.0
    for changes in ({"theta": 500.0, "position": "alibi"}, {"position": "alibi", "theta": 500.0}):
        with pytest.raises(ch.ClearheadError, match=r"model\.position\.theta is not an option"):
            rotary.replace(**changes)
    with pytest.raises(
        ch.ClearheadError,
        match=r"model\.heads is short for model\.attention\.heads, which is given too",
    ):
        BASE.replace(n_heads=2, attention__n_heads=1)


def test_a_variant_is_the_base_with_its_values():
    found = expand_grid(
        BASE,
        [
            'model.position={kind = "rotary", theta = 500},learned',
            'model.attention.bias=[],["q","k"]',
        ],
    )
    assert [v.config for v in found] == [
        BASE.replace(position=position, attention__bias=bias)
        for position in ({"kind": "rotary", "theta": 500.0}, "learned")
        for bias in ([], ["q", "k"])
    ]
    assert [v.name for v in found[:2]] == [
        "position=rotary,theta=500,bias=empty",
        "position=rotary,theta=500,bias=q,k",
    ]


def test_values_of_python_are_written_so_that_they_read_back():
    vary = {
        "model__position": ["none", {"kind": "rotary", "theta": 500.0}],
        "attention.bias": [[], ["q", "k"]],
    }
    vary |= {
        "train.grad_clip": [0.0, 1],
        "data.train": ["a,b", "it's"],
        "model.attention.scale": [True, False],
    }
    found = expand_grid(BASE, format_vary(vary))
    assert len(found) == 32
    assert {v.config.data.train for v in found} == {("a,b",), ("it's",)}
    assert {v.config.model.attention.scale for v in found} == {True, False}
    assert found[-1].config.model.position.theta == 500.0


def test_names_are_short_where_that_is_enough_and_fit_for_folders():
    assert names("model.d_model=16,32", "model.ffn.d_ff=8")[0] == "model.d_model=16,ffn.d_ff=8"
    assert names("data.train=a/b.txt,c d") == ["train=a-b.txt", "train=cd"]


@pytest.mark.parametrize(
    ("vary", "sentence"),
    [
        (["model.bias=true,false"], "did you mean 'model.attention.bias'"),
        (["model.position=rotry,none"], "did you mean 'rotary'"),
        (
            ["model.position=none,rotary", "model.attention.n_heads=3"],
            "position=none,heads=3: model.d_model = 32 does not split",
        ),
        (["model.position=rotary,rotary"], "two variants are called position=rotary"),
        (["train.grad_clip=1,1.0"], "two variants are the same"),
        (["model.position"], "names no values"),
        (["model.position=none", "model.position=rotary"], "model.position is given twice"),
        (["train.seed=1,2"], "use --seeds"),
        (["train.max_steps=1,"], "train.max_steps"),
        (["train.seq_len=16,999"], "train.seq_len = 999 is more than model.context_length"),
        (
            ["train.init_from=some/model", "model.d_model=16,32"],
            "has no effect: train.init_from says which model it is",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(vary, sentence):
    with pytest.raises(ch.ClearheadError) as error:
        expand_grid(BASE, vary)
    assert sentence in str(error.value)
