"""The thread that computes with a model for the API: it writes the texts of many side by side, and runs calls between.

The loop hands over work and hears of what was written; it never waits for the model, and the model never for a reader.
What a text says depends on nobody else: it is what `model.generate` gives.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from clearhead.api import Model
from clearhead.serve.computing import Computing
from clearhead.serve.job import Job, Text
from clearhead.serve.limits import Limits
from clearhead.serve.line import Line
from clearhead.serve.metrics import Metrics
from clearhead.serve.refused import Refused
from clearhead.serve.scribe import Scribe, told

T = TypeVar("T")
log = logging.getLogger("clearhead.serve")


@dataclass(eq=False)
class Call:
    """Something else that is computed with the model."""

    client: str
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Worker:
    """A model at work for many. Its thread begins with the first work, and ends with `close`."""

    def __init__(self, model: Model, limits: Limits, metrics: Metrics, name: str) -> None:
        self.model, self.limits, self.metrics, self.name = model, limits, metrics, name
        self.texts, self.calls = Line[tuple[Job, Text]](limits.queue), Line[Call](limits.queue)
        self.jobs: set[Job] = set()  # those that have not ended; the loop's, as the next
        self.asked: set[asyncio.Future[Any]] = set()  # answers of calls
        self.wake = threading.Condition()  # guards the lines and the thread
        self.making = threading.Lock()  # guards the scribe, which may take a second to make
        self.stopping = self.closed = False
        self.thread: threading.Thread | None = None
        self.made: Scribe | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def busy(self) -> bool:
        return bool(self.jobs or self.asked)

    @property
    def scribe(self) -> Scribe:
        """Made when the first text is asked for; another where one broke."""
        with self.making:
            if self.made is None:
                self.made = Scribe(self.model, self.limits)
            return self.made

    def check(self, client: str, texts: int) -> None:
        """Refuses a client whose texts could not even wait, before anything is done for it."""
        if self.stopping:
            raise stopping()
        self.texts.check(client, texts)

    def write(self, client: str, texts: Sequence[Text]) -> Job:
        """Texts, made `ready` by the scribe, that wait for their rows from now on."""
        self.check(client, len(texts))
        job = Job(client, self.name, texts, self.limits, self.metrics)
        self._hand(self.texts, client, *((job, text) for text in texts))
        job.leave, self.loop = self._left, job.loop
        self.jobs.add(job)
        read = sum(len(text.request.prompt) for text in texts if not text.request.sample)
        self.metrics.read.add(read, model=self.name)
        return job

    async def call(self, client: str, work: Callable[[], T]) -> T:
        """What a function gives that computes with the model; it has its turn between two steps."""
        if self.stopping:
            raise stopping()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._hand(self.calls, client, Call(client, work, answer))
        self.asked.add(answer)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await answer
        except TimeoutError:
            raise Refused(f"this request took longer than {self.limits.seconds:g} seconds.", 504) from None
        finally:
            self.asked.discard(answer)

    def _hand(self, line: Line[T], client: str, *things: T) -> None:
        with self.wake:
            line.add(client, *things)
            if self.thread is None:
                self.thread = Computing(self._work, f"model {self.name}")
                self.thread.start()
            self.wake.notify()

    def _left(self, job: Job) -> None:
        self.jobs.discard(job)
        with self.wake:
            self.texts.drop(job.client, lambda waiting: waiting[0] is job)

    async def stop(self, seconds: float) -> None:
        """What waits is told at once; what is being written may end within so many seconds, and is told then. The
        thread is waited for as long."""
        self.stopping = True
        for job in [job for job in self.jobs if not job.seated]:
            job.fail(stopping())
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while self.busy and now() < until:
            await asyncio.sleep(0.02)
        self._end(stopping())
        for answer in self.asked:
            _settle(answer, None, stopping())
        self.close()
        if self.thread is not None:
            await asyncio.to_thread(self.thread.join, max(0.0, until - now()))

    def _end(self, error: Refused) -> None:
        for job in list(self.jobs):
            job.fail(error)

    def close(self) -> None:
        with self.wake:
            self.stopping = self.closed = True
            self.wake.notify()

    # From here on, the thread's.

    def _work(self) -> None:
        while self._anything():
            try:
                self._answer()
                self._seat()
                self._step()
            except BaseException as error:  # whatever it was, and panics are no Exception: the next finds a worker
                self._broke(error)

    def _anything(self) -> bool:
        """Waits until there is something to do; false when that will never be."""
        with self.wake:
            self.wake.wait_for(
                lambda: self.closed or self.texts.count or self.calls.count or (self.made and self.made.seated)
            )
            return not self.closed

    def _answer(self) -> None:
        """One of the calls; those that nobody waits for any more cost nothing."""
        answered = False
        while not answered:
            with self.wake:
                call = self.calls.next() if self.calls.count else None
            if call is None:
                return
            try:
                if answered := not call.answer.done():
                    _post(call.answer.get_loop(), _settle, call.answer, call.work(), None)
            except BaseException as error:  # is told to whoever called
                _post(call.answer.get_loop(), _settle, call.answer, None, error)
            finally:
                with self.wake:
                    self.calls.done(call.client)

    def _seat(self) -> None:
        """Who has left frees a row, and who waits takes it."""
        scribe = self.scribe if self.texts.count else self.made
        if scribe is None:
            return
        leavers, new = scribe.leavers(), list[tuple[Job, Text]]()
        with self.wake:
            for job in leavers:
                self.texts.done(job.client)
            while self.texts.count and len(new) < scribe.free:
                new.append(self.texts.next())
        for job, text in new:
            scribe.seat(job, text)
            _post(job.loop, job.sit)

    def _step(self) -> None:
        if self.made is None or not self.made.seated:
            return
        news, errors = self.made.step()
        for loop in {job.loop for job in news}:
            _post(loop, told, [(job, pieces) for job, pieces in news.items() if job.loop is loop])
        for job, error in errors.items():
            _post(job.loop, job.fail, error)

    def _broke(self, error: BaseException) -> None:
        """Everyone is told, those who wait too, and rows are made anew: nobody knows what they hold."""
        log.error("the worker of %s goes on after %s: %s", self.name, type(error).__name__, error)
        with self.making:
            self.made = None
        with self.wake:
            self.texts.under_way.clear()
        if self.loop is not None:
            _post(self.loop, self._end, Refused("something went wrong while this was written.", 500))


def stopping() -> Refused:
    return Refused("this server is stopping.", 503, again=5)


def _settle(answer: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result(found) if error is None else answer.set_exception(error)


def _post(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *given: object) -> None:
    """Lets a loop do something; one that has ended has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *given)
