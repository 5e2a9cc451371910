"""Texts written side by side: each has a slot of the memory, and joins and leaves at any step.

A step reads the last token of every text at once. A prompt is read alone, before its text joins, so what is written
does not depend on who else is there. The memory is set aside once, slots × capacity; who finds no slot waits.
"""

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearhead.config import Use
from clearhead.errors import ClearheadError
from clearhead.generate.sampling import Draw, Sampling, key_of
from clearhead.model.transformer import Transformer


@dataclass(frozen=True)
class Chosen:
    """A token that was written: its log-probability under the model, and those of the likeliest tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A prompt, how it is to be written on, and what has been written."""

    prompt: list[int]
    sampling: Sampling
    sample: int = 0  # which of several from one seed
    top: int = 0  # how many of the likeliest are told with each token
    written: list[Chosen] = field(default_factory=list)
    reason: str = ""  # why it ended: stop or length

    def end(self, reason: str) -> None:
        """Ends it before the next step; the first reason holds."""
        self.reason = self.reason or reason


class Engine:
    """A network that writes up to `slots` texts at once; `step` goes one token on in each."""

    def __init__(self, net: Transformer, use: Use, slots: int, capacity: int, known: int | None = None) -> None:
        self.net, self.use, self.slots, self.capacity = net, use, slots, capacity
        self.known = net.config.vocabulary if known is None else known
        self.device = next(net.parameters()).device
        self.memory = net.remember(slots, capacity)
        self.waiting: deque[Request] = deque()
        self.live: list[Request] = []
        self.draw: Draw | None = None  # of those that are live
        self.logits = torch.zeros(slots, self.known, device=self.device)  # of each text's next token

    def add(self, request: Request) -> None:
        """Queues a request; it starts when there is a slot."""
        if not request.prompt:
            raise ClearheadError("the prompt is empty; there must be at least one token to go on from.")
        needed, most = len(request.prompt) + request.sampling.max_tokens, self.capacity
        if needed > most:
            room = f"the context of {most}; ask for at most {max(0, most - len(request.prompt))}"
            raise ClearheadError(
                f"{len(request.prompt)} tokens of prompt and {request.sampling.max_tokens} to write exceed {room}."
            )
        self.waiting.append(request)

    @torch.no_grad()
    def step(self) -> list[Request]:
        """One more token for every text that has a slot; those are given back, and none if nothing is left to do."""
        self._leave()
        while self.waiting and len(self.live) < self.slots:
            request = self.waiting.popleft()
            if not request.reason:
                self._join(request)
        if not self.live:
            return []
        self._choose()
        going = [request for request in self.live if not request.reason]
        if going:
            self._read([request.written[-1].token for request in self.live])
        return list(self.live)

    def _join(self, request: Request) -> None:
        alone, row = self.net.remember(1, len(request.prompt)), len(self.live)
        hidden = self.net(torch.tensor([request.prompt], device=self.device), memory=alone)
        self.memory.put(row, alone, 0, len(request.prompt))
        self.logits[row] = self._predict(hidden[:, -1:])[0]
        self.live.append(request)
        self.draw = None

    def _leave(self) -> None:
        """The last text takes the place of one that has ended."""
        for row in reversed(range(len(self.live))):
            if self.live[row].reason:
                last = self.live.pop()
                if row < len(self.live):
                    self.memory.put(row, self.memory, len(self.live), len(last.prompt) + len(last.written))
                    self.logits[row], self.live[row] = self.logits[len(self.live)], last
                self.draw = None

    def _read(self, tokens: list[int]) -> None:
        rows = self.memory.rows
        rows.used = len(tokens)
        rows.longest = max(len(request.prompt) + len(request.written) - 1 for request in self.live)
        hidden = self.net(torch.tensor(tokens, device=self.device)[:, None], memory=self.memory)
        self.logits[: len(tokens)] = self._predict(hidden)

    def _predict(self, hidden: Tensor) -> Tensor:
        return self.net.predict(hidden)[:, -1, : self.known].float()

    def _choose(self) -> None:
        logits = self.logits[: len(self.live)]
        if self.draw is None:
            keys = [key_of(request.sampling.seed, request.sample) for request in self.live]
            self.draw = Draw([request.sampling for request in self.live], keys, self.device)
        places = torch.tensor([[len(request.written)] for request in self.live], device=self.device)
        read, written = self._counts() if self.draw.looks_back else (None, None)
        allowed = torch.stack([self._shaped(row, request) for row, request in zip(logits, self.live, strict=True)])
        tokens = self.draw(allowed, places, read, written).tolist()
        log_probs = logits.log_softmax(dim=-1)
        for request, token, row, broken in zip(
            self.live, tokens, log_probs, logits.isnan().any(dim=-1).tolist(), strict=True
        ):
            at = len(request.written)
            if broken:
                request.end("broken")
                raise ClearheadError(
                    f"the logits of token {at + 1} hold no numbers; the weights of the model may be broken."
                )
            token = request.sampling.forced[at] if at < len(request.sampling.forced) else token
            best = row.topk(min(request.top, len(row)))
            top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            request.written.append(Chosen(token, float(row[token]), top))
            if token in self.use.stop:
                request.end("stop")
            elif at + 1 == request.sampling.max_tokens:
                request.end("length")

    def _shaped(self, logits: Tensor, request: Request) -> Tensor:
        """The logits with what this request adds and forbids."""
        s = request.sampling
        banned = [*self.use.never, *s.banned, *(() if request.written else self.use.never_first)]
        if s.bias:
            logits = logits.index_add(
                0,
                torch.tensor(list(s.bias), device=self.device),
                torch.tensor(list(s.bias.values()), device=self.device, dtype=logits.dtype),
            )
        return logits.index_fill(0, torch.tensor(banned, device=self.device), -torch.inf) if banned else logits

    def _counts(self) -> tuple[Tensor, Tensor]:
        """How often each token was read and written, by row."""

        def counted(texts: list[list[int]]) -> Tensor:
            rows = [torch.bincount(torch.tensor(text, dtype=torch.long), minlength=self.known) for text in texts]
            return torch.stack([row[: self.known] for row in rows]).to(self.device)

        return counted([r.prompt for r in self.live]), counted([[c.token for c in r.written] for r in self.live])
