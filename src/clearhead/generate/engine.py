"""Texts written side by side: each has a row of the memory, and joins and leaves at any step.

What is written does not depend on who else is there, but for the rounding of products in 16 bits. The memory is set
aside once, rows × capacity; who finds no row waits. A row that has been left keeps what was read in it: a prompt that
begins as a row does is read from there on, so a conversation goes on where it was, and what many prompts begin with is
read once.
"""

import math
from collections import deque
from collections.abc import Mapping
from threading import Lock

import torch

from clearhead.config import Use
from clearhead.errors import ClearheadError, NoNumbers
from clearhead.generate.desk import Desk, Drawn
from clearhead.generate.request import Chosen, Request, alike
from clearhead.model.caches import Memory
from clearhead.model.transformer import Transformer

AHEAD = 1  # steps begun on a GPU before the one before is looked at
TOGETHER = 8192  # tokens of prompts that are read at once
WORTH = 16  # tokens in common that are worth copying


class Engine:
    """A network that writes up to `slots` texts at once; `step` goes one token on in each."""

    def __init__(
        self, net: Transformer, use: Use, slots: int, capacity: int, known: int | None = None, recorded: bool = False
    ) -> None:
        self.use, self.slots, self.capacity = use, slots, capacity
        self.desk = Desk(net, use, slots, capacity, net.config.vocabulary if known is None else known, recorded)
        self.ahead = AHEAD if recorded else 0
        self.waiting: deque[Request] = deque()
        self.live: list[Request] = []  # the first rows
        self.held: list[list[int]] = [[] for _ in range(slots)]  # tokens of each row; of a live one, when it joined
        self.lengths = [0] * slots  # how many tokens each row holds
        self.left = [0] * slots  # when each was left, counted in leavings
        self.pending: deque[tuple[list[Request], Drawn]] = deque()
        self.told: deque[list[Request]] = deque()  # by steps that were looked at before anyone asked
        self.changed, self.taken = False, Lock()

    def take(self) -> bool:
        """For one writer alone, unless another has it."""
        return self.taken.acquire(blocking=False)

    def leave(self) -> None:
        if self.taken.locked():
            self.taken.release()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do; those that were told to end do not count."""
        return not self.told and all(r.reason for r in (*self.waiting, *self.live))

    def add(self, request: Request) -> None:
        """Queues a request; it starts when there is a row for it."""
        self.check(request)
        self.waiting.append(request)

    def check(self, request: Request) -> None:
        """Refuses what could not be written."""
        if not request.prompt:
            raise ClearheadError("the prompt is empty; there must be at least one token to go on from.")
        if self.capacity < 2:
            raise ClearheadError("a context of one token has no room to write in; it takes at least two.")
        for name in ("bias", "banned", "forced", "stop_tokens"):
            for token in getattr(request.sampling, name):
                if not 0 <= token < self.desk.known:
                    raise ClearheadError(f"{name}: there is no token {token}; ids are 0 to {self.desk.known - 1}.")
        if len({*request.sampling.banned, *self.desk.never}) >= self.desk.known:
            raise ClearheadError("all tokens are banned; there must be one that can be written.")
        if request.sampling.overflow == "refuse":
            refuse_too_long(len(request.prompt), request.sampling.max_tokens, self.capacity)

    def forget(self) -> None:
        """What rows held that are left; the weights may have changed."""
        self.held = [[] for _ in self.held]
        self.desk.refresh()

    @torch.no_grad()
    def step(self) -> list[Request]:
        """One more token for the texts under way; those are given back, and none if nothing is left to do."""
        while not self.idle or self.pending or self.live:
            self._leave()
            self._join()
            begun = self._begin()
            if self.pending and (len(self.pending) > self.ahead or not begun):
                self._look()
            while self.told:
                if told := self.told.popleft():
                    return told
        return []

    def _leave(self) -> None:
        """Those that ended leave, and those that slide join again; the last row takes the place of one left."""
        if any(self._full(row) for row in range(len(self.live))):
            self._settle()
        for row in reversed(range(len(self.live))):
            request, full = self.live[row], self._full(row)
            if not request.reason and request.asked < request.sampling.max_tokens and not full:
                continue
            if full and not request.reason:
                request.start = len(request.tokens) - self.capacity // 2
                self.waiting.appendleft(request)
            last = len(self.live) - 1
            # Where steps are recorded a free row may be written to behind its end; at most its last place is lost.
            whole = min(self.lengths[row], self.capacity - 1)
            self.held[row] = [] if full else request.tokens[request.start :][:whole]
            self.left[row] = max(self.left) + 1
            if row < last:
                self._swap(row, last)
            self.live[row] = self.live[last]
            self.live.pop()
            self.changed = True

    def _full(self, row: int) -> bool:
        """Whether there is no room for the next token of a text that is to go on."""
        return self.lengths[row] == self.capacity and self.live[row].asked < self.live[row].sampling.max_tokens

    def _swap(self, row: int, other: int) -> None:
        self.desk.swap(row, other, self.lengths)
        self.held[row], self.held[other] = self.held[other], self.held[row]
        self.lengths[row], self.lengths[other] = self.lengths[other], self.lengths[row]
        self.left[row], self.left[other] = self.left[other], self.left[row]

    def _join(self) -> None:
        """Those that wait get the free rows. What a text has in common with a row is not read again; texts that go on
        from the same row are read together, and so are new ones, unless they have much in common themselves."""
        joining: list[Request] = []
        while self.waiting and len(self.live) + len(joining) < self.slots:
            request = self.waiting.popleft()
            if not request.reason:
                joining.append(request)
        joining.sort(key=lambda request: len(request.tokens) - self._start(request))
        while joining:
            later, group = list[Request](), dict[tuple[int, ...], list[Request]]()
            for request in joining:
                text = request.tokens[request.start :]
                if not group:
                    row, common = self._known(text)
                if (key := tuple(text)) in group or self._goes_with(group, text, row, common):
                    group.setdefault(key, []).append(request)
                else:
                    later.append(request)
            read = self.desk.read([list(key) for key in group], row, common)
            theirs = [i for i, same in enumerate(group.values()) for _ in same]
            texts = [list(key) for key, same in group.items() for _ in same]
            self._seat([request for same in group.values() for request in same], texts, theirs, *read)
            joining = later

    def _goes_with(self, group: Mapping[tuple[int, ...], object], text: list[int], row: int, common: int) -> bool:
        """Whether a text is read together with others that have so much in common with a row."""
        if group and len(text) * (len(group) + 1) > min(TOGETHER, 2 * (len(text) + sum(map(len, group)))):
            return False
        if common:
            return self._known(text) == (row, common)
        return not self._known(text)[1] and all(alike(text, other) < WORTH for other in group)

    def _start(self, request: Request) -> int:
        """Where its text is read from: a prompt that leaves no room slides too."""
        if request.sampling.overflow == "slide" and len(request.tokens) - request.start >= self.capacity:
            request.start = len(request.tokens) - self.capacity // 2
        return request.start

    def _known(self, text: list[int]) -> tuple[int, int]:
        """The row that begins most like a text, and how many tokens they have in common; the last is read anyway."""
        best = (0, 0)
        for row, held in enumerate(self.held):
            same = min(alike(text, held), len(text) - 1)
            if same >= WORTH and same > best[1]:
                best = row, same
        return best

    def _seat(
        self, requests: list[Request], texts: list[list[int]], theirs: list[int], memory: Memory, logits: torch.Tensor
    ) -> None:
        """Into the first free rows; what those held goes where the oldest was."""
        desk, first = self.desk, len(self.live)
        for new, text in enumerate(texts, first):
            later = range(first + len(texts), self.slots)
            oldest = min(later, key=lambda i: self.left[i], default=new)
            if self.held[new] and self.left[oldest] < self.left[new]:
                desk.memory.put(oldest, desk.memory, [new], [self.lengths[new]])
                self.held[oldest], self.lengths[oldest] = self.held[new], self.lengths[new]
                self.left[oldest] = self.left[new]
            self.held[new], self.lengths[new] = text, len(text)
        desk.memory.put(first, memory, theirs, [*map(len, texts)])
        desk.logits[first : first + len(texts)] = logits[theirs]
        self.live += requests
        self.changed = True

    def _begin(self) -> bool:
        """A step of the device, if anyone is there."""
        if not self.live:
            return False
        if self.changed:
            if any(request.sampling.looks_back for request in self.live):
                self._settle()
            self.desk.arrange(self.live)
            self.changed = False
        rows, now = self.desk.memory.rows, self.lengths[: len(self.live)]
        if not self.desk.recorded:
            rows.longest, rows.even = max(now), min(now) == max(now)
        for request in self.live:
            request.asked += 1
        reading = self.desk.recorded or any(request.asked < request.sampling.max_tokens for request in self.live)
        for row in range(len(self.live)):
            self.lengths[row] += reading
        self.pending.append((list(self.live), self.desk.step(len(self.live), reading)))
        return True

    def _settle(self) -> None:
        """Everything that was begun becomes known."""
        while self.pending:
            self._look()

    def _look(self) -> None:
        """At what the oldest step drew."""
        live, drawn = self.pending.popleft()
        told, broken = list[Request](), 0
        for request, (token, logprob, *others) in zip(live, drawn.rows(), strict=True):
            if request.reason:
                continue
            if math.isnan(logprob):
                request.end("broken")
                broken = len(request.written) + 1
                continue
            half, top = len(others) // 2, min(request.top, len(others) // 2)
            best = tuple(zip(map(int, others[:top]), others[half : half + top], strict=True))
            request.written.append(Chosen(int(token), logprob, best))
            told.append(request)
            if int(token) in self.use.stop or int(token) in request.sampling.stop_tokens:
                request.end("stop")
            elif len(request.written) == request.sampling.max_tokens:
                request.end("length")
        self.told.append(told)
        if broken:
            raise NoNumbers(f"the logits of token {broken}")


def refuse_too_long(prompt: int, more: int, most: int) -> None:
    if prompt >= most:
        raise ClearheadError(f"{prompt} tokens leave no room in the context of {most}; overflow slide makes some.")
    if prompt + more > most:
        room = f"the context of {most}; ask for at most {most - prompt}, or for overflow slide"
        raise ClearheadError(f"{prompt} tokens of prompt and {more} to write exceed {room}.")
