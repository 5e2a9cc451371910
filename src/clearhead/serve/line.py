"""Who waits, and who is next: clients take turns, however much each of them asks for."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from clearhead.serve.refused import Refused

T = TypeVar("T")


class Line(Generic[T]):
    """Things that wait, by client. Next is the client that has least under way; of several, who had no turn longest.

    A client may have as many waiting as there are places left. So one alone fills half of the line, two fill a third
    each, and there is always a place for someone new.
    """

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.waiting: dict[str, deque[T]] = {}  # in the order of their turns
        self.under_way: Counter[str] = Counter()

    def check(self, client: str) -> None:
        """Refuses one who has enough waiting."""
        if len(self.waiting.get(client, ())) >= self.most - self.count:
            sentence = f"too much is waiting here already ({self.count} of {self.most}); try again in a second."
            raise Refused(sentence, 429, code="rate_limit_exceeded", again=1)

    def add(self, client: str, *things: T) -> None:
        """All of what one request brings: the line may get longer by that."""
        self.check(client)
        self.waiting.setdefault(client, deque()).extend(things)
        self.count += len(things)

    def next(self) -> T:
        client = min(self.waiting, key=lambda one: self.under_way[one])  # the first of several
        own = self.waiting.pop(client)
        found = own.popleft()
        if own:
            self.waiting[client] = own  # the others have a turn before
        self.count -= 1
        self.under_way[client] += 1
        return found

    def done(self, client: str) -> None:
        """One that was next has ended."""
        self.under_way[client] -= 1
        if not self.under_way[client]:
            del self.under_way[client]

    def drop(self, client: str, unwanted: Callable[[T], bool]) -> None:
        own = self.waiting.pop(client, deque())
        kept = deque(thing for thing in own if not unwanted(thing))
        self.count -= len(own) - len(kept)
        if kept:
            self.waiting[client] = kept
