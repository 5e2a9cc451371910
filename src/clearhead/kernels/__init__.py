"""Triton kernels for GPUs. None is required: each speeds up a few lines of torch elsewhere."""

from importlib.util import find_spec

import torch

from clearhead.errors import warn

TRITON_AVAILABLE = find_spec("triton") is not None
GRAPH_CAPTURE_MODE = "thread_local"  # other threads may use the GPU during CUDA graph capture

_kernels_run: bool | None = None


def can_use_triton(device: torch.device) -> bool:
    """Whether the kernels run here: Triton needs a GPU it supports and a C compiler."""
    global _kernels_run
    if not TRITON_AVAILABLE or device.type != "cuda":
        return False
    if _kernels_run is None:
        if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
            return True  # a kernel cannot be tried now
        _kernels_run = _try_kernel(device)
    return _kernels_run


def _try_kernel(device: torch.device) -> bool:
    """Whether the loss kernel runs, which stands for all kernels of this package."""
    from clearhead.kernels.cross_entropy import fused_cross_entropy

    hidden = torch.zeros(1, 16, device=device)
    weight = torch.zeros(4, 16, device=device)
    targets = torch.zeros(1, dtype=torch.long, device=device)
    try:
        fused_cross_entropy(hidden, weight, None, targets, 0.0)
    except torch.OutOfMemoryError:  # this says nothing about Triton
        raise
    except Exception as error:  # whatever failed, torch's own operations replace all kernels
        reason = str(error).strip().split("\n")[0].removesuffix(".") or type(error).__name__
        warn(f"Triton's kernels cannot be used, so the GPU is slower than it could be: {reason}.")
        return False
    return True
