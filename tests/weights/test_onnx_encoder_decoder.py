"""onnxruntime translates and transcribes as the network does."""

import pytest
import torch
from onnx_sessions import (
    LENGTHS,
    SIDES,
    T5_POSITIONS,
    as_past,
    assert_close,
    exporter,
    one_layer,
    padded_batch,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exporter(tmp_path_factory)


AUDIO_ENCODER = {
    "kind": "encoder-decoder",
    "encoder_layers": 1,
    "source_context_length": 5,
    "source_input": {"kind": "audio", "n_mels": 6, "n_frames": 9},
}
TRANSLATOR = one_layer(
    "tiny-encoder-decoder",
    architecture__encoder_layers=1,
    architecture__source_vocab_size=50,
    attention__n_kv_heads=2,
)
TRANSCRIBER = one_layer("tiny-decoder", architecture=AUDIO_ENCODER, position=T5_POSITIONS)


@torch.no_grad()
def greedy(step, cross, batch, **padding):
    past = step.empty_past(batch)
    ids = torch.tensor([[1, 2]] * batch)
    tokens = []
    for _ in range(8):
        outputs = step(input_ids=ids, **past, **cross, **padding)
        past = as_past(outputs)
        ids = outputs["logits"][:, -1:].argmax(dim=-1)
        tokens.append(ids)
    return torch.cat(tokens, dim=1)


@torch.no_grad()
def network_greedy(net, batch, **source):
    ids = torch.tensor([[1, 2]] * batch)
    for _ in range(8):
        ids = torch.cat((ids, net.compute_logits(net(ids, **source))[:, -1:].argmax(dim=-1)), dim=1)
    return ids[:, 2:]


@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_translation_is_equal_with_padded_sources(side, exported):
    net, read, step = exported(TRANSLATOR)
    for lengths in LENGTHS:
        ids, real = padded_batch(lengths, side, 50)
        outputs = read(input_ids=ids, attention_mask=real)
        rows = greedy(step, as_past(outputs), len(ids), encoder_attention_mask=real)
        for i, mask in enumerate(real.bool()):
            assert_close(outputs["last_hidden_state"][i, mask], net.encode(ids[i, mask][None])[0])
            assert rows[i].tolist() == network_greedy(net, 1, source=ids[i, mask][None])[0].tolist()


@torch.no_grad()
def test_decoding_steps_have_equal_logits(exported):
    net, read, step = exported(TRANSLATOR)
    source, ids = (padded_batch([n] * 3, "right", 50)[0] for n in (4, 6))
    real = torch.ones_like(source)
    cross = as_past(read(input_ids=source, attention_mask=real))
    past = step.empty_past(3)
    logits = []
    for begin, end in ((0, 3), (3, 4), (4, 6)):
        outputs = step(input_ids=ids[:, begin:end], encoder_attention_mask=real, **past, **cross)
        past = as_past(outputs)
        logits.append(outputs["logits"])
    assert_close(torch.cat(logits, dim=1), net.compute_logits(net(ids, source=source)))


def test_transcription_is_equal(exported):
    net, read, step = exported(TRANSCRIBER)
    mels = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0))
    rows = greedy(step, as_past(read(input_features=mels)), 3)
    assert rows.tolist() == network_greedy(net, 3, source=mels).tolist()
