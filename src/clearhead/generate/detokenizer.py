"""Incremental detokenization: the text of a stream of tokens, buffered until it is final."""

import codecs
from collections.abc import Container, Sequence
from itertools import chain

from clearhead.generate.engine import common_prefix_length
from clearhead.tokenizers.tokenizer import Tokenizer

REPLACEMENT_CHARACTER = "�"  # incomplete UTF-8 decodes to it
CONTEXT_TOKENS = 8  # decoded before new tokens, to detect a leading space
MAX_INCOMPLETE_BYTES = 3  # of a UTF-8 character


class IncrementalDetokenizer:
    """The text after a prompt, in pieces whose concatenation is the text.

    Text is buffered until it is final: while it may be part of a character or the start of a stop
    string. A complete stop string ends the text before it (`stopped`).
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.longest_stop = max(map(len, self.stop), default=0)
        self.window = self._last_tokens(prompt)  # decoded again with each new token
        self.text = ""
        self.num_emitted = 0  # characters of `text` that were returned
        self.stopped = False

    def add(self, token: int, eos_tokens: Container[int], is_last: bool) -> str:
        """Append one token, which has no text if it is an EOS token; return the new text."""
        text = "" if token in eos_tokens else self.feed(token)
        return text + self.flush() if is_last or self.stopped else text

    def feed(self, *tokens: int) -> str:
        """Append tokens and return the new text that is final."""
        before = self._complete_text()
        self.window += tokens
        after = self._complete_text()
        self._append(after[common_prefix_length(before, after) :])
        self.window = self._last_tokens(self.window)
        return self._emit(self._num_certain())

    def flush(self) -> str:
        """End the text and return the rest of it, including what was buffered."""
        before = self._complete_text()
        after = self.tokenizer.decode(self.window)
        self._append(after[common_prefix_length(before, after) :])
        self.window = []
        return self._emit(len(self.text))

    def _last_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The context of later tokens, which starts with a character if that is possible.

        Some decoders do not read any of several bytes if one of them is invalid.
        """
        start = max(0, len(tokens) - CONTEXT_TOKENS)
        for _ in range(min(start, MAX_INCOMPLETE_BYTES)):
            start -= _continues_character(self.tokenizer.token_bytes(tokens[start]))
        return list(tokens[start:])

    def _complete_text(self) -> str:
        """The text of the window without an incomplete character at its end."""
        text = self.tokenizer.decode(self.window)
        if not text.endswith(REPLACEMENT_CHARACTER):
            return text
        last = [self.tokenizer.token_bytes(i) for i in self.window[-MAX_INCOMPLETE_BYTES:]]
        num_bytes = _num_incomplete_bytes(bytes(chain(*last)))
        num_tokens = 0
        while num_bytes > 0:  # of whole tokens
            num_tokens += 1
            num_bytes -= len(last[-num_tokens])
        if num_bytes < 0:  # the first of them ends another character
            return text[:-1]
        return self.tokenizer.decode(self.window[: len(self.window) - num_tokens])

    def _append(self, text: str) -> None:
        if self.stopped:
            return
        start = max(0, len(self.text) - self.longest_stop)
        self.text += text
        positions = [self.text.find(stop, start) for stop in self.stop]
        positions = [position for position in positions if position >= 0]
        if positions:
            self.text = self.text[: min(positions)]
            self.stopped = True

    def _num_certain(self) -> int:
        """The number of characters that cannot become part of a stop string."""
        if self.stopped:
            return len(self.text)
        start = max(self.num_emitted, len(self.text) - self.longest_stop + 1)
        for position in range(start, len(self.text)):
            if any(stop.startswith(self.text[position:]) for stop in self.stop):
                return position
        return len(self.text)

    def _emit(self, end: int) -> str:
        text = self.text[self.num_emitted : end]
        self.num_emitted = max(self.num_emitted, end)
        return text


def _num_incomplete_bytes(data: bytes) -> int:
    """The number of bytes at the end that more bytes could complete to a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def _continues_character(token: Sequence[int]) -> bool:
    """Whether a token starts inside a UTF-8 character."""
    return bool(token) and token[0] & 0xC0 == 0x80
