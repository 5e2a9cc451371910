"""Beam searches on a GPU: the second of a form is recorded (CUDA graphs), and those that follow are replayed.

What beams remember is then never copied when they split: it is told anew which row holds each token (`rows.owner`).
"""

from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.generate.beam_rounds import ASK, Hypothesis, Search
from clearhead.kernels import ALONE, TRITON
from clearhead.model.transformer import Transformer

if TRITON:
    from clearhead.generate.swift import Swift, suits

FORMS = 4  # of searches that are kept for a net
Form = tuple[object, ...]
KEPT: WeakKeyDictionary[Transformer, dict[Form, "Recording | None"]] = WeakKeyDictionary()
LOCK = Lock()  # of what is kept


def replayed(search: Search) -> list[list[Hypothesis]]:
    """What `search.run()` finds; a recording is for one search at a time."""
    form = form_of(search)
    with LOCK:
        kept = KEPT.setdefault(search.net, {})
        known, recording = form in kept, kept.pop(form, None)
    if known:
        recording = recording or Recording(search)
    found = recording.run(search) if recording else search.run()
    with LOCK:
        kept[form] = recording or kept.pop(form, None)  # the last one used is the last to go
        while len(kept) > FORMS:
            kept.pop(next(iter(kept)))
    return found


def rounded(net: Transformer, source: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sources with room up to a multiple of 16 tokens, so that there are few forms."""
    segments = torch.ones_like(source) if segments is None else segments
    most = source.shape[1] if net.encoder is None else net.encoder.context
    room = (0, max(0, min(-source.shape[1] % 16, most - source.shape[1])))
    return F.pad(source, room), F.pad(segments, room)


def told_whose(m: c.ModelConfig) -> bool:
    """Whether attention can be told in which row each key lies; else beams that split are copied."""
    unbiased = isinstance(m.position, c.NoPositions | c.Learned | c.Sinusoidal | c.Rotary)
    return TRITON and unbiased and not m.attention.window


def form_of(search: Search) -> Form:
    """All that is written into a recording, where the weights lie among it."""
    rules = {name: value for name, value in vars(search.rules).items() if name not in ("ids", "device")}
    source = None if search.source is None else (search.source.shape, search.source.dtype)
    sides = (search.ids.shape, search.even, source, search.source_segments is None)
    return (*rules.items(), *sides, *(p.data_ptr() for p in search.net.parameters()))


class Recording:
    """One form of search: what is given is copied into the tensors of the search that was recorded."""

    def __init__(self, search: Search) -> None:
        self.search, rows = search, search.memory.rows
        self.begin, self.step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        owner = torch.arange(len(rows.held), dtype=torch.int32, device=rows.held.device)
        self.own = owner[:, None].repeat(1, rows.capacity)
        search.swift = Swift(search.net) if TRITON and told_whose(search.net.config) and suits(search.net) else None
        self.joined = [] if search.swift is None else search.swift.joined
        with torch.cuda.graph(self.begin, capture_error_mode=ALONE):
            search.begin()
            rows.owner = self.own.clone() if told_whose(search.net.config) else None
        rows.fixed, rows.longest = True, rows.capacity
        with torch.cuda.graph(self.step, pool=self.begin.pool(), capture_error_mode=ALONE):
            search.step()
        del search.net, search.swift  # else what is kept for a net would keep it alive

    def run(self, other: Search) -> list[list[Hypothesis]]:
        mine = self.search
        for name in ("ids", "lengths", "source", "source_segments"):
            if (held := getattr(mine, name)) is not None:
                held.copy_(getattr(other, name))
        mine.sentences, mine.prefixes, mine.found, mine.trees = other.sentences, other.prefixes, {}, other.trees
        mine.first.become(other.first)
        for joined in self.joined:
            joined.refresh()
        self.begin.replay()
        for step in range(mine.rules.max_tokens - 1):
            if step % ASK == 0 and not mine.leave():
                break
            self.step.replay()
        mine.collect(range(len(mine.sentences)))
        return [mine.found[i] for i in range(len(mine.found))]
