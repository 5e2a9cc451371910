"""Beam searches on a GPU: the second of a form is recorded (CUDA graphs), and those that follow are replayed.

What beams remember is then never copied when they split: it is told anew which row holds each token (`rows.owner`).
"""

from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.generate.beam_search import DONE_CHECK_INTERVAL, BeamSearch, Hypothesis
from clearhead.kernels import GRAPH_CAPTURE_MODE, TRITON_AVAILABLE
from clearhead.model.transformer import Transformer

if TRITON_AVAILABLE:
    from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode

MAX_GRAPHS = 4  # of searches that are kept for a net
GraphKey = tuple[object, ...]
GRAPH_CACHE: WeakKeyDictionary[Transformer, dict[GraphKey, "BeamSearchGraph | None"]] = (
    WeakKeyDictionary()
)
GRAPH_CACHE_LOCK = Lock()  # of what is kept


def run_with_graphs(search: BeamSearch) -> list[list[Hypothesis]]:
    """What `search.run()` finds; a recording is for one search at a time."""
    form = graph_key(search)
    with GRAPH_CACHE_LOCK:
        kept = GRAPH_CACHE.setdefault(search.net, {})
        known = form in kept
        recording = kept.pop(form, None)
    if known:
        recording = recording or BeamSearchGraph(search)
    found = recording.run(search) if recording else search.run()
    with GRAPH_CACHE_LOCK:
        kept[form] = recording or kept.pop(form, None)  # the last one used is the last to go
        while len(kept) > MAX_GRAPHS:
            kept.pop(next(iter(kept)))
    return found


def pad_source(
    net: Transformer, source: Tensor, segment_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sources with room up to a multiple of 16 tokens, so that there are few forms."""
    segment_ids = torch.ones_like(source) if segment_ids is None else segment_ids
    most = source.shape[1] if net.encoder is None else net.encoder.context_length
    room = (0, max(0, min(-source.shape[1] % 16, most - source.shape[1])))
    return F.pad(source, room), F.pad(segment_ids, room)


def supports_kv_owner(m: c.ModelConfig) -> bool:
    """Whether attention can be told in which row each key lies; else beams that split are copied."""
    unbiased = isinstance(m.position, c.NoPosition | c.Learned | c.Sinusoidal | c.Rotary)
    return TRITON_AVAILABLE and unbiased and not m.attention.sliding_window


def graph_key(search: BeamSearch) -> GraphKey:
    """All that is written into a recording, where the weights lie among it."""
    rules = {
        name: value for name, value in vars(search.rules).items() if name not in ("ids", "device")
    }
    source = None if search.source is None else (search.source.shape, search.source.dtype)
    sides = (
        search.input_ids.shape,
        search.equal_lengths,
        source,
        search.source_segment_ids is None,
    )
    return (*rules.items(), *sides, *(p.data_ptr() for p in search.net.parameters()))


class BeamSearchGraph:
    """One form of search: what is given is copied into the tensors of the search that was recorded."""

    def __init__(self, search: BeamSearch) -> None:
        self.search = search
        rows = search.cache.rows
        self.prefill_graph = torch.cuda.CUDAGraph()
        self.step_graph = torch.cuda.CUDAGraph()
        owner = torch.arange(len(rows.lengths), dtype=torch.int32, device=rows.lengths.device)
        self.row_owner = owner[:, None].repeat(1, rows.capacity)
        search.fused_decoder = (
            FusedDecoder(search.net)
            if TRITON_AVAILABLE
            and supports_kv_owner(search.net.config)
            and supports_fused_decode(search.net)
            else None
        )
        self.fused_qkv = [] if search.fused_decoder is None else search.fused_decoder.fused_qkv
        with torch.cuda.graph(self.prefill_graph, capture_error_mode=GRAPH_CAPTURE_MODE):
            search.prefill()
            rows.kv_owner = self.row_owner.clone() if supports_kv_owner(search.net.config) else None
        rows.is_static = True
        rows.max_length = rows.capacity
        with torch.cuda.graph(
            self.step_graph, pool=self.prefill_graph.pool(), capture_error_mode=GRAPH_CAPTURE_MODE
        ):
            search.step()
        del search.net, search.fused_decoder  # else what is kept for a net would keep it alive

    def run(self, other: BeamSearch) -> list[list[Hypothesis]]:
        mine = self.search
        for name in ("input_ids", "lengths", "source", "source_segment_ids"):
            if (held := getattr(mine, name)) is not None:
                held.copy_(getattr(other, name))
        mine.sentences = other.sentences
        mine.prefixes = other.prefixes
        mine.results = {}
        mine.trees = other.trees
        mine.initial_state.copy_from(other.initial_state)
        for joined in self.fused_qkv:
            joined.refresh_weights()
        self.prefill_graph.replay()
        for step in range(mine.rules.max_tokens - 1):
            if step % DONE_CHECK_INTERVAL == 0 and not mine.drop_finished():
                break
            self.step_graph.replay()
        mine.collect_results(range(len(mine.sentences)))
        return [mine.results[i] for i in range(len(mine.results))]
