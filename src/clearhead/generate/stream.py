"""Tokens become text while they are written: never half a character, never a part of what the text stops at."""

from collections.abc import Container, Sequence

from clearhead.generate.request import alike
from clearhead.tokens.text import Tokenizer

UNFINISHED = "�"  # what bytes that are no whole character yet are decoded as
BACK = 8  # tokens before the new ones that tell how these are spelled: with a space or without


class TextStream:
    """The text after a prompt, piece by piece; the pieces joined are the text.

    A piece is held back while it may be a part of a character, or the beginning of one of the texts to `stop` at. When
    one of those is complete, the text ends before it (`stopped`).
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.tokens = list(prompt[-BACK:])
        self.told = len(self.tokens)  # tokens whose text is known
        self.from_ = 0  # where decoding starts
        self.text = ""  # all that is known
        self.shown = 0  # how much of it was given out
        self.stopped = False

    def add(self, token: int, ends: Container[int], last: bool) -> str:
        """What can be shown after one more token, which is no text if it `ends` the text."""
        shown = "" if token in ends else self.feed(token)
        return shown + self.end() if last or self.stopped else shown

    def feed(self, *tokens: int) -> str:
        """What can be shown now that these tokens were written."""
        self.tokens += tokens
        before = self.tokenizer.decode(self.tokens[self.from_ : self.told])
        now = self.tokenizer.decode(self.tokens[self.from_ :])
        if not now.endswith(UNFINISHED):
            self._grow(now[alike(before, now) :])
            self.from_, self.told = max(self.from_, self.told - BACK), len(self.tokens)
        return self._show(self._safe())

    def end(self) -> str:
        """What is left to show when nothing follows: also what might have become a character or a stop."""
        if not self.stopped and self.told < len(self.tokens):
            before = self.tokenizer.decode(self.tokens[self.from_ : self.told])
            now = self.tokenizer.decode(self.tokens[self.from_ :])
            self._grow(now[alike(before, now) :])
            self.told = len(self.tokens)
        return self._show(len(self.text))

    def _grow(self, piece: str) -> None:
        if self.stopped:
            return
        begin = max(0, len(self.text) - max(map(len, self.stop), default=0))
        self.text += piece
        found = [at for stop in self.stop if (at := self.text.find(stop, begin)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _safe(self) -> int:
        """How much of the text can no longer become a part of a stop."""
        if self.stopped:
            return len(self.text)
        for at in range(max(self.shown, len(self.text) - max(map(len, self.stop), default=0) + 1), len(self.text)):
            if any(stop.startswith(self.text[at:]) for stop in self.stop):
                return at
        return len(self.text)

    def _show(self, to: int) -> str:
        piece = self.text[self.shown : to]
        self.shown = max(self.shown, to)
        return piece
