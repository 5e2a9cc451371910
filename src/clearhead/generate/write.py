"""Writing on from prompts: tokens become text, and the model's own stop tokens, or the user's texts, end it."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from clearhead import config as c
from clearhead.config import Use
from clearhead.errors import ClearheadError, check_whole
from clearhead.generate.chances import chances
from clearhead.generate.edited import Edited
from clearhead.generate.engine import Engine
from clearhead.generate.request import Chosen, Request
from clearhead.generate.sampling import Sampling
from clearhead.generate.stream import TextStream
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer

SLOTS = {"cpu": 16, "cuda": 64}  # texts that are written side by side
MANY = 1000  # samples of one prompt; all are held, and nothing is told before the last has ended
RECORDED = 16  # tokens from which it pays to record a step


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt; `stop` ended it, or the length that was asked for."""

    text: str
    tokens: list[int]
    finish_reason: str
    chosen: list[Chosen]  # each token with its log-probability
    prompt: list[Chosen] = field(default_factory=list)  # the same for the prompt after its first token, with echo

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token that was written."""
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


def check_samples(n: int, top: int) -> None:
    check_whole("n", n, 1, MANY)
    check_whole("logprobs", top)


class Writer:
    """Prompts that are written on together; one pass over it writes them all."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer | None, prompts: Sequence[list[int]], sampling: Sampling,
        n: int = 1, top: int = 0, echo: bool = False,
    ) -> None:  # fmt: skip
        self.engine, self.ends, self.echo = engine, {*engine.use.stop, *sampling.stop_tokens}, echo
        self.requests = [Request(list(prompt), sampling, i, top) for prompt in prompts for i in range(n)]
        self.streams = [TextStream(tokenizer, r.prompt, sampling.stop) if tokenizer else None for r in self.requests]
        self.heads = [tokenizer.decode(r.prompt) if tokenizer and echo else "" for r in self.requests]
        self.places = {id(request): i for i, request in enumerate(self.requests)}
        try:
            if echo and sampling.overflow == "slide":
                raise ClearheadError("echo tells how likely the whole prompt was, which may slide; leave one out.")
            for request in self.requests:
                engine.check(request)
        except ClearheadError:
            engine.leave()
            raise
        for request in self.requests:
            engine.add(request)

    def __iter__(self) -> Iterator[Piece]:
        """Piece by piece; who stops listening frees the rows."""
        with closing(self._steps()) as steps:
            for live in steps:
                for request in live:
                    yield self._piece(request)

    def _steps(self) -> Generator[list[Request], None, None]:
        """Those that have one more token."""
        try:
            while live := self.engine.step():
                yield live
        finally:
            for request in self.requests:
                request.end("stop")
            self.engine.leave()

    def _piece(self, request: Request) -> Piece:
        index, chosen = self.places[id(request)], request.written[-1]
        stream, text = self.streams[index], ""
        if stream is not None:
            text = stream.add(chosen.token, self.ends, bool(request.reason))
            if stream.stopped:
                request.end("stop")
        return Piece(self.heads[index] + text if len(request.written) == 1 else text, index, chosen, request.reason)

    def results(self) -> list[Generated]:
        """All of them, when they have ended. Only where texts may stop one, they are spelled on the way."""
        for _ in self if self.requests[0].sampling.stop else self._steps():
            pass
        told = self._told() if self.echo else [[] for _ in self.requests]
        return [
            Generated(head + self._text(stream, r), [c.token for c in r.written], r.reason, r.written, read)
            for head, stream, r, read in zip(self.heads, self.streams, self.requests, told, strict=True)
        ]

    def _text(self, stream: TextStream | None, request: Request) -> str:
        if stream is None:
            return ""
        if not request.sampling.stop:
            stream.feed(*(c.token for c in request.written if c.token not in self.ends))
            stream.end()
        return stream.text

    def _told(self) -> list[list[Chosen]]:
        """Each prompt's tokens after the first, as if they had been written."""
        desk, told = self.engine.desk, {}
        for request in self.requests:
            if (key := tuple(request.prompt)) not in told:
                first, rest = request.prompt[:1], request.prompt[1:]
                [told[key]] = chances(desk.net, [first], [rest], request.top, desk.known)
        return [told[tuple(request.prompt)] for request in self.requests]


class Engines:
    """Engines for one net. On a GPU, where steps are recorded, the last one is kept for the next texts.

    It is for one writer at a time; who comes meanwhile gets another.
    """

    def __init__(self) -> None:
        self.kept: Engine | None = None

    def __call__(
        self, net: Transformer, use: Use, known: int | None, texts: int, longest: int, sampling: Sampling
    ) -> Engine:
        """One for so many texts of up to so many tokens."""
        cuda = next(net.parameters()).is_cuda
        slots, capacity = min(texts, SLOTS["cuda" if cuda else "cpu"]), min(longest, net.context)
        if not cuda or sampling.max_tokens < RECORDED or isinstance(net, Edited):
            return Engine(net, use, slots, capacity, known)
        kept = self.kept
        fits = kept is not None and kept.slots >= slots and kept.capacity >= capacity
        same = kept is not None and fits and kept.use == use and kept.desk.same(net, known)
        if kept is not None and same and kept.take() and kept.idle:
            kept.forget()
            return kept
        room = min(net.context, max(256, 1 << (capacity - 1).bit_length()))
        made = Engine(net, use, slots, room, known, recorded=True)
        made.take()
        self.kept = made
        return made
