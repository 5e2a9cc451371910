"""Beam search (L5.4): write several texts side by side, always go on with the likeliest, rank those that ended.

One round: every beam is expanded by every token; of the likeliest candidates, those that end are finished and the
others are kept as the next beams; a sentence is done when nothing that goes on can beat what has ended. One beam
is greedy decoding. Rounds and results are those of `generate(num_beams=…)` in transformers 5.
"""

from dataclasses import dataclass, field, replace
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that ended: its new tokens, the stop token among them if one was written."""

    tokens: list[int]
    score: float  # what it is ranked by: logprob / length ** length_penalty
    logprob: float  # the sum of what the model gives its tokens


@dataclass(frozen=True)
class Beam:
    """A continuation that may go on."""

    tokens: list[int]
    logprob: float
    row: int  # of the batch, whose memory it goes on from
    unread: list[int]  # what that memory does not hold yet: the prompt, then the last token


@dataclass(frozen=True)
class Rules:
    """What one search shares with the others of its batch."""

    beams: int
    max_tokens: int
    stop: tuple[int, ...]
    length_penalty: float
    early: bool

    def score(self, beam: Beam) -> float:
        return beam.logprob / len(beam.tokens) ** self.length_penalty

    def ends(self, beam: Beam) -> bool:
        return beam.tokens[-1] in self.stop or len(beam.tokens) == self.max_tokens


@dataclass
class Search:
    """One sentence: the beams that go on and the hypotheses so far, both best first."""

    rules: Rules
    beams: list[Beam]
    finished: list[Hypothesis] = field(default_factory=list)

    def finish(self, candidates: list[Beam]) -> None:
        """Those of the `beams` likeliest that end join the hypotheses, of which the best remain."""
        ended = [beam for beam in candidates[: self.rules.beams] if self.rules.ends(beam)]
        new = [Hypothesis(beam.tokens, self.rules.score(beam), beam.logprob) for beam in ended]
        self.finished = sorted(self.finished + new, key=lambda h: -h.score)[: self.rules.beams]

    def keep(self, candidates: list[Beam]) -> None:
        """The likeliest that do not end go on; where they are too few, impossible ones fill the batch up."""
        going = [beam for beam in candidates if not self.rules.ends(beam)][: self.rules.beams]
        missing = self.rules.beams - len(going)
        self.beams = going + [replace(beam, logprob=-inf) for beam in going[:1] * missing]

    @property
    def done(self) -> bool:
        """Nothing goes on, or there are hypotheses enough and (unless `early` asks no more) none could be beaten.

        What a beam might reach is guessed from what it would score if it ended now.
        """
        if not self.beams:
            return True
        if len(self.finished) < self.rules.beams:
            return False
        return self.rules.early or self.rules.score(self.beams[0]) <= self.finished[-1].score


class Reader:
    """The network and what it has read: a row for each beam, with its memory and its source."""

    def __init__(
        self, net: Transformer, batch: int, capacity: int, source: Tensor | None, source_segments: Tensor | None
    ) -> None:
        self.net, self.memory = net, net.remember(batch, capacity)
        self.encoded = None if source is None else net.encode(source, source_segments)
        self.source_segments = source_segments

    def read(self, beams: list[Beam]) -> Float[Tensor, "row vocabulary"]:
        """The log-probabilities of each beam's next token."""
        self.follow([beam.row for beam in beams])
        device = self.memory.rows.held.device
        lengths = torch.tensor([len(beam.unread) for beam in beams], device=device)
        longest = max(len(beam.unread) for beam in beams)
        ids = torch.tensor([beam.unread + [0] * (longest - len(beam.unread)) for beam in beams], device=device)
        hidden = self.net(
            ids,
            segments=(torch.arange(longest, device=device) < lengths[:, None]).long() if longest > 1 else None,
            encoded=self.encoded,
            source_segments=self.source_segments,
            memory=self.memory,
        )
        last = hidden[torch.arange(len(beams), device=device), lengths - 1]
        return self.net.predict(last[:, None])[:, 0].float().log_softmax(-1)

    def follow(self, rows: list[int]) -> None:
        """Row i becomes what row rows[i] was: beams split and die, sentences that are done leave the batch."""
        held = self.memory.rows.held
        if rows == list(range(len(held))):
            return
        index = torch.tensor(rows, device=held.device)
        self.memory.reorder(index)
        if self.encoded is not None:
            self.encoded = self.encoded.index_select(0, index)
        if self.source_segments is not None:
            self.source_segments = self.source_segments.index_select(0, index)


def expand(searches: list[Search], log_probs: Float[Tensor, "row vocabulary"], count: int) -> list[list[Beam]]:
    """For each sentence, its beams with one more token: the `count` likeliest that are possible, best first."""
    so_far = torch.tensor([[beam.logprob for beam in search.beams] for search in searches], device=log_probs.device)
    width, vocabulary = so_far.shape[1], log_probs.shape[1]
    sums = (so_far[:, :, None] + log_probs.unflatten(0, so_far.shape)).flatten(1)
    best = sums.topk(min(count, width * vocabulary))
    found = []
    for i, (search, values, places) in enumerate(zip(searches, *map(Tensor.tolist, best), strict=True)):
        steps = [(value, *divmod(place, vocabulary)) for value, place in zip(values, places, strict=True)]
        found.append(
            [
                Beam([*search.beams[which].tokens, token], logprob, i * width + which, [token])
                for logprob, which, token in steps
                if logprob > -inf
            ]
        )
    return found


@torch.no_grad()
def beam_search(
    net: Transformer,
    prompt: Tensor | list[list[int]],
    *,
    source: Tensor | None = None,
    source_segments: Tensor | None = None,
    beams: int,
    max_tokens: int,
    stop: tuple[int, ...] = (),
    length_penalty: float = 1.0,
    n_best: int = 1,
    never: tuple[int, ...] = (),
    never_first: tuple[int, ...] = (),
    renormalised: bool = False,
    closed: bool = False,
    early: bool = False,
    known: int | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` best continuations of each prompt, best first; fewer where fewer are possible.

    Each ends with a token of `stop` or after `max_tokens`, then too with one of `stop` if they are to be `closed`.
    Tokens of `never` are not written, those of `never_first` not at once, and only the first `known` of the vocabulary
    are; the others keep their probabilities, or share those of the forbidden (`renormalised`). `early` is content with
    the first `beams` hypotheses. For an encoder-decoder, prompts are what its output starts with, one for each row of
    `source`.
    """
    prompts = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    check(prompts, source, beams, max_tokens, n_best)
    rules = Rules(beams, max_tokens, stop, length_penalty, early)
    searches = [Search(rules, [Beam([], 0.0, row, tokens)]) for row, tokens in enumerate(prompts)]
    room = max(map(len, prompts)) + max_tokens - 1  # the last token is never read
    reader = Reader(net, len(prompts), room, source, source_segments)
    enough = beams * (1 + len(stop))  # a beam can end in `stop` ways: this many leave `beams` that go on
    live, banned, left = searches, [*never, *never_first], max_tokens
    while live:
        log_probs = reader.read([beam for search in live for beam in search.beams])
        log_probs[:, banned] = -inf
        if closed and left == 1:
            log_probs = torch.full_like(log_probs, -inf).index_fill_(
                1, torch.tensor(stop[:1], device=log_probs.device), 0
            )
        if renormalised:
            log_probs = log_probs.log_softmax(-1)
        for search, candidates in zip(live, expand(live, log_probs[:, :known], enough), strict=True):
            search.finish(candidates)
            search.keep(candidates)
        live, banned, left = [search for search in live if not search.done], [*never], left - 1
    if not all(search.finished for search in searches):
        raise ClearheadError("no token can be written: never, never_first and known leave none with a probability.")
    return [search.finished[:n_best] for search in searches]


def check(prompts: list[list[int]], source: Tensor | None, beams: int, max_tokens: int, n_best: int) -> None:
    """Refuses what cannot be searched for."""
    for name, value in {"beams": beams, "max_tokens": max_tokens, "n_best": n_best}.items():
        if value < 1:
            raise ClearheadError(f"{name} = {value} is too few; it must be at least 1.")
    if n_best > beams:
        raise ClearheadError(f"n_best = {n_best} is more than the {beams} beams can give; ask for at most {beams}.")
    if not prompts or not all(prompts):
        raise ClearheadError("a prompt is empty; each needs at least one token to go on from.")
    if source is not None and len(source) != len(prompts):
        raise ClearheadError(f"there are {len(prompts)} prompts for {len(source)} sources; each source needs one.")
