"""TrainStep: compilation and CUDA graphs do not change a step, and their failures are survived."""

import pytest
import torch
from jaxtyping import config
from tiny_training import CountingDataset, make_trainer, run

from clearhead.train.train_step import TrainStep

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OPTIONS = {
    "ema_decay": 0.5,
    "grad_accum": 2,
    "model.dropout.residual": 0.1,
    "max_steps": 9,
    "eval_every": 3,
}


@pytest.fixture
def without_shape_checks():
    """torch.compile cannot trace shape checks."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def compiler_error():
    return torch._dynamo.exc.BackendCompilerFailed(lambda: None, RuntimeError("no"), None)


class FailingBackward(torch.autograd.Function):
    """The identity, whose backward pass fails like a compiler."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise compiler_error()


@pytest.mark.parametrize("failing_pass", ["forward", "backward"])
def test_failing_compiler_is_reported_once_and_changes_nothing(failing_pass, tmp_path, monkeypatch):
    eager = make_trainer(tmp_path / "eager", **OPTIONS)
    run(eager)

    def failing_compile(function, dynamic):
        def compiled(batch):
            loss = function(batch)
            if failing_pass == "forward":
                raise compiler_error()
            return FailingBackward.apply(loss)

        return compiled

    monkeypatch.setattr(torch, "compile", failing_compile)
    lines = []
    trainer = make_trainer(tmp_path / "compiled", **OPTIONS)
    trainer.step_function = TrainStep(
        trainer.net,
        trainer.optimizer,
        trainer.ema,
        trainer.config,
        trainer.device,
        True,
        trainer.strategy,
        lines.append,
    )
    run(trainer)
    assert len(lines) == 1
    assert "BackendCompilerFailed" in lines[0]
    for p, q in zip(eager.net.parameters(), trainer.net.parameters(), strict=True):
        assert torch.equal(p, q)


@NEEDS_GPU
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_cuda_graph_equals_ungraphed_step(tmp_path, without_shape_checks, optimizer):
    losses = []
    trainers = []
    for name in ("graphed", "ungraphed"):
        trainer = make_trainer(
            tmp_path / name, device="cuda", compile=True, optimizer=optimizer, **OPTIONS
        )
        if name == "ungraphed":
            trainer.step_function.cuda_graph = None
        reports = []
        trainer.train(lambda p, reports=reports: reports.append((p.loss, p.valid_loss)) or True)
        losses.append(reports)
        trainers.append(trainer)
    assert trainers[0].step_function.cuda_graph.graph is not None
    # AdamW gives identical losses. In a graph the learning rate is an fp32 tensor, whose rounding
    # Muon's bf16 Newton–Schulz iteration amplifies.
    tolerance = 5e-4 if optimizer == "muon" else 1e-4
    for graphed, ungraphed in zip(*losses, strict=True):
        assert graphed == pytest.approx(ungraphed, abs=tolerance)
    parameters = [trainer.net.parameters() for trainer in trainers]
    for p, q in zip(*parameters, strict=True):
        assert torch.allclose(p, q, atol=1e-3)


@NEEDS_GPU
def test_failing_capture_is_reported_once(tmp_path, without_shape_checks):
    lines = []
    dataset = CountingDataset()
    trainer = make_trainer(tmp_path, dataset, device="cuda", compile=True, **OPTIONS)
    trainer.step_function.echo = lines.append
    loss_function = trainer.step_function.loss_function
    # Reading a value from the GPU cannot be captured.
    trainer.step_function.loss_function = lambda batch: (
        loss_function(batch) * (1 if batch.tokens.sum().item() > 0 else 2)
    )
    run(trainer)
    assert len(lines) == 1
    assert "CUDA graph capture failed" in lines[0]
