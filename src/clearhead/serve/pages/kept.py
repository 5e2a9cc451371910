"""Things that are kept while there is room, the least recently used going first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A mapping that holds at most so many bytes; the newest entry always stays."""

    def __init__(self, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most, self._size, self._held = most_bytes, size, 0
        self._entries: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> T | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: str, value: T) -> T:
        with self._lock:
            if key in self._entries:
                self._held -= self._size(self._entries.pop(key))
            self._entries[key] = value
            self._held += self._size(value)
            while self._held > self._most and len(self._entries) > 1:
                _, gone = self._entries.popitem(last=False)
                self._held -= self._size(gone)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._held
