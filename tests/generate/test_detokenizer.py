"""Text that is shown while it is written is the text, and never shows what must not be seen."""

import pytest
import tokenizers as tk
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from clearhead import Tokenizer
from clearhead.generate.detokenizer import IncrementalDetokenizer

TEXTS = ["naïve café ☕ déjà vu", "日本語のテキスト", "👩‍👩‍👧‍👦 family", "plain words here"]
BYTES = Tokenizer.bytes()
WORDS = Tokenizer.train_bpe(TEXTS, 300)


def byte_fallback_tokenizer():
    """Bytes as tokens like <0xE2>, as in SentencePiece; some characters have their own."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcé☕"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = tk.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(backend)


FALLBACK = byte_fallback_tokenizer()
MIXED = st.text(
    st.sampled_from("ab é☕�日本😀👩\u200d") | st.characters(codec="utf-8"), max_size=40
)


@given(MIXED, MIXED, st.sampled_from([BYTES, WORDS, FALLBACK]))
def test_joined_pieces_equal_the_text(prompt, text, tokenizer):
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode(prompt))
    pieces = [stream.feed(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + stream.flush() == text
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS, FALLBACK])
@pytest.mark.parametrize("character", "�日")
def test_each_token_is_decoded_a_few_times(tokenizer, character, monkeypatch):
    text = 300 * character
    ids = tokenizer.encode(text)
    sizes = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: sizes.append(len(ids)) or decode(ids))
    stream = IncrementalDetokenizer(tokenizer, ids)
    assert "".join(map(stream.feed, ids)) == text
    assert sum(sizes) < 50 * len(ids)


@given(st.lists(st.integers(0, 255), max_size=30))
def test_invalid_utf8_equals_decoding_at_once(tokens):
    stream = IncrementalDetokenizer(BYTES, [])
    shown = "".join(stream.feed(token) for token in tokens) + stream.flush()
    assert shown == BYTES.decode(tokens)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text, stops):
    stream = IncrementalDetokenizer(BYTES, [], stops)
    shown = [""]
    for token in BYTES.encode(text):
        shown.append(shown[-1] + stream.feed(token))
        if stream.stopped:
            break
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:  # the stop that is complete first; of those, the one that begins first
        cut = text[: min(ends)]
        text = cut[: min(cut.find(stop) for stop in stops if stop in cut)]
    assert shown[-1] + stream.flush() == text
    assert all(text.startswith(piece) for piece in shown)


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS])
def test_stop_strings_may_span_tokens(tokenizer):
    stream = IncrementalDetokenizer(tokenizer, [], ("END",))
    shown = "".join(stream.feed(token) for token in tokenizer.encode("here it isEND and more"))
    assert (shown, stream.stopped) == ("here it is", True)
