"""What onnxruntime translates and hears is what the network writes."""

import pytest
import torch
from onnx_sessions import (
    LENGTHS,
    RELATIVE,
    SIDES,
    as_past,
    assert_close,
    exporter,
    one_layer,
    padded,
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exporter(tmp_path_factory)


SOUND = {
    "kind": "encoder-decoder",
    "layers": 1,
    "context": 5,
    "input": {"kind": "audio", "mels": 6, "frames": 9},
}
TRANSLATOR = one_layer(
    "tiny-encoder-decoder",
    architecture__encoder_layers=1,
    architecture__source_vocab_size=50,
    attention__n_kv_heads=2,
)
LISTENER = one_layer("tiny-decoder", architecture=SOUND, position=RELATIVE)


@torch.no_grad()
def greedy(step, cross, batch, **padding):
    past = step.empty(batch)
    ids = torch.tensor([[1, 2]] * batch)
    written = []
    for _ in range(8):
        made = step(input_ids=ids, **past, **cross, **padding)
        past = as_past(made)
        ids = made["logits"][:, -1:].argmax(dim=-1)
        written.append(ids)
    return torch.cat(written, dim=1)


@torch.no_grad()
def network_greedy(net, batch, **source):
    ids = torch.tensor([[1, 2]] * batch)
    for _ in range(8):
        ids = torch.cat((ids, net.predict(net(ids, **source))[:, -1:].argmax(dim=-1)), dim=1)
    return ids[:, 2:]


@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_a_translation_is_the_networks_whatever_pads_its_source(side, exported):
    net, read, step = exported(TRANSLATOR)
    for lengths in LENGTHS:
        ids, real = padded(lengths, side, 50)
        made = read(input_ids=ids, attention_mask=real)
        rows = greedy(step, as_past(made), len(ids), encoder_attention_mask=real)
        for i, mask in enumerate(real.bool()):
            assert_close(made["last_hidden_state"][i, mask], net.encode(ids[i, mask][None])[0])
            assert rows[i].tolist() == network_greedy(net, 1, source=ids[i, mask][None])[0].tolist()


@torch.no_grad()
def test_steps_of_a_translation_have_the_networks_logits(exported):
    net, read, step = exported(TRANSLATOR)
    source, ids = (padded([n] * 3, "right", 50)[0] for n in (4, 6))
    real = torch.ones_like(source)
    cross = as_past(read(input_ids=source, attention_mask=real))
    past = step.empty(3)
    logits = []
    for begin, end in ((0, 3), (3, 4), (4, 6)):
        made = step(input_ids=ids[:, begin:end], encoder_attention_mask=real, **past, **cross)
        past = as_past(made)
        logits.append(made["logits"])
    assert_close(torch.cat(logits, dim=1), net.predict(net(ids, source=source)))


def test_what_is_heard_is_written_as_the_network_writes_it(exported):
    net, read, step = exported(LISTENER)
    mels = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0))
    rows = greedy(step, as_past(read(input_features=mels)), 3)
    assert rows.tolist() == network_greedy(net, 3, source=mels).tolist()
