"""The whole of a beam search, to be drawn: every text that was considered, and what became of it."""

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Literal

ROOT = -1  # the parent of first tokens: the prompt, and the prefix if there is one


@dataclass(frozen=True)
class Node:
    """A token that was considered after the token of its parent."""

    token: int
    logprob: float  # of the text from the root to here
    parent: int  # a number of a node
    step: int  # how many tokens this text has
    fate: Literal["kept", "finished", "dropped"]


@dataclass
class BeamTree:
    """Nodes in the order of time, each round's likeliest first."""

    beams: int
    nodes: list[Node] = field(default_factory=list)
    tips: list[int] = field(default_factory=list)  # the node of each beam
    rounds: int = 0

    def add(
        self, tokens: list[int], beams: list[int], logprobs: list[float], finished: list[bool], kept: list[int]
    ) -> None:
        """One round's candidates; impossible ones are none."""
        tips, numbers, self.rounds = self.tips or [ROOT] * self.beams, {}, self.rounds + 1
        for i, (token, beam, logprob, ended) in enumerate(zip(tokens, beams, logprobs, finished, strict=True)):
            if logprob == -inf:
                continue
            numbers[i] = len(self.nodes)
            fate: Literal["kept", "finished", "dropped"] = "kept" if i in kept else "dropped"
            self.nodes.append(Node(token, logprob, tips[beam], self.rounds, "finished" if ended else fate))
        self.tips = [numbers.get(i, ROOT) for i in kept]

    def text(self, number: int) -> list[int]:
        """The tokens from the root to a node."""
        found: list[int] = []
        while number != ROOT:
            found.append(self.nodes[number].token)
            number = self.nodes[number].parent
        return found[::-1]

    def table(self) -> list[dict[str, Any]]:
        """A row for each node; plain numbers and words, as JSON has them."""
        return [{"node": number, **asdict(node)} for number, node in enumerate(self.nodes)]
