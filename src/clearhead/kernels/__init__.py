"""Triton kernels for GPUs. None is required: each is the fast path of a few lines of torch behind
the same function.
"""

from importlib.util import find_spec

TRITON_AVAILABLE = find_spec("triton") is not None
GRAPH_CAPTURE_MODE = (
    "thread_local"  # CUDA graph capture that other threads' use of the GPU does not invalidate
)
