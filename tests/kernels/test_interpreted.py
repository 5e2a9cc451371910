"""Kernels for GPUs are tried where there is none, if triton is there to interpret them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(
    find_spec("triton") is None, reason="needs triton, which may be installed without a GPU"
)
def test_kernels_compute_what_torch_computes():
    script = Path(__file__).with_name("interpreted.py")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, timeout=300
    )
    assert run.stdout == "all as torch has them\n", run.stderr[-2000:]
