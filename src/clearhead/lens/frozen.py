"""The way back from an answer to the stream as a straight line: every norm keeps the scale it had in this run.

A `Ray` is a direction at every token and a constant: logit = stream · direction + constant. It goes back through a
norm (its scale frozen), a linear layer, and an activation (its factor f(y)/y frozen). Nothing is approximated: what
is read off along the way adds up to the logit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.errors import ClearheadError
from clearhead.lens.ask import Question
from clearhead.model.heads import LanguageHead, MaskedWordHead, PooledHead
from clearhead.model.transformer import Transformer

Activation = Callable[[Tensor], Tensor]


def exact(value: Tensor) -> Tensor:
    """In at least 32 bits, and without a history."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


@dataclass(frozen=True)
class Ray:
    direction: Tensor  # token width
    constant: Tensor

    def through_norm(self, norm: nn.Module, x: Tensor) -> "Ray":
        """Back through a norm that has read x."""
        if isinstance(norm, nn.LayerNorm):
            scaled = (
                self.direction * exact(norm.weight) * (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).rsqrt()
            )
            centred = scaled - scaled.mean(dim=-1, keepdim=True)  # to centre is linear, and its own mirror image
            return Ray(centred, self.constant + self._along(norm.bias))
        if isinstance(norm, nn.RMSNorm):
            scale = (x.square().mean(dim=-1, keepdim=True) + (norm.eps or 0.0)).rsqrt()
            return Ray(self.direction * exact(norm.weight) * scale, self.constant)
        return self

    def through_linear(self, linear: nn.Linear) -> "Ray":
        return Ray(self.direction @ exact(linear.weight), self.constant + self._along(linear.bias))

    def through_activation(self, activation: Activation, y: Tensor) -> "Ray":
        """Back through an activation that has read y: f(y) = y · f(y)/y."""
        away = torch.where(y == 0, torch.finfo(y.dtype).eps, y)
        return Ray(self.direction * activation(away) / away, self.constant)

    def _along(self, bias: Tensor | None) -> Tensor:
        return torch.zeros_like(self.constant) if bias is None else (self.direction * exact(bias)).sum()


def from_answer(net: Transformer, hidden: Tensor, question: Question) -> Ray:
    """From a logit back to the last hidden states, token × width."""
    head = net.head
    if isinstance(head, MaskedWordHead):
        y = _linear(head.dense, hidden)
        ray = _from_words(head, hidden, question).through_norm(head.norm, head.activation(y))
        return ray.through_activation(head.activation, y).through_linear(head.dense)
    if isinstance(head, LanguageHead):
        return _from_words(head, hidden, question)
    if isinstance(head, PooledHead):
        return _from_pooled(head, hidden, question)
    raise ClearheadError("this model has no head, so there is no logit to be made of anything.")


def _from_words(head: LanguageHead, hidden: Tensor, question: Question) -> Ray:
    direction = torch.zeros_like(hidden)
    direction[question.at] = question.of(exact(head.unembed.weight).mT) * head.scale
    return Ray(direction, hidden.new_zeros(()) if head.bias is None else question.of(exact(head.bias)))


def _from_pooled(head: PooledHead, hidden: Tensor, question: Question) -> Ray:
    pooled = hidden.mean(dim=0) if head.mean else hidden[0]
    ray = Ray(question.of(exact(head.out.weight).mT), question.of(exact(head.out.bias)))
    if head.pooler is not None:
        ray = ray.through_activation(torch.tanh, _linear(head.pooler, pooled)).through_linear(head.pooler)
    direction = torch.zeros_like(hidden)
    direction[slice(None) if head.mean else 0] = ray.direction / (len(hidden) if head.mean else 1)
    return Ray(direction, ray.constant)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, exact(linear.weight), None if linear.bias is None else exact(linear.bias))
