"""Parameters part by part: the sum is the real count, and shapes are those of the equations."""

import pytest

import clearhead as ch

TINY = ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"]


@pytest.mark.parametrize("preset", TINY)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "rmsnorm", "ffn__activation": "swiglu"},
        {"position": "t5"},
        {"position": "shaw"},
        {"attention__qk_norm": True, "norm_position": "post"},
    ],
    ids=str,
)
def test_parts_sum_to_the_parameters_of_the_network(preset, options):
    model = ch.new(preset, vocab_size=100, seed=0, **options)
    table = ch.lens.parameters(model)
    assert table.total == sum(p.numel() for p in model.net.parameters())
    assert sum(row["parameters"] for row in table.table()) == table.total
    assert table.values.sum() == table.total


def test_shapes_are_those_of_the_row_form():
    model = ch.new("tiny-decoder", vocab_size=100, seed=0, d_model=32, n_layers=2)
    m = model.config.model
    groups = {group.symbol: group for group in ch.lens.parameters(model).groups}
    assert groups["E"].shape == (100, 32)
    assert groups["W_Q"].shape == (32, m.attention.n_heads * m.d_head)
    assert groups["W_up"].shape == (32, m.d_ff)
    assert groups["W_down"].shape == (m.d_ff, 32)
    assert groups["W_up"].count == 2 * 32 * m.d_ff
    assert groups["W_U = Eᵀ"].shape == (32, 100)
    assert groups["W_U = Eᵀ"].count == 0


def test_an_own_unembedding_is_counted():
    model = ch.new("tiny-decoder", vocab_size=100, seed=0, head__tie_embeddings=False)
    groups = {group.symbol: group for group in ch.lens.parameters(model).groups}
    assert groups["W_U"].count == 100 * model.config.model.d_model
    assert "W_U = Eᵀ" not in groups


@pytest.mark.parametrize(
    "name", [name for name in ch.presets if ch.presets[name].num_parameters() < 2_000_000]
)
def test_small_presets_are_counted(name):
    options = {} if ch.presets[name].model.input.kind != "tokens" else {"vocab_size": 50}
    model = ch.new(name, seed=0, **options)
    assert ch.lens.parameters(model).total == model.num_parameters()


def test_a_classifier_of_images_is_counted():
    parts = {group.part for group in ch.lens.parameters(ch.new("tiny-images", seed=0)).groups}
    assert {"embedding of patches", "classifier"} <= parts
