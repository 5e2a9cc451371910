"""Continuous batching: each text has a row of the KV cache and joins and leaves at any step.

What is generated does not depend on the rest of the batch, except for rounding in 16 bits. The
cache is allocated once, rows × capacity; requests wait for a free row. A row keeps its tokens after
its request has left: a prompt with the same prefix copies them, so conversations continue where
they were and a shared prefix is read once.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.config.model import InferenceConfig
from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from clearhead.kernels import GRAPH_CAPTURE_MODE, TRITON_AVAILABLE, can_use_triton
from clearhead.model.kv_cache import ModelCache
from clearhead.model.transformer import EditedTransformer, Transformer, eval_mode

if TRITON_AVAILABLE:
    from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode

LOOKAHEAD_STEPS = 1  # started on a GPU before the results of the previous one are read
MAX_PREFILL_TOKENS = 8192  # read in one batch; also per step while others are being generated
MIN_PASS_TOKENS = 256  # reading fewer in a batch takes about as long
MIN_SHARED_PREFIX = 16  # tokens; copying a shorter prefix is not worth it
# Without cuDNN, which compiles a kernel for every length; that takes longer than the prefill.
PREFILL_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
]


class TokenLogprob(NamedTuple):
    """A token, its log-probability under the model, and the most likely tokens with theirs.

    The temperature and other sampling options do not change log-probabilities.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A prompt with its options and the output so far."""

    prompt: list[int]
    config: SamplingConfig
    sample_index: int = 0  # among several samples with one seed
    num_logprobs: int = 0  # most likely tokens that are reported with each token
    output: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""  # stop, length or error
    num_scheduled: int = 0  # tokens whose step has started, though it may not have finished
    window_start: int = 0  # the first token in the cache, after the context has slid

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *(token.token for token in self.output)]

    def finish(self, reason: str) -> None:
        """End before the next step; the first reason counts."""
        self.finish_reason = self.finish_reason or reason


def common_prefix_length(a: Sequence[object], b: Sequence[object]) -> int:
    """The length of the common prefix of two lists or strings."""
    low = 0
    high = min(len(a), len(b))
    while low < high:  # comparing slices is much faster than a loop over the items
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shares_prefix(a: Sequence[object], b: Sequence[object]) -> bool:
    """Whether the common prefix is worth reading only once."""
    return common_prefix_length(a, b) >= MIN_SHARED_PREFIX


@dataclass
class StepGraph:
    """A CUDA graph of one step, the sampler whose options it reads, and the tensor it writes."""

    sampler: Sampler
    graph: torch.cuda.CUDAGraph | None = None
    output: Tensor | None = None


class SampledTokens:
    """The output of one step, copied to the host in the background.

    Columns: token, log-probability, then the most likely tokens and their log-probabilities.
    """

    def __init__(self, table: Float[Tensor, "row column"]) -> None:
        self.table = table
        self.event = None
        if table.is_cuda:
            self.table = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
            self.table.copy_(table, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def to_list(self) -> list[list[float]]:
        """Wait for the copy and return the rows."""
        if self.event is not None:
            self.event.synchronize()
        rows: list[list[float]] = self.table.tolist()
        return rows


class ModelRunner:
    """The tensors of a batch: KV cache, next-token logits, options. Only the first rows are active.

    A step samples a token for each row and computes the next logits, without waiting for the
    device. On a GPU the second step of a shape is captured as a CUDA graph, which later steps
    replay.
    """

    def __init__(
        self,
        net: Transformer,
        inference: InferenceConfig,
        max_rows: int,
        capacity: int,
        vocab_size: int,
        use_cuda_graphs: bool,
    ) -> None:
        self.net = net
        self.inference = inference
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self.use_cuda_graphs = use_cuda_graphs
        self.device = next(net.parameters()).device
        self.weight_pointers = [p.data_ptr() for p in net.parameters()]  # graphs read from there
        self.cache = net.init_cache(max_rows, capacity)
        self.cache.rows.is_static = use_cuda_graphs
        self.logits = torch.zeros(max_rows, net.config.vocab_size, device=self.device)
        self.tokens = torch.zeros(max_rows, 1, dtype=torch.long, device=self.device)
        self.steps = torch.zeros(max_rows, 1, dtype=torch.long, device=self.device)
        # Options of the batch; None where no request uses them.
        self.token_counts: tuple[Tensor, Tensor] | None = None  # in prompt and output
        self.logit_bias: Tensor | None = None
        self.prefix_tokens: Tensor | None = None  # −1 after the end of a prefix
        self.buffers: dict[tuple[str, int], Tensor] = {}  # their memory, at fixed addresses
        begin_suppress = [i for i in inference.begin_suppress_tokens if i < vocab_size]
        self.first_token_bias = torch.zeros(vocab_size, device=self.device)
        self.first_token_bias[begin_suppress] = -torch.inf
        self.suppress_tokens = [i for i in inference.suppress_tokens if i < vocab_size]
        self.fused_decoder: FusedDecoder | None = None
        if use_cuda_graphs and can_use_triton(self.device) and supports_fused_decode(net):
            self.fused_decoder = FusedDecoder(net)
        self.graphs: dict[tuple[object, ...], StepGraph] = {}
        self.graph_pool = torch.cuda.graph_pool_handle() if use_cuda_graphs else None

    def matches(self, net: Transformer, vocab_size: int) -> bool:
        """Whether this runs that network, with its weights where they were."""
        return (
            net is self.net
            and vocab_size == self.vocab_size
            and self.weight_pointers == [p.data_ptr() for p in net.parameters()]
        )

    def prefill(
        self, texts: Sequence[list[int]], row: int = 0, num_cached: int = 0
    ) -> tuple[ModelCache, Float[Tensor, "text vocabulary"]]:
        """Read texts together. Returns their cache and next-token logits.

        All start with the first `num_cached` tokens of a row, whose cache is copied.
        """
        longest = max(map(len, texts))
        cache = self.net.init_cache(len(texts), longest)
        if num_cached:
            cache.copy_rows(0, self.cache, [row] * len(texts), [num_cached] * len(texts))
        # Padding on the right is not visible to the tokens before it.
        padded = [text[num_cached:] + [0] * (longest - len(text)) for text in texts]
        ids = torch.tensor(padded, device=self.device)
        index = torch.arange(len(texts), device=self.device)
        last = torch.tensor([len(text) - num_cached - 1 for text in texts], device=self.device)
        with sdpa_kernel(PREFILL_BACKENDS, set_priority=True):
            hidden = self.net(ids, cache=cache)[index, last]
        return cache, self._compute_logits(hidden[:, None])

    def swap_rows(self, row: int, other: int, length: int, other_length: int) -> None:
        """Swap two rows of these lengths."""
        temporary = self.net.init_cache(1, max(1, length))
        temporary.copy_rows(0, self.cache, [row], [length])
        self.cache.copy_rows(row, self.cache, [other], [other_length])
        self.cache.copy_rows(other, temporary, [0], [length])
        self.logits[[row, other]] = self.logits[[other, row]]

    def set_batch(self, requests: Sequence[Request]) -> None:
        """Prepare for steps of these requests, which are in the first rows."""
        num_rows = self._padded_rows(len(requests))
        num_padding = num_rows - len(requests)
        configs = [request.config for request in requests]
        keys = [rng_key(request.config.seed, request.sample_index) for request in requests]
        sampler = Sampler(
            [*configs, *[SamplingConfig(temperature=0)] * num_padding],
            [*keys, *[0] * num_padding],
            self.device,
            self.use_cuda_graphs,
        )
        self.num_logprobs = max(request.num_logprobs for request in requests)
        steps = [[request.num_scheduled] for request in requests]
        self.steps[: len(requests)] = torch.tensor(steps, device=self.device)
        self._set_token_counts(requests if sampler.has_penalties else [])
        self._set_logit_bias(configs)
        self._set_prefix_tokens(configs)
        if self.use_cuda_graphs:
            prefix_shape = None if self.prefix_tokens is None else self.prefix_tokens.shape[1]
            has_bias = self.logit_bias is not None
            key = (num_rows, sampler.graph_key, self.num_logprobs, has_bias, prefix_shape)
            self.graph = self.graphs.setdefault(key, StepGraph(sampler))
            self.graph.sampler.copy_from(sampler)
            sampler = self.graph.sampler
        self.sampler = sampler

    def step(self, num_requests: int, run_forward: bool) -> SampledTokens:
        """Sample a token for each request; with `run_forward`, also compute the next logits."""
        num_rows = self._padded_rows(num_requests)
        self.cache.rows.n_active = num_rows
        if not self.use_cuda_graphs:
            return SampledTokens(self._step(num_rows, run_forward)[:num_requests])
        graph = self.graph
        if graph.graph is None and graph.output is not None:
            graph.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph.graph, pool=self.graph_pool, capture_error_mode=GRAPH_CAPTURE_MODE
            ):
                graph.output = self._step(num_rows, run_forward=True)
        if graph.graph is None:
            graph.output = self._warm_up(num_rows)
        else:
            graph.graph.replay()
        assert graph.output is not None
        return SampledTokens(graph.output[:num_requests])

    def _step(self, num_rows: int, run_forward: bool) -> Float[Tensor, "row column"]:
        logits = self.logits[:num_rows]
        steps = self.steps[:num_rows]
        counts = None
        if self.token_counts is not None:
            prompt_counts, output_counts = self.token_counts
            counts = (prompt_counts[:num_rows], output_counts[:num_rows])
        bias = self._bias(num_rows)
        tokens, logprobs = self.sampler(logits, steps, self.vocab_size, counts, bias)
        if self.prefix_tokens is not None:
            column = steps.clamp(max=self.prefix_tokens.shape[1] - 1)
            prefix = self.prefix_tokens[:num_rows].gather(1, column)[:, 0]
            tokens = torch.where(prefix >= 0, prefix, tokens)
            logprobs = logits.gather(1, tokens[:, None]) - logits.logsumexp(-1, keepdim=True)
            logprobs = logprobs[:, 0]
        columns = [tokens[:, None].double(), logprobs[:, None].double()]
        if self.num_logprobs:
            all_logprobs = logits.log_softmax(dim=-1)[:, : self.vocab_size]
            best = all_logprobs.topk(min(self.num_logprobs, self.vocab_size))
            columns += [best.indices.double(), best.values.double()]
        if counts is not None:
            counts[1].scatter_add_(1, tokens[:, None], torch.ones_like(tokens[:, None]))
        self.tokens[:num_rows, 0] = tokens
        self.steps[:num_rows] += 1
        if run_forward and self.fused_decoder is not None:
            self.logits[:num_rows] = self.fused_decoder(self.tokens[:num_rows], self.cache)
        elif run_forward:
            hidden = self.net(self.tokens[:num_rows], cache=self.cache)
            self.logits[:num_rows] = self._compute_logits(hidden)
        return torch.cat(columns, dim=1)

    def _warm_up(self, num_rows: int) -> Tensor:
        """A step on another stream, as required before recording a CUDA graph."""
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            output = self._step(num_rows, run_forward=True)
        current.wait_stream(stream)
        return output

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        return self.net.compute_logits(hidden)[:, -1].float()

    def _padded_rows(self, num_requests: int) -> int:
        """With CUDA graphs, a batch size from a short list, so that few graphs are recorded."""
        if not self.use_cuda_graphs or num_requests <= 2:
            return num_requests
        multiple = max(4, 1 << (num_requests - 1).bit_length() - 2)
        return min(-(-num_requests // multiple) * multiple, self.max_rows)

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """A tensor with `max_rows` rows, always the same one for a name and width."""
        if (name, width) not in self.buffers:
            shape = (self.max_rows, width)
            self.buffers[name, width] = torch.zeros(shape, dtype=dtype, device=self.device)
        return self.buffers[name, width]

    def _set_token_counts(self, requests: Sequence[Request]) -> None:
        self.token_counts = None
        if not requests:
            return
        prompt_counts = self._buffer("prompt_counts", self.vocab_size, torch.long)
        output_counts = self._buffer("output_counts", self.vocab_size, torch.long)
        for row, request in enumerate(requests):
            prompt_counts[row] = self._bincount(request.prompt)
            output_counts[row] = self._bincount([token.token for token in request.output])
        self.token_counts = (prompt_counts, output_counts)

    def _bincount(self, tokens: list[int]) -> Int[Tensor, " vocabulary"]:
        ids = torch.tensor(tokens, dtype=torch.long)
        return torch.bincount(ids, minlength=self.vocab_size)[: self.vocab_size]

    def _set_logit_bias(self, configs: Sequence[SamplingConfig]) -> None:
        self.logit_bias = None
        if not self.suppress_tokens and not any(c.logit_bias or c.suppress_tokens for c in configs):
            return
        self.logit_bias = self._buffer("logit_bias", self.vocab_size, torch.float32).zero_()
        for row, config in zip(self.logit_bias, configs, strict=False):
            if config.logit_bias:
                values = list(config.logit_bias.values())
                row[list(config.logit_bias)] = torch.tensor(
                    values, device=self.device, dtype=row.dtype
                )
            row[[*self.suppress_tokens, *config.suppress_tokens]] = -torch.inf

    def _set_prefix_tokens(self, configs: Sequence[SamplingConfig]) -> None:
        self.prefix_tokens = None
        longest = max(len(config.prefix_tokens) for config in configs)
        if not longest:
            return
        padded = [
            [*config.prefix_tokens, *[-1] * (longest + 1 - len(config.prefix_tokens))]
            for config in configs
        ]
        self.prefix_tokens = self._buffer("prefix_tokens", longest + 1, torch.long).fill_(-1)
        self.prefix_tokens[: len(configs)] = torch.tensor(padded, device=self.device)

    def _bias(self, num_rows: int) -> Tensor | None:
        """What is added to the logits in this step."""
        bias = None if self.logit_bias is None else self.logit_bias[:num_rows]
        if not self.inference.begin_suppress_tokens:
            return bias
        first = torch.where(self.steps[:num_rows] == 0, self.first_token_bias, 0.0)
        return first if bias is None else first + bias


@dataclass
class CacheRow:
    """The content of a row of the cache, which stays when its request leaves."""

    tokens: list[int] = field(default_factory=list)  # when the request joined or left
    length: int = 0  # tokens in the cache
    released_at: int = 0  # rows that were released later have a larger number


class BatchEngine:
    """Generates up to `slots` texts at the same time; `step` adds one token to each."""

    def __init__(
        self,
        net: Transformer,
        inference: InferenceConfig,
        slots: int,
        capacity: int,
        vocab_size: int | None = None,
        use_cuda_graphs: bool = False,
    ) -> None:
        self.inference = inference
        self.slots = slots
        self.capacity = capacity
        vocab_size = vocab_size or net.config.vocab_size
        self.runner = ModelRunner(net, inference, slots, capacity, vocab_size, use_cuda_graphs)
        self.lookahead = LOOKAHEAD_STEPS if use_cuda_graphs else 0
        self.waiting: deque[Request] = deque()
        self.num_delayed = 0  # first ones of `waiting` that do not let others pass
        self.running: list[Request] = []  # in the first rows
        self.rows = [CacheRow() for _ in range(slots)]
        self.num_releases = 0
        self.pending: deque[tuple[list[Request], SampledTokens]] = deque()  # steps not yet read
        self.finished_steps: deque[list[Request]] = deque()  # steps read but not yet returned
        self.batch_changed = False
        self.lock = Lock()

    def try_acquire(self) -> bool:
        """Reserve the engine for one stream, unless another has it."""
        return self.lock.acquire(blocking=False)

    def release(self) -> None:
        """Give the engine back."""
        if self.lock.locked():
            self.lock.release()

    @property
    def is_idle(self) -> bool:
        """Whether all requests have finished and their tokens have been returned."""
        requests = (*self.waiting, *self.running)
        return not self.finished_steps and all(request.finish_reason for request in requests)

    def add_request(self, request: Request) -> None:
        """Queue a request; it starts as soon as there is a free row."""
        self.validate(request)
        self.waiting.append(request)

    def validate(self, request: Request) -> None:
        """Raise if this text cannot be generated."""
        config = request.config
        vocab_size = self.runner.vocab_size
        if not request.prompt:
            raise ClearheadError("the prompt is empty; it needs at least one token.")
        if self.capacity < 2:
            raise ClearheadError("generation needs a context of at least two tokens.")
        for name in ("logit_bias", "suppress_tokens", "prefix_tokens", "stop_tokens"):
            for token in getattr(config, name):
                if not 0 <= token < vocab_size:
                    raise ClearheadError(
                        f"{name} contains token {token}; ids must be from 0 to {vocab_size - 1}."
                    )
        if len({*config.suppress_tokens, *self.runner.suppress_tokens}) >= vocab_size:
            raise ClearheadError("suppress_tokens contains all tokens; leave at least one.")
        if config.overflow == "error":
            check_prompt_length(len(request.prompt), config.max_tokens, self.capacity)

    def clear_prefix_cache(self) -> None:
        """Forget the tokens of released rows, as the weights may have changed."""
        for row in self.rows:
            row.tokens = []
        if self.runner.fused_decoder is not None:
            self.runner.fused_decoder.refresh_weights()

    @torch.no_grad()
    def step(self) -> list[Request]:
        """Add one token to each running request and return the requests; [] if there are none."""
        while not self.is_idle or self.pending or self.running:
            with eval_mode(self.runner.net):
                self._release_rows()
                self._admit_waiting()
                has_started = self._start_step()
            if self.pending and (len(self.pending) > self.lookahead or not has_started):
                self._read_step()
            while self.finished_steps:
                if requests := self.finished_steps.popleft():
                    return requests
        return []

    def _release_rows(self) -> None:
        """Remove finished requests; those whose context is full go back to the queue to slide."""
        if any(self._is_full(row) for row in range(len(self.running))):
            self._read_all_steps()
        for row in reversed(range(len(self.running))):
            request = self.running[row]
            is_full = self._is_full(row)
            is_scheduled = request.num_scheduled >= request.config.max_tokens
            if not request.finish_reason and not is_scheduled and not is_full:
                continue
            if is_full and not request.finish_reason:
                request.window_start = len(request.tokens) - self.capacity // 2
                self.waiting.appendleft(request)
                self.num_delayed += 1
            # CUDA graphs may write one token behind the end of a free row.
            cached = self.rows[row]
            num_valid = min(cached.length, self.capacity - 1)
            cached.tokens = [] if is_full else request.tokens[request.window_start :][:num_valid]
            self.num_releases += 1
            cached.released_at = self.num_releases
            last = len(self.running) - 1
            if row < last:  # keep the running requests in the first rows
                self.runner.swap_rows(row, last, cached.length, self.rows[last].length)
                self.rows[row], self.rows[last] = self.rows[last], cached
            self.running[row] = self.running[last]
            self.running.pop()
            self.batch_changed = True

    def _is_full(self, row: int) -> bool:
        """Whether the context has no room for the next token of an unfinished text."""
        request = self.running[row]
        is_unfinished = request.num_scheduled < request.config.max_tokens
        return self.rows[row].length == self.capacity and is_unfinished

    def _admit_waiting(self) -> None:
        """Start waiting requests in the free rows.

        Prompts that continue the same row are read together, and so are those without a shared
        prefix, unless they share one with each other. While other texts are being generated, the
        number of tokens read per step is limited. Short prompts go first, but those left over from
        a step precede all that come later.
        """
        delayed: list[Request] = []
        new: list[Request] = []
        while self.waiting and len(self.running) + len(delayed) + len(new) < self.slots:
            request = self.waiting.popleft()
            is_delayed = self.num_delayed > 0
            self.num_delayed -= is_delayed
            if not request.finish_reason:
                (delayed if is_delayed else new).append(request)
        for request in (*delayed, *new):
            num_tokens = len(request.tokens)
            is_full = num_tokens - request.window_start >= self.capacity
            if is_full and request.config.overflow == "slide":
                request.window_start = num_tokens - self.capacity // 2
        new.sort(key=lambda request: len(request.tokens) - request.window_start)
        joining = delayed + new
        token_budget: float = MAX_PREFILL_TOKENS if self.running else math.inf
        while joining and token_budget > 0:
            group, row, num_cached, joining = self._next_group(joining)
            texts = [list(text) for text in group]
            num_read = sum(len(text) - num_cached for text in texts)
            token_budget -= max(MIN_PASS_TOKENS, num_read)
            cache, logits = self.runner.prefill(texts, row, num_cached)
            requests = []
            cache_rows = []  # several requests may have the same text
            for index, same_text in enumerate(group.values()):
                requests += same_text
                cache_rows += [index] * len(same_text)
            self._place(requests, texts, cache_rows, cache, logits)
        self.waiting.extendleft(reversed(joining))
        self.num_delayed += len(joining)

    def _next_group(
        self, joining: Sequence[Request]
    ) -> tuple[dict[tuple[int, ...], list[Request]], int, int, list[Request]]:
        """Requests to prefill together, by text; row and number of tokens to copy; the others."""
        group: dict[tuple[int, ...], list[Request]] = {}
        rest = []
        row = num_cached = num_tokens = longest = 0  # tokens to read, beyond the cached ones
        for request in joining:
            text = tuple(request.tokens[request.window_start :])
            if text in group:
                group[text].append(request)
                continue
            if not group:
                row, num_cached = self._longest_prefix(text)
            num_new = len(text) - num_cached
            padded_tokens = max(longest, num_new) * (len(group) + 1)
            copied_tokens = num_cached * (len(group) + 1)  # which take memory
            if group and (
                padded_tokens > min(MAX_PREFILL_TOKENS, 2 * (num_tokens + num_new))
                or copied_tokens > MAX_PREFILL_TOKENS
                or self._longest_prefix(text) != (row, num_cached)
                or (not num_cached and any(shares_prefix(text, other) for other in group))
            ):
                rest.append(request)
                continue
            group[text] = [request]
            longest = max(longest, num_new)
            num_tokens += num_new
        return group, row, num_cached, rest

    def _longest_prefix(self, text: Sequence[int]) -> tuple[int, int]:
        """The row with the longest common prefix, and its length; the last token is always read."""
        best = (0, 0)
        text = list(text)
        for row, cached in enumerate(self.rows):
            if len(cached.tokens) <= best[1]:
                continue
            shared = min(common_prefix_length(text, cached.tokens), len(text) - 1)
            if shared >= MIN_SHARED_PREFIX and shared > best[1]:
                best = (row, shared)
        return best

    def _place(
        self,
        requests: list[Request],
        texts: list[list[int]],
        cache_rows: list[int],
        cache: ModelCache,
        logits: Tensor,
    ) -> None:
        """Copy prefilled requests to the first free rows, whose tokens replace the oldest ones."""
        runner = self.runner
        first = len(self.running)
        end = first + len(requests)
        for row, cache_row in enumerate(cache_rows, first):
            free = self.rows[row]
            others = range(end, self.slots)
            oldest = min(others, key=lambda i: self.rows[i].released_at, default=row)
            if free.tokens and self.rows[oldest].released_at < free.released_at:
                runner.cache.copy_rows(oldest, runner.cache, [row], [free.length])
                self.rows[oldest] = free
            self.rows[row] = CacheRow(texts[cache_row], len(texts[cache_row]))
        lengths = [row.length for row in self.rows[first:end]]
        runner.cache.copy_rows(first, cache, cache_rows, lengths)
        runner.logits[first:end] = logits[cache_rows]
        self.running += requests
        self.batch_changed = True

    def _start_step(self) -> bool:
        """Start a step of the device, if a request is running."""
        if not self.running:
            return False
        if self.batch_changed:
            if any(request.config.has_penalties for request in self.running):
                self._read_all_steps()  # penalties count the tokens so far
            self.runner.set_batch(self.running)
            self.batch_changed = False
        if not self.runner.use_cuda_graphs:
            lengths = [row.length for row in self.rows[: len(self.running)]]
            rows = self.runner.cache.rows
            rows.max_length = max(lengths)
            rows.is_uniform = min(lengths) == max(lengths)
        for request in self.running:
            request.num_scheduled += 1
        run_forward = self.runner.use_cuda_graphs or any(
            request.num_scheduled < request.config.max_tokens for request in self.running
        )
        for row in self.rows[: len(self.running)]:
            row.length += run_forward
        sampled = self.runner.step(len(self.running), run_forward)
        self.pending.append((list(self.running), sampled))
        return True

    def _read_all_steps(self) -> None:
        while self.pending:
            self._read_step()

    def _read_step(self) -> None:
        """Read the tokens of the oldest pending step."""
        running, sampled = self.pending.popleft()
        updated: list[Request] = []
        non_finite_token = 0
        for request, (token, logprob, *top) in zip(running, sampled.to_list(), strict=True):
            if request.finish_reason:
                continue
            if math.isnan(logprob):
                request.finish("error")
                non_finite_token = len(request.output) + 1
                continue
            half = len(top) // 2
            best = zip(map(int, top[:half]), top[half:], strict=True)
            top_logprobs = tuple(best)[: request.num_logprobs]
            request.output.append(TokenLogprob(int(token), logprob, top_logprobs))
            updated.append(request)
            if int(token) in self.inference.eos_tokens or int(token) in request.config.stop_tokens:
                request.finish("stop")
            elif len(request.output) == request.config.max_tokens:
                request.finish("length")
        self.finished_steps.append(updated)
        if non_finite_token:
            raise NonFiniteError(f"the logits of token {non_finite_token}")


def check_prompt_length(num_prompt: int, max_tokens: int, context_length: int) -> None:
    """Raise if a prompt and its output do not fit the context."""
    hint = "or set overflow='slide'."
    if num_prompt >= context_length:
        raise ClearheadError(
            f"the prompt has {num_prompt} tokens, which fill the context of {context_length}; "
            f"shorten it, {hint}"
        )
    if num_prompt + max_tokens > context_length:
        raise ClearheadError(
            f"{num_prompt} prompt tokens and max_tokens = {max_tokens} exceed the context of "
            f"{context_length}; set max_tokens to at most {context_length - num_prompt}, {hint}"
        )


DEFAULT_SLOTS = {"cpu": 16, "cuda": 64}  # texts that are generated at the same time
MIN_GRAPH_TOKENS = 16  # recording CUDA graphs pays off from this many tokens on


class EnginePool:
    """Creates engines for a network. On a GPU it keeps the last one, with its recorded CUDA graphs.

    A kept engine serves one stream at a time; concurrent streams get engines of their own.
    """

    def __init__(self) -> None:
        self.cached: BatchEngine | None = None

    def get(
        self,
        net: Transformer,
        inference: InferenceConfig,
        vocab_size: int | None,
        num_texts: int,
        max_length: int,
        config: SamplingConfig,
    ) -> BatchEngine:
        """An engine for texts of up to `max_length` tokens."""
        vocab_size = vocab_size or net.config.vocab_size
        is_cuda = next(net.parameters()).is_cuda
        slots = min(num_texts, DEFAULT_SLOTS["cuda" if is_cuda else "cpu"])
        capacity = min(max_length, net.context_length)
        can_record = config.max_tokens >= MIN_GRAPH_TOKENS and not isinstance(
            net, EditedTransformer
        )
        if not is_cuda or not can_record:
            return BatchEngine(net, inference, slots, capacity, vocab_size)
        engine = self.cached
        if (
            engine is not None
            and engine.slots >= slots
            and engine.capacity >= capacity
            and engine.inference == inference
            and engine.runner.matches(net, vocab_size)
            and engine.try_acquire()
            and engine.is_idle
        ):
            engine.clear_prefix_cache()
            return engine
        rounded_capacity = min(net.context_length, max(256, 1 << (capacity - 1).bit_length()))
        engine = BatchEngine(
            net, inference, slots, rounded_capacity, vocab_size, use_cuda_graphs=True
        )
        engine.try_acquire()
        self.cached = engine
        return engine
