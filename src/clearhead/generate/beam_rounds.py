"""The rounds of a beam search, for all sentences of a batch at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.generate.beam_rules import Chances, Rules
from clearhead.generate.beam_state import NOTHING, State, likeliest
from clearhead.generate.beam_tree import BeamTree
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.generate.swift import Swift  # needs triton

ASK = 8  # steps between asking a GPU whether all sentences are done


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that ended: its new tokens, the stop token among them if one was written."""

    tokens: list[int]
    score: float  # what it is ranked by: logprob / length ** length_penalty
    logprob: float  # the sum of what the model gives its tokens
    tree: BeamTree | None = None  # of all that was considered, where it was asked for


class Round(NamedTuple):
    """What was considered for each sentence, likeliest first."""

    token: Int[Tensor, "sentence candidate"]
    beam: Int[Tensor, "sentence candidate"]  # that it goes on from
    logprob: Float[Tensor, "sentence candidate"]
    finished: Bool[Tensor, "sentence candidate"]
    kept: Int[Tensor, "sentence beam"]  # candidates that are the next beams; −1: none is left


def advance(state: State, logits: Chances, rules: Rules) -> tuple[State, Round]:
    """One round for all sentences; those that are done stay as they are."""
    # The likeliest of all are among the likeliest of each beam: so sums are taken of few, not of whole vocabularies.
    spread, chances = rules.spread(logits), rules.chances(logits, state)
    each, tokens = likeliest(chances, min(rules.candidates, chances.shape[2]))
    each = each if spread is None else each.float() - spread
    sums = (state.logprobs[:, :, None] + each).flatten(1)
    logprobs, places = sums.topk(min(rules.candidates, sums.shape[1]))
    beam, token = places // each.shape[2], tokens.expand(-1, rules.beams, -1).flatten(1).gather(1, places)
    written = state.tokens.shape[-1] - rules.max_tokens + state.step
    texts = pick(state.tokens, beam).index_copy_(-1, written[None], token[..., None])

    ends, ranked = rules.ends(token, state.step), torch.arange(token.shape[1], device=token.device)
    finished = ends & (ranked < rules.beams) & (logprobs != -inf) & ~state.done[:, None]
    scores = torch.cat((state.scores, rules.score(logprobs, state).masked_fill(~finished, -inf)), dim=1)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, : rules.beams]

    going = logprobs.masked_fill(ends, -inf)
    kept = going.sort(dim=1, descending=True, stable=True).indices[:, : rules.beams]
    new = State(
        tokens=pick(texts, kept),
        logprobs=going.gather(1, kept),
        rows=pick_rows(beam.gather(1, kept)),
        ended=pick(torch.cat((state.ended, texts), dim=1), best),
        ended_logprobs=torch.cat((state.ended_logprobs, logprobs), dim=1).gather(1, best),
        scores=scores.gather(1, best),
        given=state.given,
        done=state.done,
        step=state.step + 1,
    )
    # What the best beam might reach is guessed from what it would score if it ended now.
    enough, reach = new.scores[:, -1] != -inf, rules.score(new.logprobs[:, :1], state)[:, 0]
    unbeatable = enough if rules.early else enough & (reach <= new.scores[:, -1])
    new.done = state.done | unbeatable | (new.logprobs[:, 0] == -inf)
    return new, Round(token, beam, logprobs, finished, kept.masked_fill(new.logprobs == -inf, -1))


def pick(texts: Int[Tensor, "sentence text place"], index: Int[Tensor, "sentence some"]) -> Tensor:
    return texts.gather(1, index[..., None].expand(-1, -1, texts.shape[-1]))


def pick_rows(beam: Int[Tensor, "sentence beam"]) -> Int[Tensor, "sentence beam"]:
    """Rows of the memory: the beams of a sentence lie side by side."""
    sentences, beams = beam.shape
    return beam + torch.arange(0, sentences * beams, beams, device=beam.device)[:, None]


class Search:
    """A network that writes all beams of all sentences; `step` goes one token on in each.

    A source is read once and kept once for a sentence, however many beams look at it.
    """

    def __init__(
        self, net: Transformer, rules: Rules, prompts: list[list[int]], prefixes: list[list[int]],
        source: Tensor | None, source_segments: Tensor | None, trees: bool,
    ) -> None:  # fmt: skip
        self.net, self.rules, self.prefixes = net, rules, prefixes
        self.sentences = list(range(len(prompts)))  # those that are still written
        self.found: dict[int, list[Hypothesis]] = {}
        self.swift: Swift | None = None
        self.trees = [BeamTree(rules.beams) if trees else None for _ in prompts]
        self.source, self.source_segments, self.encoded = source, source_segments, source
        texts = [prompt + prefix for prompt, prefix in zip(prompts, prefixes, strict=True)]
        self.longest = max(map(len, texts))
        self.even = self.longest == min(map(len, texts))
        self.ids = torch.tensor([text + [0] * (self.longest - len(text)) for text in texts], device=rules.device)
        self.lengths = torch.tensor([len(text) for text in texts], device=rules.device)
        given = torch.tensor([len(prefix) for prefix in prefixes], device=rules.device)
        self.state, self.first = (State.start(texts, given, rules.beams, rules.max_tokens) for _ in range(2))
        self.memory = net.remember(len(texts) * rules.beams, self.longest + rules.max_tokens - 1)

    def begin(self) -> None:
        """Sources and prompts are read, and the first tokens chosen."""
        if self.source is not None:
            self.encoded = self.net.encode(self.source, self.source_segments)
        self.memory.clear(len(self.ids))  # a prompt is the same for all beams
        row = torch.arange(len(self.ids), device=self.rules.device)
        segments = (torch.arange(self.longest, device=self.rules.device) < self.lengths[:, None]).long()
        hidden = self.pass_on(self.ids, None if self.even else segments)
        self.memory.follow(row.repeat_interleave(self.rules.beams))
        self.first.logprobs[:, 0] = self.worth(hidden)
        self.state.become(self.first)
        self.choose(self.net.predict(hidden[row, self.lengths - 1][:, None]))

    def worth(self, hidden: Tensor) -> Float[Tensor, " sentence"]:
        """The log-probability of each prefix."""
        worth = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for i, prefix in enumerate(self.prefixes):
            if prefix:
                end = int(self.lengths[i]) - 1
                prompt = self.ids[i, : end + 1 - len(prefix)].tolist()
                logits = self.net.predict(hidden[i : i + 1, end - len(prefix) : end])[0]
                chances = self.rules.along(logits, prompt, prefix)
                worth[i] = chances[range(len(prefix)), prefix].sum()
        return worth

    def pass_on(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.net(
            ids, segments=segments, encoded=self.encoded, source_segments=self.source_segments, memory=self.memory
        )

    def step(self) -> None:
        """One token more in every beam: the same tensors each time, and nothing is asked of the device."""
        rows = self.state.rows.flatten()
        if self.rules.beams > 1 or len(rows) < self.memory.rows.used:
            self.memory.follow(rows)
        logits = self.net.predict(self.read(self.state.last(self.rules.max_tokens)))
        self.choose(logits.unflatten(0, (-1, self.rules.beams))[:, :, 0])

    def read(self, tokens: Tensor) -> Tensor:
        """Hidden states of one more token in every beam."""
        if self.swift is None:
            return self.pass_on(tokens)
        return self.net.norm(self.swift.hidden(tokens, self.memory, self.source_segments)[:, None])

    def choose(self, logits: Chances) -> None:
        new, considered = advance(self.state, logits, self.rules)
        for i, sentence in enumerate(self.sentences):
            if (tree := self.trees[sentence]) is not None and not self.state.done[i]:
                tree.add(*(value[i].tolist() for value in considered))
        self.state.become(new)

    def run(self) -> list[list[Hypothesis]]:
        """To the end: all hypotheses of each sentence, best first."""
        every = 1 if self.rules.device.type == "cpu" else ASK
        self.begin()
        for step in range(self.rules.max_tokens - 1):
            if step % every == 0 and not self.leave():
                break
            self.step()
        self.collect(range(len(self.sentences)))
        return [self.found[i] for i in range(len(self.found))]

    def leave(self) -> bool:
        """Whether any sentence goes on. On a CPU those that are done leave; a GPU likes shapes that stay."""
        done = self.state.done.tolist()
        if any(done) and not all(done) and self.rules.device.type == "cpu":
            self.collect([i for i, over in enumerate(done) if over])
            left = [i for i, over in enumerate(done) if not over]
            self.sentences, index = [self.sentences[i] for i in left], torch.tensor(left)
            self.state = self.state.only(index)
            self.memory.look(index)
            self.encoded = None if self.encoded is None else self.encoded[index]
            self.source_segments = None if self.source_segments is None else self.source_segments[index]
        return not all(done)

    def collect(self, places: Iterable[int]) -> None:
        """What these sentences have found."""
        start = self.state.tokens.shape[-1] - self.rules.max_tokens
        ended = [x.tolist() for x in (self.state.ended[..., start:], self.state.scores, self.state.ended_logprobs)]
        for i in places:
            sentence = self.sentences[i]
            prefix, tree = self.prefixes[sentence], self.trees[sentence]
            self.found[sentence] = [
                Hypothesis(prefix + [t for t in text if t != NOTHING], score, logprob, tree)
                for text, score, logprob in zip(*(value[i] for value in ended), strict=True)
                if score != -inf
            ]
