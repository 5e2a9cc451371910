"""Triton kernels compute what torch computes, in Triton's interpreter and on a GPU."""

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import clearhead as ch
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


@needs_triton
def test_activations_without_a_kernel_are_not_fused(monkeypatch):
    from clearhead.generate import fused_decode

    net = ch.new("tiny-decoder").net
    assert fused_decode.supports_fused_decode(net)
    monkeypatch.delitem(fused_decode.ACTIVATION_IDS, net.config.ffn.activation)
    assert not fused_decode.supports_fused_decode(net)


CUDA = torch.device("cuda")


@pytest.fixture
def loss_kernel(monkeypatch):
    """Stands for `kernels.cross_entropy` on a GPU: counts its calls and raises its `error`."""
    module = ModuleType("clearhead.kernels.cross_entropy")
    module.calls = 0
    module.error = None

    def fused_cross_entropy(*args):
        module.calls += 1
        if module.error:
            raise module.error

    module.fused_cross_entropy = fused_cross_entropy
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(kernels, "TRITON_AVAILABLE", True)
    monkeypatch.setattr(kernels, "_kernels_run", None)
    monkeypatch.setattr(torch, "zeros", lambda *size, device, dtype=None: torch.empty(size))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return module


@pytest.mark.parametrize("error", [None, RuntimeError("no C compiler"), OSError("no gcc")])
def test_kernels_are_used_only_if_one_runs(error, loss_kernel):
    loss_kernel.error = error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [kernels.can_use_triton(CUDA) for _ in range(2)] == [error is None] * 2
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (error is not None)  # once, with the reason
    assert all(str(error) in message for message in messages)
    assert loss_kernel.calls == 1  # the answer is kept
    assert not kernels.can_use_triton(torch.device("cpu"))


def test_out_of_memory_does_not_disable_kernels(loss_kernel):
    loss_kernel.error = torch.OutOfMemoryError("no memory left")
    with pytest.raises(torch.OutOfMemoryError):
        kernels.can_use_triton(CUDA)
    loss_kernel.error = None
    assert kernels.can_use_triton(CUDA)
