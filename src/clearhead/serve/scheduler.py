"""Continuous batching for many clients: fair queue, scheduler, and the worker thread of a model.

The event loop submits work and receives outputs; it never waits for the model, and the model never
waits for a client. What a sequence contains does not depend on others in the batch: it equals the
output of `model.generate`.
"""

import asyncio
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.engine import DEFAULT_SLOTS, BatchEngine, Request
from clearhead.generate.sampling import SamplingConfig
from clearhead.generate.text_generation import OutputSequence, TextChunk, check_can_generate
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits, Quota
from clearhead.serve.metrics import Metrics

DEFAULT_CACHE_BYTES = 2 << 30  # KV cache size that the default batch size may use
POLL_SECONDS = 0.02  # while waiting for jobs at shutdown

T = TypeVar("T")
Item = TypeVar("Item")
log = logging.getLogger("clearhead.serve")


class ComputeThread(threading.Thread):
    """A daemon thread that may be in a long computation when the process exits."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def exit_process() -> None:
    """Exit now if threads still compute; otherwise torch may crash during interpreter shutdown."""
    if any(isinstance(thread, ComputeThread) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class FairQueue(Generic[Item]):
    """A queue that is fair between clients and bounded by a `Quota`.

    Next is the client with the fewest running items; ties go to who waited longest for a turn.
    A client with `max_running` running items has no turn.
    """

    def __init__(self, max_size: int, max_running: int = sys.maxsize) -> None:
        self.quota = Quota(max_size)
        self.max_running = max_running
        self.waiting: dict[str, deque[Item]] = {}  # by client, in the order of their turns
        self.running: Counter[str] = Counter()

    @property
    def num_waiting(self) -> int:
        return self.quota.used

    @property
    def has_next(self) -> bool:
        """Whether a waiting client may have a turn now."""
        return any(self.running[client] < self.max_running for client in self.waiting)

    def check_room(self, client: str, count: int = 1) -> None:
        """Raise an error if a client cannot queue `count` more items."""
        limit = self.quota.limit
        if count > limit:
            raise APIError(f"{count} texts exceed the queue size {limit} (--max-queue).")
        if not self.quota.fits(client, count):
            raise APIError(
                f"Too many texts are waiting ({self.num_waiting} of {limit}). Try again later.",
                429,
                code="rate_limit_exceeded",
                retry_after=1,
            )

    def put(self, client: str, *items: Item) -> None:
        """Add all items of a request, or none of them."""
        self.check_room(client, len(items))
        self.waiting.setdefault(client, deque()).extend(items)
        self.quota.acquire(client, len(items))

    def pop(self) -> Item:
        client = min(self.waiting, key=lambda client: self.running[client])  # the first of several
        items = self.waiting.pop(client)
        item = items.popleft()
        if items:
            self.waiting[client] = items  # at the end: others have their turn first
        self.quota.release(client, 1)
        self.running[client] += 1
        return item

    def task_done(self, client: str) -> None:
        """Mark one popped item of a client as finished."""
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]

    def remove(self, client: str, should_remove: Callable[[Item], bool]) -> None:
        items = self.waiting.pop(client, deque())
        remaining = deque(item for item in items if not should_remove(item))
        self.quota.release(client, len(items) - len(remaining))
        if remaining:
            self.waiting[client] = remaining


class FairThreads:
    """Runs functions that prepare requests in a few threads, fair between clients."""

    def __init__(self, num_threads: int, max_queue: int) -> None:
        self.num_free = num_threads
        self.queue = FairQueue[tuple[str, asyncio.Future[None]]](max_queue)

    async def call(self, client: str, function: Callable[[], T]) -> T:
        """Run a function when it is the client's turn. A thread finishes even if nobody waits."""
        turn = asyncio.get_running_loop().create_future()
        self.queue.put(client, (client, turn))
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            self.queue.remove(client, lambda entry: entry[1] is turn)
            if not turn.cancelled():  # it came at the same time
                self._finish(client)
            raise
        result = asyncio.ensure_future(asyncio.to_thread(function))

        def finish(result: asyncio.Future[T]) -> None:
            self._finish(client)
            if not result.cancelled():
                result.exception()  # mark as retrieved, in case nobody waits

        result.add_done_callback(finish)
        return await asyncio.shield(result)

    def _start_next(self) -> None:
        while self.num_free and self.queue.num_waiting:
            client, turn = self.queue.pop()
            if turn.cancelled():
                self.queue.task_done(client)
                continue
            self.num_free -= 1
            turn.set_result(None)

    def _finish(self, client: str) -> None:
        self.num_free += 1
        self.queue.task_done(client)
        self._start_next()


class GenerationJob:
    """The sequences of one request. The worker pushes outputs, one reader on the loop takes them.

    Leaving the block `with job:` cancels unfinished sequences.
    """

    def __init__(
        self,
        client: str,
        model_name: str,
        sequences: Sequence[OutputSequence],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self.client = client
        self.model_name = model_name
        self.sequences = sequences
        self.limits = limits
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.last_token_at = self.started_at
        self.num_unfinished = len(sequences)
        self.is_scheduled = False
        self.unread_chunks: list[TextChunk] = []
        self.error: APIError | None = None
        self.reader_task: asyncio.Task[object] | None = None  # streams it; may block on its client
        self.changed = asyncio.Event()
        self.on_close: Callable[[GenerationJob], None] = lambda job: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel unfinished sequences; their slots are free before the next step."""
        for sequence in self.sequences:
            sequence.request.finish("cancelled")
        self.on_close(self)

    async def wait_for_output(self) -> None:
        """Wait for output; raise the job's error once all previous output was taken."""
        while not self.unread_chunks and self.num_unfinished:
            if self.error is not None:
                raise self.error
            await self._wait_for_change()

    async def take_output(self) -> list[TextChunk]:
        """Wait for new output and return it; empty when all sequences are finished."""
        await self.wait_for_output()
        chunks = self.unread_chunks
        self.unread_chunks = []
        return chunks

    async def _wait_for_change(self) -> None:
        self.changed.clear()
        limits = self.limits
        timeout = limits.request_timeout if self.is_scheduled else limits.queue_timeout
        try:
            async with asyncio.timeout_at(self.started_at + timeout):
                await self.changed.wait()
        except TimeoutError:
            if self.is_scheduled:
                self.fail(APIError(f"Request timed out after {timeout:g} seconds.", 504))
            else:
                message = f"Request waited in the queue for more than {timeout:g} seconds."
                self.fail(APIError(message, 503, retry_after=5))

    def mark_scheduled(self) -> None:
        self.is_scheduled = True
        self.changed.set()

    def push(self, chunks: Sequence[TextChunk]) -> None:
        """Add output; a reader that falls too far behind is disconnected."""
        if self.error is not None:
            return
        now = self.loop.time()
        is_first = self.last_token_at == self.started_at
        metrics = self.metrics
        latency = metrics.time_to_first_token if is_first else metrics.time_per_output_token
        latency.labels(self.model_name).observe(now - self.last_token_at)
        metrics.generation_tokens.labels(self.model_name).inc(len(chunks))
        self.last_token_at = now
        self.unread_chunks += chunks
        self.num_unfinished -= sum(bool(chunk.finish_reason) for chunk in chunks)
        if len(self.unread_chunks) > self.limits.max_unread_tokens:
            self.unread_chunks = []
            limit = self.limits.max_unread_tokens
            self.fail(APIError(f"Client is too slow: more than {limit} tokens are unread.", 408))
            if self.reader_task is not None:
                self.reader_task.cancel()
        self.changed.set()

    def fail(self, error: APIError) -> None:
        self.error = self.error or error
        self.close()
        self.changed.set()


class BatchCapacity(NamedTuple):
    """Size of a model's KV cache."""

    max_batch_size: int
    max_length: int
    num_bytes: int

    @classmethod
    def from_model(cls, model: Model, limits: Limits) -> "BatchCapacity":
        """Compute the size before allocating the cache."""
        check_can_generate(model.config.model)
        parameter = next(model.net.parameters())
        max_length = min(model.net.context_length, limits.max_context_length)
        bytes_per_sequence = max_length * cache_bytes_per_token(model)
        max_batch_size = limits.max_batch_size or min(
            max(1, DEFAULT_CACHE_BYTES // bytes_per_sequence),
            DEFAULT_SLOTS["cuda" if parameter.is_cuda else "cpu"],
        )
        return cls(max_batch_size, max_length, max_batch_size * bytes_per_sequence)


def cache_bytes_per_token(model: Model) -> int:
    """Memory of the keys and values of one token."""
    cache = model.net.init_cache(1, 1)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer, _ in cache.layers)


class Scheduler:
    """An engine with its running sequences. Only `make_sequences` is thread-safe."""

    def __init__(self, model: Model, limits: Limits) -> None:
        capacity = BatchCapacity.from_model(model, limits)
        net = model.net.eval()
        self.tokenizer = model.tokenizer
        self.engine = BatchEngine(
            net,
            model.config.inference,
            capacity.max_batch_size,
            capacity.max_length,
            len(self.tokenizer) if self.tokenizer else None,
            next(net.parameters()).is_cuda,
        )
        self.running: dict[Request, tuple[GenerationJob, OutputSequence]] = {}

    @property
    def num_free_slots(self) -> int:
        return self.engine.slots - len(self.running)

    def make_sequences(
        self,
        prompts: Iterable[list[int]],
        sampling: SamplingConfig,
        n: int,
        num_logprobs: int,
        echo: bool,
    ) -> list[OutputSequence]:
        """Create `n` sequences per prompt; raise an error if they cannot be generated."""
        tokenizer = self.tokenizer
        eos_tokens = self.engine.inference.eos_tokens
        sequences = list[OutputSequence]()
        for prompt in prompts:
            self._check_length(len(prompt), sampling.max_tokens)
            prompt_text = ""
            if tokenizer and echo:
                prompt_text = tokenizer.decode(prompt, skip_special_tokens=True)
            for sample_index in range(n):
                request = Request(prompt, sampling, sample_index, num_logprobs)
                if sample_index == 0:
                    self.engine.validate(request)
                sequences.append(
                    OutputSequence(request, len(sequences), tokenizer, eos_tokens, prompt_text)
                )
        return sequences

    def _check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        max_length = self.engine.capacity
        if num_prompt_tokens >= max_length:
            raise APIError(
                f"Prompt has {num_prompt_tokens} tokens, which fills the context of {max_length}."
            )
        if num_prompt_tokens + max_tokens > max_length:
            raise APIError(
                f"Prompt ({num_prompt_tokens} tokens) plus max_tokens ({max_tokens}) exceeds the "
                f"context of {max_length}. Use max_tokens of at most "
                f"{max_length - num_prompt_tokens}.",
                param="max_tokens",
            )

    def pop_finished(self) -> list[GenerationJob]:
        """Remove finished sequences and return the job of each."""
        finished = [request for request in self.running if request.finish_reason]
        return [self.running.pop(request)[0] for request in finished]

    def admit(self, job: GenerationJob, sequence: OutputSequence) -> None:
        self.running[sequence.request] = job, sequence
        if not sequence.request.finish_reason:  # else cancelled while waiting
            self.engine.add_request(sequence.request)

    def step(self) -> tuple[dict[GenerationJob, list[TextChunk]], dict[GenerationJob, APIError]]:
        """Decode one token for every sequence; return outputs and errors by job."""
        outputs: dict[GenerationJob, list[TextChunk]] = {}
        errors: dict[GenerationJob, APIError] = {}
        try:
            requests = self.engine.step()
        except ClearheadError as error:  # NaN logits; all other sequences still have their token
            requests = []
            for request, (job, _) in self.running.items():
                if request.finish_reason == "error":
                    errors[job] = APIError(str(error), 500)
                else:
                    requests.append(request)
        for request in requests:
            if request not in self.running:
                continue
            job, sequence = self.running[request]
            try:
                chunks = sequence.new_chunks()
            except ClearheadError as error:  # an id without text
                request.finish("error")
                errors[job] = APIError(str(error))
            else:
                if chunks:
                    outputs.setdefault(job, []).extend(chunks)
        return outputs, errors


class PendingCall(Generic[T]):
    """A function that a worker thread will call, and the future of its result."""

    def __init__(self, client: str, function: Callable[[], T]) -> None:
        self.client = client
        self.function = function
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def run(self) -> bool:
        """Call the function in this thread; False if it was cancelled before."""
        if self.future.done():
            return False
        loop = self.future.get_loop()
        try:
            _call_in_loop(loop, self._finish, self.future.set_result, self.function())
        except BaseException as error:  # Rust panics are not even an Exception
            _call_in_loop(loop, self.fail, error)
        return True

    def fail(self, error: BaseException) -> None:
        self._finish(self.future.set_exception, error)

    def _finish(self, set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not self.future.done():
            set_outcome(outcome)


class ModelWorker:
    """Runs a model for many clients in one thread, which starts with the first work."""

    def __init__(self, model: Model, limits: Limits, metrics: Metrics, name: str) -> None:
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.name = name
        self.text_queue = FairQueue[tuple[GenerationJob, OutputSequence]](limits.max_queue)
        self.call_queue = FairQueue[PendingCall[Any]](limits.max_queue)
        self.jobs: set[GenerationJob] = set()  # unfinished; used on the event loop only
        self.pending_calls: set[PendingCall[Any]] = set()  # used on the event loop only
        self.condition = threading.Condition()  # guards queues and thread
        self.scheduler_lock = threading.Lock()  # creating a scheduler may take a second
        self.is_stopping = False
        self.is_closed = False
        self.thread: threading.Thread | None = None
        self.existing_scheduler: Scheduler | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs or self.pending_calls)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, created on first use and after a failure."""
        with self.scheduler_lock:
            if self.existing_scheduler is None:
                self.existing_scheduler = Scheduler(self.model, self.limits)
            return self.existing_scheduler

    def check_room(self, client: str, num_texts: int) -> None:
        """Raise an error if a client's texts could not be queued, before preparing them."""
        if self.is_stopping:
            raise stopping_error()
        self.text_queue.check_room(client, num_texts)

    def submit(self, client: str, sequences: Sequence[OutputSequence]) -> GenerationJob:
        """Queue sequences made by `Scheduler.make_sequences`."""
        self.check_room(client, len(sequences))
        job = GenerationJob(client, self.name, sequences, self.limits, self.metrics)
        self._enqueue(self.text_queue, client, *((job, sequence) for sequence in sequences))
        job.on_close = self._remove_job
        self.loop = job.loop
        self.jobs.add(job)
        prompts = (s.request.prompt for s in sequences if not s.request.sample_index)
        self.metrics.prompt_tokens.labels(self.name).inc(sum(map(len, prompts)))
        return job

    async def call(self, client: str, function: Callable[[], T]) -> T:
        """Run a function in the model's thread, between two decoding steps."""
        if self.is_stopping:
            raise stopping_error()
        call = PendingCall(client, function)
        self._enqueue(self.call_queue, client, call)
        self.pending_calls.add(call)
        timeout = self.limits.request_timeout
        try:
            async with asyncio.timeout(timeout):
                return await call.future
        except TimeoutError:
            raise APIError(f"Request timed out after {timeout:g} seconds.", 504) from None
        finally:
            self.pending_calls.discard(call)

    def _enqueue(self, queue: FairQueue[T], client: str, *items: T) -> None:
        with self.condition:
            queue.put(client, *items)
            if self.thread is None:
                self.thread = ComputeThread(self._run, f"model {self.name}")
                self.thread.start()
            self.condition.notify()

    def _remove_job(self, job: GenerationJob) -> None:
        self.jobs.discard(job)
        with self.condition:
            self.text_queue.remove(job.client, lambda entry: entry[0] is job)

    async def stop(self, timeout: float) -> None:
        """Reject waiting jobs now, running ones after the timeout; then join the thread."""
        self.is_stopping = True
        for job in [job for job in self.jobs if not job.is_scheduled]:
            job.fail(stopping_error())
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        while self.is_busy and now() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        self._fail_all_jobs(stopping_error())
        for call in self.pending_calls:
            call.fail(stopping_error())
        self.close()
        if self.thread is not None:
            await asyncio.to_thread(self.thread.join, max(0.0, deadline - now()))

    def _fail_all_jobs(self, error: APIError) -> None:
        for job in list(self.jobs):
            job.fail(error)

    def close(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.is_closed = True
            self.condition.notify()

    # The following methods run in the worker's thread.

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._run_next_call()
                self._admit_sequences()
                self._step()
            except BaseException as error:  # also Rust panics: the thread must survive
                self._reset_after(error)

    def _wait_for_work(self) -> bool:
        """Wait for work; False if the worker is closed."""

        def has_work() -> bool:
            scheduler = self.existing_scheduler
            return bool(
                self.is_closed
                or self.text_queue.num_waiting
                or self.call_queue.num_waiting
                or (scheduler and scheduler.running)
            )

        with self.condition:
            self.condition.wait_for(has_work)
            return not self.is_closed

    def _run_next_call(self) -> None:
        """Run one call, skipping those that were cancelled."""
        has_run = False
        while not has_run:
            with self.condition:
                if not self.call_queue.num_waiting:
                    return
                call = self.call_queue.pop()
            has_run = call.run()
            with self.condition:
                self.call_queue.task_done(call.client)

    def _admit_sequences(self) -> None:
        """Free the slots of finished sequences and fill them from the queue."""
        has_waiting = self.text_queue.num_waiting
        scheduler = self.scheduler if has_waiting else self.existing_scheduler
        if scheduler is None:
            return
        finished_jobs = scheduler.pop_finished()
        new_entries = list[tuple[GenerationJob, OutputSequence]]()
        with self.condition:
            for job in finished_jobs:
                self.text_queue.task_done(job.client)
            while self.text_queue.num_waiting and len(new_entries) < scheduler.num_free_slots:
                new_entries.append(self.text_queue.pop())
        for job, sequence in new_entries:
            scheduler.admit(job, sequence)
            _call_in_loop(job.loop, job.mark_scheduled)

    def _step(self) -> None:
        scheduler = self.existing_scheduler
        if scheduler is None or not scheduler.running:
            return
        outputs, errors = scheduler.step()
        for loop in {job.loop for job in outputs}:
            own_outputs = [(job, chunks) for job, chunks in outputs.items() if job.loop is loop]
            _call_in_loop(loop, _push_outputs, own_outputs)
        for job, error in errors.items():
            _call_in_loop(job.loop, job.fail, error)

    def _reset_after(self, error: BaseException) -> None:
        """Fail all jobs and drop the scheduler, whose cache may be corrupt."""
        log.error("worker of %s: %s: %s", self.name, type(error).__name__, error, exc_info=error)
        with self.scheduler_lock:
            self.existing_scheduler = None
        with self.condition:
            self.text_queue.running.clear()
        if self.loop is not None:
            internal_error = APIError("Internal server error; see the server log.", 500)
            _call_in_loop(self.loop, self._fail_all_jobs, internal_error)


def stopping_error() -> APIError:
    return APIError("The server is shutting down.", 503, retry_after=5)


def _push_outputs(outputs: Sequence[tuple[GenerationJob, Sequence[TextChunk]]]) -> None:
    for job, chunks in outputs:
        job.push(chunks)


def _call_in_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> None:
    """Schedule a call on an event loop, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)
