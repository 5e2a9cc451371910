"""Triton kernels compute what torch computes, in Triton's interpreter and on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from clearhead import kernels

SCRIPT = Path(__file__).with_name("check_kernels.py")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


def check(env):
    run = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, env=env, timeout=300
    )
    assert run.stdout == "kernels equal torch\n", run.stderr[-2000:]


@needs_triton
def test_interpreted_kernels_equal_torch():
    check({**os.environ, "TRITON_INTERPRET": "1"})


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_equal_torch_on_a_gpu():
    check({name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})


@pytest.mark.parametrize("compiles", [True, False])
def test_kernels_are_used_only_if_one_compiles(compiles, monkeypatch):
    asked = []
    probe = ModuleType("clearhead.kernels.cross_entropy")
    probe.kernel_compiles = lambda device: asked.append(device) or compiles
    monkeypatch.setitem(sys.modules, probe.__name__, probe)  # the real one needs triton
    monkeypatch.setattr(kernels, "TRITON_AVAILABLE", True)
    monkeypatch.setattr(kernels, "_kernels_compile", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    cuda = torch.device("cuda")
    assert [kernels.can_use_triton(cuda) for _ in range(2)] == [compiles] * 2
    assert asked == [cuda]  # the answer is kept
    assert not kernels.can_use_triton(torch.device("cpu"))


@needs_triton
@pytest.mark.parametrize("error", [RuntimeError("no C compiler"), OSError("no gcc")])
def test_probe_returns_whether_the_loss_kernel_runs(error, monkeypatch):
    from clearhead.kernels import cross_entropy

    def fail(*args):
        raise error

    monkeypatch.setattr(cross_entropy, "fused_cross_entropy", fail)
    assert not cross_entropy.kernel_compiles(torch.device("cpu"))
    error = torch.OutOfMemoryError("no memory left")
    with pytest.raises(torch.OutOfMemoryError):
        cross_entropy.kernel_compiles(torch.device("cpu"))
