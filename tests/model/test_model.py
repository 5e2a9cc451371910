"""The network itself: dropout, initial weights, caches, masks, refusals."""

import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.model.attention import positions_from_segments
from clearhead.model.transformer import build_transformer, init_weights
from strategies import models


def tiny(name="tiny-decoder", **changes):
    return build_transformer(ch.presets[name].replace(**changes).model).eval()


def test_same_seed_same_weights():
    m = ch.presets["tiny-decoder"].model
    one = build_transformer(m, 1)
    two = build_transformer(m, 1)
    other = build_transformer(m, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.blocks[0].attn.q.weight, other.blocks[0].attn.q.weight)


def test_initial_weights_follow_the_table():
    net = build_transformer(ch.presets["lecture-lm"].model)
    d = 192
    layers = 4
    assert net.embed.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert net.blocks[0].attn.q.weight.std().item() == pytest.approx(d**-0.5, rel=0.05)
    assert net.blocks[0].attn.out.weight.std().item() == pytest.approx(
        (d * 2 * layers) ** -0.5, rel=0.05
    )
    assert net.blocks[0].ffn.down.weight.std().item() == pytest.approx(
        (4 * d * 2 * layers) ** -0.5, rel=0.05
    )
    assert (net.final_norm.weight == 1).all()
    assert (net.blocks[0].attn.q.bias == 0).all()
    both = build_transformer(
        ch.presets["tiny-encoder-decoder"]
        .replace(d_model=64, architecture__encoder_layers=6, architecture__source_vocab_size=100)
        .model
    )
    assert both.embed.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert both.encoder.embed.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert both.encoder.blocks[0].attn.out.weight.std().item() == pytest.approx(
        (64 * 12) ** -0.5, rel=0.05
    )
    assert both.blocks[0].cross.out.weight.std().item() == pytest.approx((64 * 6) ** -0.5, rel=0.05)


@given(models())
def test_every_parameter_gets_its_initial_value(m):
    net = build_transformer(m)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(float("nan"))
    init_weights(net, m, seed=0)
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("where", ["embedding", "residual", "attention"])
def test_dropout_acts_in_training_only(where):
    net = tiny(**{f"dropout.{where}": 0.5})
    ids = torch.arange(8)[None]
    assert torch.equal(net(ids), net(ids))
    net.train()
    assert not torch.equal(net(ids), net(ids))


def test_tied_means_one_matrix():
    net = tiny()
    assert net.head.unembed.weight is net.embed.tokens.weight
    untied = tiny(**{"head.tie_embeddings": False})
    assert untied.head.unembed.weight is not untied.embed.tokens.weight
    both = tiny("tiny-encoder-decoder")
    assert both.encoder.embed.tokens.weight is both.embed.tokens.weight


def test_ragged_prompts_share_a_cache():
    """Rows of unequal length, padded on the right, go on as if each were alone."""
    net = tiny(position="rotary")
    rows = [[1, 2, 3, 4, 5], [6, 7]]
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]])
    segment_ids = torch.tensor([[1] * 5, [1, 1, 0, 0, 0]])
    memory = net.init_cache(2, 12)
    net(ids, segment_ids=segment_ids, cache=memory)
    for step in range(3):
        together = net(torch.tensor([[step + 8], [step + 20]]), cache=memory)
        for row, first in ((0, 8), (1, 20)):
            rows[row].append(step + first)
            assert torch.allclose(
                together[row, -1], net(torch.tensor([rows[row]]))[0, -1], atol=1e-5
            )


def test_ignored_classes_do_not_count():
    net = tiny("tiny-pictures")
    x = torch.rand(2, 1, 8, 8)
    one = net.loss(net(x[:1]), torch.tensor([1]))
    two = net.loss(net(x), torch.tensor([1, -100]))
    assert torch.allclose(one[0], two[0])
    assert one[1] == two[1] == 1


def test_a_packed_target_never_sees_a_source_that_is_not_its_own():
    net = tiny("tiny-encoder-decoder")
    ids = torch.tensor([[1, 2, 3, 4]])
    segment_ids = torch.tensor([[1, 1, 2, 2]])
    one, two = (
        net(ids, segment_ids=segment_ids, source=torch.tensor([[5, 6, last]])) for last in (7, 8)
    )
    assert not torch.equal(one[:, :2], two[:, :2])
    assert torch.equal(one[:, 2:], two[:, 2:])  # a source without numbers belongs to segment 1


def test_a_window_reaches_exactly_so_far():
    net = tiny(n_layers=1, **{"attention.sliding_window": 3})
    ids = torch.arange(10)[None]
    other = ids.clone()
    other[0, 4] = 50
    changed = (net(ids) != net(other)).any(-1)[0]
    assert changed.tolist() == [False] * 4 + [True] * 3 + [False] * 3


def test_positions_restart_in_every_segment():
    segment_ids = torch.tensor([[1, 1, 1, 2, 2, 0, 0], [3, 1, 1, 1, 1, 1, 2]])
    assert positions_from_segments(segment_ids).tolist() == [
        [0, 1, 2, 0, 1, 0, 1],
        [0, 0, 1, 2, 3, 4, 0],
    ]


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "relative", "shaw", "alibi", "rotary"]
)
@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-pictures", "tiny-sound"]
)
def test_every_position_works_in_every_shape_and_learns(name, position):
    from clearhead.evaluate.invariants import ModelUnderTest

    net = tiny(name, position=position)
    subject = ModelUnderTest(net)
    x = subject.random_inputs()
    total, count = net.loss(net(**x), subject.random_targets(x))
    (total / count).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder-decoder"])
def test_half_precision_runs(name):
    net = tiny(name).to(torch.bfloat16)
    ids = torch.arange(6)[None]
    more = {"source": ids} if net.encoder is not None else {}
    assert net.compute_logits(net(ids, **more)).dtype == torch.bfloat16
    memory = net.init_cache(1, 6)
    assert net(ids, cache=memory, **more).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-encoder", "tiny-encoder-decoder", "tiny-llama"]
)
def test_laws_hold_on_the_gpu(name):
    model = ch.new(name)
    model.net.cuda()
    assert all(result.passed for result in ch.verify(model))


def test_what_a_network_refuses_it_refuses_with_a_sentence():
    with pytest.raises(ClearheadError, match="needs a source"):
        tiny("tiny-encoder-decoder")(torch.arange(3)[None])
    with pytest.raises(ClearheadError, match="nothing to remember"):
        tiny("tiny-encoder").init_cache(1)
    with pytest.raises(ClearheadError, match="no encoder beside it"):
        tiny().encode(torch.arange(3)[None])
    net = tiny()
    with pytest.raises(ClearheadError, match="no encoder beside it"):
        net(torch.arange(3)[None], source=torch.arange(3)[None])
    with pytest.raises(ClearheadError, match="has no source to look at"):
        net(torch.arange(3)[None], encoder_output=torch.zeros(1, 3, 32))
    with pytest.raises(ClearheadError, match="no kinds of sentence"):
        net(torch.arange(3)[None], token_type_ids=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ClearheadError, match="for 3 rows, not 1"):
        net(torch.arange(3)[None], cache=net.init_cache(3))
    for segment_ids in ([0, 0, 1, 1], [1, 1, 2, 2]):
        with pytest.raises(ClearheadError, match="padded on the right"):
            net(
                torch.arange(4)[None],
                segment_ids=torch.tensor([segment_ids]),
                cache=net.init_cache(1),
            )
    with pytest.raises(ClearheadError, match="33 tokens are more"):
        net(torch.zeros(1, 33, dtype=torch.long))
    with pytest.raises(ClearheadError, match="memory of 33 tokens is more"):
        net.init_cache(1, 33)
    with pytest.raises(ClearheadError, match="positions follow from the memory"):
        net(torch.arange(3)[None], position_ids=torch.arange(3)[None], cache=net.init_cache(1))
    with pytest.raises(ClearheadError, match="holds 4 tokens; 0 \\+ 5 do not fit"):
        net(torch.arange(5)[None], cache=net.init_cache(1, 4))
    headless = tiny("tiny-encoder", head="none")
    with pytest.raises(ClearheadError, match="has no head"):
        headless.loss(torch.zeros(1, 3, 32), torch.arange(3)[None])
