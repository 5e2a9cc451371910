"""Tokens in and positions (L1, L2), against plain loops written from the equations."""

import numpy as np
import pytest
import torch
from loops import (
    FP32,
    KERNELS,
    alibi_slopes,
    attention_meets,
    bucket,
    causal,
    close,
    each_token,
    everywhere,
    llama3_rate,
    norm,
    parameters,
    random_ids,
    random_net,
    turned,
    watch,
    wave,
    wave_rate,
)

from clearhead.model import positions

FAR = torch.tensor(
    [[0, 1, 2, 3, 5, 8, 13, 30], [4, 5, 6, 7, 8, 9, 10, 11]]
)  # positions of two rows of eight tokens


# ---------------------------------------------------------------- L1.3
def one_hot_times(E, ids):
    def row(token):
        one_hot = [1.0 if v == token else 0.0 for v in range(len(E))]
        return sum(one_hot[v] * E[v] for v in range(len(E)))

    return np.array([[row(token) for token in line] for line in ids.tolist()])


def test_one_hot_rows_times_the_embedding_matrix_pick_its_rows():
    net = random_net()
    ids = random_ids(2, 6)
    close(watch(net, ids)["embed"], one_hot_times(parameters(net)["embed.tokens.weight"], ids), 0)


def test_scaled_embeddings_are_multiplied_by_the_root_of_the_width():
    net = random_net(**{"input.scale_embeddings": True})
    ids = random_ids(2, 6)
    close(
        watch(net, ids)["embed"],
        one_hot_times(parameters(net)["embed.tokens.weight"], ids) * 32**0.5,
    )


def test_bert_input_is_the_norm_of_word_plus_kind_plus_position():
    net = random_net("tiny-encoder")
    ids = random_ids(2, 6)
    P = parameters(net)
    kinds = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]])
    words = one_hot_times(P["embed.tokens.weight"], ids) + one_hot_times(
        P["embed.kinds.weight"], kinds
    )
    values = watch(net, ids, token_type_ids=kinds)
    close(values["embed"], words)
    close(
        values["full_embed"],
        each_token(norm(P, "embed.norm", net.config.norm), words + P["position.table"][:6]),
    )
    close(
        watch(net, ids)["full_embed"],
        watch(net, ids, token_type_ids=torch.zeros_like(ids))["full_embed"],
        0,
    )


# ---------------------------------------------------------------- L2.1
ATE_AN_APPLE = torch.tensor([[5, 9, 3]])
APPLE_ATE_AN = torch.tensor([[3, 5, 9]])
MOVED = [2, 0, 1]
SCHEMES = ["learned", "sinusoidal", "relative", "shaw", "alibi", "rotary"]


def encoded_both_ways(position):
    net = random_net("tiny-encoder", position=position)
    return watch(net, ATE_AN_APPLE)["norm"][0, MOVED], watch(net, APPLE_ATE_AN)["norm"][0]


def test_without_positions_an_encoder_cannot_tell_ate_an_apple_from_apple_ate_an():
    close(*encoded_both_ways("none"))


@pytest.mark.parametrize("position", SCHEMES)
def test_with_positions_it_can(position):
    one, other = encoded_both_ways(position)
    assert np.abs(one - other).max() > 1e-3


# ---------------------------------------------------------------- L2.2, L2.3
def test_learned_positions_add_the_row_of_each_position():
    net = random_net()
    ids = random_ids(2, 8)
    E_pos = parameters(net)["position.table"]
    values = watch(net, ids, position_ids=FAR)
    expected = np.array([[E_pos[pos] for pos in row] for row in FAR.tolist()])
    close(values["pos_embed"], expected, 0)
    close(values["full_embed"], values["embed"] + expected)


def test_packed_documents_each_start_at_position_0():
    net = random_net()
    ids = random_ids(2, 6)
    segment_ids = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 0, 0]])
    E_pos = parameters(net)["position.table"]
    expected = [[E_pos[pos] for pos in row] for row in ([0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1])]
    close(watch(net, ids, segment_ids=segment_ids)["pos_embed"], expected, 0)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoidal_positions_are_sines_and_cosines_of_falling_frequency(layout):
    net = random_net(position={"kind": "sinusoidal", "layout": layout})
    ids = random_ids(2, 8)
    values = watch(net, ids, position_ids=FAR)
    close(
        values["pos_embed"], [[wave(pos, 32, layout) for pos in row] for row in FAR.tolist()], FP32
    )
    close(values["full_embed"], values["embed"] + values["pos_embed"])


# ---------------------------------------------------------------- L2.4
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
def test_relative_bias_is_the_table_row_of_the_bucket_of_the_distance(preset, kernel):
    net = random_net(preset, position={"kind": "t5", "buckets": 8, "distance": 12})
    both_ways = preset == "tiny-encoder"
    at = FAR.tolist()
    table = parameters(net)["position.table"]
    values = watch(net, random_ids(2, 8), kernel, position_ids=FAR)
    for layer in range(2):
        attention_meets(
            values,
            f"blocks.{layer}.attn",
            everywhere if both_ways else causal,
            lambda b, h, i, j: table[bucket(at[b][i], at[b][j], 8, 12, both_ways), h],
        )


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (64, 512)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_exact_when_near_and_logarithmic_when_far(buckets, distance, both_ways):
    scheme = positions.T5(1, buckets, distance, is_causal=not both_ways)
    back = torch.arange(-2 * distance, 2 * distance + 1)
    expected = [bucket(n, 0, buckets, distance, both_ways) for n in back.tolist()]
    assert scheme.relative_position_bucket(back[None, None])[0, 0].tolist() == expected
    assert set(expected) == set(range(buckets)) - (
        {buckets // 2} if both_ways else set()
    )  # a later key is never at 0


def test_t5_biases_both_stacks_but_not_cross_attention():
    net = random_net("tiny-encoder-decoder", position={"kind": "t5", "buckets": 8, "distance": 12})
    P = parameters(net)
    values = watch(net, random_ids(2, 5), source=random_ids(2, 7, seed=1))
    own = P["position.table"]
    encoder = P["encoder.position.table"]
    attention_meets(
        values, "blocks.1.attn", causal, lambda b, h, i, j: own[bucket(i, j, 8, 12, False), h]
    )
    attention_meets(
        values,
        "encoder.blocks.1.attn",
        everywhere,
        lambda b, h, i, j: encoder[bucket(i, j, 8, 12, True), h],
    )
    attention_meets(values, "blocks.1.cross_attn", everywhere)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
@pytest.mark.parametrize("scaled", [True, False])
def test_shaw_adds_a_key_of_the_clipped_distance_to_each_key(preset, scaled, kernel):
    net = random_net(
        preset, position={"kind": "shaw", "distance": 3}, **{"attention.scale": scaled}
    )
    at = FAR.tolist()
    scale = 8**-0.5 if scaled else 1.0
    table = parameters(net)["position.table"]
    values = watch(net, random_ids(2, 8), kernel, position_ids=FAR)
    for layer in range(2):
        path = f"blocks.{layer}.attn"
        q = values[f"{path}.rot_q"]

        def share(b, h, i, j, q=q, layer=layer):  # q·(k + a)·scale = q·k·scale + q·a·scale
            clipped = max(-3, min(3, at[b][i] - at[b][j]))
            return sum(q[b, h, i] * table[layer, 3 + clipped]) * scale

        attention_meets(
            values, path, causal if preset == "tiny-decoder" else everywhere, share, scale
        )


# ---------------------------------------------------------------- ALiBi
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("preset", ["tiny-decoder", "tiny-encoder"])
@pytest.mark.parametrize("heads", [1, 4, 6])
def test_alibi_subtracts_slope_times_distance(preset, heads, kernel):
    net = random_net(
        preset, position="alibi", **{"attention.n_heads": heads, "attention.d_head": 8}
    )
    slopes = alibi_slopes(heads)
    at = FAR.tolist()
    attention_meets(
        watch(net, random_ids(2, 8), kernel, position_ids=FAR),
        "blocks.1.attn",
        causal if preset == "tiny-decoder" else everywhere,
        lambda b, h, i, j: -slopes[h] * abs(at[b][i] - at[b][j]),
        tolerance=FP32,
    )


def slopes_of(heads):
    return positions.alibi_slopes(heads, torch.device("cpu")).tolist()


def test_alibi_slopes_are_those_published_also_between_powers_of_two():
    close(slopes_of(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256], 1e-7)
    close(slopes_of(12), [2**-e for e in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)], 1e-7)
    for heads in range(1, 40):
        close(slopes_of(heads), alibi_slopes(heads), 1e-7)


# ---------------------------------------------------------------- L2.5
def rotary_net(preset="tiny-decoder", width=0, theta=10000.0, scaling="none"):
    position = {"kind": "rotary", "theta": theta, "width": width, "scaling": scaling}
    return random_net(
        preset, position=position, **{"attention.d_head": 16, "attention.n_kv_heads": 2}
    )


@pytest.mark.parametrize("width", [0, 4, 10])
@pytest.mark.parametrize("theta", [10000.0, 30.0])
def test_rotary_turns_pairs_by_position_times_rate_and_leaves_the_rest(width, theta):
    net = rotary_net(width=width, theta=theta)
    turning = width or 16
    values = watch(net, random_ids(2, 8), position_ids=FAR)
    rates = [wave_rate(i, turning, theta) for i in range(turning // 2)]
    for name in ("q", "k"):
        before = values[f"blocks.1.attn.{name}"]
        after = values[f"blocks.1.attn.{name}_turned"]
        close(after, turned(before, FAR.tolist(), rates), FP32)
        close(after[..., turning:], before[..., turning:], 0)
    attention_meets(values, "blocks.1.attn", causal)


def test_llama3_scaling_slows_long_waves_only():
    scaling = {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "context": 64}
    net = rotary_net(scaling=scaling)
    plain = [wave_rate(i, 16) for i in range(8)]
    rates = [llama3_rate(rate, net.config.position.scaling) for rate in plain]
    slowed = [one / other for one, other in zip(plain, rates, strict=True)]
    assert slowed[0] == 1 < slowed[1] < slowed[2] < 8 == slowed[3]  # all three cases of the formula
    values = watch(net, random_ids(2, 8), position_ids=FAR)
    close(
        values["blocks.0.attn.rot_q"], turned(values["blocks.0.attn.q"], FAR.tolist(), rates), FP32
    )


# ---------------------------------------------------------------- L2.4, L2.5: only distance matters
@pytest.mark.parametrize("position", ["relative", "shaw", "alibi", "rotary"])
def test_a_shifted_sentence_keeps_its_scores(position):
    net = random_net(position=position)
    ids = random_ids(2, 8)
    here, there = (
        watch(net, ids, position_ids=FAR + shift)["blocks.1.attn.scores"] for shift in (0, 19)
    )
    close(here, there, 1e-4)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_absolute_positions_change_the_scores_of_a_shifted_sentence(position):
    net = random_net(position=position, context_length=64)
    ids = random_ids(2, 8)
    here, there = (
        watch(net, ids, position_ids=FAR + shift)["blocks.1.attn.scores"] for shift in (0, 19)
    )
    assert np.abs(here - there).max() > 0.1
