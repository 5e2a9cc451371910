"""Views of positions show what the model adds or rotates."""

import math

import pytest
import torch

import clearhead as ch
from clearhead.lens.position_encodings import (
    phrase_shift,
    position_curves,
    position_shift,
    position_similarity,
    positional_encodings,
    relative_bias,
    rotary_angles,
)

BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}
TEXT = "one mole of carbon"


def make_model(position, preset="tiny-decoder"):
    return ch.new(preset, position=position, seed=2, **BYTES)


def test_sinusoidal_encodings_follow_the_equation_beside_binary_counting():
    sinusoids, counting = positional_encodings(make_model("sinusoidal"), 16).values
    d_model = sinusoids.shape[1]
    for position, i in [(0, 0), (3, 1), (9, 4)]:
        angle = position / 10000 ** (2 * i / d_model)
        assert float(sinusoids[position, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-5)
        assert float(sinusoids[position, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-5)
    columns = counting.T.tolist()
    bits = [[float(position >> bit & 1) for position in range(16)] for bit in range(4)]
    assert columns[0] == bits[0]
    assert [bit for bit in bits if bit in columns] == bits
    assert len(positional_encodings(make_model("rotary"), 16).values) == 1


def test_selected_dimensions_are_evenly_spaced():
    model = make_model("sinusoidal")
    selected = positional_encodings(model, 8, dimensions=4)
    everything = positional_encodings(model, 8)
    dimensions = [int(label) for label in selected.axes[2].labels]
    assert dimensions == [i * model.config.model.d_model // 4 for i in range(4)]
    assert torch.equal(selected.values, everything.values[..., dimensions])


def test_learned_encodings_are_the_table():
    model = make_model("learned")
    table = model.net.position.table[:8].detach()
    torch.testing.assert_close(positional_encodings(model, 8).values[0], table)
    torch.testing.assert_close(position_similarity(model, 8).values.diagonal(), torch.ones(8))


def test_rotary_angles_are_linear_and_similarity_depends_on_distance():
    model = make_model("rotary")
    turns = rotary_angles(model, 8).values
    torch.testing.assert_close(turns[1:] - turns[:-1], turns[1].expand(7, -1))
    similarity = position_similarity(model, 8).values
    torch.testing.assert_close(similarity[0, 3], similarity[4, 7])
    assert similarity[0, 0] == 1 > similarity[0, 1]


@pytest.mark.parametrize("position", ["t5", "alibi"])
def test_relative_bias_is_what_attention_adds(position):
    model = make_model(position)
    bias = relative_bias(model, 6).values
    position_ids = torch.arange(6)[None]
    layer_position = model.net.position.layer_positions(position_ids, position_ids, 1)[0]
    n_heads = model.config.model.attention.n_heads
    added = layer_position.bias(torch.zeros(1, n_heads, 6, 1), 1.0)
    torch.testing.assert_close(bias[:, 2], added[0, :, 5, 3].detach())


def test_curves_are_the_waves_of_the_equation():
    model = ch.new("tiny-decoder", position="sinusoidal", context_length=64, seed=2, **BYTES)
    view = position_curves(model, (2, 50))
    d_model = view.values.shape[1]
    for row, position in zip(view.values.tolist(), (2, 50), strict=True):
        for dimension, value in enumerate(row):
            angle = position / 10000 ** (dimension // 2 * 2 / d_model)
            wave = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert value == pytest.approx(wave, abs=1e-4)
    text = str(view.terminal())
    assert text.count("•") == 2 * d_model
    assert "position 50" in text
    assert view._repr_html_().count("<polyline") == 2
    assert len(view.figure().axes) == 2


WALK = ("I walk my dog every day", "every single day, I walk my dog")


@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder"])
@pytest.mark.parametrize("position", ["t5", "shaw", "alibi", "rotary", "learned", "sinusoidal"])
def test_shared_words_have_the_same_scores_if_only_distances_count(position, preset):
    model = make_model(position, preset)
    shift = phrase_shift(model, *WALK)
    assert shift.axes[1].labels == ("from token 0", "from token 18")
    assert "".join(shift.axes[2].labels) == "I·walk·my·dog"
    largest = float((shift.values[:, 0] - shift.values[:, 1]).abs().max())
    assert float(shift.differences.values.max()) == pytest.approx(largest)
    assert (largest > 1e-3) == (position in ("learned", "sinusoidal"))
    encoder = "encoder." if preset == "tiny-encoder-decoder" else ""
    name = f"{encoder}blocks.0.attn.scores"
    inputs = {"source": WALK[1]} if encoder else {}
    scores = model.watch("x" if encoder else WALK[1], [name], **inputs)[name][0]
    torch.testing.assert_close(shift.values[:, 1], scores[:, 18:31, 18:31])
    one = phrase_shift(model, *WALK, head=1)
    assert torch.equal(one.values, shift.values[1])


def test_texts_of_a_shift_must_share_words():
    model = make_model("rotary")
    for second, message in [("xyz", "none found"), ("I walk home", "the same one")]:
        with pytest.raises(ch.ClearheadError, match=message):
            phrase_shift(model, "I walk", second)
    for positions in [(), "2", (1.5,), (-1,), (10**6,)]:
        with pytest.raises(ch.ClearheadError, match="positions"):
            position_curves(model, positions)


@pytest.mark.parametrize("position", ["none", "t5", "shaw", "alibi", "rotary"])
def test_shift_changes_nothing_if_only_distances_count(position):
    shift = position_shift(make_model(position), TEXT, offset=5)
    assert float(shift.values.max()) < 1e-4
    assert float(shift.patterns.values.max()) < 1e-4


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_shift_changes_the_stream_with_absolute_positions(position):
    shift = position_shift(make_model(position), TEXT, offset=5)
    assert float(shift.values.max()) > 1e-4
    assert float(shift.patterns.values.max()) > 1e-4


ERRORS = [
    ("learned", lambda m: positional_encodings(m, 1), "count must be"),
    ("learned", lambda m: positional_encodings(m, 10**6), "count must be"),
    ("none", positional_encodings, "use position_shift"),
    ("t5", positional_encodings, "use relative_bias"),
    ("learned", rotary_angles, "needs rotary positions, got 'learned'"),
    ("rotary", relative_bias, "needs t5 or alibi positions, got 'rotary'"),
    ("rotary", lambda m: position_shift(m, TEXT, offset=0), "offset must be a positive integer"),
    ("learned", lambda m: position_shift(m, TEXT, offset=10**6), "offset must be at most"),
    ("rotary", lambda m: position_shift(m, ["a mole", "a"]), "one text at a time"),
]


@pytest.mark.parametrize(("position", "call", "message"), ERRORS)
def test_invalid_arguments_are_refused(position, call, message):
    with pytest.raises(ch.ClearheadError, match=message):
        call(make_model(position))


def test_shift_needs_a_single_stack_of_text():
    model = make_model("sinusoidal", "tiny-encoder-decoder")
    with pytest.raises(ch.ClearheadError, match="decoder or encoder of text"):
        position_shift(model, "a mole")
