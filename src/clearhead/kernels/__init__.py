"""Kernels for GPUs, in triton, which torch brings along where it can use one. Nothing needs them: each is the swift
form of a few lines elsewhere, and stands behind the same call."""

from importlib.util import find_spec

TRITON_AVAILABLE = find_spec("triton") is not None
GRAPH_CAPTURE_MODE = "thread_local"  # how a step is recorded: what other threads ask of the GPU meanwhile does not break it
