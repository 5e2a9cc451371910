"""Incremental detokenization: the text of a stream of tokens, buffered until it is final."""

from collections.abc import Container, Sequence

from clearhead.generate.engine import common_prefix_length
from clearhead.tokenizers.tokenizer import Tokenizer

REPLACEMENT_CHARACTER = "�"  # incomplete UTF-8 decodes to it
CONTEXT_TOKENS = 8  # decoded before new tokens, to detect a leading space


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
        self.tokens = list(prompt[-CONTEXT_TOKENS:])
        self.decoded_until = len(self.tokens)  # tokens whose text is in `text`
        self.window_start = 0  # first token that is decoded again
        self.text = ""
        self.num_emitted = 0  # characters of `text` that were returned
        self.stopped = False

    def add(self, token: int, eos_tokens: Container[int], is_last: bool) -> str:
        """Append one token, which has no text if it is an EOS token; return the new text."""
        text = "" if token in eos_tokens else self.feed(token)
        return text + self.flush() if is_last or self.stopped else text

    def feed(self, *tokens: int) -> str:
        """Append tokens and return the new text that is final."""
        self.tokens += tokens
        new_text = self._decode_new()
        if not new_text.endswith(REPLACEMENT_CHARACTER):
            self._append(new_text)
            self.window_start = max(self.window_start, self.decoded_until - CONTEXT_TOKENS)
            self.decoded_until = len(self.tokens)
        return self._emit(self._num_certain())

    def flush(self) -> str:
        """Return the rest of the text, including what was buffered."""
        if not self.stopped and self.decoded_until < len(self.tokens):
            self._append(self._decode_new())
            self.decoded_until = len(self.tokens)
        return self._emit(len(self.text))

    def _decode_new(self) -> str:
        """The text of the tokens after `decoded_until`."""
        before = self.tokenizer.decode(self.tokens[self.window_start : self.decoded_until])
        after = self.tokenizer.decode(self.tokens[self.window_start :])
        return after[common_prefix_length(before, after) :]

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
