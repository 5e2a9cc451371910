"""Ctrl-C, or a polite end from outside, at a moment that suits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM (docker stop, Slurm), kept until a step is whole: half a step must never be saved.

    A second Ctrl-C ends at once. A second SIGTERM does not: launchers pass theirs on to processes that have it already.
    """
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():  # signals are not for others
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
