"""Answers in OpenAI's shapes: texts, pieces of them as they come, and how likely each token was."""

import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isnan
from typing import Any

from clearhead.generate.request import Chosen
from clearhead.generate.stream import UNFINISHED
from clearhead.generate.write import Piece
from clearhead.serve.job import Text
from clearhead.serve.shelf import Held
from clearhead.tokens.text import Tokenizer

Tree = dict[str, Any]
LEAST = -9999.0  # what the API says for no chance at all


class Words:
    """What each token says inside a text, remembered; a part of a character is told as a label."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer, self.known, self.parts = tokenizer, dict[int, str](), set[int]()

    def __call__(self, token: int) -> str:
        if token not in self.known:
            self.known[token] = self._told(token)
        return self.known[token]

    def _told(self, token: int) -> str:
        if self.tokenizer is None:
            self.parts.add(token)
            return str(token)
        once, twice = self.tokenizer.decode([token]), self.tokenizer.decode([token, token])
        if UNFINISHED in once:
            self.parts.add(token)
            return self.tokenizer.pieces([token])[0]
        return twice[len(once) :]  # a text's first token may lose its space; the second does not

    def bytes(self, token: int) -> list[int] | None:
        text = self(token)
        return None if token in self.parts else list(text.encode())


class Shape:
    """How one answer is told: as a completion, or as messages of a chat; all at once, or in chunks."""

    def __init__(
        self, held: Held, texts: Sequence[Text], chat: bool, logprobs: bool,
        echoed: Mapping[int, Sequence[Chosen]] | None = None,
    ) -> None:  # fmt: skip
        self.texts, self.chat, self.logprobs = texts, chat, logprobs
        self.words, self.echoed = Words(held.model.tokenizer), dict(echoed or {})
        self.read = sum(len(text.request.prompt) for text in texts if not text.request.sample)
        self.written, self.offsets = 0, dict[int, int]()
        self.head: Tree = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": held.name,
            "seed": texts[0].request.sampling.seed,  # ours: with it, the same can be asked for again
        }

    def whole(self, pieces: Sequence[Piece]) -> Tree:
        """All at once, of all pieces."""
        choices, each = [], [list[Piece]() for _ in self.texts]
        for piece in pieces:
            each[piece.index].append(piece)
        for index, own in enumerate(each):
            said = "".join(piece.text for piece in own)
            told = {"message": {"role": "assistant", "content": said, "refusal": None}} if self.chat else {"text": said}
            choices.append(self._choice(index, told, own, own[-1].finish_reason))
        return self._tree(choices) | {"usage": self.usage()}

    def heads(self) -> Tree:
        """The prompts alone."""
        choices = [self._choice(text.index, {"text": text.head}, [], "length") for text in self.texts]
        return self._tree(choices) | {"usage": self.usage()}

    def opening(self) -> list[Tree]:
        """A chat's first chunks say who speaks."""
        who = {"delta": {"role": "assistant", "content": ""}}
        return [self._tree([self._choice(t.index, who, [], "")], ".chunk") for t in self.texts] if self.chat else []

    def chunk(self, piece: Piece) -> Tree:
        told = {"delta": {"content": piece.text}} if self.chat else {"text": piece.text}
        return self._tree([self._choice(piece.index, told, [piece], piece.finish_reason)], ".chunk")

    def closing(self) -> Tree:
        """The chunk that tells how much it was."""
        return self._tree([], ".chunk") | {"usage": self.usage()}

    def usage(self) -> Tree:
        both = self.read + self.written
        return {"prompt_tokens": self.read, "completion_tokens": self.written, "total_tokens": both}

    def _tree(self, choices: list[Tree], part: str = "") -> Tree:
        kind = f"chat.completion{part}" if self.chat else "text_completion"
        return {"object": kind, **self.head, "choices": choices}

    def _choice(self, index: int, told: Tree, pieces: Sequence[Piece], reason: str) -> Tree:
        self.written += len(pieces)
        logprobs = None
        if self.logprobs and self.chat:
            logprobs = {"content": [self._token(*piece.chosen) for piece in pieces], "refusal": None}
        elif self.logprobs:
            logprobs = self._table(index, pieces)
        return {"index": index, **told, "logprobs": logprobs, "finish_reason": reason or None}

    def _table(self, index: int, pieces: Sequence[Piece]) -> Tree:
        """The older form; `text_offset` is how much of the text stood there when a token was written."""
        echoed, at = self.echoed.pop(index, ()), self.offsets.get(index, 0)
        told, lengths = [*echoed, *(piece.chosen for piece in pieces)], [len(self.words(one.token)) for one in echoed]
        lengths += [len(piece.text) for piece in pieces]
        if echoed and pieces:
            lengths[len(echoed)] -= len(self.texts[index].head)
        *offsets, self.offsets[index] = accumulate(lengths, initial=at)
        return {
            "tokens": [self.words(one.token) for one in told],
            "token_logprobs": [None if isnan(one.logprob) else max(one.logprob, LEAST) for one in told],
            "top_logprobs": [{self.words(token): max(p, LEAST) for token, p in one.top} or None for one in told],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> Tree:
        return self._said(token, logprob) | {"top_logprobs": [self._said(*one) for one in top]}

    def _said(self, token: int, logprob: float) -> Tree:
        return {"token": self.words(token), "logprob": max(logprob, LEAST), "bytes": self.words.bytes(token)}
