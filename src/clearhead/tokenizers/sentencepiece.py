"""SentencePiece models, as `spiece.model`, `tokenizer.model` and `*.spm` hold them, made into tokenizers of ours."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tokenizers as tk
from tokenizers import decoders, models, normalizers

from clearhead.errors import ClearheadError, cannot_read

# the types of a piece
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER = 4
UNUSED = 5
BYTE = 6
# the kinds of a model
UNIGRAM = 1
BPE = 2
SPACE_MARKER = "▁"
MAX_PIECE_LENGTH = 512  # characters, of a piece that SentencePiece makes
NEVER_SCORE = -1e4  # a score that no piece of text can be worse than


def read_sentencepiece(
    path: Path,
    ids: Mapping[str, int] | None = None,
    added_tokens: Collection[str] = (),
    add_prefix_space: bool = True,
) -> tk.Tokenizer:
    """The tokenizer that cuts text as SentencePiece itself does with this file.

    With `ids` the pieces are numbered by them. What `ids` has and the file has not can be decoded and never comes
    out of text, save for the tokens named in `whole`. Without `prefix` no space is put before a text.
    """
    proto = _parse_proto(path)
    proto.normalizer_spec.add_dummy_prefix &= add_prefix_space
    pieces = {p.piece: p for p in proto.pieces}
    unknown = next((p.piece for p in proto.pieces if p.type == UNKNOWN), "")
    ids = {p.piece: i for i, p in enumerate(proto.pieces)} if ids is None else ids
    # No text holds a space once spaces are ▁, so a name that ends in one decodes and is never found.
    names = {
        name if name in pieces or name in added_tokens else f"{name} ": i for name, i in ids.items()
    }
    if (
        unknown not in ids
        or "" in pieces
        or len(pieces) < len(proto.pieces)
        or len(names) < len(ids)
    ):
        raise ClearheadError(f"{path} needs a token for unknown text, and each piece once.")
    inner = tk.Tokenizer(
        (_bpe_model if proto.trainer_spec.model_type == BPE else _unigram_model)(
            path, proto, names, unknown
        )
    )
    inner.normalizer = normalizers.Sequence(_normalizers(proto.normalizer_spec))
    inner.decoder = decoders.Sequence(_decoders(proto, hidden=len(names.keys() - ids.keys()) > 0))
    special = [name for name, p in pieces.items() if p.type in (UNKNOWN, CONTROL) and name in ids]
    inner.add_special_tokens(special)
    if proto.trainer_spec.model_type == BPE:  # in Unigram they are pieces that always win
        found = [name for name, p in pieces.items() if p.type == USER]
        inner.add_tokens([tk.AddedToken(name, normalized=False) for name in found])
    return inner


def _parse_proto(path: Path) -> Any:
    try:
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
    except Exception:  # protobuf's own, wherever this version of it keeps them
        raise ClearheadError(f"{path} is not a SentencePiece model.") from None
    spec = proto.trainer_spec
    whole = [isinstance(p.piece, str) and math.isfinite(p.score) for p in proto.pieces]
    if not whole or not all(whole) or max(len(p.piece) for p in proto.pieces) > MAX_PIECE_LENGTH:
        raise ClearheadError(f"{path} is not a SentencePiece model.")
    if (
        spec.model_type not in (UNIGRAM, BPE)
        or spec.treat_whitespace_as_suffix
        or not proto.normalizer_spec.escape_whitespaces
    ):
        raise ClearheadError(
            f"{path} must be Unigram or BPE, with spaces marked where words begin."
        )
    if any(p.type == UNUSED for p in proto.pieces):
        raise ClearheadError(
            f"{path} has pieces that are marked as unused, which cannot be told from the others."
        )
    return proto


def _unigram_model(path: Path, proto: Any, names: Mapping[str, int], unknown: str) -> models.Model:
    """The most likely pieces; a piece of the file that has no id is never the most likely."""
    fallback = proto.trainer_spec.byte_fallback
    spelled = (
        (BYTE, UNKNOWN) if fallback else ()
    )  # they stand for bytes, and never for the text `<0x0A>`
    scores = {p.piece: NEVER_SCORE if p.type in spelled else p.score for p in proto.pieces}
    table = [(name, scores.get(name, 0.0)) for name in sorted(names, key=names.__getitem__)]
    return models.Unigram(table, names[unknown], fallback)


def _bpe_model(path: Path, proto: Any, names: Mapping[str, int], unknown: str) -> models.Model:
    scores = {p.piece: p.score for p in proto.pieces if p.type == NORMAL}
    if missing := scores.keys() - names.keys():
        raise ClearheadError(f"{path} has {min(missing)!r}, for which the vocabulary has no id.")
    fallback = proto.trainer_spec.byte_fallback
    return models.BPE(
        dict(names),
        merges_from_scores(scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=fallback,
    )


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every two pieces that make a third, the best-scored third first."""
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]


def _normalizers(spec: Any) -> list[normalizers.Normalizer]:
    # The library's charsmap loses all marks but the first of a letter, so letters are composed before it.
    steps: list[normalizers.Normalizer] = [normalizers.NFC()] if "nfkc" in spec.name else []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(tk.Regex(rf"\A +|[ {SPACE_MARKER}]+\z|(?<= ) +"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE_MARKER))
    return [*steps, normalizers.Replace(" ", SPACE_MARKER)]


def _decoders(proto: Any, hidden: bool) -> list[decoders.Decoder]:
    steps: list[decoders.Decoder] = [decoders.Replace(" ", "")] if hidden else []
    steps += [decoders.Replace(SPACE_MARKER, " ")]
    steps += [decoders.ByteFallback()] if proto.trainer_spec.byte_fallback else []
    steps += [decoders.Fuse()]
    return [*steps, decoders.Strip(" ", 1, 0)] if proto.normalizer_spec.add_dummy_prefix else steps
