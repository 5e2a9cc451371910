"""Threads that compute, and how a process ends that nobody waits for them."""

import asyncio
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.engine import BatchEngine, Request
from clearhead.generate.generation import DEFAULT_SLOTS, GenerationChunk, check_can_generate
from clearhead.generate.sampling import SamplingConfig
from clearhead.model.kv_cache import ModelCache
from clearhead.serve.metrics import Metrics
from clearhead.serve.middleware import APIError, Limits, Quota

# ---- computing: Threads that compute, and how a process ends that nobody waits for them.


class ComputeThread(threading.Thread):
    """One that may be in the middle of something long when the server has ended."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)


def exit_process() -> None:
    """Ends the process now where some still compute: Python would wait for them, or torch stumble over its end."""
    if any(isinstance(thread, ComputeThread) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# ---- line: Who waits, and who is next: clients take turns, however much each of them asks for.

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Things that wait, by client. Next is the client that has least under way; of several, who had no turn longest.

    A client may have as many waiting as there are places left (`Share`).
    """

    def __init__(self, most: int) -> None:
        self.quota = Quota(most)
        self.waiting: dict[str, deque[Item]] = {}  # in the order of their turns
        self.running: Counter[str] = Counter()

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return self.quota.used

    def check_room(self, client: str, more: int = 1) -> None:
        """Refuses one who would have too many waiting, before they are made."""
        most = self.quota.limit
        if more > most:
            raise APIError(
                f"{more} texts are more than the {most} that may wait here (--max-queue)."
            )
        if not self.quota.fits(client, more):
            sentence = f"too much is waiting here already ({self.num_waiting} of {most}); try again in a second."
            raise APIError(sentence, 429, code="rate_limit_exceeded", retry_after=1)

    def put(self, client: str, *things: Item) -> None:
        """All of what one request brings."""
        self.check_room(client, len(things))
        self.waiting.setdefault(client, deque()).extend(things)
        self.quota.acquire(client, len(things))

    def pop(self) -> Item:
        client = min(self.waiting, key=lambda one: self.running[one])  # the first of several
        own = self.waiting.pop(client)
        found = own.popleft()
        if own:
            self.waiting[client] = own  # the others have a turn before
        self.quota.release(client, 1)
        self.running[client] += 1
        return found

    def task_done(self, client: str) -> None:
        """One that was next has ended."""
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]

    def remove(self, client: str, unwanted: Callable[[Item], bool]) -> None:
        own = self.waiting.pop(client, deque())
        kept = deque(thing for thing in own if not unwanted(thing))
        self.quota.release(client, len(own) - len(kept))
        if kept:
            self.waiting[client] = kept


# ---- job: What one request asked of a model: the worker's thread tells what comes of it, one reader on the loop takes it.


@dataclass(eq=False)
class SequenceState:
    """One of the texts of a job."""

    request: Request
    detokenizer: IncrementalDetokenizer | None  # None where there is no tokenizer
    index: int
    prompt_text: str = ""  # the prompt, where it is to be repeated
    num_emitted: int = 0  # tokens that were looked at


class GenerationJob:
    """Texts that are written for one client. Who leaves the block (`with job:`) wants no more of them."""

    def __init__(
        self,
        client: str,
        model: str,
        texts: Sequence[SequenceState],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self.client = client
        self.model_name = model
        self.sequences = texts
        self.limits = limits
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.started_at = self.last_token_at = self.loop.time()
        self.num_unfinished = len(texts)
        self.is_scheduled = False
        self.unread_pieces: list[GenerationChunk] = []
        self.error: APIError | None = None
        self.reader_task: asyncio.Task[object] | None = (
            None  # who streams it, and may be stuck with a client that does not read
        )
        self.changed = asyncio.Event()
        self.on_close: Callable[[GenerationJob], None] = lambda job: (
            None
        )  # how the worker hears of it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what has not ended: the rows are free before the next step."""
        for text in self.sequences:
            text.request.finish("cancelled")
        self.on_close(self)

    async def wait_for_output(self) -> None:
        """Waits until there is something to take; raises what went wrong, after the rest was taken."""
        while not self.unread_pieces and self.num_unfinished:
            if self.error is not None:
                raise self.error
            await self._hear()

    async def take_output(self) -> list[GenerationChunk]:
        """What was written meanwhile; nothing when all texts have ended."""
        await self.wait_for_output()
        pieces = self.unread_pieces
        self.unread_pieces = []
        return pieces

    async def _hear(self) -> None:
        self.changed.clear()
        seconds = self.limits.request_timeout if self.is_scheduled else self.limits.queue_timeout
        try:
            async with asyncio.timeout_at(self.started_at + seconds):
                await self.changed.wait()
        except TimeoutError:
            what, status = (
                ("took longer than", 504)
                if self.is_scheduled
                else ("waited longer for its turn than", 503)
            )
            self.fail(
                APIError(
                    f"this request {what} {seconds:g} seconds.",
                    status,
                    retry_after=0 if self.is_scheduled else 5,
                )
            )

    def mark_scheduled(self) -> None:
        self.is_scheduled = True
        self.changed.set()

    def push(self, pieces: Sequence[GenerationChunk]) -> None:
        if self.error is not None:
            return
        now = self.loop.time()
        seen = (
            self.metrics.time_per_output_token
            if self.last_token_at > self.started_at
            else self.metrics.time_to_first_token
        )
        seen.observe(now - self.last_token_at, model=self.model_name)
        self.metrics.generation_tokens.inc(len(pieces), model=self.model_name)
        self.last_token_at = now
        self.unread_pieces += pieces
        self.num_unfinished -= sum(bool(piece.finish_reason) for piece in pieces)
        if len(self.unread_pieces) > self.limits.max_unread_tokens:
            self.unread_pieces = []
            self.fail(
                APIError(
                    f"{self.limits.max_unread_tokens} tokens were not fetched; this reader is too slow.",
                    408,
                )
            )
            if self.reader_task is not None:
                self.reader_task.cancel()
        self.changed.set()

    def fail(self, error: APIError) -> None:
        self.error = self.error or error
        self.close()
        self.changed.set()


# ---- scribe: The texts of many clients as rows of one engine: who has a row, and what each new token says.

DEFAULT_CACHE_BYTES = 2 << 30  # bytes that rows may take where their number is not given


class BatchCapacity(NamedTuple):
    """The rows that a model's texts get: how many, for so many tokens each, and what they take of the memory."""

    max_batch_size: int
    max_length: int
    num_bytes: int

    @classmethod
    def from_model(cls, model: Model, limits: Limits) -> "BatchCapacity":
        """Known before they are made."""
        check_can_generate(model.config.model)
        capacity = min(model.net.context_length, limits.max_context_length)
        one = next(model.net.parameters())
        row = capacity * _cache_bytes(model.net.init_cache(1, 1))
        slots = limits.max_batch_size or min(
            max(1, DEFAULT_CACHE_BYTES // row), DEFAULT_SLOTS["cuda" if one.is_cuda else "cpu"]
        )
        return cls(slots, capacity, slots * row)


class Scheduler:
    """An engine, its rows set aside for good, and the texts that have one; only `ready` is for any thread."""

    def __init__(self, model: Model, limits: Limits) -> None:
        slots, capacity, _ = BatchCapacity.from_model(model, limits)
        net = model.net.eval()
        self.tokenizer = model.tokenizer
        known = len(self.tokenizer) if self.tokenizer else None
        recorded = next(net.parameters()).is_cuda
        self.engine = BatchEngine(net, model.config.inference, slots, capacity, known, recorded)
        self.running: dict[Request, tuple[GenerationJob, SequenceState]] = {}

    @property
    def num_free_slots(self) -> int:
        return self.engine.slots - len(self.running)

    def make_sequences(
        self, prompts: Iterable[list[int]], how: SamplingConfig, n: int, top: int, echo: bool
    ) -> list[SequenceState]:
        """Texts that can be written, `n` for each prompt; or a sentence why not."""
        words = self.tokenizer
        texts = list[SequenceState]()
        for prompt in prompts:
            self._check_room(len(prompt), how.max_tokens)
            requests = [Request(prompt, how, sample, top) for sample in range(n)]
            self.engine.validate(requests[0])
            head = words.decode(prompt) if words and echo else ""
            for request in requests:
                stream = IncrementalDetokenizer(words, prompt, how.stop) if words else None
                texts.append(SequenceState(request, stream, len(texts), head))
        return texts

    def _check_room(self, prompt: int, more: int) -> None:
        """As the engine does it, where nothing slides."""
        most = self.engine.capacity
        if prompt >= most:
            raise APIError(f"{prompt} tokens of prompt leave no room in the context of {most}.")
        if prompt + more > most:
            room = f"the context of {most}; ask for at most {most - prompt}"
            raise APIError(
                f"{prompt} tokens of prompt and {more} to write exceed {room}.", param="max_tokens"
            )

    def pop_finished(self) -> list[GenerationJob]:
        """Whose texts have ended, one for each: their rows are free."""
        ended = [request for request in self.running if request.finish_reason]
        return [self.running.pop(request)[0] for request in ended]

    def admit(self, job: GenerationJob, text: SequenceState) -> None:
        self.running[text.request] = job, text
        if not text.request.finish_reason:  # else the client went away while it waited
            self.engine.add_request(text.request)

    def step(
        self,
    ) -> tuple[dict[GenerationJob, list[GenerationChunk]], dict[GenerationJob, APIError]]:
        """One more token for all: what it says to each job, and what went wrong in some."""
        news = dict[GenerationJob, list[GenerationChunk]]()
        errors = dict[GenerationJob, APIError]()
        try:
            live = self.engine.step()
        except (
            ClearheadError
        ) as error:  # logits that are no numbers; the others have a token, which may be their last
            live = [request for request in self.running if request.finish_reason != "broken"]
            errors = {
                j: APIError(str(error), 500)
                for r, (j, _) in self.running.items()
                if r.finish_reason == "broken"
            }
        for request in live:
            if request in self.running:
                job, text = self.running[request]
                try:
                    if pieces := self._spelled(text):
                        news.setdefault(job, []).extend(pieces)
                except ClearheadError as error:  # an id that stands for no text
                    request.finish("broken")
                    errors[job] = APIError(str(error))
        return news, errors

    def _spelled(self, text: SequenceState) -> list[GenerationChunk]:
        """What can be shown of the tokens that are new; as `Writer` does it."""
        request = text.request
        pieces = list[GenerationChunk]()
        ends = {*self.engine.inference.eos_tokens, *request.sampling_config.stop_tokens}
        last = len(request.output)
        while text.num_emitted < last:
            chosen = request.output[text.num_emitted]
            said = ""
            text.num_emitted += 1
            if text.detokenizer is not None:
                said = text.detokenizer.add(
                    chosen.token, ends, bool(request.finish_reason) and text.num_emitted == last
                )
                if text.detokenizer.stopped:
                    request.finish("stop")
                    last = text.num_emitted
            reason = request.finish_reason if text.num_emitted == last else ""
            pieces.append(
                GenerationChunk(
                    text.prompt_text + said if text.num_emitted == 1 else said,
                    text.index,
                    chosen,
                    reason,
                )
            )
        return pieces


def push_outputs(jobs: Sequence[tuple[GenerationJob, Sequence[GenerationChunk]]]) -> None:
    for job, pieces in jobs:
        job.push(pieces)


def _cache_bytes(memory: ModelCache) -> int:
    return sum(growing.keys.nbytes + growing.values.nbytes for growing, _ in memory.layers)


# ---- worker: The thread that computes with a model for the API: it writes the texts of many side by side, and runs calls between.

T = TypeVar("T")
log = logging.getLogger("clearhead.serve")


@dataclass(eq=False)
class ModelCall:
    """Something else that is computed with the model."""

    client: str
    function: Callable[[], Any]
    future: asyncio.Future[Any]


class ModelWorker:
    """A model at work for many. Its thread begins with the first work, and ends with `close`."""

    def __init__(self, model: Model, limits: Limits, metrics: Metrics, name: str) -> None:
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.name = name
        self.text_queue = FairQueue[tuple[GenerationJob, SequenceState]](limits.max_queue)
        self.call_queue = FairQueue[ModelCall](limits.max_queue)
        self.jobs: set[GenerationJob] = set()  # those that have not ended; the loop's, as the next
        self.pending_calls: set[asyncio.Future[Any]] = set()  # answers of calls
        self.condition = threading.Condition()  # guards the lines and the thread
        self.scheduler_lock = threading.Lock()  # guards the scribe, which may take a second to make
        self.is_stopping = self.is_closed = False
        self.thread: threading.Thread | None = None
        self.existing_scheduler: Scheduler | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs or self.pending_calls)

    @property
    def scheduler(self) -> Scheduler:
        """Made when the first text is asked for; another where one broke."""
        with self.scheduler_lock:
            if self.existing_scheduler is None:
                self.existing_scheduler = Scheduler(self.model, self.limits)
            return self.existing_scheduler

    def check_room(self, client: str, texts: int) -> None:
        """Refuses a client whose texts could not even wait, before anything is done for it."""
        if self.is_stopping:
            raise stopping_error()
        self.text_queue.check_room(client, texts)

    def submit(self, client: str, texts: Sequence[SequenceState]) -> GenerationJob:
        """Texts, made `ready` by the scribe, that wait for their rows from now on."""
        self.check_room(client, len(texts))
        job = GenerationJob(client, self.name, texts, self.limits, self.metrics)
        self._hand(self.text_queue, client, *((job, text) for text in texts))
        job.on_close = self._left
        self.loop = job.loop
        self.jobs.add(job)
        read = sum(len(text.request.prompt) for text in texts if not text.request.sample_index)
        self.metrics.prompt_tokens.inc(read, model=self.name)
        return job

    async def call(self, client: str, work: Callable[[], T]) -> T:
        """What a function gives that computes with the model; it has its turn between two steps."""
        if self.is_stopping:
            raise stopping_error()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._hand(self.call_queue, client, ModelCall(client, work, answer))
        self.pending_calls.add(answer)
        try:
            async with asyncio.timeout(self.limits.request_timeout):
                return await answer
        except TimeoutError:
            raise APIError(
                f"this request took longer than {self.limits.request_timeout:g} seconds.", 504
            ) from None
        finally:
            self.pending_calls.discard(answer)

    def _hand(self, line: FairQueue[T], client: str, *things: T) -> None:
        with self.condition:
            line.put(client, *things)
            if self.thread is None:
                self.thread = ComputeThread(self._work, f"model {self.name}")
                self.thread.start()
            self.condition.notify()

    def _left(self, job: GenerationJob) -> None:
        self.jobs.discard(job)
        with self.condition:
            self.text_queue.remove(job.client, lambda waiting: waiting[0] is job)

    async def stop(self, seconds: float) -> None:
        """What waits is told at once; what is being written may end within so many seconds, and is told then. The
        thread is waited for as long."""
        self.is_stopping = True
        for job in [job for job in self.jobs if not job.is_scheduled]:
            job.fail(stopping_error())
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while self.is_busy and now() < until:
            await asyncio.sleep(0.02)
        self._end(stopping_error())
        for answer in self.pending_calls:
            _settle(answer, None, stopping_error())
        self.close()
        if self.thread is not None:
            await asyncio.to_thread(self.thread.join, max(0.0, until - now()))

    def _end(self, error: APIError) -> None:
        for job in list(self.jobs):
            job.fail(error)

    def close(self) -> None:
        with self.condition:
            self.is_stopping = self.is_closed = True
            self.condition.notify()

    # From here on, the thread's.

    def _work(self) -> None:
        while self._anything():
            try:
                self._answer()
                self._seat()
                self._step()
            except (
                BaseException
            ) as error:  # whatever it was, and panics are no Exception: the next finds a worker
                self._broke(error)

    def _anything(self) -> bool:
        """Waits until there is something to do; false when that will never be."""
        with self.condition:
            self.condition.wait_for(
                lambda: (
                    self.is_closed
                    or self.text_queue.num_waiting
                    or self.call_queue.num_waiting
                    or (self.existing_scheduler and self.existing_scheduler.running)
                )
            )
            return not self.is_closed

    def _answer(self) -> None:
        """One of the calls; those that nobody waits for any more cost nothing."""
        answered = False
        while not answered:
            with self.condition:
                call = self.call_queue.pop() if self.call_queue.num_waiting else None
            if call is None:
                return
            try:
                if answered := not call.future.done():
                    _post(call.future.get_loop(), _settle, call.future, call.function(), None)
            except BaseException as error:  # is told to whoever called
                _post(call.future.get_loop(), _settle, call.future, None, error)
            finally:
                with self.condition:
                    self.call_queue.task_done(call.client)

    def _seat(self) -> None:
        """Who has left frees a row, and who waits takes it."""
        scribe = self.scheduler if self.text_queue.num_waiting else self.existing_scheduler
        if scribe is None:
            return
        leavers = scribe.pop_finished()
        new = list[tuple[GenerationJob, SequenceState]]()
        with self.condition:
            for job in leavers:
                self.text_queue.task_done(job.client)
            while self.text_queue.num_waiting and len(new) < scribe.num_free_slots:
                new.append(self.text_queue.pop())
        for job, text in new:
            scribe.admit(job, text)
            _post(job.loop, job.mark_scheduled)

    def _step(self) -> None:
        if self.existing_scheduler is None or not self.existing_scheduler.running:
            return
        news, errors = self.existing_scheduler.step()
        for loop in {job.loop for job in news}:
            _post(
                loop,
                push_outputs,
                [(job, pieces) for job, pieces in news.items() if job.loop is loop],
            )
        for job, error in errors.items():
            _post(job.loop, job.fail, error)

    def _broke(self, error: BaseException) -> None:
        """Everyone is told, those who wait too, and rows are made anew: nobody knows what they hold."""
        log.error("the worker of %s goes on after %s: %s", self.name, type(error).__name__, error)
        with self.scheduler_lock:
            self.existing_scheduler = None
        with self.condition:
            self.text_queue.running.clear()
        if self.loop is not None:
            _post(
                self.loop, self._end, APIError("something went wrong while this was written.", 500)
            )


def stopping_error() -> APIError:
    return APIError("this server is stopping.", 503, retry_after=5)


def _settle(answer: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result(found) if error is None else answer.set_exception(error)


def _post(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *given: object) -> None:
    """Lets a loop do something; one that has ended has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *given)
