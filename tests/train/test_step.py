"""A step is the same step however it is made fast, and what cannot be made fast is made slowly, with a line."""

import pytest
import torch
from jaxtyping import config
from runs import Counting, run

from clearhead.train.trainer import TrainStep

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OPTIONS = {"ema": 0.5, "accumulate": 2, "model.dropout.residual": 0.1, "steps": 9, "check": 3}


@pytest.fixture
def unchecked():
    """The compiler does not see through checks of shapes."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


class Broken(torch.autograd.Function):
    """Does nothing, until a backward pass, in which it fails as a compiler does."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise torch._dynamo.exc.BackendCompilerFailed(lambda: None, RuntimeError("no"), None)


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_a_compiler_that_fails_costs_a_line_and_nothing_else(tmp_path, monkeypatch, fails):
    slow = run(tmp_path / "slow", **OPTIONS)
    slow.train(lambda at: True)

    def compiling(call, dynamic):
        def compiled(batch):
            loss = call(batch)
            if fails == "forward":
                raise torch._dynamo.exc.BackendCompilerFailed(
                    lambda: None, RuntimeError("no"), None
                )
            return Broken.apply(loss)

        return compiled

    monkeypatch.setattr(torch, "compile", compiling)
    fast = run(tmp_path / "fast", **OPTIONS)
    said = []
    fast.compiled_step = TrainStep(
        fast.net,
        fast.optimizer,
        fast.ema,
        fast.config,
        fast.device,
        True,
        fast.strategy,
        said.append,
    )
    fast.train(lambda at: True)
    assert said == ["the compiler gave up (BackendCompilerFailed); going on without it"]
    for one, other in zip(slow.net.parameters(), fast.net.parameters(), strict=True):
        assert torch.equal(one, other)


@GPU
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_recorded_step_is_the_step_that_was_recorded(tmp_path, unchecked, optimizer):
    runs = [
        run(tmp_path / name, device="cuda", compiled=True, optimizer=optimizer, **OPTIONS)
        for name in "ab"
    ]
    runs[1].compiled_step.cuda_graph = None
    losses = [[], []]
    for made, seen in zip(runs, losses, strict=True):
        made.train(lambda at, seen=seen: seen.append((at.loss, at.valid_loss)) or True)
    assert runs[0].compiled_step.cuda_graph.graph is not None
    for one, other in zip(
        *losses, strict=True
    ):  # sums into the rows of an embedding are of no fixed order there
        assert one == pytest.approx(other, abs=1e-4)
    for one, other in zip(runs[0].net.parameters(), runs[1].net.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-3)


@GPU
def test_what_cannot_be_recorded_is_done_without(tmp_path, unchecked):
    class Asking(Counting):
        """Nothing is wrong with the data; the loss asks the GPU, which a recording cannot."""

    said = []
    made = run(tmp_path / "run", Asking(), device="cuda", compiled=True, **OPTIONS)
    made.compiled_step.echo = said.append
    inner = made.compiled_step.loss_function
    made.compiled_step.loss_function = lambda batch: (
        inner(batch) * (1 if batch.tokens.sum().item() > 0 else 2)
    )
    made.train(lambda at: True)
    assert len(said) == 1
    assert "cannot be recorded" in said[0]
