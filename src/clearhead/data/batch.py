"""Batch what a user passes to a model: text, token ids, pairs, images or audio."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, InputTextError, with_index
from clearhead.tokenizers.media import input_name, read_media
from clearhead.tokenizers.tokenizer import Tokenizer, encode_with_masks

MAX_BATCH_TOKENS = {"cpu": 1024}  # per forward pass; larger batches are slower on a CPU
DEFAULT_MAX_BATCH_TOKENS = 16384  # bounds the memory of other devices


def truncated_lengths(first: int, second: int, max_length: int) -> tuple[int, int]:
    """The lengths of a pair of texts after truncating the longer one first."""
    second = min(second, max(max_length - first, max_length // 2))
    return min(first, max_length - second), second


@dataclass(frozen=True)
class Batch:
    """The input of one forward pass."""

    inputs: Tensor  # token ids, images or mel frames
    segment_ids: Tensor | None = None  # 1 for tokens and 0 for padding; None without padding
    is_single: bool = False  # a single input: results lose the batch dimension
    token_type_ids: Tensor | None = None  # 1 for the second text of a pair
    source: Tensor | None = None
    source_segment_ids: Tensor | None = None
    media_tokens: int = 0  # tokens per image or audio clip; 0 for text

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], device: torch.device) -> "Batch":
        """Token ids, padded on the right."""
        lengths = torch.tensor([len(row) for row in rows], device=device)
        max_length = int(lengths.max())
        is_token = (torch.arange(max_length, device=device) < lengths[:, None]).long()
        padded = [[*row, *[0] * (max_length - len(row))] for row in rows]
        ids = torch.tensor(padded, device=device)
        return cls(ids, None if bool(is_token.all()) else is_token)

    @property
    def is_padded(self) -> bool:
        """Whether a source or target is shorter than the longest one."""
        return self.segment_ids is not None or self.source_segment_ids is not None

    def unpadded_rows(self) -> list[list[int]]:
        """The token ids of each row without padding."""
        return unpad(self.inputs, self.segment_ids)

    def unwrap(self, result: Tensor) -> Tensor:
        """Remove the batch dimension of the result of a single input."""
        return result[0] if self.is_single else result

    def map_chunks(self, function: Callable[["Batch"], Tensor]) -> Tensor:
        """Apply a function to chunks of rows of similar length; the result keeps the row order."""
        device = self.inputs.device
        if self.segment_ids is None:
            length = self.media_tokens or self.inputs.shape[1]
            lengths = [length] * len(self.inputs)
        else:
            lengths = (self.segment_ids != 0).sum(dim=1).tolist()
        results: list[Tensor] = []
        order: list[int] = []
        for rows in batches_by_length(lengths, device):
            index = torch.tensor(rows, device=device)
            max_length = lengths[rows[0]]
            has_padding = lengths[rows[-1]] < max_length
            inputs = self.inputs[index]
            chunk = Batch(inputs if self.media_tokens else inputs[:, :max_length])
            if self.segment_ids is not None and has_padding:
                chunk = replace(chunk, segment_ids=self.segment_ids[index, :max_length])
            if self.token_type_ids is not None:
                chunk = replace(chunk, token_type_ids=self.token_type_ids[index, :max_length])
            results.append(function(chunk))
            order += rows
        return torch.cat(results)[torch.tensor(order, device=device).argsort()]


def batches_by_length(
    lengths: Sequence[int], device: torch.device, max_rows: int | None = None
) -> Iterator[list[int]]:
    """Group rows of similar length, longest first, within the token limit of the device."""
    max_tokens = MAX_BATCH_TOKENS.get(device.type, DEFAULT_MAX_BATCH_TOKENS)
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, min(max_rows or len(order), max_tokens // lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def unpad(ids: Tensor, segment_ids: Tensor | None) -> list[list[int]]:
    """Rows of token ids without padding."""
    if segment_ids is None:
        return ids.tolist()
    return [row[mask].tolist() for row, mask in zip(ids, segment_ids != 0, strict=True)]


@dataclass(frozen=True)
class SideEncoding:
    """How the texts of one side, source or target, become token ids."""

    tokenizer: Tokenizer | None
    bos_tokens: tuple[int, ...]
    sep_tokens: tuple[int, ...]
    vocab_size: int
    context_length: int
    max_length: int  # longer texts are truncated; 0: never
    no_tokenizer_reason: str
    allows_pairs: bool = False
    mask_tokens: tuple[int, ...] = ()  # replaces [MASK] in a text, for masked language models


def make_batch(
    config: c.Config,
    tokenizers: tuple[Tokenizer | None, Tokenizer | None],
    like: Tensor,
    x: object = None,
    *,
    source: object = None,
    images: object = None,
    audio: object = None,
    max_length: int = 0,
    allow_overflow: bool = False,
    no_tokenizer_reason: str = "",
) -> Batch:
    """Convert texts, token ids, images or audio to a batch on the device of `like`, a parameter.

    `tokenizers` are those of the target and of the source. Texts longer than `max_length` tokens
    are truncated; texts longer than the context are an error unless `allow_overflow`.
    """
    m = config.model
    architecture = m.architecture
    main_input = m.main_input
    is_encoder_decoder = isinstance(architecture, c.EncoderDecoder)
    if isinstance(main_input, c.Tokens):
        expected = "source" if is_encoder_decoder else "text"
    else:
        expected = input_name(main_input)
    arguments = {
        "text": None if is_encoder_decoder else x,
        "source": source,
        "images": images,
        "audio": audio,
    }
    usage = expected if expected == "text" else f"{expected}=…"
    for name, value in arguments.items():
        if value is not None and name != expected:
            raise ClearheadError(f"this model expects {usage}, got {name}.")
    if arguments[expected] is None:
        raise ClearheadError(f"this model expects {usage}; it is missing.")
    if not isinstance(architecture, c.EncoderDecoder):
        side = _single_side(config, tokenizers[0], max_length, allow_overflow, no_tokenizer_reason)
        batch = _read_side(arguments[expected], main_input, side, like)
        if isinstance(main_input, c.Tokens) and main_input.token_types > 1:
            return batch
        return replace(batch, token_type_ids=None)

    inference = config.inference
    start_tokens = inference.decoder_start_tokens
    source_side = SideEncoding(
        tokenizers[1],
        inference.bos_tokens,
        inference.sep_tokens,
        architecture.source_vocab_size or m.vocab_size,
        architecture.source_context_length,
        max_length,
        no_tokenizer_reason,
    )
    source_batch = _read_side(arguments[expected], main_input, source_side, like)
    num_sources = len(source_batch.inputs)
    if x is None:  # start of the output
        if not start_tokens:
            raise ClearheadError(
                "an encoder-decoder also needs a target: model.logits(target, source=…)."
            )
        x = list(start_tokens) if source_batch.is_single else [list(start_tokens)] * num_sources
    target_side = SideEncoding(
        tokenizers[0],
        start_tokens,
        (),
        m.vocab_size,
        m.context_length,
        max_length,
        no_tokenizer_reason,
    )
    target_batch = _read_side(x, m.input, target_side, like)
    if len(target_batch.inputs) != num_sources:
        raise ClearheadError(
            f"got {len(target_batch.inputs)} targets for {num_sources} sources; "
            "each source needs one target."
        )
    return replace(
        target_batch, source=source_batch.inputs, source_segment_ids=source_batch.segment_ids
    )


def encode_texts(
    config: c.Config,
    tokenizer: Tokenizer | None,
    texts: Sequence[Any],
    max_length: int = 0,
    allow_overflow: bool = False,
    no_tokenizer_reason: str = "",
) -> Iterator[list[int]]:
    """The token ids of texts as `make_batch` reads them, one text at a time and without padding."""
    if not isinstance(config.model.input, c.Tokens):
        raise ClearheadError(f"this model expects {input_name(config.model.input)}, not text.")
    side = _single_side(config, tokenizer, max_length, allow_overflow, no_tokenizer_reason)
    return (list(ids) for ids, _ in _encode_each(texts, side, is_single=len(texts) == 1))


def _single_side(
    config: c.Config,
    tokenizer: Tokenizer | None,
    max_length: int,
    allow_overflow: bool,
    no_tokenizer_reason: str,
) -> SideEncoding:
    """The encoding of a model without a source."""
    m = config.model
    inference = config.inference
    return SideEncoding(
        tokenizer,
        inference.bos_tokens,
        inference.sep_tokens,
        m.vocab_size,
        sys.maxsize if allow_overflow else m.context_length,
        max_length,
        no_tokenizer_reason,
        allows_pairs=bool(inference.sep_tokens),
        mask_tokens=inference.mask_token if isinstance(m.head, c.MLMHead) else (),
    )


def _read_side(x: object, config: c.Input, side: SideEncoding, like: Tensor) -> Batch:
    if isinstance(config, c.Tokens):
        if isinstance(x, Tensor):
            return _batch_from_tensor(x, side, like.device)
        return _batch_from_texts(x, side, like.device)
    values, is_single = read_media(x, config)
    return Batch(values.to(like), is_single=is_single, media_tokens=c.num_input_tokens(config))


def _batch_from_tensor(x: Tensor, side: SideEncoding, device: torch.device) -> Batch:
    if x.dim() not in (1, 2) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ClearheadError(
            f"token ids must be a 1-D or 2-D integer tensor, got {x.dim()}-D {x.dtype}."
        )
    check_text_length(x.shape[-1] if x.numel() else 0, side.context_length)
    x = x.long()  # max() does not support unsigned types
    _check_token_ids((int(x.min()), int(x.max())), side)
    return Batch(x.view(-1, x.shape[-1]).to(device), is_single=x.dim() == 1)


def _batch_from_texts(x: object, side: SideEncoding, device: torch.device) -> Batch:
    is_single = isinstance(x, str) or _is_pair(x)
    if _is_list(x) and x and isinstance(x[0], int):
        is_single = True
    texts = [x] if is_single else x
    if not _is_list(texts):
        raise ClearheadError(
            f"expected a text, a list of texts or token ids, got {type(x).__name__}."
        )
    encoded = list(_encode_each(texts, side, is_single))
    batch = replace(Batch.from_rows([ids for ids, _ in encoded], device), is_single=is_single)
    if not any(map(_is_pair, texts)):
        return batch
    first_lengths = torch.tensor([length for _, length in encoded], device=device)
    positions = torch.arange(batch.inputs.shape[1], device=device)
    return replace(batch, token_type_ids=(positions >= first_lengths[:, None]).long())


def _encode_each(
    texts: Sequence[Any], side: SideEncoding, is_single: bool
) -> Iterator[tuple[Sequence[int], int]]:
    """The token ids of each text, and how many of them belong to the first text of a pair."""
    if not texts:
        raise ClearheadError("the list of texts is empty; pass at least one text.")
    for i, text in enumerate(texts):
        with with_index(None if is_single else i):
            ids, first_length = _encode_text(text, side)
            check_text_length(len(ids), side.context_length)
        _check_token_ids(ids, side)
        yield ids, first_length


def check_text_length(num_tokens: int, context_length: int) -> None:
    """Reject empty texts and texts that exceed the context."""
    if not num_tokens:
        raise InputTextError(None, "is empty; pass at least one token.")
    if num_tokens > context_length:
        message = (
            f"is too long: {num_tokens} tokens exceed this model's context of {context_length}."
        )
        raise InputTextError(None, message)


def _check_token_ids(ids: Sequence[int], side: SideEncoding) -> None:
    for i in ids:
        if not 0 <= i < side.vocab_size:
            raise ClearheadError(
                f"token id {i} is out of range; the vocabulary has ids 0 to {side.vocab_size - 1}."
            )


def _encode_text(text: object, side: SideEncoding) -> tuple[Sequence[int], int]:
    if _is_pair(text):
        return _encode_text_pair(text, side)
    if isinstance(text, str):
        ids = _tokenize(text, side)
        if side.max_length:
            ids = ids[: side.max_length - len(side.bos_tokens) - len(side.sep_tokens)]
        ids = [*side.bos_tokens, *ids, *side.sep_tokens]
        return ids, len(ids)
    if _is_list(text) and all(isinstance(i, int) and not isinstance(i, bool) for i in text):
        return text, len(text)
    is_list_of_texts = _is_list(text) and any(isinstance(part, str) for part in text)
    hint = "; write a pair of texts as a tuple" if is_list_of_texts else ""
    raise ClearheadError(f"expected a text or a list of token ids, got {text!r:.60}{hint}.")


def _encode_text_pair(pair: Sequence[Any], side: SideEncoding) -> tuple[Sequence[int], int]:
    """`bos first sep second sep`, as in training."""
    is_valid = len(pair) == 2 and all(isinstance(text, str) for text in pair)
    if not is_valid or not side.allows_pairs:
        rule = "this model does not read pairs" if is_valid else "a tuple must be a pair of texts"
        message = f"is {pair!r:.60}, but {rule}; pass several texts as a list."
        raise InputTextError(None, message)
    first, second = (_tokenize(text, side) for text in pair)
    if not first or not second:
        message = f"is {pair!r:.60}; both texts of a pair need at least one token."
        raise InputTextError(None, message)
    if side.max_length:
        room = max(2, side.max_length - len(side.bos_tokens) - 2 * len(side.sep_tokens))
        first_length, second_length = truncated_lengths(len(first), len(second), room)
        first = first[:first_length]
        second = second[:second_length]
    row = [*side.bos_tokens, *first, *side.sep_tokens]
    return [*row, *second, *side.sep_tokens], len(row)


def _tokenize(text: str, side: SideEncoding) -> list[int]:
    if side.tokenizer is None:
        reason = side.no_tokenizer_reason or "this model has no tokenizer and cannot read text."
        raise ClearheadError(f"{reason.removesuffix('.')}; pass token ids instead.")
    if side.mask_tokens:
        return encode_with_masks(side.tokenizer, side.mask_tokens[0], text)
    return side.tokenizer.encode(text)


def _is_list(x: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(x, list | tuple)


def _is_pair(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Several texts are a list; a tuple that contains a text is meant as a pair."""
    return isinstance(x, tuple) and any(isinstance(part, str) for part in x)
