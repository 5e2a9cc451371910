"""What a device holds of the texts under way, a row for each: memory, logits of the next token, counts.

One step draws a token for each row and reads it. Nothing of it waits for the device: what was drawn is copied out
beside the next step. On a GPU the step is recorded at its second call and then replayed (CUDA graphs).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.config import Use
from clearhead.generate.draw import Draw, key_of
from clearhead.generate.request import Request
from clearhead.generate.sampling import Sampling
from clearhead.kernels import ALONE, TRITON
from clearhead.model.caches import Memory
from clearhead.model.transformer import Transformer

# cuDNN's kernel is made anew for each length of a text, which takes longer than reading it
QUICK = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
if TRITON:
    from clearhead.generate.swift import Swift, suits

Key = tuple[object, ...]


@dataclass
class Recording:
    """A step that is replayed: its draws can be set, and it leaves what it drew in one place."""

    draw: Draw
    graph: torch.cuda.CUDAGraph | None = None
    drawn: Tensor | None = None


class Drawn:
    """The tokens of one step, each with its log-probability and the likeliest others; here as soon as they can be."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.event = table, None
        if table.is_cuda:
            self.table = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
            self.table.copy_(table, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def rows(self) -> list[list[float]]:
        if self.event is not None:
            self.event.synchronize()
        found: list[list[float]] = self.table.tolist()
        return found


class Desk:
    """Rows of a network that writes; the first so many are at work."""

    def __init__(self, net: Transformer, use: Use, rows: int, capacity: int, known: int, recorded: bool) -> None:
        self.net, self.use, self.known, self.recorded = net, use, known, recorded
        self.device = next(net.parameters()).device
        self.weights = [p.data_ptr() for p in net.parameters()]  # what is recorded reads them where they are
        self.memory = net.remember(rows, capacity)
        self.memory.rows.fixed = recorded
        self.logits = torch.zeros(rows, net.config.vocabulary, device=self.device)
        self.tokens, self.places = (torch.zeros(rows, 1, dtype=torch.long, device=self.device) for _ in range(2))
        self.counts: tuple[Tensor, Tensor] | None = None  # how often each token was read and written, if it matters
        self.extra: Tensor | None = None  # what is added to the logits, if anything is
        self.forced: Tensor | None = None  # tokens that texts begin with
        self.buffers: dict[Key, Tensor] = {}  # for these: what is recorded reads and writes them where they are
        self.first = torch.zeros(known, device=self.device)  # what is added to the logits of a first token
        self.first[[i for i in use.never_first if i < known]] = -torch.inf
        self.never = [i for i in use.never if i < known]
        self.swift = Swift(net) if recorded and TRITON and suits(net) else None
        self.recordings: dict[Key, Recording] = {}
        self.pool = torch.cuda.graph_pool_handle() if recorded else None

    def same(self, net: Transformer, known: int | None) -> bool:
        """Whether this is for that net, its weights where they were, and for so many tokens."""
        known = net.config.vocabulary if known is None else known
        return net is self.net and known == self.known and self.weights == [p.data_ptr() for p in net.parameters()]

    def refresh(self) -> None:
        """The weights may have changed."""
        if self.swift is not None:
            self.swift.refresh()

    def read(self, texts: Sequence[list[int]], row: int = 0, common: int = 0) -> tuple[Memory, Tensor]:
        """Texts read together, with the logits that follow; all may begin with what a row holds already.

        Shorter texts are filled up at their ends, which nothing before them sees.
        """
        longest = max(map(len, texts))
        memory = self.net.remember(len(texts), longest)
        if common:
            memory.put(0, self.memory, [row] * len(texts), [common] * len(texts))
        ids = torch.tensor([text[common:] + [0] * (longest - len(text)) for text in texts], device=self.device)
        last = torch.tensor([len(text) - common - 1 for text in texts], device=self.device)
        with sdpa_kernel(QUICK, set_priority=True):
            hidden = self.net(ids, memory=memory)[torch.arange(len(texts), device=self.device), last]
        return memory, self._predict(hidden[:, None])

    def swap(self, row: int, other: int, lengths: Sequence[int]) -> None:
        """Two rows change places."""
        aside = self.net.remember(1, max(1, lengths[row]))
        aside.put(0, self.memory, [row], [lengths[row]])
        self.memory.put(row, self.memory, [other], [lengths[other]])
        self.memory.put(other, aside, [0], [lengths[row]])
        self.logits[[row, other]] = self.logits[[other, row]]

    def arrange(self, live: Sequence[Request]) -> None:
        """Those whose texts are in the first rows, as they are now."""
        rows = self._rows(len(live))
        keys = [key_of(request.sampling.seed, request.sample) for request in live]
        idle = rows - len(live)
        how = [request.sampling for request in live]
        draw = Draw([*how, *[Sampling(temperature=0)] * idle], [*keys, *[0] * idle], self.device, self.recorded)
        self.top = max(request.top for request in live)
        self.places[: len(live)] = torch.tensor([[request.asked] for request in live], device=self.device)
        self._count(live, draw.looks_back)
        self._shape(live)
        if self.recorded:
            key = (rows, draw.form, self.top, self.extra is None, None if self.forced is None else self.forced.shape[1])
            self.recording = self.recordings.setdefault(key, Recording(draw))
            self.recording.draw.become(draw)
            draw = self.recording.draw
        self.draw = draw

    def step(self, live: int, reading: bool) -> Drawn:
        """One more token for each of the first rows; it need not be read where nothing follows it."""
        rows = self.memory.rows.used = self._rows(live)
        if not self.recorded:
            return Drawn(self._step(rows, reading)[:live])
        if (now := self.recording).graph is None and now.drawn is not None:
            now.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(now.graph, pool=self.pool, capture_error_mode=ALONE):
                now.drawn = self._step(rows, True)
        if now.graph is None:
            now.drawn = self._aside(rows)
        else:
            now.graph.replay()
        assert now.drawn is not None
        return Drawn(now.drawn[:live])

    def _step(self, rows: int, reading: bool) -> Tensor:
        logits, places = self.logits[:rows], self.places[:rows]
        counts = None if self.counts is None else (self.counts[0][:rows], self.counts[1][:rows])
        tokens, log_probs = self.draw(logits, places, self.known, counts, self._added(rows))
        if self.forced is not None:
            asked = self.forced[:rows].gather(1, places.clamp(max=self.forced.shape[1] - 1))[:, 0]
            tokens = torch.where(asked >= 0, asked, tokens)
            log_probs = (logits.gather(1, tokens[:, None]) - logits.logsumexp(-1, keepdim=True))[:, 0]
        drawn = [tokens[:, None].double(), log_probs[:, None].double()]
        if self.top:
            best = logits.log_softmax(dim=-1)[:, : self.known].topk(min(self.top, self.known))
            drawn += [best.indices.double(), best.values.double()]
        if counts is not None:
            counts[1].scatter_add_(1, tokens[:, None], torch.ones_like(tokens[:, None]))
        self.tokens[:rows, 0] = tokens
        self.places[:rows] += 1
        if reading:
            tokens = self.tokens[:rows]
            if self.swift is None:
                self.logits[:rows] = self._predict(self.net(tokens, memory=self.memory))
            else:
                self.logits[:rows] = self.swift(tokens, self.memory)
        return torch.cat(drawn, dim=1)

    def _aside(self, rows: int) -> Tensor:
        """On another stream, as the step before a recording must be."""
        here, there = torch.cuda.current_stream(), torch.cuda.Stream()
        there.wait_stream(here)
        with torch.cuda.stream(there):
            drawn = self._step(rows, True)
        here.wait_stream(there)
        return drawn

    def _predict(self, hidden: Tensor) -> Tensor:
        return self.net.predict(hidden)[:, -1].float()

    def _rows(self, live: int) -> int:
        """So many rows take part: where steps are recorded there are few sizes, so that few are recorded."""
        if not self.recorded or live <= 2:
            return live
        step = max(4, 1 << (live - 1).bit_length() - 2)
        return min(-(-live // step) * step, len(self.tokens))

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """Rows of that width, always the same ones."""
        if (name, width) not in self.buffers:
            self.buffers[name, width] = torch.zeros(len(self.tokens), width, dtype=dtype, device=self.device)
        return self.buffers[name, width]

    def _count(self, live: Sequence[Request], looks_back: bool) -> None:
        self.counts = None
        if looks_back:
            read, written = (self._buffer(name, self.known, torch.long) for name in ("read", "written"))
            self.counts = read, written
            for row, request in enumerate(live):
                for counts, text in ((read, request.prompt), (written, [c.token for c in request.written])):
                    counts[row] = torch.bincount(torch.tensor(text, dtype=torch.long), minlength=self.known)[
                        : self.known
                    ]

    def _shape(self, live: Sequence[Request]) -> None:
        """What each adds to its logits, forbids or begins with."""
        wishes, self.extra, self.forced = [request.sampling for request in live], None, None
        if self.never or any(s.bias or s.banned for s in wishes):
            self.extra = self._buffer("extra", self.known, torch.float32).zero_()
            for row, s in zip(self.extra, wishes, strict=False):
                if s.bias:
                    row[list(s.bias)] = torch.tensor(list(s.bias.values()), device=self.device, dtype=row.dtype)
                row[[*self.never, *s.banned]] = -torch.inf
        if most := max(len(s.forced) for s in wishes):
            begins = [[*s.forced, *[-1] * (most + 1 - len(s.forced))] for s in wishes]
            self.forced = self._buffer("forced", most + 1, torch.long).fill_(-1)
            self.forced[: len(live)] = torch.tensor(begins, device=self.device)

    def _added(self, rows: int) -> Tensor | None:
        if not self.use.never_first:
            return None if self.extra is None else self.extra[:rows]
        first = torch.where(self.places[:rows] == 0, self.first, 0.0)
        return first if self.extra is None else first + self.extra[:rows]
