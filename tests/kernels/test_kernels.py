"""Triton kernels compute what torch computes, in Triton's interpreter and on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("check_kernels.py")
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


def check(env):
    run = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, env=env, timeout=300
    )
    assert run.stdout == "kernels equal torch\n", run.stderr[-2000:]


def test_interpreted_kernels_equal_torch():
    check({**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_equal_torch_on_a_gpu():
    check({name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})
