"""Muon: a matrix moves by the nearest orthogonal one to its gradient, so that all its directions learn alike."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.config.training import Muon, OptimizerConfig
from clearhead.errors import ClearheadError
from clearhead.train.distributed import SINGLE_PROCESS, SingleProcess

# ---- muon: Muon: a matrix moves by the nearest orthogonal one to its gradient, so that all its directions learn alike.

_NEWTON_SCHULZ = (
    3.4445,
    -4.7750,
    2.0315,
)  # Jordan et al.: steep at 0, and 1 ± 0.3 after five rounds


class BatchedMuon:
    """Matrices of one shape are stacked, so that one product orthogonalises all of them."""

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        weights: Mapping[str, Tensor],
        option: Muon,
        team: SingleProcess,
    ) -> None:
        self.config = option
        self.weights = weights
        self.strategy = team
        self.names: dict[torch.Size, list[str]] = {}
        for name, shape in shapes.items():
            self.names.setdefault(shape, []).append(name)
        self.stacks = [
            torch.stack([torch.zeros_like(weights[n]) for n in names])
            for names in self.names.values()
        ]

    def momenta(self) -> Iterator[tuple[str, Tensor]]:
        for names, stack in zip(self.names.values(), self.stacks, strict=True):
            yield from zip(names, stack.unbind(), strict=True)

    def step(self, gradients: Mapping[str, Tensor], factor: float | Tensor) -> None:
        rate = self.config.lr * factor
        keep = self.config.momentum
        for (shape, names), momentum in zip(self.names.items(), self.stacks, strict=True):
            gradient = torch.stack([gradients[name] for name in names]).to(momentum.dtype)
            momentum.lerp_(gradient, 1 - keep)
            ahead = gradient.lerp_(momentum, keep)  # Nesterov: a step ahead along the momentum
            whole = self.strategy.full_tensor(
                self.strategy.from_local(ahead, (len(names), *shape), dim=1)
            )
            update = self.strategy.local_shard(orthogonalize(whole), dim=1)
            rows, columns = shape
            # the output then moves as much for any width, so that a rate found for a small model fits a large one
            far = rate * max(1.0, rows / columns) ** 0.5
            weights = [self.weights[name] for name in names]
            torch._foreach_mul_(weights, 1 - rate * self.config.weight_decay)
            torch._foreach_sub_(weights, (update.to(momentum.dtype) * far).unbind())


def orthogonalize(x: Tensor) -> Tensor:
    """The nearest orthogonal matrices to a stack of them, roughly: UV^T of UΣV^T, by Newton–Schulz rounds.

    A round is aX + (bA + cA²)X with A = XXᵀ, which takes every singular value closer to 1.
    """
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = (
        x.bfloat16() if x.is_cuda else x
    )  # CPUs are slower in bf16, and the rounding of a direction does no harm
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


# ---- optim: From gradients to new weights: AdamW, or Muon with Adam; and fp32 masters of a bf16 net.

StateDict = dict[str, Tensor]


def is_block_matrix(name: str, p: Tensor) -> bool:
    """Whether a parameter is a matrix of a block, between the residual stream and itself."""
    return p.dim() == 2 and re.search(r"(^|\.)blocks\.\d+\.", name) is not None


class Optimizer:
    """Moves the trainable parameters of a net by their gradients.

    Parameters of 16 bits have a copy in fp32 here, their master: it is what moves, and the net gets it rounded.
    Where processes share the weights, each moves the part it holds.
    """

    def __init__(
        self, net: nn.Module, option: OptimizerConfig, strategy: SingleProcess = SINGLE_PROCESS
    ) -> None:
        self.config = option
        self.strategy = strategy
        self.parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ClearheadError(
                "the net has no parameter that may change; at least one needs requires_grad."
            )
        self.local_parameters = {
            name: strategy.local_tensor(p) for name, p in self.parameters.items()
        }
        self.master_weights = {
            n: t.detach().float() for n, t in self.local_parameters.items() if t.dtype.itemsize < 4
        }
        self.weights: StateDict = {**self.local_parameters, **self.master_weights}
        self.accumulated: StateDict = {}  # of gradients, where they were collected
        hidden = {name: p.shape for name, p in self.parameters.items() if is_block_matrix(name, p)}
        self.muon = (
            BatchedMuon(hidden, self.weights, option, strategy)
            if isinstance(option, Muon)
            else None
        )
        decaying = [] if isinstance(option, Muon) else list(hidden)
        still = [name for name in self.parameters if name not in hidden]
        self.adam_names = [*decaying, *still]
        self.adam = _adam(
            option, [self.weights[n] for n in decaying], [self.weights[n] for n in still]
        )

    @torch.no_grad()
    def step(self, factor: float | Tensor = 1.0) -> None:
        """One step at `factor` of the peak rate."""
        gradients = self.gradients()
        if self.muon is not None:
            self.muon.step(gradients, factor)
        for group in self.adam.param_groups:
            group["lr"] = (
                self.config.adam if isinstance(self.config, Muon) else self.config
            ).lr * factor
        apart = [
            name for name in self.adam_names if self.weights[name] is not self.parameters[name]
        ]
        rounded = [name for name in apart if gradients[name].dtype != self.weights[name].dtype]
        if rounded:
            exact = [torch.empty_like(self.weights[name]) for name in rounded]
            torch._foreach_copy_(exact, [gradients[name] for name in rounded])
            gradients |= dict(zip(rounded, exact, strict=True))
        for name in apart:
            self.weights[name].grad = gradients[name]
        self.adam.step()
        for name in apart:
            self.weights[name].grad = None
        self._copy_master_weights()

    def zero_grad(self) -> None:
        self.accumulated = {}
        for p in self.parameters.values():
            p.grad = None

    def gradients(self) -> StateDict:
        """What this process holds of the gradients since `zero`."""
        if self.accumulated:
            return dict(self.accumulated)
        for name, p in self.parameters.items():
            if p.grad is None:
                raise ClearheadError(
                    f"{name} has no gradient; call backward first, or freeze what is not trained."
                )
        return {
            name: self.strategy.local_tensor(p.grad)
            for name, p in self.parameters.items()
            if p.grad is not None
        }

    @torch.no_grad()
    def accumulate_gradients(self) -> None:
        """Adds the gradients of one pass to a sum in fp32; without masters they are that already."""
        if not self.master_weights:
            return
        before = self.accumulated
        self.accumulated = {}
        now = self.gradients()
        if before:
            torch._foreach_add_(list(before.values()), list(now.values()))
        self.accumulated = before or {name: gradient.float() for name, gradient in now.items()}
        for p in self.parameters.values():
            p.grad = None

    def all_reduce_gradients(self) -> None:
        """The gradients of all processes' rows."""
        self.strategy.all_reduce_gradients(list(self.gradients().values()))

    @torch.no_grad()
    def clip_grad_norm(self, norm: float) -> Tensor:
        """The norm of all gradients together, in fp32; where it is larger than `norm` they shrink to it."""
        gradients = list(self.gradients().values())
        total = self.strategy.global_norm(
            torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float)).norm()
        )
        shrink = (norm / (total + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(
            gradients, shrink.to(gradients[0].dtype)
        )  # of another dtype, it is a kernel for each
        return total

    def state_dict(self) -> StateDict:
        """Everything that must be kept between steps, `<parameter>.<what>`: the tensors themselves, no copies."""
        held = [(name, "master", master) for name, master in self.master_weights.items()]
        if self.muon is not None:
            held += [(name, "momentum", momentum) for name, momentum in self.muon.momenta()]
        for name in self.adam_names:
            held += [
                (name, what, value) for what, value in self.adam.state[self.weights[name]].items()
            ]
        return {
            f"{name}.{what}": self.strategy.from_local(t, self.parameters[name].shape)
            for name, what, t in held
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a `state()`, bit for bit; masters also go into the net."""
        restore_tensors(self.state_dict(), state, self.strategy)
        self._copy_master_weights()

    def _copy_master_weights(self) -> None:
        """The net's rounded weights follow their masters."""
        if self.master_weights:
            torch._foreach_copy_(
                [self.local_parameters[name] for name in self.master_weights],
                list(self.master_weights.values()),
            )


def _adam(
    option: OptimizerConfig, decaying: list[Tensor], still: list[Tensor]
) -> torch.optim.AdamW:
    adam, decay = (option.adam, 0.0) if isinstance(option, Muon) else (option, option.weight_decay)
    groups = [{"params": decaying, "weight_decay": decay}, {"params": still, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    on_gpu = any(
        p.is_cuda for p in (*decaying, *still)
    )  # where steps are recorded, with the rate as a tensor
    betas = (adam.beta1, adam.beta2)
    optimizer = torch.optim.AdamW(
        groups, lr=adam.lr, betas=betas, eps=adam.eps, fused=True, capturable=on_gpu
    )
    for p in (
        *decaying,
        *still,
    ):  # torch would do this in the first step; a state to load is needed before
        zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **zeros}
    return optimizer


def restore_tensors(held: StateDict, given: Mapping[str, Tensor], team: SingleProcess) -> None:
    """Copies what was saved into what is held; nothing is missing, left over or of another form."""
    other = "it was saved by another optimiser or for another model"
    for name in held.keys() ^ given.keys():
        what = "has no" if name in held else "has a"
        raise ClearheadError(f"the saved state {what} {name}; {other}.")
    for name, value in held.items():
        if (given[name].shape, given[name].dtype) != (value.shape, value.dtype):
            forms = [
                f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
                for t in (given[name], value)
            ]
            raise ClearheadError(
                f"{name} is saved as {forms[0]}, but {forms[1]} is needed; {other}."
            )
    with torch.no_grad():
        for name, value in held.items():
            team.copy_full_tensor(value, given[name])


# ---- ema: A moving average of the weights.


class EMA:
    """A moving average of the weights that move, in fp32: often a better model than the last step's."""

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ClearheadError(
                f"the decay of a moving average is {decay}; it must be at least 0 and less than 1."
            )
        self.decay = decay
        self.optimizer = optimizer
        self.strategy = optimizer.strategy
        self.averages = [weight.detach().float().clone() for weight in optimizer.weights.values()]

    @torch.no_grad()
    def update(self) -> None:
        """average ← decay · average + (1 − decay) · weight"""
        torch._foreach_lerp_(
            self.averages, [w.float() for w in self.optimizer.weights.values()], 1 - self.decay
        )

    def state_dict(self) -> StateDict:
        return {f"{name}.ema": average for name, average in self._named(self.averages).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        restore_tensors(self.state_dict(), state, self.strategy)

    @contextmanager
    def swap_weights(self) -> Iterator[StateDict]:
        """The net has the averages for its weights meanwhile; its own are given."""
        own = [held.detach().clone() for held in self.optimizer.local_parameters.values()]
        self._copy_to_parameters(self.averages)
        try:
            yield self._named(own)
        finally:
            self._copy_to_parameters(own)

    def _named(self, values: list[Tensor]) -> StateDict:
        parameters = self.optimizer.parameters.items()
        return {
            name: self.strategy.from_local(t, p.shape)
            for (name, p), t in zip(parameters, values, strict=True)
        }

    @torch.no_grad()
    def _copy_to_parameters(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(list(self.optimizer.local_parameters.values()), values)
