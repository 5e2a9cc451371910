"""What a beam search goes by: how far and how wide, which tokens may follow, what ends a text, what a text is worth."""

from dataclasses import dataclass, field, replace
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.generate.beam_state import State
from clearhead.kernels import TRITON

if TRITON:
    from clearhead.kernels.vocabulary import log_total

Chances = Float[Tensor, "sentence beam vocabulary"]


@dataclass
class Rules:
    """The same for all sentences of a batch; no method asks the device anything, so a GPU can record each."""

    device: torch.device
    beams: int
    max_tokens: int
    stop: tuple[int, ...] = ()
    length_penalty: float = 1.0
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    renormalised: bool = False
    closed: bool = False
    early: bool = False
    no_repeat: int = 0
    known: int | None = None
    ids: dict[str, Tensor] = field(init=False)  # the tokens above, on the device

    def __post_init__(self) -> None:
        listed = {"stop": self.stop, "never": self.never, "never_first": self.never_first, "closing": self.stop[:1]}
        self.ids = {name: torch.tensor(ids, dtype=torch.long, device=self.device) for name, ids in listed.items()}

    @property
    def candidates(self) -> int:
        """A beam can end in `stop` ways: of this many, `beams` go on."""
        return self.beams * (1 + len(self.stop))

    def ends(self, tokens: Int[Tensor, "sentence candidate"], step: Int[Tensor, ""]) -> Tensor:
        return (tokens[..., None] == self.ids["stop"]).any(-1) | (step + 1 == self.max_tokens)

    def score(self, logprobs: Float[Tensor, "sentence text"], state: State) -> Tensor:
        """What texts are worth that end with the token now chosen."""
        lengths = (state.given + state.step + 1).to(logprobs.dtype)
        return logprobs / lengths[:, None] ** self.length_penalty

    def spread(self, logits: Chances) -> Float[Tensor, "sentence beam 1"] | None:
        """What `chances` lack to be log-probabilities: on a GPU it is taken off the few that are chosen."""
        if not by_kernel(logits) or self.renormalised:
            return None
        return log_total(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])

    def chances(self, logits: Chances, state: State) -> Chances:
        """Log-probabilities of what may follow each beam; of the first beam alone, where there are no others yet."""
        if by_kernel(logits) and not self.renormalised:
            chances = logits  # `spread` of them is known before any is forbidden
        else:
            chances = logits.float() if self.renormalised else logits.float().log_softmax(-1)
        chances.index_fill_(-1, self.ids["never"], -inf)
        if self.never_first:
            begins = torch.where((state.step == 0) & (state.given == 0), -inf, 0.0)[:, None, None]
            chances.index_add_(-1, self.ids["never_first"], begins.expand(*chances.shape[:2], len(self.never_first)))
        if self.no_repeat:
            held = state.step + (state.tokens.shape[-1] - self.max_tokens)
            forbid_repeats(chances, state.tokens[:, : chances.shape[1]], held, self.no_repeat)
        if self.closed:
            closing = torch.full_like(chances[:1, :1], -inf).index_fill_(-1, self.ids["closing"], 0.0)
            chances = torch.where(state.step + 1 == self.max_tokens, closing, chances)
        if self.renormalised:
            nothing = chances.amax(-1, keepdim=True) == -inf
            chances = chances.log_softmax(-1).masked_fill_(nothing, -inf)
        return chances[..., : self.known]

    def along(self, logits: Float[Tensor, "token vocabulary"], prompt: list[int], text: list[int]) -> Tensor:
        """Log-probabilities at each place of a text after a prompt, as a search that wrote it would have had them.

        What was told to stand in its place, though no search would write it, has what the model gives it.
        """
        plain = logits.float().log_softmax(-1)
        if not self.renormalised or not text:
            return plain
        begun, given = [[*prompt, *text[:i]] for i in range(len(text))], torch.arange(len(text), device=self.device)
        rules = replace(self, max_tokens=1, closed=False, known=None)
        chances = rules.chances(logits[:, None], State.start(begun, given, 1, 1))[:, 0]
        own = torch.tensor(text, device=self.device)[:, None]
        told = chances.gather(1, own)
        return chances.scatter(1, own, torch.where(told == -inf, plain.gather(1, own), told))


def by_kernel(logits: Tensor) -> bool:
    return TRITON and logits.is_cuda


def forbid_repeats(
    chances: Chances, texts: Int[Tensor, "sentence beam place"], held: Int[Tensor, ""], size: int
) -> None:
    """Takes from each text the tokens that would complete a run of `size` that it holds; `held` places are filled."""
    if size > texts.shape[-1]:
        return
    runs, tail = texts.unfold(-1, size, 1), held - size + 1 + torch.arange(size - 1, device=texts.device)
    begun = texts.index_select(-1, tail.clamp(min=0))
    # What lies before a short prompt is not written, and it stands at the left only: no text meets it again.
    met = (runs[..., :-1] == begun[..., None, :]).all(-1) & (runs[..., -1] >= 0)
    met = met & (torch.arange(size, texts.shape[-1] + 1, device=texts.device) <= held)
    taken = torch.where(met, -inf, inf).to(chances.dtype)
    chances.scatter_reduce_(-1, runs[..., -1].clamp(min=0), taken, "amin")
