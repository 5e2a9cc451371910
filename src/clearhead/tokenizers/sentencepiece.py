"""Convert SentencePiece models (`spiece.model`, `tokenizer.model`, `*.spm`) to tokenizers."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tokenizers as tk
from tokenizers import decoders, models, normalizers

from clearhead.errors import ClearheadError, cannot_read
from clearhead.tokenizers.limits import check_character_map, check_growth

# Types of pieces, as SentencePiece numbers them.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER = 4
UNUSED = 5
BYTE = 6
# Types of models.
UNIGRAM = 1
BPE = 2
SPACE_MARKER = "▁"
MAX_PIECE_LENGTH = 512  # characters; SentencePiece's own limit
NEVER_SCORE = -1e4  # lower than the score of any text


def read_sentencepiece(
    path: Path,
    ids: Mapping[str, int] | None = None,
    added_tokens: Collection[str] = (),
    add_prefix_space: bool = True,
) -> tk.Tokenizer:
    """A tokenizer that splits text as SentencePiece does with this model.

    `ids` renumbers the pieces. Names in `ids` that are neither pieces nor `added_tokens` can be
    decoded but never result from text.
    """
    proto = _parse_proto(path)
    proto.normalizer_spec.add_dummy_prefix &= add_prefix_space
    is_bpe = proto.trainer_spec.model_type == BPE
    pieces = {piece.piece: piece for piece in proto.pieces}
    unknown = next((piece.piece for piece in proto.pieces if piece.type == UNKNOWN), "")
    if ids is None:
        ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    # Spaces become ▁ before splitting, so a name that ends in a space never results from text.
    vocab = {
        name if name in pieces or name in added_tokens else f"{name} ": i for name, i in ids.items()
    }
    has_duplicates = len(pieces) < len(proto.pieces) or len(vocab) < len(ids)
    if unknown not in ids or "" in pieces or has_duplicates:
        raise ClearheadError(f"{path} must have an unknown token and no duplicate or empty pieces.")
    build_model = _bpe_model if is_bpe else _unigram_model
    backend = tk.Tokenizer(build_model(path, proto, vocab, unknown))
    backend.normalizer = normalizers.Sequence(_normalizers(proto.normalizer_spec))
    has_hidden_names = bool(vocab.keys() - ids.keys())
    backend.decoder = decoders.Sequence(_decoders(proto, has_hidden_names))
    check_growth(backend)
    special_types = (UNKNOWN, CONTROL)
    backend.add_special_tokens(
        [name for name, piece in pieces.items() if piece.type in special_types and name in ids]
    )
    if is_bpe:  # in a Unigram model they are pieces that always win
        user_tokens = [name for name, piece in pieces.items() if piece.type == USER]
        backend.add_tokens([tk.AddedToken(name, normalized=False) for name in user_tokens])
    return backend


def _parse_proto(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise ClearheadError(
            f"{path} needs SentencePiece; pip install 'clearhead[sentencepiece]'."
        ) from None
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise cannot_read(path, error) from None
    except DecodeError:
        raise ClearheadError(f"{path} is not a SentencePiece model.") from None
    is_valid = bool(proto.pieces) and all(
        isinstance(piece.piece, str)
        and math.isfinite(piece.score)
        and len(piece.piece) <= MAX_PIECE_LENGTH
        for piece in proto.pieces
    )
    if not is_valid:
        raise ClearheadError(f"{path} is not a SentencePiece model.")
    spec = proto.trainer_spec
    marks_word_starts = (
        proto.normalizer_spec.escape_whitespaces and not spec.treat_whitespace_as_suffix
    )
    if spec.model_type not in (UNIGRAM, BPE) or not marks_word_starts:
        raise ClearheadError(f"{path} must be a Unigram or BPE model that marks word starts.")
    if any(piece.type == UNUSED for piece in proto.pieces):
        raise ClearheadError(f"{path} has unused pieces, which are not supported.")
    return proto


def _unigram_model(path: Path, proto: Any, vocab: Mapping[str, int], unknown: str) -> models.Model:
    byte_fallback = proto.trainer_spec.byte_fallback
    # These represent bytes, not literal text such as `<0x0A>`.
    never_text = (BYTE, UNKNOWN) if byte_fallback else ()
    scores = {
        piece.piece: NEVER_SCORE if piece.type in never_text else piece.score
        for piece in proto.pieces
    }
    pieces = [(name, scores.get(name, 0.0)) for name in sorted(vocab, key=vocab.__getitem__)]
    return models.Unigram(pieces, vocab[unknown], byte_fallback)


def _bpe_model(path: Path, proto: Any, vocab: Mapping[str, int], unknown: str) -> models.Model:
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    missing = scores.keys() - vocab.keys()
    if missing:
        raise ClearheadError(f"{path} has the piece {min(missing)!r}, which has no id in vocab.")
    return models.BPE(
        dict(vocab),
        merges_from_scores(scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make up a third, in descending order of its score."""
    return [
        (piece[:split], piece[split:])
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for split in range(1, len(piece))
        if piece[:split] in scores and piece[split:] in scores
    ]


def _normalizers(spec: Any) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if "nfkc" in spec.name:
        # The library's charsmap keeps only the first mark of a letter, so compose letters first.
        steps.append(normalizers.NFC())
    if spec.precompiled_charsmap:
        check_character_map(spec.precompiled_charsmap)
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(tk.Regex(rf"\A +|[ {SPACE_MARKER}]+\z|(?<= ) +"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE_MARKER))
    return [*steps, normalizers.Replace(" ", SPACE_MARKER)]


def _decoders(proto: Any, has_hidden_names: bool) -> list[decoders.Decoder]:
    steps: list[decoders.Decoder] = []
    if has_hidden_names:
        steps.append(decoders.Replace(" ", ""))
    steps.append(decoders.Replace(SPACE_MARKER, " "))
    if proto.trainer_spec.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if proto.normalizer_spec.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return steps
