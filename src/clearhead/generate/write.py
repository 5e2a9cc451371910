"""Writing on from prompts: tokens become text, and the model's own stop tokens, or the user's texts, end it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clearhead import config as c
from clearhead.batch import Batch
from clearhead.config import Use
from clearhead.errors import ClearheadError
from clearhead.generate.beam import beam_search
from clearhead.generate.engine import Chosen, Engine, Request
from clearhead.generate.sampling import Sampling
from clearhead.generate.stream import TextStream
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

SLOTS = 16  # texts that are written side by side


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt; `stop` ended it, or the length that was asked for."""

    text: str
    tokens: list[int]
    finish_reason: str
    chosen: list[Chosen]  # each token with its log-probability

    @property
    def logprobs(self) -> list[float]:
        return [chosen.logprob for chosen in self.chosen]


@dataclass(frozen=True)
class Piece:
    """What can be shown after one more token of one of the texts; the pieces of a text joined are the text."""

    text: str
    index: int  # of the prompt, and of its samples: prompt × n + sample
    chosen: Chosen
    finish_reason: str  # empty while it goes on


def check_writes(m: c.ModelConfig) -> None:
    """Only a decoder with a language head goes on from a prompt."""
    if not isinstance(m.head, c.Language) or not isinstance(m.shape, c.Decoder):
        raise ClearheadError(f"this {m.shape.kind} does not write text after a prompt; a decoder language model does.")


class Writer:
    """Prompts that are written on together; one pass over it writes them all."""

    def __init__(
        self, net: Transformer, tokenizer: Tokenizer | None, use: Use, prompts: Sequence[list[int]], sampling: Sampling,
        n: int = 1, top: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(n, int) or n < 1:
            raise ClearheadError(f"n = {n} samples cannot be written; ask for at least 1.")
        self.requests = [Request(list(prompt), sampling, i, top) for prompt in prompts for i in range(n)]
        known = len(tokenizer) if tokenizer else None
        most = max(len(prompt) for prompt in prompts) + sampling.max_tokens
        self.engine = Engine(net, use, min(len(self.requests), SLOTS), min(most, net.context), known)
        self.streams = [TextStream(tokenizer, r.prompt, sampling.stop) if tokenizer else None for r in self.requests]
        self.use, self.places = use, {id(request): i for i, request in enumerate(self.requests)}
        for request in self.requests:
            self.engine.add(request)

    def __iter__(self) -> Iterator[Piece]:
        while live := self.engine.step():
            for request in live:
                yield self._piece(request)

    def _piece(self, request: Request) -> Piece:
        index, chosen = self.places[id(request)], request.written[-1]
        stream, text = self.streams[index], ""
        if stream is not None and chosen.token not in self.use.stop:
            text = stream.feed(chosen.token)
            if stream.stopped:
                request.end("stop")
        if stream is not None and request.reason:
            text += stream.end()
        return Piece(text, index, chosen, request.reason)

    def results(self) -> list[Generated]:
        """All of them, when they have ended."""
        for _ in self:
            pass
        texts = ["" if stream is None else stream.text for stream in self.streams]
        return [
            Generated(text, [c.token for c in r.written], r.reason, r.written)
            for text, r in zip(texts, self.requests, strict=True)
        ]


@dataclass(frozen=True)
class Translated:
    """What a model made of a source; the score is its log-probability over its length to the penalty's power."""

    text: str
    tokens: list[int]
    score: float


def translations(
    net: Transformer,
    tokenizer: Tokenizer | None,
    use: Use,
    batch: Batch,
    beams: int,
    max_tokens: int,
    length_penalty: float,
) -> list[Translated]:
    """The best output for each source by beam search; the batch's targets are what outputs start with."""
    best = beam_search(
        net,
        batch.ids,
        source=batch.source,
        source_segments=batch.source_segments,
        beams=beams,
        max_tokens=max_tokens or net.context - batch.ids.shape[1],
        stop=use.stop,
        length_penalty=length_penalty,
        never=use.never,
        never_first=use.never_first,
        renormalised=use.renormalised,
        closed=use.closed,
        known=len(tokenizer) if tokenizer else None,
    )
    return [Translated(plain_text(tokenizer, h.tokens, use), h.tokens, h.score) for h, *_ in best]


def plain_text(tokenizer: Tokenizer | None, tokens: Sequence[int], use: Use) -> str:
    """What was written, without the token that ended it."""
    return "" if tokenizer is None else tokenizer.decode([t for t in tokens if t not in use.stop])
