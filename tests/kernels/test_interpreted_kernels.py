"""GPU kernels compute what torch computes, in Triton's interpreter, which needs no GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_kernels_equal_torch():
    script = Path(__file__).with_name("interpreted_kernels.py")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, timeout=300
    )
    assert run.stdout == "kernels equal torch\n", run.stderr[-2000:]
