"""Triton kernels for GPUs. None is required: each speeds up a few lines of torch elsewhere."""

from importlib.util import find_spec

import torch

TRITON_AVAILABLE = find_spec("triton") is not None
GRAPH_CAPTURE_MODE = "thread_local"  # other threads may use the GPU during CUDA graph capture

_kernels_compile: bool | None = None


def can_use_triton(device: torch.device) -> bool:
    """Whether the kernels compile here: Triton needs a GPU it supports and a C compiler."""
    global _kernels_compile
    if not TRITON_AVAILABLE or device.type != "cuda":
        return False
    if _kernels_compile is None:
        if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
            return True  # a kernel cannot be tried now
        from clearhead.kernels.cross_entropy import kernel_compiles

        _kernels_compile = kernel_compiles(device)
    return _kernels_compile
