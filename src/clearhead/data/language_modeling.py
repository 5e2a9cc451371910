"""Pack tokenized documents into rows for (masked) language modeling, without padding."""

import hashlib
from collections.abc import Collection, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.data.dataset import select_rows, shuffled_indices
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.data.token_cache import TokenizedCorpus
from clearhead.errors import ClearheadError

MASK_PROBABILITY = 0.15

Numbers = NDArray[np.int64]


class _TokenStream:
    """Some documents of a corpus as one stream of tokens."""

    def __init__(
        self, corpus: TokenizedCorpus, starts: Numbers, ends: Numbers, eos_token: int | None
    ) -> None:
        is_nonempty = ends > starts
        starts = starts[is_nonempty]
        ends = ends[is_nonempty]
        self._ids = np.asarray(corpus.ids)  # still memory-mapped, but indexing is faster
        self._eos_token = corpus.bos_token if eos_token is None else eos_token
        self._ends = np.cumsum(ends - starts)
        self._offsets = ends - self._ends  # position in the corpus minus position in the stream
        self.size = int(self._ends[-1]) if len(ends) else 0

    def rows(self, starts: Numbers, length: int) -> PackedBatch:
        """The rows that start at positions of the stream; padded after its end."""
        positions = starts[:, None] + np.arange(length + 1)
        is_token = positions < self.size
        positions = np.minimum(positions, self.size - 1)
        document = np.searchsorted(self._ends, positions, side="right")
        ids = self._ids[positions + self._offsets[document]].astype(np.int64)
        ids = np.where(is_token, ids, 0)

        is_last = document[:, 1:] != document[:, :-1]
        has_target = is_token[:, 1:]
        targets = ids[:, 1:]
        if self._eos_token is None:
            has_target = has_target & ~is_last
        elif len(self._ends) > 1:
            targets = np.where(is_last, self._eos_token, targets)
        targets = np.where(has_target, targets, IGNORE_INDEX)

        is_token = is_token[:, :-1]
        document = document[:, :-1]
        segment_ids = None
        if len(self._ends) > 1 or not is_token.all():
            segment_ids = torch.from_numpy(np.where(is_token, document - document[:, :1] + 1, 0))
        tokens = torch.from_numpy(ids[:, :-1].copy())
        return PackedBatch(tokens, torch.from_numpy(targets), segment_ids)


class LanguageModelingDataset:
    """A corpus as rows of `seq_len` tokens; the target of each token is the next one.

    Each row starts where the previous one ended, also inside a document; `segment_ids` number the
    documents of a row and are None if there is only one. The target of a document's last token is
    `eos_token`, or else the corpus's `bos_token`, so that a model learns to stop; without either
    it has no target. Each epoch cuts the stream at another offset and shuffles the rows; less
    than two rows at the ends of the stream are left out.

    `valid_fraction` of the documents, chosen by the seed, are held out together with their
    duplicates; of a single document, its end. If `valid` is given, it is used instead.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        corpus: TokenizedCorpus,
        seq_len: int,
        batch_size: int,
        seed: int = 0,
        valid_fraction: float = 0.0,
        valid: TokenizedCorpus | None = None,
        eos_token: int | None = None,
    ) -> None:
        self.report = corpus.report
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        fraction = valid_fraction if valid is None else 0.0
        self._train, self._valid = _split_documents(corpus, fraction, seed, eos_token)
        if valid is not None:
            self._valid = _split_documents(valid, 0.0, seed, eos_token)[0]
        if self._train.size <= seq_len:
            raise ClearheadError(
                f"training needs at least {seq_len + 1} tokens, got {self._train.size}; "
                "give more text or a smaller train.seq_len."
            )
        # The largest offset of the first row; the same, like the number of rows, in each epoch.
        self._max_offset = min(seq_len, self._train.size - seq_len) - 1
        self._num_rows = (self._train.size - 1 - self._max_offset) // seq_len
        self.batches_per_epoch = self._num_rows / batch_size

    def batch(self, step: int) -> PackedBatch:
        rows = select_rows(step, self.batch_size, self._num_rows, self.seed)
        offsets = {epoch: self._offset(epoch) for epoch in {epoch for epoch, _ in rows}}
        starts = np.array([offsets[epoch] + row * self.seq_len for epoch, row in rows])
        return self._train.rows(starts, self.seq_len)

    def valid_batches(self) -> Iterator[PackedBatch]:
        """Each validation token once, in order; the last batch is padded."""
        if self._valid is not None:
            for start in range(0, self._valid.size, self.batch_size * self.seq_len):
                starts = start + np.arange(self.batch_size) * self.seq_len
                yield self._valid.rows(starts, self.seq_len)

    def _offset(self, epoch: int) -> int:
        """The position of the first row of an epoch."""
        return int(np.random.default_rng([self.seed % 2**63, epoch]).integers(self._max_offset + 1))


def _split_documents(
    corpus: TokenizedCorpus, fraction: float, seed: int, eos_token: int | None
) -> tuple[_TokenStream, _TokenStream | None]:
    """The training and the validation documents."""
    starts = np.asarray(corpus.document_starts)
    ends = np.append(corpus.document_starts[1:], len(corpus.ids))
    if not fraction:
        return _TokenStream(corpus, starts, ends, eos_token), None
    if len(starts) == 1:
        split = np.array([min(int(ends[0] * (1 - fraction)), ends[0] - 1)])
        train = _TokenStream(corpus, starts, split, eos_token)
        return train, _TokenStream(corpus, split, ends, eos_token)
    groups = _group_duplicates(corpus, starts, ends)
    num_groups = int(groups.max()) + 1
    if num_groups == 1:
        raise ClearheadError(
            f"all {len(starts)} documents are identical, so none can be held out; "
            "set data.valid_fraction = 0."
        )
    num_valid = min(max(round(fraction * num_groups), 1), num_groups - 1)
    valid_groups = shuffled_indices(num_groups, seed, -1)[:num_valid]
    is_valid = np.isin(groups, valid_groups.numpy())
    train = _TokenStream(corpus, starts[~is_valid], ends[~is_valid], eos_token)
    return train, _TokenStream(corpus, starts[is_valid], ends[is_valid], eos_token)


def _group_duplicates(corpus: TokenizedCorpus, starts: Numbers, ends: Numbers) -> Numbers:
    """A group number per document, in order of first occurrence; duplicates share one."""
    ids = np.asarray(corpus.ids)
    digests = (
        hashlib.blake2b(ids[start:end].data, digest_size=8).digest()
        for start, end in zip(starts, ends, strict=True)
    )
    keys = np.frombuffer(b"".join(digests), np.uint64)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first.argsort().argsort()[group]


class MaskedLanguageModelingDataset:
    """Rows of a language modeling dataset with masked tokens as targets, as in BERT.

    Of 15 % of the tokens, 80 % become `mask_token`, 10 % a random token, and 10 %
    stay. Special tokens are neither masked nor used as random tokens. The mask of a training batch
    depends on the seed and the step, and covers at least one token; that of a validation batch is
    always the same.
    """

    packing_efficiency = 1.0

    def __init__(
        self,
        dataset: LanguageModelingDataset,
        mask_token: int,
        vocab_size: int,
        special_tokens: Collection[int] = (),
    ) -> None:
        for i in (mask_token, *special_tokens):
            if not 0 <= i < vocab_size:
                raise ClearheadError(
                    f"token id {i} is out of range; ids run from 0 to {vocab_size - 1}."
                )
        self._is_maskable = np.ones(vocab_size, bool)
        self._is_maskable[[mask_token, *special_tokens]] = False
        if not self._is_maskable.any():
            raise ClearheadError(f"all {vocab_size} tokens are special, so none can be masked.")
        self._replacements = np.flatnonzero(self._is_maskable)
        self._dataset = dataset
        self._mask_token = mask_token
        self.batches_per_epoch = dataset.batches_per_epoch
        self.report = dataset.report

    def batch(self, step: int) -> PackedBatch:
        return self._mask_tokens(self._dataset.batch(step), 0, step)

    def valid_batches(self) -> Iterator[PackedBatch]:
        for index, batch in enumerate(self._dataset.valid_batches()):
            yield self._mask_tokens(batch, 1, index)

    def _mask_tokens(self, batch: PackedBatch, split: int, index: int) -> PackedBatch:
        rng = np.random.default_rng([self._dataset.seed % 2**63, split, index])
        ids = batch.tokens.numpy()
        is_maskable = self._is_maskable[ids]
        if batch.segment_ids is not None:
            is_maskable &= batch.segment_ids.numpy() > 0
        draws = np.where(is_maskable, rng.random(ids.shape, np.float32), np.inf)
        draws = draws / MASK_PROBABILITY  # below 1: the token is a target
        if is_maskable.any() and draws.min() >= 1:
            draws.flat[draws.argmin()] = rng.random()
        tokens = np.where(draws < 0.8, self._mask_token, ids)
        is_random = (draws >= 0.8) & (draws < 0.9)
        random_indices = rng.integers(len(self._replacements), size=is_random.sum())
        tokens[is_random] = self._replacements[random_indices]
        targets = np.where(draws < 1, ids, IGNORE_INDEX)
        return PackedBatch(torch.from_numpy(tokens), torch.from_numpy(targets), batch.segment_ids)
