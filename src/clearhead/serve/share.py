"""What clients have to share: places in a line, requests under way, bytes of them."""

from collections import Counter


class Share:
    """At most so much in all. A client may have as much as is left: one alone gets half of it piece by piece, two a
    third each, and so there is some for someone new."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.own: Counter[str] = Counter()

    def fits(self, client: str, more: int) -> bool:
        return self.own[client] + more <= self.most - self.count

    def take(self, client: str, more: int) -> None:
        self.own[client] += more
        self.count += more

    def give(self, client: str, back: int) -> None:
        self.take(client, -back)
        if not self.own[client]:
            del self.own[client]
