"""Who waits, and who is next: clients take turns, however much each of them asks for."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from clearhead.serve.refused import Refused
from clearhead.serve.share import Share

T = TypeVar("T")


class Line(Generic[T]):
    """Things that wait, by client. Next is the client that has least under way; of several, who had no turn longest.

    A client may have as many waiting as there are places left (`Share`).
    """

    def __init__(self, most: int) -> None:
        self.places = Share(most)
        self.waiting: dict[str, deque[T]] = {}  # in the order of their turns
        self.under_way: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many wait."""
        return self.places.count

    def check(self, client: str, more: int = 1) -> None:
        """Refuses one who would have too many waiting, before they are made."""
        most = self.places.most
        if more > most:
            raise Refused(f"{more} texts are more than the {most} that may wait here (--max-queue).")
        if not self.places.fits(client, more):
            sentence = f"too much is waiting here already ({self.count} of {most}); try again in a second."
            raise Refused(sentence, 429, code="rate_limit_exceeded", again=1)

    def add(self, client: str, *things: T) -> None:
        """All of what one request brings."""
        self.check(client, len(things))
        self.waiting.setdefault(client, deque()).extend(things)
        self.places.take(client, len(things))

    def next(self) -> T:
        client = min(self.waiting, key=lambda one: self.under_way[one])  # the first of several
        own = self.waiting.pop(client)
        found = own.popleft()
        if own:
            self.waiting[client] = own  # the others have a turn before
        self.places.give(client, 1)
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
        self.places.give(client, len(own) - len(kept))
        if kept:
            self.waiting[client] = kept
