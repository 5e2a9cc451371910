"""From gradients to new weights: AdamW, or Muon with Adam; and fp32 masters of a bf16 net.

The matrices of the blocks decay, and Muon moves them. Nothing else decays, under either optimiser: norms, biases and
gains set a scale; a row of an embedding or a position table that no batch touched would only be forgotten; and what
reads pictures or sound, or makes logits, is one layer of many. So changing the optimiser changes one thing.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from clearhead.errors import ClearheadError
from clearhead.optimisers import Muon, Option
from clearhead.train.muon import Stacks
from clearhead.train.team import ALONE, Alone

State = dict[str, Tensor]


def is_hidden(name: str, p: Tensor) -> bool:
    """Whether a parameter is a matrix of a block, between the residual stream and itself."""
    return p.dim() == 2 and re.search(r"(^|\.)blocks\.\d+\.", name) is not None


class Optimiser:
    """Moves the trainable parameters of a net by their gradients.

    Parameters of 16 bits have a copy in fp32 here, their master: it is what moves, and the net gets it rounded.
    Where processes share the weights, each moves the part it holds.
    """

    def __init__(self, net: nn.Module, option: Option, team: Alone = ALONE) -> None:
        self.option, self.team = option, team
        self.parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ClearheadError("the net has no parameter that may change; at least one needs requires_grad.")
        self.held = {name: team.own(p) for name, p in self.parameters.items()}
        self.masters = {n: t.detach().float() for n, t in self.held.items() if t.dtype.itemsize < 4}
        self.weights: State = {**self.held, **self.masters}
        self.sums: State = {}  # of gradients, where they were collected
        hidden = {name: p.shape for name, p in self.parameters.items() if is_hidden(name, p)}
        self.muon = Stacks(hidden, self.weights, option, team) if isinstance(option, Muon) else None
        decaying = [] if isinstance(option, Muon) else list(hidden)
        still = [name for name in self.parameters if name not in hidden]
        self.by_adam = [*decaying, *still]
        self.adam = _adam(option, [self.weights[n] for n in decaying], [self.weights[n] for n in still])

    @torch.no_grad()
    def step(self, factor: float | Tensor = 1.0) -> None:
        """One step at `factor` of the peak rate."""
        gradients = self.gradients()
        if self.muon is not None:
            self.muon.step(gradients, factor)
        for group in self.adam.param_groups:
            group["lr"] = (self.option.adam if isinstance(self.option, Muon) else self.option).rate * factor
        apart = [name for name in self.by_adam if self.weights[name] is not self.parameters[name]]
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
        self._publish()

    def zero(self) -> None:
        self.sums = {}
        for p in self.parameters.values():
            p.grad = None

    def gradients(self) -> State:
        """What this process holds of the gradients since `zero`."""
        if self.sums:
            return dict(self.sums)
        for name, p in self.parameters.items():
            if p.grad is None:
                raise ClearheadError(f"{name} has no gradient; call backward first, or freeze what is not trained.")
        return {name: self.team.own(p.grad) for name, p in self.parameters.items() if p.grad is not None}

    @torch.no_grad()
    def collect(self) -> None:
        """Adds the gradients of one pass to a sum in fp32; without masters they are that already."""
        if not self.masters:
            return
        before, self.sums = self.sums, {}
        now = self.gradients()
        if before:
            torch._foreach_add_(list(before.values()), list(now.values()))
        self.sums = before or {name: gradient.float() for name, gradient in now.items()}
        for p in self.parameters.values():
            p.grad = None

    def add_up(self) -> None:
        """The gradients of all processes' rows."""
        self.team.add_up(list(self.gradients().values()))

    @torch.no_grad()
    def clip(self, norm: float) -> Tensor:
        """The norm of all gradients together, in fp32; where it is larger than `norm` they shrink to it."""
        gradients = list(self.gradients().values())
        total = self.team.norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float)).norm())
        shrink = (norm / (total + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, shrink.to(gradients[0].dtype))  # of another dtype, it is a kernel for each
        return total

    def state(self) -> State:
        """Everything that must be kept between steps, `<parameter>.<what>`: the tensors themselves, no copies."""
        held = [(name, "master", master) for name, master in self.masters.items()]
        if self.muon is not None:
            held += [(name, "momentum", momentum) for name, momentum in self.muon.momenta()]
        for name in self.by_adam:
            held += [(name, what, value) for what, value in self.adam.state[self.weights[name]].items()]
        return {f"{name}.{what}": self.team.named(t, self.parameters[name].shape) for name, what, t in held}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a `state()`, bit for bit; masters also go into the net."""
        restore(self.state(), state, self.team)
        self._publish()

    def _publish(self) -> None:
        """The net's rounded weights follow their masters."""
        if self.masters:
            torch._foreach_copy_([self.held[name] for name in self.masters], list(self.masters.values()))


def _adam(option: Option, decaying: list[Tensor], still: list[Tensor]) -> torch.optim.AdamW:
    adam, decay = (option.adam, 0.0) if isinstance(option, Muon) else (option, option.decay)
    groups = [{"params": decaying, "weight_decay": decay}, {"params": still, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    on_gpu = any(p.is_cuda for p in (*decaying, *still))  # where steps are recorded, with the rate as a tensor
    betas = (adam.beta1, adam.beta2)
    optimiser = torch.optim.AdamW(groups, lr=adam.rate, betas=betas, eps=adam.eps, fused=True, capturable=on_gpu)
    for p in (*decaying, *still):  # torch would do this in the first step; a state to load is needed before
        zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimiser.state[p] = {"step": torch.zeros((), device=p.device), **zeros}
    return optimiser


def restore(held: State, given: Mapping[str, Tensor], team: Alone) -> None:
    """Copies what was saved into what is held; nothing is missing, left over or of another form."""
    other = "it was saved by another optimiser or for another model"
    for name in held.keys() ^ given.keys():
        what = "has no" if name in held else "has a"
        raise ClearheadError(f"the saved state {what} {name}; {other}.")
    for name, value in held.items():
        if (given[name].shape, given[name].dtype) != (value.shape, value.dtype):
            forms = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (given[name], value)]
            raise ClearheadError(f"{name} is saved as {forms[0]}, but {forms[1]} is needed; {other}.")
    with torch.no_grad():
        for name, value in held.items():
            team.fill(value, given[name])
