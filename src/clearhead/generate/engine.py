"""What is asked of the engine, and what came of it."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.config.model import InferenceConfig
from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from clearhead.hooks import NO_HOOKS, Edit, Hooks, force_eager
from clearhead.kernels import GRAPH_CAPTURE_MODE, TRITON_AVAILABLE
from clearhead.model.kv_cache import ModelCache
from clearhead.model.transformer import Transformer

# ---- request: What is asked of the engine, and what came of it.


class TokenLogprob(NamedTuple):
    """A token that was written: its log-probability under the model, and those of the likeliest tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A prompt, how it is to be written on, and what has been written."""

    prompt: list[int]
    config: SamplingConfig
    sample_index: int = 0  # which of several from one seed
    num_logprobs: int = 0  # how many of the likeliest are told with each token
    output: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""  # why it ended: stop or length
    num_scheduled: int = 0  # tokens that were begun; the last may not be known yet
    window_start: int = 0  # where in the text it reads begins what the memory holds

    @property
    def tokens(self) -> list[int]:
        """The whole text so far."""
        return [*self.prompt, *(chosen.token for chosen in self.output)]

    def finish(self, reason: str) -> None:
        """Ends it before the next step; the first reason holds."""
        self.finish_reason = self.finish_reason or reason


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How much two texts have in common at their beginning, in tokens or in characters."""
    for at, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            return at
    return min(len(one), len(other))


@contextmanager
def eval_mode(net: Transformer) -> Iterator[None]:
    """Turn dropout off inside the block."""
    if not net.training:
        yield
        return
    training_modules = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training_modules:
            module.training = True


# ---- edited: A net that is edited wherever it is used: what writes with it need not know.


class EditedTransformer(Transformer):
    """The same weights, each value changed as `edits` say; it is never compiled nor recorded.

    An edit sees only the tokens that are read at a time, so it must change each by itself.
    """

    edits: Mapping[str, Edit]

    def __init__(self, net: Transformer, edits: Mapping[str, Edit]) -> None:
        self.__dict__.update(net.__dict__, _compiled_call_impl=None, edits=edits)

    def forward(self, tokens: Tensor, *, hooks: Hooks = NO_HOOKS, **given: Any) -> Tensor:
        with force_eager():
            return super().forward(tokens, hooks=hooks.with_edits(self.edits), **given)

    def encode(
        self, source: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return super().encode(
            source, segment_ids, hooks.with_edits(self.edits) if hooks is NO_HOOKS else hooks
        )

    def compute_logits(
        self, hidden: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return super().compute_logits(
            hidden, segment_ids, hooks.with_edits(self.edits) if hooks is NO_HOOKS else hooks
        )


# ---- desk: What a device holds of the texts under way, a row for each: memory, logits of the next token, counts.

# cuDNN's kernel is made anew for each length of a text, which takes longer than reading it
PREFILL_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
]
if TRITON_AVAILABLE:
    from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode

BufferKey = tuple[object, ...]


@dataclass
class StepGraph:
    """A step that is replayed: its draws can be set, and it leaves what it drew in one place."""

    sampler: Sampler
    graph: torch.cuda.CUDAGraph | None = None
    output: Tensor | None = None


class SampledTokens:
    """The tokens of one step, each with its log-probability and the likeliest others; here as soon as they can be."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.event = None
        if table.is_cuda:
            self.table = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
            self.table.copy_(table, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def to_list(self) -> list[list[float]]:
        if self.event is not None:
            self.event.synchronize()
        found: list[list[float]] = self.table.tolist()
        return found


class ModelRunner:
    """Rows of a network that writes; the first so many are at work."""

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
        self.vocab_size = vocab_size
        self.use_cuda_graphs = use_cuda_graphs
        self.device = next(net.parameters()).device
        self.weights = [
            p.data_ptr() for p in net.parameters()
        ]  # what is recorded reads them where they are
        self.cache = net.init_cache(max_rows, capacity)
        self.cache.rows.is_static = use_cuda_graphs
        self.logits = torch.zeros(max_rows, net.config.vocab_size, device=self.device)
        self.tokens, self.steps = (
            torch.zeros(max_rows, 1, dtype=torch.long, device=self.device) for _ in range(2)
        )
        self.token_counts: tuple[Tensor, Tensor] | None = (
            None  # how often each token was read and written, if it matters
        )
        self.logit_bias: Tensor | None = None  # what is added to the logits, if anything is
        self.prefix_tokens: Tensor | None = None  # tokens that texts begin with
        self.buffers: dict[
            BufferKey, Tensor
        ] = {}  # for these: what is recorded reads and writes them where they are
        self.first_token_bias = torch.zeros(
            vocab_size, device=self.device
        )  # what is added to the logits of a first token
        self.first_token_bias[
            [i for i in inference.begin_suppress_tokens if i < vocab_size]
        ] = -torch.inf
        self.suppress_tokens = [i for i in inference.suppress_tokens if i < vocab_size]
        self.fused_decoder = (
            FusedDecoder(net)
            if use_cuda_graphs and TRITON_AVAILABLE and supports_fused_decode(net)
            else None
        )
        self.graphs: dict[BufferKey, StepGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if use_cuda_graphs else None

    def matches(self, net: Transformer, known: int | None) -> bool:
        """Whether this is for that net, its weights where they were, and for so many tokens."""
        known = net.config.vocab_size if known is None else known
        return (
            net is self.net
            and known == self.vocab_size
            and self.weights == [p.data_ptr() for p in net.parameters()]
        )

    def refresh_weights(self) -> None:
        """The weights may have changed."""
        if self.fused_decoder is not None:
            self.fused_decoder.refresh_weights()

    def prefill(
        self, texts: Sequence[list[int]], row: int = 0, common: int = 0
    ) -> tuple[ModelCache, Tensor]:
        """Texts read together, with the logits that follow; all may begin with what a row holds already.

        Shorter texts are filled up at their ends, which nothing before them sees.
        """
        longest = max(map(len, texts))
        memory = self.net.init_cache(len(texts), longest)
        if common:
            memory.copy_rows(0, self.cache, [row] * len(texts), [common] * len(texts))
        ids = torch.tensor(
            [text[common:] + [0] * (longest - len(text)) for text in texts], device=self.device
        )
        last = torch.tensor([len(text) - common - 1 for text in texts], device=self.device)
        with sdpa_kernel(PREFILL_BACKENDS, set_priority=True):
            hidden = self.net(ids, cache=memory)[torch.arange(len(texts), device=self.device), last]
        return memory, self._predict(hidden[:, None])

    def swap_rows(self, row: int, other: int, lengths: Sequence[int]) -> None:
        """Two rows change places."""
        aside = self.net.init_cache(1, max(1, lengths[row]))
        aside.copy_rows(0, self.cache, [row], [lengths[row]])
        self.cache.copy_rows(row, self.cache, [other], [lengths[other]])
        self.cache.copy_rows(other, aside, [0], [lengths[row]])
        self.logits[[row, other]] = self.logits[[other, row]]

    def set_batch(self, live: Sequence[Request]) -> None:
        """Those whose texts are in the first rows, as they are now."""
        rows = self._rows(len(live))
        keys = [rng_key(request.config.seed, request.sample_index) for request in live]
        idle = rows - len(live)
        how = [request.config for request in live]
        draw = Sampler(
            [*how, *[SamplingConfig(temperature=0)] * idle],
            [*keys, *[0] * idle],
            self.device,
            self.use_cuda_graphs,
        )
        self.num_logprobs = max(request.num_logprobs for request in live)
        self.steps[: len(live)] = torch.tensor(
            [[request.num_scheduled] for request in live], device=self.device
        )
        self._count(live, draw.has_penalties)
        self._shape(live)
        if self.use_cuda_graphs:
            key = (
                rows,
                draw.graph_key,
                self.num_logprobs,
                self.logit_bias is None,
                None if self.prefix_tokens is None else self.prefix_tokens.shape[1],
            )
            self.graph = self.graphs.setdefault(key, StepGraph(draw))
            self.graph.sampler.copy_from(draw)
            draw = self.graph.sampler
        self.sampler = draw

    def step(self, live: int, reading: bool) -> SampledTokens:
        """One more token for each of the first rows; it need not be read where nothing follows it."""
        rows = self.cache.rows.n_active = self._rows(live)
        if not self.use_cuda_graphs:
            return SampledTokens(self._step(rows, reading)[:live])
        if (now := self.graph).graph is None and now.output is not None:
            now.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(now.graph, pool=self.pool, capture_error_mode=GRAPH_CAPTURE_MODE):
                now.output = self._step(rows, True)
        if now.graph is None:
            now.output = self._aside(rows)
        else:
            now.graph.replay()
        assert now.output is not None
        return SampledTokens(now.output[:live])

    def _step(self, rows: int, reading: bool) -> Tensor:
        logits = self.logits[:rows]
        places = self.steps[:rows]
        counts = (
            None
            if self.token_counts is None
            else (self.token_counts[0][:rows], self.token_counts[1][:rows])
        )
        tokens, log_probs = self.sampler(logits, places, self.vocab_size, counts, self._added(rows))
        if self.prefix_tokens is not None:
            asked = self.prefix_tokens[:rows].gather(
                1, places.clamp(max=self.prefix_tokens.shape[1] - 1)
            )[:, 0]
            tokens = torch.where(asked >= 0, asked, tokens)
            log_probs = (logits.gather(1, tokens[:, None]) - logits.logsumexp(-1, keepdim=True))[
                :, 0
            ]
        drawn = [tokens[:, None].double(), log_probs[:, None].double()]
        if self.num_logprobs:
            best = logits.log_softmax(dim=-1)[:, : self.vocab_size].topk(
                min(self.num_logprobs, self.vocab_size)
            )
            drawn += [best.indices.double(), best.values.double()]
        if counts is not None:
            counts[1].scatter_add_(1, tokens[:, None], torch.ones_like(tokens[:, None]))
        self.tokens[:rows, 0] = tokens
        self.steps[:rows] += 1
        if reading:
            tokens = self.tokens[:rows]
            if self.fused_decoder is None:
                self.logits[:rows] = self._predict(self.net(tokens, cache=self.cache))
            else:
                self.logits[:rows] = self.fused_decoder(tokens, self.cache)
        return torch.cat(drawn, dim=1)

    def _aside(self, rows: int) -> Tensor:
        """On another stream, as the step before a recording must be."""
        here = torch.cuda.current_stream()
        there = torch.cuda.Stream()
        there.wait_stream(here)
        with torch.cuda.stream(there):
            drawn = self._step(rows, True)
        here.wait_stream(there)
        return drawn

    def _predict(self, hidden: Tensor) -> Tensor:
        return self.net.compute_logits(hidden)[:, -1].float()

    def _rows(self, live: int) -> int:
        """So many rows take part: where steps are recorded there are few sizes, so that few are recorded."""
        if not self.use_cuda_graphs or live <= 2:
            return live
        step = max(4, 1 << (live - 1).bit_length() - 2)
        return min(-(-live // step) * step, len(self.tokens))

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """Rows of that width, always the same ones."""
        if (name, width) not in self.buffers:
            self.buffers[name, width] = torch.zeros(
                len(self.tokens), width, dtype=dtype, device=self.device
            )
        return self.buffers[name, width]

    def _count(self, live: Sequence[Request], looks_back: bool) -> None:
        self.token_counts = None
        if looks_back:
            read, written = (
                self._buffer(name, self.vocab_size, torch.long) for name in ("read", "written")
            )
            self.token_counts = read, written
            for row, request in enumerate(live):
                for counts, text in (
                    (read, request.prompt),
                    (written, [c.token for c in request.output]),
                ):
                    counts[row] = torch.bincount(
                        torch.tensor(text, dtype=torch.long), minlength=self.vocab_size
                    )[: self.vocab_size]

    def _shape(self, live: Sequence[Request]) -> None:
        """What each adds to its logits, forbids or begins with."""
        wishes = [request.config for request in live]
        self.logit_bias = None
        self.prefix_tokens = None
        if self.suppress_tokens or any(s.logit_bias or s.suppress_tokens for s in wishes):
            self.logit_bias = self._buffer("extra", self.vocab_size, torch.float32).zero_()
            for row, s in zip(self.logit_bias, wishes, strict=False):
                if s.logit_bias:
                    row[list(s.logit_bias)] = torch.tensor(
                        list(s.logit_bias.values()), device=self.device, dtype=row.dtype
                    )
                row[[*self.suppress_tokens, *s.suppress_tokens]] = -torch.inf
        if most := max(len(s.prefix_tokens) for s in wishes):
            begins = [[*s.prefix_tokens, *[-1] * (most + 1 - len(s.prefix_tokens))] for s in wishes]
            self.prefix_tokens = self._buffer("forced", most + 1, torch.long).fill_(-1)
            self.prefix_tokens[: len(live)] = torch.tensor(begins, device=self.device)

    def _added(self, rows: int) -> Tensor | None:
        if not self.inference.begin_suppress_tokens:
            return None if self.logit_bias is None else self.logit_bias[:rows]
        first = torch.where(self.steps[:rows] == 0, self.first_token_bias, 0.0)
        return first if self.logit_bias is None else first + self.logit_bias[:rows]


# ---- engine: Texts written side by side: each has a row of the memory, and joins and leaves at any step.

LOOKAHEAD_STEPS = 1  # steps begun on a GPU before the one before is looked at
MAX_PREFILL_TOKENS = 8192  # tokens of prompts that are read at once
MIN_SHARED_PREFIX = 16  # tokens in common that are worth copying


class BatchEngine:
    """A network that writes up to `slots` texts at once; `step` goes one token on in each."""

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
        self.runner = ModelRunner(
            net,
            inference,
            slots,
            capacity,
            net.config.vocab_size if vocab_size is None else vocab_size,
            use_cuda_graphs,
        )
        self.lookahead = LOOKAHEAD_STEPS if use_cuda_graphs else 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the first rows
        self.row_tokens: list[list[int]] = [
            [] for _ in range(slots)
        ]  # tokens of each row; of a live one, when it joined
        self.row_lengths = [0] * slots  # how many tokens each row holds
        self.released_at = [0] * slots  # when each was left, counted in leavings
        self.pending: deque[tuple[list[Request], SampledTokens]] = deque()
        self.finished_steps: deque[list[Request]] = (
            deque()
        )  # by steps that were looked at before anyone asked
        self.batch_changed = False
        self.lock = Lock()

    def try_acquire(self) -> bool:
        """For one writer alone, unless another has it."""
        return self.lock.acquire(blocking=False)

    def release(self) -> None:
        if self.lock.locked():
            self.lock.release()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do; those that were told to end do not count."""
        return not self.finished_steps and all(
            r.finish_reason for r in (*self.waiting, *self.running)
        )

    def add_request(self, request: Request) -> None:
        """Queues a request; it starts when there is a row for it."""
        self.validate(request)
        self.waiting.append(request)

    def validate(self, request: Request) -> None:
        """Refuses what could not be written."""
        if not request.prompt:
            raise ClearheadError(
                "the prompt is empty; there must be at least one token to go on from."
            )
        if self.capacity < 2:
            raise ClearheadError(
                "a context of one token has no room to write in; it takes at least two."
            )
        for name in ("logit_bias", "suppress_tokens", "prefix_tokens", "stop_tokens"):
            for token in getattr(request.config, name):
                if not 0 <= token < self.runner.vocab_size:
                    raise ClearheadError(
                        f"{name}: there is no token {token}; ids are 0 to {self.runner.vocab_size - 1}."
                    )
        if (
            len({*request.config.suppress_tokens, *self.runner.suppress_tokens})
            >= self.runner.vocab_size
        ):
            raise ClearheadError("all tokens are banned; there must be one that can be written.")
        if request.config.overflow == "error":
            check_prompt_length(len(request.prompt), request.config.max_tokens, self.capacity)

    def clear_prefix_cache(self) -> None:
        """What rows held that are left; the weights may have changed."""
        self.row_tokens = [[] for _ in self.row_tokens]
        self.runner.refresh_weights()

    @torch.no_grad()
    def step(self) -> list[Request]:
        """One more token for the texts under way; those are given back, and none if nothing is left to do."""
        while not self.is_idle or self.pending or self.running:
            with eval_mode(self.runner.net):
                self._leave()
                self._join()
                begun = self._begin()
            if self.pending and (len(self.pending) > self.lookahead or not begun):
                self._look()
            while self.finished_steps:
                if told := self.finished_steps.popleft():
                    return told
        return []

    def _leave(self) -> None:
        """Those that ended leave, and those that slide join again; the last row takes the place of one left."""
        if any(self._full(row) for row in range(len(self.running))):
            self._settle()
        for row in reversed(range(len(self.running))):
            request = self.running[row]
            full = self._full(row)
            if (
                not request.finish_reason
                and request.num_scheduled < request.config.max_tokens
                and not full
            ):
                continue
            if full and not request.finish_reason:
                request.window_start = len(request.tokens) - self.capacity // 2
                self.waiting.appendleft(request)
            last = len(self.running) - 1
            # Where steps are recorded a free row may be written to behind its end; at most its last place is lost.
            whole = min(self.row_lengths[row], self.capacity - 1)
            self.row_tokens[row] = [] if full else request.tokens[request.window_start :][:whole]
            self.released_at[row] = max(self.released_at) + 1
            if row < last:
                self._swap(row, last)
            self.running[row] = self.running[last]
            self.running.pop()
            self.batch_changed = True

    def _full(self, row: int) -> bool:
        """Whether there is no room for the next token of a text that is to go on."""
        return (
            self.row_lengths[row] == self.capacity
            and self.running[row].num_scheduled < self.running[row].config.max_tokens
        )

    def _swap(self, row: int, other: int) -> None:
        self.runner.swap_rows(row, other, self.row_lengths)
        self.row_tokens[row], self.row_tokens[other] = self.row_tokens[other], self.row_tokens[row]
        self.row_lengths[row], self.row_lengths[other] = (
            self.row_lengths[other],
            self.row_lengths[row],
        )
        self.released_at[row], self.released_at[other] = (
            self.released_at[other],
            self.released_at[row],
        )

    def _join(self) -> None:
        """Those that wait get the free rows. What a text has in common with a row is not read again; texts that go on
        from the same row are read together, and so are new ones, unless they have much in common themselves."""
        joining: list[Request] = []
        while self.waiting and len(self.running) + len(joining) < self.slots:
            request = self.waiting.popleft()
            if not request.finish_reason:
                joining.append(request)
        joining.sort(key=lambda request: len(request.tokens) - self._start(request))
        while joining:
            later = list[Request]()
            group = dict[tuple[int, ...], list[Request]]()
            for request in joining:
                text = request.tokens[request.window_start :]
                if not group:
                    row, common = self._known(text)
                if (key := tuple(text)) in group or self._goes_with(group, text, row, common):
                    group.setdefault(key, []).append(request)
                else:
                    later.append(request)
            read = self.runner.prefill([list(key) for key in group], row, common)
            theirs = [i for i, same in enumerate(group.values()) for _ in same]
            texts = [list(key) for key, same in group.items() for _ in same]
            self._seat(
                [request for same in group.values() for request in same], texts, theirs, *read
            )
            joining = later

    def _goes_with(
        self, group: Mapping[tuple[int, ...], object], text: list[int], row: int, common: int
    ) -> bool:
        """Whether a text is read together with others that have so much in common with a row."""
        if group and len(text) * (len(group) + 1) > min(
            MAX_PREFILL_TOKENS, 2 * (len(text) + sum(map(len, group)))
        ):
            return False
        if common:
            return self._known(text) == (row, common)
        return not self._known(text)[1] and all(
            common_prefix_length(text, other) < MIN_SHARED_PREFIX for other in group
        )

    def _start(self, request: Request) -> int:
        """Where its text is read from: a prompt that leaves no room slides too."""
        if (
            request.config.overflow == "slide"
            and len(request.tokens) - request.window_start >= self.capacity
        ):
            request.window_start = len(request.tokens) - self.capacity // 2
        return request.window_start

    def _known(self, text: list[int]) -> tuple[int, int]:
        """The row that begins most like a text, and how many tokens they have in common; the last is read anyway."""
        best = (0, 0)
        for row, held in enumerate(self.row_tokens):
            same = min(common_prefix_length(text, held), len(text) - 1)
            if same >= MIN_SHARED_PREFIX and same > best[1]:
                best = row, same
        return best

    def _seat(
        self,
        requests: list[Request],
        texts: list[list[int]],
        theirs: list[int],
        memory: ModelCache,
        logits: torch.Tensor,
    ) -> None:
        """Into the first free rows; what those held goes where the oldest was."""
        desk = self.runner
        first = len(self.running)
        for new, text in enumerate(texts, first):
            later = range(first + len(texts), self.slots)
            oldest = min(later, key=lambda i: self.released_at[i], default=new)
            if self.row_tokens[new] and self.released_at[oldest] < self.released_at[new]:
                desk.cache.copy_rows(oldest, desk.cache, [new], [self.row_lengths[new]])
                self.row_tokens[oldest], self.row_lengths[oldest] = (
                    self.row_tokens[new],
                    self.row_lengths[new],
                )
                self.released_at[oldest] = self.released_at[new]
            self.row_tokens[new], self.row_lengths[new] = text, len(text)
        desk.cache.copy_rows(first, memory, theirs, [*map(len, texts)])
        desk.logits[first : first + len(texts)] = logits[theirs]
        self.running += requests
        self.batch_changed = True

    def _begin(self) -> bool:
        """A step of the device, if anyone is there."""
        if not self.running:
            return False
        if self.batch_changed:
            if any(request.config.has_penalties for request in self.running):
                self._settle()
            self.runner.set_batch(self.running)
            self.batch_changed = False
        rows = self.runner.cache.rows
        now = self.row_lengths[: len(self.running)]
        if not self.runner.use_cuda_graphs:
            rows.max_length = max(now)
            rows.is_uniform = min(now) == max(now)
        for request in self.running:
            request.num_scheduled += 1
        reading = self.runner.use_cuda_graphs or any(
            request.num_scheduled < request.config.max_tokens for request in self.running
        )
        for row in range(len(self.running)):
            self.row_lengths[row] += reading
        self.pending.append((list(self.running), self.runner.step(len(self.running), reading)))
        return True

    def _settle(self) -> None:
        """Everything that was begun becomes known."""
        while self.pending:
            self._look()

    def _look(self) -> None:
        """At what the oldest step drew."""
        live, drawn = self.pending.popleft()
        told = list[Request]()
        broken = 0
        for request, (token, logprob, *others) in zip(live, drawn.to_list(), strict=True):
            if request.finish_reason:
                continue
            if math.isnan(logprob):
                request.finish("broken")
                broken = len(request.output) + 1
                continue
            half = len(others) // 2
            top = min(request.num_logprobs, len(others) // 2)
            best = tuple(zip(map(int, others[:top]), others[half : half + top], strict=True))
            request.output.append(TokenLogprob(int(token), logprob, best))
            told.append(request)
            if int(token) in self.inference.eos_tokens or int(token) in request.config.stop_tokens:
                request.finish("stop")
            elif len(request.output) == request.config.max_tokens:
                request.finish("length")
        self.finished_steps.append(told)
        if broken:
            raise NonFiniteError(f"the logits of token {broken}")


def check_prompt_length(prompt: int, more: int, most: int) -> None:
    if prompt >= most:
        raise ClearheadError(
            f"{prompt} tokens leave no room in the context of {most}; overflow slide makes some."
        )
    if prompt + more > most:
        room = f"the context of {most}; ask for at most {most - prompt}, or for overflow slide"
        raise ClearheadError(f"{prompt} tokens of prompt and {more} to write exceed {room}.")
