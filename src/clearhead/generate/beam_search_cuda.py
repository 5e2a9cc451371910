"""Beam search with CUDA graphs: the second search of a shape is recorded, later ones replay it.

When beams are reordered, their KV cache stays in place; a table says which row holds each token
(`rows.kv_owner`).
"""

from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import config as c
from clearhead.generate.beam_search import BeamSearch, Hypothesis
from clearhead.kernels import GRAPH_CAPTURE_MODE, TRITON_AVAILABLE, can_use_triton
from clearhead.model.transformer import EditedTransformer, Transformer

if TRITON_AVAILABLE:
    from clearhead.generate.fused_decode import FusedDecoder, supports_fused_decode

MAX_GRAPHS = 4  # kept per network
SOURCE_LENGTH_MULTIPLE = 16  # sources are padded to it, so that few graphs are needed

GraphKey = tuple[object, ...]
GraphCache = dict[GraphKey, "BeamSearchGraph | None"]  # None: searched once, not yet recorded
GRAPH_CACHES: WeakKeyDictionary[Transformer, GraphCache] = WeakKeyDictionary()
GRAPH_CACHES_LOCK = Lock()


def run_on_gpu(search: BeamSearch) -> list[list[Hypothesis]]:
    """Run a beam search, with CUDA graphs where its operations do not depend on its data."""
    can_record = (
        search.has_equal_lengths
        and not any(search.trees)
        and not any(search.prefixes)
        and not isinstance(search.net, EditedTransformer)
    )
    return run_with_graphs(search) if can_record else search.run()


def run_with_graphs(search: BeamSearch) -> list[list[Hypothesis]]:
    """Replay a graph of the same shape, or run the search. A graph serves one search at a time."""
    key = graph_key(search)
    with GRAPH_CACHES_LOCK:
        cache = GRAPH_CACHES.setdefault(search.net, {})
        was_searched = key in cache
        graph = cache.pop(key, None)
    if was_searched:
        graph = graph or BeamSearchGraph(search)
    results = graph.run(search) if graph else search.run()
    with GRAPH_CACHES_LOCK:
        cache[key] = graph or cache.pop(key, None)  # the most recently used is evicted last
        while len(cache) > MAX_GRAPHS:
            cache.pop(next(iter(cache)))
    return results


def pad_source(
    net: Transformer, source: Tensor | None, segment_ids: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Pad the token ids of sources to a multiple of 16."""
    if source is None or source.is_floating_point() or net.encoder is None:
        return source, segment_ids
    if segment_ids is None:
        segment_ids = torch.ones_like(source)
    length = source.shape[1]
    room = net.encoder.context_length - length
    padding = max(0, min(-length % SOURCE_LENGTH_MULTIPLE, room))
    return F.pad(source, (0, padding)), F.pad(segment_ids, (0, padding))


def supports_kv_owner(m: c.ModelConfig) -> bool:
    """Whether attention can read keys from other rows; otherwise reordered beams are copied."""
    has_no_bias = isinstance(m.position, c.NoPosition | c.Learned | c.Sinusoidal | c.Rotary)
    return TRITON_AVAILABLE and has_no_bias and not m.attention.sliding_window


def graph_key(search: BeamSearch) -> GraphKey:
    """Everything that a graph records, including where the weights are."""
    source = None if search.source is None else (search.source.shape, search.source.dtype)
    return (
        *search.rules.options(),
        search.input_ids.shape,
        search.has_equal_lengths,
        source,
        search.source_segment_ids is None,
        *(parameter.data_ptr() for parameter in search.net.parameters()),
    )


class BeamSearchGraph:
    """The CUDA graphs of one search. Other searches are copied into its tensors."""

    def __init__(self, search: BeamSearch) -> None:
        self.search = search
        self.prefill_graph = torch.cuda.CUDAGraph()
        self.step_graph = torch.cuda.CUDAGraph()
        rows = search.cache.rows
        can_use_kernels = can_use_triton(rows.lengths.device)  # tried now, not during capture
        uses_kv_owner = can_use_kernels and supports_kv_owner(search.net.config)
        row_index = torch.arange(len(rows.lengths), dtype=torch.int32, device=rows.lengths.device)
        self.initial_owner = row_index[:, None].repeat(1, rows.capacity)
        if uses_kv_owner and supports_fused_decode(search.net):
            search.fused_decoder = FusedDecoder(search.net)
        self.fused_decoder = search.fused_decoder
        with torch.cuda.graph(self.prefill_graph, capture_error_mode=GRAPH_CAPTURE_MODE):
            search.prefill()
            rows.kv_owner = self.initial_owner.clone() if uses_kv_owner else None
        rows.is_static = True
        rows.max_length = rows.capacity
        with torch.cuda.graph(
            self.step_graph, pool=self.prefill_graph.pool(), capture_error_mode=GRAPH_CAPTURE_MODE
        ):
            search.step()
        # References to the network would keep it alive in GRAPH_CACHES.
        del search.net, search.fused_decoder
        if self.fused_decoder is not None:
            del self.fused_decoder.net

    def run(self, other: BeamSearch) -> list[list[Hypothesis]]:
        """Run another search of the same shape."""
        search = self.search
        search.input_ids.copy_(other.input_ids)
        search.prompt_lengths.copy_(other.prompt_lengths)
        if search.source is not None and other.source is not None:
            search.source.copy_(other.source)
        if search.source_segment_ids is not None and other.source_segment_ids is not None:
            search.source_segment_ids.copy_(other.source_segment_ids)
        search.initial_state.copy_from(other.initial_state)
        search.active = other.active
        search.prefixes = other.prefixes
        search.trees = other.trees
        search.results = {}
        if self.fused_decoder is not None:
            self.fused_decoder.refresh_weights()
        return search.run_with(self.prefill_graph.replay, self.step_graph.replay)
