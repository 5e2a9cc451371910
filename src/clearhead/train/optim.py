"""Optimizers: AdamW, Muon with Adam, fp32 master weights of a bf16 network, and weight averages.

Weight decay applies to the matrices of the blocks only, and Muon updates only those. Norms, biases
and gains set a scale; rows of an embedding that no batch touched would only be forgotten; input
and output layers are single layers among many. So AdamW and Muon differ in nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.config.training import Muon, OptimizerConfig
from clearhead.errors import ClearheadError
from clearhead.train.strategy import SINGLE_PROCESS, SingleProcess

NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al.
NEWTON_SCHULZ_STEPS = 5  # afterwards singular values lie within 1 ± 0.3

StateDict = dict[str, Tensor]


def is_block_matrix(name: str, p: Tensor) -> bool:
    """Whether a parameter is a weight matrix of a block."""
    return p.dim() == 2 and re.search(r"(^|\.)blocks\.\d+\.", name) is not None


# --- Muon


class BatchedMuon:
    """Muon: SGD with Nesterov momentum whose updates are orthogonalized.

    Matrices of one shape are stacked, so that each Newton–Schulz step is one batched product.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        weights: Mapping[str, Tensor],
        config: Muon,
        strategy: SingleProcess,
    ) -> None:
        self.config = config
        self.weights = weights
        self.strategy = strategy
        self.names: dict[torch.Size, list[str]] = {}
        for name, shape in shapes.items():
            self.names.setdefault(shape, []).append(name)
        self.stacks = [
            torch.stack([torch.zeros_like(weights[name]) for name in names])
            for names in self.names.values()
        ]

    def momenta(self) -> Iterator[tuple[str, Tensor]]:
        for names, stack in zip(self.names.values(), self.stacks, strict=True):
            yield from zip(names, stack.unbind(), strict=True)

    def step(self, gradients: Mapping[str, Tensor], lr_factor: float | Tensor) -> None:
        lr = self.config.lr * lr_factor
        for (shape, names), momentum in zip(self.names.items(), self.stacks, strict=True):
            gradient = torch.stack([gradients[name] for name in names]).to(momentum.dtype)
            momentum.lerp_(gradient, 1 - self.config.momentum)
            nesterov = gradient.lerp_(momentum, self.config.momentum)
            full = self.strategy.full_tensor(
                self.strategy.from_local(nesterov, (len(names), *shape), dim=1)
            )
            update = self.strategy.local_shard(orthogonalize(full), dim=1)
            rows, columns = shape
            # Scaled so that outputs change as much at any width: the learning rate transfers.
            scaled_lr = lr * max(1.0, rows / columns) ** 0.5
            weights = [self.weights[name] for name in names]
            torch._foreach_mul_(weights, 1 - lr * self.config.weight_decay)
            torch._foreach_sub_(weights, (update.to(momentum.dtype) * scaled_lr).unbind())


def orthogonalize(x: Tensor) -> Tensor:
    """Approximate UVᵀ of X = UΣVᵀ, for a stack of matrices, by Newton–Schulz iteration.

    A step is aX + (bA + cA²)X with A = XXᵀ, which moves every singular value closer to 1.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()  # slower than fp32 on CPUs
    if is_tall:
        x = x.mT
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


# --- optimizer


class Optimizer:
    """AdamW, or Muon for the block matrices and Adam for the rest.

    16-bit parameters have an fp32 master copy, which is updated and then rounded into the network.
    With sharded weights, each process updates its own shard.
    """

    def __init__(
        self, net: nn.Module, config: OptimizerConfig, strategy: SingleProcess = SINGLE_PROCESS
    ) -> None:
        self.config = config
        self.strategy = strategy
        self.parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ClearheadError("the network has no trainable parameters; set requires_grad.")
        self.local_parameters = {
            name: strategy.local_tensor(p) for name, p in self.parameters.items()
        }
        self.master_weights = {
            name: t.detach().float()
            for name, t in self.local_parameters.items()
            if t.dtype.itemsize < 4
        }
        self.weights: StateDict = {**self.local_parameters, **self.master_weights}
        self.accumulated: StateDict = {}  # fp32 sums of gradients, with master weights only

        matrices = {n: p.shape for n, p in self.parameters.items() if is_block_matrix(n, p)}
        others = [name for name in self.parameters if name not in matrices]
        self.muon: BatchedMuon | None = None
        decayed = list(matrices)
        if isinstance(config, Muon):
            self.muon = BatchedMuon(matrices, self.weights, config, strategy)
            decayed = []
        self.adam_names = [*decayed, *others]
        self.adam = _create_adam(
            config, [self.weights[n] for n in decayed], [self.weights[n] for n in others]
        )

    @torch.no_grad()
    def step(self, lr_factor: float | Tensor = 1.0) -> None:
        """Update the weights at `lr_factor` of the peak learning rate."""
        gradients = self.gradients()
        if self.muon is not None:
            self.muon.step(gradients, lr_factor)
        adam_config = self.config.adam if isinstance(self.config, Muon) else self.config
        for group in self.adam.param_groups:
            group["lr"] = adam_config.lr * lr_factor

        # Master weights and local shards are not the network's parameters: hand them the gradients.
        copies = [n for n in self.adam_names if self.weights[n] is not self.parameters[n]]
        low_precision = [n for n in copies if gradients[n].dtype != self.weights[n].dtype]
        if low_precision:
            converted = [torch.empty_like(self.weights[n]) for n in low_precision]
            torch._foreach_copy_(converted, [gradients[n] for n in low_precision])
            gradients |= dict(zip(low_precision, converted, strict=True))
        for name in copies:
            self.weights[name].grad = gradients[name]
        self.adam.step()
        for name in copies:
            self.weights[name].grad = None
        self._copy_master_weights()

    def zero_grad(self) -> None:
        self.accumulated = {}
        for p in self.parameters.values():
            p.grad = None

    def gradients(self) -> StateDict:
        """Local shards of the gradients since `zero_grad`."""
        if self.accumulated:
            return dict(self.accumulated)
        gradients = {}
        for name, p in self.parameters.items():
            if p.grad is None:
                raise ClearheadError(
                    f"{name} has no gradient; call backward() first, or freeze this parameter."
                )
            gradients[name] = self.strategy.local_tensor(p.grad)
        return gradients

    @torch.no_grad()
    def accumulate_gradients(self) -> None:
        """Add the gradients of one pass to an fp32 sum; fp32 gradients accumulate by themselves."""
        if not self.master_weights:
            return
        sums = self.accumulated
        self.accumulated = {}
        new = self.gradients()
        if sums:
            torch._foreach_add_(list(sums.values()), list(new.values()))
            self.accumulated = sums
        else:
            self.accumulated = {name: gradient.float() for name, gradient in new.items()}
        for p in self.parameters.values():
            p.grad = None

    def all_reduce_gradients(self) -> None:
        """Sum the gradients over all processes."""
        self.strategy.all_reduce_gradients(list(self.gradients().values()))

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale all gradients down to a global norm of `max_norm`; return the norm before."""
        gradients = list(self.gradients().values())
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float)
        total = self.strategy.global_norm(torch.stack(norms).norm())
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        # In the dtype of the gradients: otherwise each tensor takes a kernel of its own.
        torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))
        return total

    def state_dict(self) -> StateDict:
        """Optimizer state as `<parameter>.<state>`: the tensors themselves, not copies."""
        entries = [(name, "master", master) for name, master in self.master_weights.items()]
        if self.muon is not None:
            entries += [(name, "momentum", momentum) for name, momentum in self.muon.momenta()]
        for name in self.adam_names:
            adam_state = self.adam.state[self.weights[name]]
            entries += [(name, key, value) for key, value in adam_state.items()]
        return {
            f"{name}.{key}": self.strategy.from_local(value, self.parameters[name].shape)
            for name, key, value in entries
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict()` exactly, and round master weights into the network."""
        restore_tensors(self.state_dict(), state, self.strategy)
        self._copy_master_weights()

    def _copy_master_weights(self) -> None:
        if self.master_weights:
            torch._foreach_copy_(
                [self.local_parameters[name] for name in self.master_weights],
                list(self.master_weights.values()),
            )


def _create_adam(
    config: OptimizerConfig, decayed: list[Tensor], others: list[Tensor]
) -> torch.optim.AdamW:
    adam = config.adam if isinstance(config, Muon) else config
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    parameters = [*decayed, *others]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=adam.lr,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        fused=True,
        capturable=any(p.is_cuda for p in parameters),  # for CUDA graphs, with lr as a tensor
    )
    for p in parameters:  # torch creates the state in the first step; it is loaded before that
        optimizer.state[p] = {
            "step": torch.zeros((), device=p.device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimizer


def restore_tensors(state: StateDict, saved: Mapping[str, Tensor], strategy: SingleProcess) -> None:
    """Copy saved tensors into the state; names, shapes and dtypes must match exactly."""
    hint = "it was saved with another optimizer or for another model"
    for name in state.keys() ^ saved.keys():
        problem = "is missing from" if name in state else "is unexpected in"
        raise ClearheadError(f"{name} {problem} the saved state; {hint}.")
    for name, tensor in state.items():
        other = saved[name]
        if (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            raise ClearheadError(
                f"{name} is saved as {_describe_tensor(other)}, expected "
                f"{_describe_tensor(tensor)}; {hint}."
            )
    with torch.no_grad():
        for name, tensor in state.items():
            strategy.copy_full_tensor(tensor, saved[name])


def _describe_tensor(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"


# --- weight averaging


class EMA:
    """Exponential moving average of the weights, in fp32.

    The decay is warmed up: after n updates it is at most (1 + n) / (10 + n), so that the average
    of a short run does not consist of the initial weights.
    """

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        self.decay = decay
        self.optimizer = optimizer
        self.strategy = optimizer.strategy
        self.averages = [weight.detach().float().clone() for weight in optimizer.weights.values()]
        # a tensor, because a CUDA graph replays the update
        self.num_updates = torch.zeros((), device=self.averages[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """average ← decay · average + (1 − decay) · weight"""
        decay = ((1 + self.num_updates) / (10 + self.num_updates)).clamp(max=self.decay)
        self.num_updates += 1
        weights = [w.float() for w in self.optimizer.weights.values()]
        # a tensor as weight of each, because reading its value would wait for the device
        torch._foreach_lerp_(self.averages, weights, [1 - decay] * len(weights))

    def state_dict(self) -> StateDict:
        return {f"{name}.ema": average for name, average in self._named(self.averages).items()}

    def load_state_dict(self, state: Mapping[str, Tensor], num_updates: int) -> None:
        """Continue with the averages after `num_updates`, one per training step."""
        restore_tensors(self.state_dict(), state, self.strategy)
        self.num_updates.fill_(num_updates)

    @contextmanager
    def swap_weights(self) -> Iterator[StateDict]:
        """Put the averages into the network for the block; yield the original weights."""
        original = [t.detach().clone() for t in self.optimizer.local_parameters.values()]
        self._copy_to_parameters(self.averages)
        try:
            yield self._named(original)
        finally:
            self._copy_to_parameters(original)

    def _named(self, tensors: list[Tensor]) -> StateDict:
        parameters = self.optimizer.parameters.items()
        return {
            name: self.strategy.from_local(t, p.shape)
            for (name, p), t in zip(parameters, tensors, strict=True)
        }

    @torch.no_grad()
    def _copy_to_parameters(self, tensors: list[Tensor]) -> None:
        torch._foreach_copy_(list(self.optimizer.local_parameters.values()), tensors)
