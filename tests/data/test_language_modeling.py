"""Laws of language modeling datasets: every token once, next-token targets, no leaks."""

import itertools
import time
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from clearhead.data import language_modeling
from clearhead.data.dataset import shuffled_indices
from clearhead.data.language_modeling import LanguageModelingDataset, MaskedLanguageModelingDataset
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch, count_targets
from clearhead.data.token_cache import TokenizedCorpus
from clearhead.errors import ClearheadError

BOS = 0


def corpus(sizes: list[int], has_bos: bool = True) -> TokenizedCorpus:
    """Documents whose tokens are all different, so that each can be located."""
    ids = np.arange(1, sum(sizes) + 1, dtype=np.uint16)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    if has_bos:
        ids[starts] = BOS
    return TokenizedCorpus(ids, starts, BOS if has_bos else None)


def document_of(tokens: TokenizedCorpus) -> np.ndarray:
    return np.searchsorted(tokens.document_starts, np.arange(len(tokens.ids)), side="right")


def positions(packed: PackedBatch) -> np.ndarray:
    """Positions of the tokens of a batch in a corpus without bos tokens; -1 for padding."""
    ids = packed.tokens.numpy() - 1
    return ids if packed.segment_ids is None else np.where(packed.segment_ids.numpy() > 0, ids, -1)


def equal(a: PackedBatch, b: PackedBatch) -> bool:
    if (a.segment_ids is None) != (b.segment_ids is None):
        return False
    both = zip(
        (a.tokens, a.targets, a.segment_ids), (b.tokens, b.targets, b.segment_ids), strict=True
    )
    return all(torch.equal(x, y) for x, y in both if x is not None and y is not None)


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=20)
SHAPE = st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))  # length, rows, seed


def streams(
    sizes, shape, valid_fraction=0.0, has_bos=False
) -> tuple[TokenizedCorpus, LanguageModelingDataset]:
    tokens = corpus(sizes, has_bos)
    try:
        return tokens, LanguageModelingDataset(tokens, *shape, valid_fraction=valid_fraction)
    except ClearheadError:
        assume(False)
        raise


@given(SIZES, SHAPE)
def test_last_token_of_a_document_predicts_the_eos_token(sizes, shape):
    tokens, plain = streams(sizes, shape, has_bos=True)
    stops = LanguageModelingDataset(tokens, *shape, eos_token=99_999)
    for step in range(ceil(plain.batches_per_epoch)):
        plain_batch = plain.batch(step)
        eos_batch = stops.batch(step)
        assert torch.equal(plain_batch.tokens, eos_batch.tokens)
        last = plain_batch.targets == tokens.bos_token
        assert (eos_batch.targets[last] == 99_999).all()
        assert torch.equal(eos_batch.targets[~last], plain_batch.targets[~last])


@given(SIZES, SHAPE)
def test_epoch_covers_every_token_but_for_two_rows(sizes, shape):
    tokens, stream = streams(sizes, shape)
    length, rows, _ = shape
    flat = np.concatenate(
        [positions(stream.batch(step)) for step in range(3 * ceil(stream.batches_per_epoch))]
    )
    count = stream._num_rows
    assert stream.batches_per_epoch == count / rows
    for epoch in range(2):
        epoch_tokens = np.sort(flat[epoch * count : (epoch + 1) * count].ravel())
        assert (np.diff(epoch_tokens) == 1).all()  # each once, without a gap
        assert len(epoch_tokens) > len(tokens.ids) - 2 * length


def test_epochs_differ_in_offset_and_order():
    _, stream = streams([1000], (16, 4, 7))
    starts = [
        positions(stream.batch(step))[:, 0] for step in range(5 * ceil(stream.batches_per_epoch))
    ]
    epochs = np.concatenate(starts)[: 5 * stream._num_rows].reshape(5, -1)
    assert len({int(epoch[0]) % 16 for epoch in epochs}) > 2
    assert len({tuple(epoch // 16) for epoch in epochs}) == 5


@given(SIZES, SHAPE, st.sampled_from([0.0, 0.3]), st.booleans(), st.integers(0, 50))
def test_token_batch_is_a_function_of_seed_and_step(sizes, shape, fraction, has_bos, step):
    _, one = streams(sizes, shape, fraction, has_bos)
    _, two = streams(sizes, shape, fraction, has_bos)
    two.batch(step + 1)
    assert equal(one.batch(step), two.batch(step))
    assert all(itertools.starmap(equal, zip(one.valid_batches(), two.valid_batches(), strict=True)))
    a, b = (MaskedLanguageModelingDataset(stream, 999, 1000, [BOS]) for stream in (one, two))
    b.batch(step + 1)
    assert equal(a.batch(step), b.batch(step))
    assert all(itertools.starmap(equal, zip(a.valid_batches(), b.valid_batches(), strict=True)))


@given(SIZES, SHAPE, st.booleans())
def test_targets_are_next_tokens_within_documents(sizes, shape, has_bos):
    named = corpus(sizes, has_bos=False)
    tokens, stream = streams(sizes, shape, has_bos=has_bos)
    _, twin = streams(sizes, shape)  # the same rows, whose tokens tell their positions
    document = document_of(named)
    for step in range(ceil(stream.batches_per_epoch)):
        packed = stream.batch(step)
        at = positions(twin.batch(step))
        ids = tokens.ids.astype(np.int64)
        assert (packed.tokens.numpy() == ids[at]).all()
        joined = document[at] == document[at + 1]
        assert (
            packed.targets.numpy() == np.where(joined | has_bos, ids[at + 1], IGNORE_INDEX)
        ).all()
        if len(sizes) == 1:
            assert packed.segment_ids is None
        else:
            assert packed.segment_ids is not None
            assert (packed.segment_ids.numpy() == document[at] - document[at][:, :1] + 1).all()
        for tensor in (packed.tokens, packed.targets):
            assert tensor.dtype == torch.long
            assert tensor.shape == (shape[1], shape[0])


@given(SIZES, SHAPE, st.floats(0.01, 0.9))
def test_documents_are_in_one_split(sizes, shape, fraction):
    tokens, stream = streams(sizes, shape, fraction)
    document = document_of(tokens)
    batches = [stream.batch(step) for step in range(2 * ceil(stream.batches_per_epoch))]
    trained = np.concatenate([positions(packed).ravel() for packed in batches])
    targets = np.concatenate([packed.targets.numpy().ravel() - 1 for packed in batches])
    trained = np.union1d(trained, targets[targets >= 0])
    held = np.concatenate([positions(packed).ravel() for packed in stream.valid_batches()])
    held = held[held >= 0]
    if len(sizes) == 1:
        assert trained.max() < held.min()
        assert held.max() == sizes[0] - 1
        assert len(held) == sizes[0] - min(int(sizes[0] * (1 - fraction)), sizes[0] - 1)
    else:
        assert not set(document[trained]) & set(document[held])
        chosen = np.isin(document, document[held])
        assert chosen.sum() == len(held)  # whole documents
        assert len(set(document[held])) == min(max(round(fraction * len(sizes)), 1), len(sizes) - 1)


@given(SIZES, SIZES, SHAPE, st.booleans())
def test_validation_covers_every_token_once(sizes, others, shape, has_bos):
    assume(sum(sizes) > shape[0])
    validation = corpus(others, has_bos)
    stream = LanguageModelingDataset(corpus(sizes), *shape, valid=validation)
    batches = list(stream.valid_batches())
    document = document_of(validation)
    found = []
    num_targets = 0
    for packed in batches:
        assert packed.tokens.shape == (shape[1], shape[0])
        real = (
            packed.segment_ids.numpy() > 0
            if packed.segment_ids is not None
            else np.ones(packed.tokens.shape, bool)
        )
        found.append(packed.tokens.numpy()[real])
        assert (packed.targets.numpy()[~real] == IGNORE_INDEX).all()
        num_targets += (packed.targets.numpy() != IGNORE_INDEX).sum()
        if len(others) > 1:
            assert packed.segment_ids is not None
    assert (np.concatenate(found) == validation.ids).all()
    assert (
        num_targets == len(document) - 1
        if has_bos
        else num_targets == (np.diff(document) == 0).sum()
    )
    assert (
        sum(packed.segment_ids is None for packed in batches) >= len(batches) - 1 or len(others) > 1
    )


def test_no_validation_data_gives_no_validation_batches():
    assert list(streams([50], (8, 2, 0))[1].valid_batches()) == []


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_duplicate_documents_are_held_out_together(fraction):
    texts = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 4))
    ids = np.concatenate([1 + 10 * text + np.arange(10) for text in texts]).astype(np.uint16)
    stream = LanguageModelingDataset(
        TokenizedCorpus(ids, np.arange(0, 2000, 10)), 10, 4, valid_fraction=fraction
    )
    valid_positions = np.concatenate(
        [positions(packed).ravel() for packed in stream.valid_batches()]
    )
    train_positions = np.concatenate(
        [
            positions(stream.batch(step)).ravel()
            for step in range(3 * ceil(stream.batches_per_epoch))
        ]
    )
    valid_positions, train_positions = (
        {int(place) // 10 for place in part if place >= 0}
        for part in (valid_positions, train_positions)
    )
    assert len(valid_positions) == round(fraction * 50)
    assert valid_positions.isdisjoint(train_positions)


def test_distinct_documents_are_held_out_one_by_one():
    held = [
        positions(packed).ravel() for packed in streams([9] * 50, (9, 5, 0), 0.1)[1].valid_batches()
    ]
    assert {int(place) // 9 for place in np.concatenate(held)} == {
        *shuffled_indices(50, 0, -1)[:5].tolist()
    }


MISTAKES = [
    (
        lambda: LanguageModelingDataset(
            TokenizedCorpus(np.ones(30, np.uint16), np.array([0, 10, 20])), 8, 1, valid_fraction=0.1
        ),
        "all 3 documents are identical",
    ),
    (
        lambda: LanguageModelingDataset(corpus([8]), 8, 1),
        "training needs at least 9 tokens, got 8",
    ),
    (
        lambda: MaskedLanguageModelingDataset(LanguageModelingDataset(corpus([20]), 8, 1), 30, 30),
        "token id 30 is out of range",
    ),
    (
        lambda: MaskedLanguageModelingDataset(
            LanguageModelingDataset(corpus([20]), 8, 1), 0, 2, [1]
        ),
        "none can be masked",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_invalid_options_are_rejected_by_datasets(make, words):
    with pytest.raises(ClearheadError, match=words):
        make()


def test_masks_follow_bert_probabilities():
    # 0, which fills padding, is a word like others
    special = {1, 5, 6}
    mask = 7
    vocabulary = 500
    generator = np.random.default_rng(0)
    ids = generator.integers(8, vocabulary, 2**16).astype(np.uint16)
    ids[::10] = generator.choice([1, 5, 6], len(ids[::10]))
    plain = LanguageModelingDataset(
        TokenizedCorpus(ids, np.array([0, 30_000])), 128, 100, valid_fraction=0.5
    )
    masked = MaskedLanguageModelingDataset(plain, mask, vocabulary, special)
    for before, after in [
        *((plain.batch(step), masked.batch(step)) for step in range(3)),
        *zip(plain.valid_batches(), masked.valid_batches(), strict=True),
    ]:
        old = before.tokens.numpy()
        new = after.tokens.numpy()
        targets = after.targets.numpy()
        assert (
            before.segment_ids is None
            if after.segment_ids is None
            else torch.equal(before.segment_ids, after.segment_ids)
        )
        real = (
            np.ones(old.shape, bool) if after.segment_ids is None else after.segment_ids.numpy() > 0
        )
        words = real & ~np.isin(old, list(special))
        chosen = targets != IGNORE_INDEX
        assert (targets[chosen] == old[chosen]).all()
        assert (new[~chosen] == old[~chosen]).all()
        assert not (chosen & ~words).any()
        assert not np.isin(new[chosen], list(special)).any()
        hidden = chosen & (new == mask)
        stayed = chosen & (new == old)
        for part, of, fraction in (
            (chosen, words, 0.15),
            (hidden, chosen, 0.8),
            (stayed, chosen, 0.1),
            (chosen & ~hidden & ~stayed, chosen, 0.1),
        ):
            n = of.sum()
            assert (
                abs(part.sum() - n * fraction)
                < 4.5 * np.sqrt(n * fraction * (1 - fraction)) + n * 0.0005
            )


def test_every_batch_masks_a_token(monkeypatch):
    monkeypatch.setattr(language_modeling, "MASK_PROBABILITY", 0.01)
    rows = streams([2000], (8, 1, 0), 0.1)[1]
    masked = MaskedLanguageModelingDataset(rows, 2001, 2002)
    for packed in (*map(masked.batch, range(100)), *masked.valid_batches()):
        assert count_targets(packed.targets) >= 1
        assert (
            packed.segment_ids is None
            or (packed.segment_ids[packed.targets != IGNORE_INDEX] > 0).all()
        )


def test_special_tokens_are_never_masked():
    tokens = TokenizedCorpus(np.repeat(np.array([1, 2], np.uint16), 50), np.array([0]))
    masked = MaskedLanguageModelingDataset(
        LanguageModelingDataset(tokens, 8, 1), 3, 4, special_tokens=[1]
    )
    counts = {
        bool((packed.tokens == 1).all()): count_targets(packed.targets)
        for packed in map(masked.batch, range(11))
    }
    assert counts[True] == 0
    assert counts[False] >= 1


def test_each_step_masks_other_tokens():
    masked = MaskedLanguageModelingDataset(streams([65], (64, 1, 0))[1], 99, 100)
    assert not torch.equal(masked.batch(0).targets, masked.batch(1).targets)


def test_seed_chooses_the_validation_documents():
    chosen = [
        positions(next(streams([9] * 50, (9, 5, seed), 0.1)[1].valid_batches())).tolist()
        for seed in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_batch_takes_milliseconds(tmp_path):
    count = 5_000_000
    documents = 20_000
    np.arange(count, dtype=np.uint32).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    starts = np.sort(np.random.default_rng(0).choice(count, documents, replace=False))
    starts[0] = 0
    tokens = TokenizedCorpus(
        np.memmap(tmp_path / "tokens.bin", np.uint16, "r"), starts, bos_token=0
    )
    stream = LanguageModelingDataset(tokens, 1024, 16, valid_fraction=0.01)
    stream.batch(0)
    start = time.process_time()
    for step in range(20):
        stream.batch(step)
    assert (time.process_time() - start) / 20 < 0.02
