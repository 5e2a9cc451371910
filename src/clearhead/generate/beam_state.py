"""Where a beam search stands: tensors of fixed shapes, for all sentences of a batch at once."""

from dataclasses import dataclass, fields
from math import inf
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.kernels import TRITON

if TRITON:
    from clearhead.kernels.vocabulary import tops

NOTHING = -1  # where no token stands: before a short prompt, after a text
BLOCK = 64  # of a vocabulary: the largest of each are found first


@dataclass
class State:
    """Texts that go on and texts that ended, both best first; a text is the prompt, set to the right, and what follows.

    Beams that cannot be are there too, with a log-probability of −∞: so shapes never change.
    """

    tokens: Int[Tensor, "sentence beam place"]
    logprobs: Float[Tensor, "sentence beam"]
    rows: Int[Tensor, "sentence beam"]  # of the memory: what each goes on from
    ended: Int[Tensor, "sentence beam place"]
    ended_logprobs: Float[Tensor, "sentence beam"]
    scores: Float[Tensor, "sentence beam"]  # of those that ended; −∞: there is none
    given: Int[Tensor, " sentence"]  # tokens that the output was told to begin with
    done: Bool[Tensor, " sentence"]
    step: Int[Tensor, ""]  # tokens written since

    @classmethod
    def start(
        cls,
        texts: list[list[int]],
        given: Int[Tensor, " sentence"],
        beams: int,
        max_tokens: int,
    ) -> Self:
        """Nothing is written yet: of each sentence's beams, only the first can be."""
        longest, device = max(map(len, texts)), given.device
        listed = [[NOTHING] * (longest - len(text)) + text + [NOTHING] * max_tokens for text in texts]
        tokens = torch.tensor(listed, device=device)[:, None].repeat(1, beams, 1)
        none = torch.full((len(texts), beams), -inf, device=device)
        first = none.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0)
        rows = torch.arange(none.numel(), device=device).view_as(none)
        done, step = torch.zeros_like(given, dtype=torch.bool), torch.zeros((), dtype=torch.long, device=device)
        return cls(tokens, first, rows, tokens.clone(), none, none.clone(), given, done, step)

    def last(self, max_tokens: int) -> Int[Tensor, "row 1"]:
        """The token that each beam wrote last."""
        place = self.step + (self.tokens.shape[-1] - max_tokens - 1)
        return self.tokens.index_select(-1, place[None]).flatten(0, 1)

    def become(self, other: "State") -> None:
        """Takes the other's values into its own tensors."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))

    def only(self, sentences: Int[Tensor, " some"]) -> "State":
        """Some of the sentences."""
        *those, step = (getattr(self, field.name) for field in fields(self))
        return State(*[*(value.index_select(0, sentences) for value in those), step])


def likeliest(
    chances: Float[Tensor, "sentence beam vocabulary"], count: int
) -> tuple[Float[Tensor, "sentence beam some"], Int[Tensor, "sentence beam some"]]:
    """`topk`, sooner: the `count` largest lie in the `count` blocks that hold the largest."""
    vocabulary, blocks = chances.shape[-1], chances.shape[-1] // BLOCK
    if blocks < 2 * count:
        found = chances.topk(count)
        return found.values, found.indices
    whole = blocks * BLOCK
    if TRITON and chances.is_cuda:
        highest = tops(chances.flatten(0, 1), blocks, BLOCK).unflatten(0, chances.shape[:2])
    else:
        highest = chances[..., :whole].unflatten(-1, (blocks, BLOCK)).amax(-1)
    best = highest.topk(count).indices
    inside = best[..., None] * BLOCK + torch.arange(BLOCK, device=chances.device)
    rest = torch.arange(whole, vocabulary, device=chances.device).expand(*chances.shape[:-1], -1)
    places = torch.cat((inside.flatten(-2), rest), dim=-1)
    found = chances.gather(-1, places).topk(count)
    return found.values, places.gather(-1, found.indices)
