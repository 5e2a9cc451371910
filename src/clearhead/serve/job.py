"""What one request asked of a model: the worker's thread tells what comes of it, one reader on the loop takes it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from clearhead.generate.request import Request
from clearhead.generate.stream import TextStream
from clearhead.generate.write import Piece
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Metrics
from clearhead.serve.refused import Refused


@dataclass(eq=False)
class Text:
    """One of the texts of a job."""

    request: Request
    stream: TextStream | None  # None where there is no tokenizer
    index: int
    head: str = ""  # the prompt, where it is to be repeated
    told: int = 0  # tokens that were looked at


class Job:
    """Texts that are written for one client. Who leaves the block (`with job:`) wants no more of them."""

    def __init__(self, client: str, model: str, texts: Sequence[Text], limits: Limits, metrics: Metrics) -> None:
        self.client, self.model, self.texts, self.limits, self.metrics = client, model, texts, limits, metrics
        self.loop = asyncio.get_running_loop()
        self.begun = self.last = self.loop.time()
        self.left, self.seated = len(texts), False
        self.unread: list[Piece] = []
        self.error: Refused | None = None
        self.reader: asyncio.Task[object] | None = (
            None  # who streams it, and may be stuck with a client that does not read
        )
        self.news = asyncio.Event()
        self.leave: Callable[[Job], None] = lambda job: None  # how the worker hears of it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends what has not ended: the rows are free before the next step."""
        for text in self.texts:
            text.request.end("cancelled")
        self.leave(self)

    async def begin(self) -> None:
        """Waits until there is something to take; raises what went wrong, after the rest was taken."""
        while not self.unread and self.left:
            if self.error is not None:
                raise self.error
            await self._hear()

    async def take(self) -> list[Piece]:
        """What was written meanwhile; nothing when all texts have ended."""
        await self.begin()
        pieces, self.unread = self.unread, []
        return pieces

    async def _hear(self) -> None:
        self.news.clear()
        seconds = self.limits.seconds if self.seated else self.limits.queue_seconds
        try:
            async with asyncio.timeout_at(self.begun + seconds):
                await self.news.wait()
        except TimeoutError:
            what, status = ("took longer than", 504) if self.seated else ("waited longer for its turn than", 503)
            self.fail(Refused(f"this request {what} {seconds:g} seconds.", status, again=0 if self.seated else 5))

    def sit(self) -> None:
        self.seated = True
        self.news.set()

    def tell(self, pieces: Sequence[Piece]) -> None:
        if self.error is not None:
            return
        now = self.loop.time()
        seen = self.metrics.next if self.last > self.begun else self.metrics.first
        seen.see(now - self.last, model=self.model)
        self.metrics.written.add(len(pieces), model=self.model)
        self.last = now
        self.unread += pieces
        self.left -= sum(bool(piece.finish_reason) for piece in pieces)
        if len(self.unread) > self.limits.behind:
            self.unread = []
            self.fail(Refused(f"{self.limits.behind} tokens were not fetched; this reader is too slow.", 408))
            if self.reader is not None:
                self.reader.cancel()
        self.news.set()

    def fail(self, error: Refused) -> None:
        self.error = self.error or error
        self.close()
        self.news.set()
