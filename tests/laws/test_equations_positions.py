"""Token and position embeddings (L1, L2) equal the equations, computed by plain loops."""

import numpy as np
import pytest
import torch
from reference import (
    FP32,
    IMPLEMENTATIONS,
    alibi_slopes,
    bidirectional,
    causal,
    check_attention,
    close,
    each_token,
    inverse_frequency,
    llama3_frequency,
    norm,
    parameters,
    random_ids,
    random_net,
    rotated,
    sinusoid,
    t5_bucket,
    watch,
)

from clearhead.model import positions

# Positions of two rows of eight tokens.
POSITION_IDS = torch.tensor([[0, 1, 2, 3, 5, 8, 13, 30], [4, 5, 6, 7, 8, 9, 10, 11]])
POSITIONS = POSITION_IDS.tolist()


def mask_of(preset):
    return causal if preset == "tiny-decoder" else bidirectional


# --- L1.3
def one_hot_times(E, ids):
    def row(token):
        one_hot = [1.0 if v == token else 0.0 for v in range(len(E))]
        return sum(one_hot[v] * E[v] for v in range(len(E)))

    return np.array([[row(token) for token in line] for line in ids.tolist()])


def test_embedding_equals_one_hot_times_matrix():
    net = random_net()
    ids = random_ids(2, 6)
    close(watch(net, ids)["embed"], one_hot_times(parameters(net)["embed.tokens.weight"], ids), 0)


def test_scale_embeddings_multiplies_by_sqrt_d_model():
    net = random_net(**{"input.scale_embeddings": True})
    ids = random_ids(2, 6)
    expected = one_hot_times(parameters(net)["embed.tokens.weight"], ids) * 32**0.5
    close(watch(net, ids)["embed"], expected)


def test_bert_input_is_the_norm_of_token_plus_type_plus_position():
    net = random_net("tiny-encoder")
    ids = random_ids(2, 6)
    P = parameters(net)
    token_type_ids = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]])
    tokens = one_hot_times(P["embed.tokens.weight"], ids)
    tokens += one_hot_times(P["embed.token_types.weight"], token_type_ids)
    values = watch(net, ids, token_type_ids=token_type_ids)
    close(values["embed"], tokens)
    f = norm(P, "embed.norm", net.config.norm)
    close(values["full_embed"], each_token(f, tokens + P["position.table"][:6]))
    zeros = watch(net, ids, token_type_ids=torch.zeros_like(ids))
    close(watch(net, ids)["full_embed"], zeros["full_embed"], 0)


# --- L2.1
ATE_AN_APPLE = torch.tensor([[5, 9, 3]])
APPLE_ATE_AN = torch.tensor([[3, 5, 9]])
PERMUTATION = [2, 0, 1]


def encode_both_orders(position):
    net = random_net("tiny-encoder", position=position)
    permuted = watch(net, ATE_AN_APPLE)["final_norm"][0, PERMUTATION]
    return permuted, watch(net, APPLE_ATE_AN)["final_norm"][0]


def test_without_positions_an_encoder_is_permutation_equivariant():
    close(*encode_both_orders("none"))


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "t5", "shaw", "alibi", "rotary"])
def test_with_positions_an_encoder_sees_the_order(position):
    one, other = encode_both_orders(position)
    assert np.abs(one - other).max() > 1e-3


# --- L2.2, L2.3
def test_learned_positions_add_the_row_of_each_position():
    net = random_net()
    E_pos = parameters(net)["position.table"]
    values = watch(net, random_ids(2, 8), position_ids=POSITION_IDS)
    expected = np.array([[E_pos[pos] for pos in row] for row in POSITIONS])
    close(values["pos_embed"], expected, 0)
    close(values["full_embed"], values["embed"] + expected)


def test_positions_of_packed_documents_start_at_zero():
    net = random_net()
    segment_ids = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 0, 0]])
    E_pos = parameters(net)["position.table"]
    expected = [[E_pos[pos] for pos in row] for row in ([0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1])]
    close(watch(net, random_ids(2, 6), segment_ids=segment_ids)["pos_embed"], expected, 0)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoidal_positions_are_sines_and_cosines_of_falling_frequency(layout):
    net = random_net(position={"kind": "sinusoidal", "layout": layout})
    values = watch(net, random_ids(2, 8), position_ids=POSITION_IDS)
    expected = [[sinusoid(pos, 32, layout) for pos in row] for row in POSITIONS]
    close(values["pos_embed"], expected, FP32)
    close(values["full_embed"], values["embed"] + values["pos_embed"])


# --- L2.4
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_t5_bias_is_the_table_row_of_the_bucket_of_the_distance(preset, implementation):
    net = random_net(preset, position={"kind": "t5", "num_buckets": 8, "max_distance": 12})
    is_bidirectional = preset == "tiny-encoder"
    table = parameters(net)["position.table"]
    values = watch(net, random_ids(2, 8), implementation, position_ids=POSITION_IDS)

    def bias(b, h, i, j):
        return table[t5_bucket(POSITIONS[b][i], POSITIONS[b][j], 8, 12, is_bidirectional), h]

    for layer in range(2):
        check_attention(values, f"blocks.{layer}.attn", mask_of(preset), bias)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 512)])
@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_t5_buckets_are_exact_when_near_and_logarithmic_when_far(
    num_buckets, max_distance, is_bidirectional
):
    scheme = positions.T5(1, num_buckets, max_distance, is_causal=not is_bidirectional)
    distance = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    expected = [
        t5_bucket(n, 0, num_buckets, max_distance, is_bidirectional) for n in distance.tolist()
    ]
    assert scheme.relative_position_bucket(distance[None, None])[0, 0].tolist() == expected
    unused = {num_buckets // 2} if is_bidirectional else set()  # a later key is never at distance 0
    assert set(expected) == set(range(num_buckets)) - unused


def test_t5_biases_both_stacks_but_not_cross_attention():
    position = {"kind": "t5", "num_buckets": 8, "max_distance": 12}
    net = random_net("tiny-encoder-decoder", position=position)
    P = parameters(net)
    values = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))
    own = P["position.table"]
    encoder = P["encoder.position.table"]

    def decoder_bias(b, h, i, j):
        return own[t5_bucket(i, j, 8, 12, False), h]

    def encoder_bias(b, h, i, j):
        return encoder[t5_bucket(i, j, 8, 12, True), h]

    check_attention(values, "blocks.1.attn", causal, decoder_bias)
    check_attention(values, "encoder.blocks.1.attn", bidirectional, encoder_bias)
    check_attention(values, "blocks.1.cross_attn", bidirectional)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_shaw_adds_a_learned_key_of_the_clipped_distance(preset, is_scaled, implementation):
    position = {"kind": "shaw", "max_distance": 3}
    net = random_net(preset, position=position, **{"attention.scale": is_scaled})
    scale = 8**-0.5 if is_scaled else 1.0
    table = parameters(net)["position.table"]
    values = watch(net, random_ids(2, 8), implementation, position_ids=POSITION_IDS)
    for layer in range(2):
        path = f"blocks.{layer}.attn"
        q = values[f"{path}.rot_q"]

        def bias(b, h, i, j, q=q, layer=layer):  # q·(k + a)·scale = q·k·scale + q·a·scale
            clipped = max(-3, min(3, POSITIONS[b][i] - POSITIONS[b][j]))
            return sum(q[b, h, i] * table[layer, 3 + clipped]) * scale

        check_attention(values, path, mask_of(preset), bias, scale)


# --- ALiBi
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
@pytest.mark.parametrize("n_heads", [1, 4, 6])
def test_alibi_subtracts_slope_times_distance(preset, n_heads, implementation):
    heads = {"attention.n_heads": n_heads, "attention.d_head": 8}
    net = random_net(preset, position="alibi", **heads)
    slopes = alibi_slopes(n_heads)

    def bias(b, h, i, j):
        return -slopes[h] * abs(POSITIONS[b][i] - POSITIONS[b][j])

    values = watch(net, random_ids(2, 8), implementation, position_ids=POSITION_IDS)
    check_attention(values, "blocks.1.attn", mask_of(preset), bias, tolerance=FP32)


def test_alibi_slopes_are_the_published_ones():
    def slopes(n_heads):
        return positions.alibi_slopes(n_heads, torch.device("cpu")).tolist()

    close(slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256], 1e-7)
    close(slopes(12), [2**-e for e in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)], 1e-7)
    for n_heads in range(1, 40):
        close(slopes(n_heads), alibi_slopes(n_heads), 1e-7)


# --- L2.5
def rotary_net(rotary_dim=0, theta=10000.0, scaling="none"):
    position = {"kind": "rotary", "theta": theta, "rotary_dim": rotary_dim, "scaling": scaling}
    return random_net(position=position, **{"attention.d_head": 16, "attention.n_kv_heads": 2})


@pytest.mark.parametrize("rotary_dim", [0, 4, 10])
@pytest.mark.parametrize("theta", [10000.0, 30.0])
def test_rotary_rotates_pairs_by_position_times_frequency(rotary_dim, theta):
    net = rotary_net(rotary_dim, theta)
    rotary_dim = rotary_dim or 16
    values = watch(net, random_ids(2, 8), position_ids=POSITION_IDS)
    frequencies = [inverse_frequency(i, rotary_dim, theta) for i in range(rotary_dim // 2)]
    for name in ("q", "k"):
        before = values[f"blocks.1.attn.{name}"]
        after = values[f"blocks.1.attn.rot_{name}"]
        close(after, rotated(before, POSITIONS, frequencies), FP32)
        close(after[..., rotary_dim:], before[..., rotary_dim:], 0)
    check_attention(values, "blocks.1.attn", causal)


def test_llama3_scaling_slows_long_wavelengths_only():
    scaling = {
        "kind": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context_length": 64,
    }
    net = rotary_net(scaling=scaling)
    unscaled = [inverse_frequency(i, 16) for i in range(8)]
    frequencies = [llama3_frequency(f, net.config.position.scaling) for f in unscaled]
    ratio = [one / other for one, other in zip(unscaled, frequencies, strict=True)]
    assert ratio[0] == 1 < ratio[1] < ratio[2] < 8 == ratio[3]  # all three cases of the formula
    values = watch(net, random_ids(2, 8), position_ids=POSITION_IDS)
    expected = rotated(values["blocks.0.attn.q"], POSITIONS, frequencies)
    close(values["blocks.0.attn.rot_q"], expected, FP32)


# --- L2.4, L2.5: relative positions
def scores_at_two_offsets(net):
    ids = random_ids(2, 8)
    return (
        watch(net, ids, position_ids=POSITION_IDS + offset)["blocks.1.attn.scores"]
        for offset in (0, 19)
    )


@pytest.mark.parametrize("position", ["t5", "shaw", "alibi", "rotary"])
def test_relative_positions_keep_the_scores_of_a_shifted_text(position):
    close(*scores_at_two_offsets(random_net(position=position)), 1e-4)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_absolute_positions_change_the_scores_of_a_shifted_text(position):
    here, there = scores_at_two_offsets(random_net(position=position, context_length=64))
    assert np.abs(here - there).max() > 0.1
