"""Tokens become text while they are written: never half a character, never a part of what the text stops at."""

from collections.abc import Container, Sequence

from clearhead.generate.engine import common_prefix_length
from clearhead.tokenizers.tokenizer import Tokenizer

REPLACEMENT_CHARACTER = "�"  # what bytes that are no whole character yet are decoded as
CONTEXT_TOKENS = (
    8  # tokens before the new ones that tell how these are spelled: with a space or without
)


class IncrementalDetokenizer:
    """The text after a prompt, piece by piece; the pieces joined are the text.

    A piece is held back while it may be a part of a character, or the beginning of one of the texts to `stop` at. When
    one of those is complete, the text ends before it (`stopped`).
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.tokens = list(prompt[-CONTEXT_TOKENS:])
        self.decoded_until = len(self.tokens)  # tokens whose text is known
        self.window_start = 0  # where decoding starts
        self.text = ""  # all that is known
        self.num_emitted = 0  # how much of it was given out
        self.stopped = False

    def add(self, token: int, eos_tokens: Container[int], is_last: bool) -> str:
        """What can be shown after one more token, which is no text if it `ends` the text."""
        shown = "" if token in eos_tokens else self.feed(token)
        return shown + self.flush() if is_last or self.stopped else shown

    def feed(self, *tokens: int) -> str:
        """What can be shown now that these tokens were written."""
        self.tokens += tokens
        before = self.tokenizer.decode(self.tokens[self.window_start : self.decoded_until])
        now = self.tokenizer.decode(self.tokens[self.window_start :])
        if not now.endswith(REPLACEMENT_CHARACTER):
            self._grow(now[common_prefix_length(before, now) :])
            self.window_start, self.decoded_until = (
                max(self.window_start, self.decoded_until - CONTEXT_TOKENS),
                len(self.tokens),
            )
        return self._show(self._safe())

    def flush(self) -> str:
        """What is left to show when nothing follows: also what might have become a character or a stop."""
        if not self.stopped and self.decoded_until < len(self.tokens):
            before = self.tokenizer.decode(self.tokens[self.window_start : self.decoded_until])
            now = self.tokenizer.decode(self.tokens[self.window_start :])
            self._grow(now[common_prefix_length(before, now) :])
            self.decoded_until = len(self.tokens)
        return self._show(len(self.text))

    def _grow(self, piece: str) -> None:
        if self.stopped:
            return
        begin = max(0, len(self.text) - max(map(len, self.stop), default=0))
        self.text += piece
        found = [at for stop in self.stop if (at := self.text.find(stop, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def _safe(self) -> int:
        """How much of the text can no longer become a part of a stop."""
        if self.stopped:
            return len(self.text)
        for at in range(
            max(self.num_emitted, len(self.text) - max(map(len, self.stop), default=0) + 1),
            len(self.text),
        ):
            if any(stop.startswith(self.text[at:]) for stop in self.stop):
                return at
        return len(self.text)

    def _show(self, to: int) -> str:
        piece = self.text[self.num_emitted : to]
        self.num_emitted = max(self.num_emitted, to)
        return piece
