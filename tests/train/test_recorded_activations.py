"""Recorded activations equal those of the model, for the chosen probes."""

import pytest
import torch
from recording import random_ids, record_once

import clearhead as ch
from clearhead.data.packed_batch import PackedBatch
from clearhead.train.activation_recorder import align_plane, principal_plane

SEGMENTS = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2] * 3)
TARGETS = random_ids(3, 16)
BATCHES = {
    "tiny-decoder": PackedBatch(random_ids(3, 16), TARGETS, SEGMENTS),
    "tiny-llama": PackedBatch(random_ids(3, 16), TARGETS),
    "tiny-encoder": PackedBatch(random_ids(3, 16), TARGETS, token_type_ids=random_ids(3, 16) % 2),
    "tiny-encoder-decoder": PackedBatch(
        random_ids(3, 16),
        TARGETS,
        SEGMENTS,
        random_ids(3, 16, 1),
        SEGMENTS.flip(1).bool() * SEGMENTS,
    ),
    "tiny-images": PackedBatch(torch.rand(3, 1, 8, 8), torch.arange(3)),
    "tiny-audio": PackedBatch(torch.rand(3, 16, 32), torch.arange(3)),
}


def expected_logits(model, probe, batch, row):
    """Logits of the model for a recorded probe."""
    if batch.tokens.is_floating_point():
        return model.net.compute_logits(model.net(batch.tokens))[row][None]
    tokens = torch.tensor([[int(token) for token in probe.tokens]])
    source = None
    if probe.source_tokens:
        source = torch.tensor([[int(token) for token in probe.source_tokens]])
    token_type_ids = None
    if batch.token_type_ids is not None:
        token_type_ids = batch.token_type_ids[row : row + 1, : tokens.shape[1]]
    hidden = model.net(tokens, source=source, token_type_ids=token_type_ids)
    return model.net.compute_logits(hidden)[0]


@pytest.mark.parametrize("preset", BATCHES)
def test_recording_equals_the_model(preset, tmp_path):
    batch = BATCHES[preset]
    trace, model, _ = record_once(tmp_path, preset, batch)
    n_heads = model.config.model.attention.n_heads
    for n, probe in enumerate(trace.probes):
        length = len(probe.tokens)
        for kind in trace.attention_kinds:
            pattern = trace.attention(0, n, kind).values
            ones = torch.ones(pattern.shape[:-1])
            torch.testing.assert_close(pattern.sum(dim=-1), ones, atol=3e-3, rtol=0)
        assert trace.attention(0, n).values.shape == (2, n_heads, length, length)
        probabilities = trace.logit_lens(0, n).probabilities[-1]
        expected = expected_logits(model, probe, batch, n).softmax(dim=-1).topk(5).values
        torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=1e-3)
    assert trace.attention_over_steps(probe=1).axes[0].labels == ("0",)
    is_translator = preset == "tiny-encoder-decoder"
    kinds = ["attention", "cross", "encoder"] if is_translator else ["attention"]
    assert trace.attention_kinds == kinds
    if not batch.tokens.is_floating_point():
        embeddings = trace.embeddings(0)
        assert len(embeddings.tokens) == len(embeddings.vectors)
        assert embeddings.projection.shape == (64, 2)
        weight = model.net.embed.tokens.weight[int(embeddings.tokens[0])].detach()
        torch.testing.assert_close(embeddings.vectors[0], weight, atol=1e-3, rtol=1e-3)


def test_lens_of_a_regression_model_measures_a_number(tmp_path):
    batch = PackedBatch(torch.rand(3, 1, 8, 8), torch.rand(3))
    trace, _, _ = record_once(tmp_path, "tiny-images", batch, head="regression")
    assert trace.logit_lens(0).value_name == "number"


# --- planes


@pytest.mark.parametrize("turn", [[[0.0, 1.0], [1.0, 0.0]], [[-1.0, 0.0], [0.0, 1.0]]])
def test_alignment_undoes_rotations_and_reflections(turn):
    plane = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(align_plane(plane @ torch.tensor(turn), plane), plane)


def test_alignment_keeps_distances():
    plane = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    other = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    aligned = align_plane(other, plane)
    torch.testing.assert_close(aligned @ aligned.mT, other @ other.mT)
    assert (aligned - plane).norm() < (other - plane).norm()


def test_principal_plane_has_the_largest_variance():
    scales = torch.tensor([1.0, 9.0, 1.0, 4.0, 1.0, 1.0])
    table = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * scales + 100
    plane = principal_plane(table)
    expected = torch.linalg.svdvals(table - table.mean(dim=0))[:2]
    torch.testing.assert_close(torch.linalg.svdvals(plane), expected)
    torch.testing.assert_close(plane.norm(dim=0), expected)


# --- probes

TOKENIZER = ch.Tokenizer.characters("abcdefghij .|<>mask")
UNUSED_BATCH = PackedBatch(random_ids(1, 4), random_ids(1, 4))


def record_texts(folder, preset, texts, tokenizer=TOKENIZER, **changes):
    changes = {"train.probe_texts": texts, **changes}
    return record_once(folder, preset, UNUSED_BATCH, tokenizer, **changes)


def test_probe_texts_are_recorded_and_truncated(tmp_path):
    texts = ["abc", "a" * 65, *["b"] * 8]
    changes = {"context_length": 128, "inference.bos_tokens": [0]}
    trace, _, recorder = record_texts(tmp_path, "tiny-decoder", texts, **changes)
    assert [len(probe.tokens) for probe in trace.probes] == [4, 64, *[2] * 6]
    assert trace.probes[0].tokens == ["·", "a", "b", "c"]
    assert trace.probes[0].text == "abc"
    assert recorder.note.startswith("3 of the probes truncated or dropped")
    prediction = trace.logit_lens(0).top_predictions()[0][0][0]
    assert prediction in trace.embeddings(0).all_tokens


def test_probe_of_a_translator_is_source_and_target(tmp_path):
    changes = {
        "inference.decoder_start_tokens": [1],
        "inference.bos_tokens": [0],
        "inference.sep_tokens": [2],
    }
    trace, _, _ = record_texts(tmp_path, "tiny-encoder-decoder", ["abc ||| de"], **changes)
    assert trace.probes[0].text == "abc ||| de"
    assert trace.attention(0, 0, "cross").values.shape == (2, 4, 3, 5)
    for text in ("abc", "||| de", "abc |||"):
        with pytest.raises(ch.ClearheadError, match="source"):
            record_texts(tmp_path, "tiny-encoder-decoder", [text], **changes)


@pytest.mark.parametrize("text", ["", "aQ"])
def test_invalid_probe_is_refused_by_its_option(text, tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"train.probe_texts"):
        record_texts(tmp_path, "tiny-decoder", [text], **{"inference.bos_tokens": [0]})


def test_answer_position_of_a_masked_lm_is_the_mask(tmp_path):
    tokenizer = ch.Tokenizer.train_bpe(["ab ab"], 258, ("<|mask|>",))
    changes = {
        "inference.mask_token": [tokenizer.special_tokens["<|mask|>"]],
        "vocab_size": len(tokenizer),
    }
    trace, _, _ = record_texts(tmp_path, "tiny-encoder", ["ab <|mask|> b"], tokenizer, **changes)
    probe = trace.probes[0]
    assert probe.tokens[probe.answer_position] == "<|mask|>"


def test_probes_from_packed_rows_are_whole_documents(tmp_path):
    batch = BATCHES["tiny-decoder"]
    trace, _, _ = record_once(tmp_path, "tiny-decoder", batch)
    expected = [[str(i) for i in row[5:14].tolist()] for row in batch.tokens]
    assert [probe.tokens for probe in trace.probes] == expected


def test_probes_of_an_image_model_may_be_files(tmp_path):
    from PIL import Image

    file = str(tmp_path / "one.png")
    Image.new("L", (8, 8), 99).save(file)
    changes = {"train.probe_texts": [file]}
    trace, _, _ = record_once(tmp_path, "tiny-images", BATCHES["tiny-images"], **changes)
    assert [probe.text for probe in trace.probes] == [file]


# --- reading


def test_missing_recording_names_the_flag(tmp_path):
    with pytest.raises(ch.ClearheadError, match="--record-activations"):
        ch.lens.read_training_trace(tmp_path)


@pytest.mark.parametrize(
    ("read", "keyword"),
    [
        (lambda trace: trace.attention(7), "step 7"),
        (lambda trace: trace.logit_lens(0, 3), "probe 3"),
        (lambda trace: trace.attention(0, 0, "cross"), "cross"),
        (lambda trace: trace.embeddings(0, source=True), "source"),
        (lambda trace: trace.attention_over_steps(layer=2), "layer 2"),
        (lambda trace: trace.attention_over_steps(head=4), "head 4"),
    ],
)
def test_reading_what_was_not_recorded_is_refused(read, keyword, tmp_path):
    trace, _, _ = record_once(tmp_path, "tiny-decoder", BATCHES["tiny-decoder"])
    with pytest.raises(ch.ClearheadError, match=keyword):
        read(trace)
