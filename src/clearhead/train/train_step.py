"""One optimizer step: loss of the batches, gradients, clipping, update; and the validation loss."""

import warnings
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from clearhead.config.model import ClassificationHead
from clearhead.config.training import TrainConfig
from clearhead.data.dataset import Dataset
from clearhead.data.packed_batch import PackedBatch, count_targets
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.kernels import can_use_triton
from clearhead.model.transformer import Transformer
from clearhead.train.optim import EMA, Optimizer
from clearhead.train.strategy import Echo, SingleProcess

CUDA_GRAPH_WARMUP_STEPS = 3  # until compilers and libraries have settled
COMPILE_FAILED = "torch.compile failed ({}); continuing without it"

StepFunction = Callable[[Sequence[PackedBatch], Sequence[float | Tensor], float | Tensor], Tensor]


# --- forward pass and loss


def hidden_states(net: Transformer, batch: PackedBatch, hooks: Hooks = NO_HOOKS) -> Tensor:
    return net(
        batch.tokens,
        segment_ids=batch.segment_ids,
        token_type_ids=batch.token_type_ids,
        source=batch.source,
        source_segment_ids=batch.source_segment_ids,
        hooks=hooks,
    )


def batch_loss(
    net: Transformer, batch: PackedBatch, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Summed loss of a batch and its number of targets."""
    hidden = hidden_states(net, batch)
    return net.loss(hidden, batch.targets, batch.segment_ids, label_smoothing)


def batch_to_device(batch: PackedBatch, device: torch.device, net: Transformer) -> PackedBatch:
    """Move a batch to the device; images and audio also to the dtype of the network."""
    net_dtype = next(net.parameters()).dtype

    def move(t: Tensor) -> Tensor:
        is_dense_input = t.is_floating_point() and t.dim() > 1
        return t.to(device, net_dtype if is_dense_input else t.dtype, non_blocking=True)

    return batch.map(move)


@torch.no_grad()
def validation_loss(
    net: Transformer, data: Dataset, device: torch.device, strategy: SingleProcess
) -> tuple[float | None, float | None]:
    """Mean loss per target, and accuracy of a classifier; None without validation data."""
    net.eval()
    is_classifier = isinstance(net.config.head, ClassificationHead)
    num_targets = 0
    sums: Tensor = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in data.valid_batches():
        local, counts = strategy.split_batch(batch)
        local = batch_to_device(local, device, net)
        hidden = hidden_states(net, local)
        loss, _ = net.loss(hidden, local.targets, local.segment_ids)
        correct = torch.zeros_like(loss)
        if is_classifier:
            predicted = net.compute_logits(hidden, local.segment_ids).argmax(dim=-1)
            correct = (predicted == local.targets).sum()
        sums += torch.stack([loss.double(), correct.double()]) * counts
        num_targets += count_targets(batch.targets)
    strategy.reshard(net)
    total_loss, total_correct = strategy.all_reduce(sums).tolist()
    if not num_targets:
        return None, None
    return total_loss / num_targets, total_correct / num_targets if is_classifier else None


# --- one optimizer step


class TrainStep:
    """One optimizer step: gradients of the batches, clipping, update, weight average.

    torch.compile, the CUDA graph and the fused loss kernel are dropped with one line of output if
    they fail.
    """

    def __init__(
        self,
        net: Transformer,
        optimizer: Optimizer,
        ema: EMA | None,
        config: TrainConfig,
        device: torch.device,
        compile: bool,
        strategy: SingleProcess,
        echo: Echo,
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.ema = ema
        self.config = config
        self.device = device
        self.strategy = strategy
        self.echo = echo
        self.compile = compile and not strategy.is_sharded
        can_use_triton(device)  # tries a kernel, which compiled code cannot do
        self.loss_function = (
            torch.compile(self._loss, dynamic=False) if self.compile else self._loss
        )
        use_cuda_graph = compile and device.type == "cuda" and strategy.size == 1
        self.cuda_graph = (
            CUDAGraphStep(self.run, self.to_device, device) if use_cuda_graph else None
        )

    def __call__(
        self, batches: Sequence[PackedBatch], num_targets: int, lr_factor: float
    ) -> Tensor:
        """Take a step; return the mean loss of this process's rows over all `num_targets`."""
        self.net.train()
        if self.cuda_graph is not None:
            try:
                return self.cuda_graph(batches, 1 / num_targets, lr_factor)
            except CaptureError as error:
                self.echo(f"CUDA graph capture failed ({error}); continuing without it")
                self.cuda_graph = None
        local = [self.strategy.split_batch(batch) for batch in batches]
        loss_weights = [counts / num_targets for _, counts in local]
        return self.run([self.to_device(batch) for batch, _ in local], loss_weights, lr_factor)

    def to_device(self, batch: PackedBatch) -> PackedBatch:
        return batch_to_device(batch, self.device, self.net)

    def run(
        self,
        batches: Sequence[PackedBatch],
        loss_weights: Sequence[float | Tensor],
        lr_factor: float | Tensor,
    ) -> Tensor:
        try:
            mean_loss = self._backward(batches, loss_weights)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not self.compile:
                raise
            self.echo(COMPILE_FAILED.format(type(error).__name__))
            self.compile = False
            self.loss_function = self._loss
            self.optimizer.zero_grad()
            torch.manual_seed(torch.initial_seed())  # repeat the random numbers of the failed pass
            mean_loss = self._backward(batches, loss_weights)
        self.optimizer.all_reduce_gradients()
        if self.config.grad_clip:
            self.optimizer.clip_grad_norm(self.config.grad_clip)
        self.optimizer.step(lr_factor)
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()
        return mean_loss

    def _backward(
        self, batches: Sequence[PackedBatch], loss_weights: Sequence[float | Tensor]
    ) -> Tensor:
        mean_loss = torch.zeros((), device=self.device)
        for batch, weight in zip(batches, loss_weights, strict=True):
            loss = self.loss_function(batch) * weight
            loss.backward()
            mean_loss += loss.detach()
            if len(batches) > 1 or self.strategy.size > 1:
                self.optimizer.accumulate_gradients()
        return mean_loss

    def _loss(self, batch: PackedBatch) -> Tensor:
        return batch_loss(self.net, batch, self.config.label_smoothing)[0]


class CaptureError(Exception):
    """The step cannot be captured as a CUDA graph; nothing of it was executed."""


class CUDAGraphStep:
    """A step captured once as a CUDA graph and then replayed, so that no kernel waits for Python.

    The graph reads from static tensors, into which each batch is copied, so all batches must have
    the same shapes.
    """

    def __init__(
        self,
        step_function: StepFunction,
        to_device: Callable[[PackedBatch], PackedBatch],
        device: torch.device,
    ) -> None:
        self.step_function = step_function
        self.to_device = to_device
        self.stream = torch.cuda.Stream(device)
        self.calls = 0
        self.loss_weight = torch.zeros((), device=device)
        self.lr_factor = torch.zeros((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self, batches: Sequence[PackedBatch], loss_weight: float, lr_factor: float
    ) -> Tensor:
        self.loss_weight.fill_(loss_weight)
        self.lr_factor.fill_(lr_factor)
        self.calls += 1
        if self.calls <= CUDA_GRAPH_WARMUP_STEPS:
            return self._warm_up([self.to_device(batch) for batch in batches])
        if self.graph is None:
            self._capture([self.to_device(batch) for batch in batches])
        for static_batch, batch in zip(self.static_batches, batches, strict=True):
            for static_tensor, tensor in zip(static_batch.tensors(), batch.tensors(), strict=True):
                static_tensor.copy_(tensor.pin_memory(), non_blocking=True)
        cast(torch.cuda.CUDAGraph, self.graph).replay()
        return self.mean_loss.clone()

    def _warm_up(self, batches: list[PackedBatch]) -> Tensor:
        """Run on a side stream, as CUDA graphs require of the steps before the capture."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            mean_loss = self._run(batches)
        current.wait_stream(self.stream)
        return mean_loss

    def _capture(self, batches: list[PackedBatch]) -> None:
        self.static_batches = batches
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.mean_loss = self._run(batches)
        except RuntimeError as error:
            # An empty capture resets the random generator, which the failed one left registered.
            with warnings.catch_warnings(action="ignore"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass
            raise CaptureError(str(error).splitlines()[0]) from None
        self.graph = graph

    def _run(self, batches: list[PackedBatch]) -> Tensor:
        return self.step_function(batches, [self.loss_weight] * len(batches), self.lr_factor)
