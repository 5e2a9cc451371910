"""Threads that compute, and how a process ends that nobody waits for them."""

import os
import sys
import threading
from collections.abc import Callable


class Computing(threading.Thread):
    """One that may be in the middle of something long when the server has ended."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)


def leave() -> None:
    """Ends the process now where some still compute: Python would wait for them, or torch stumble over its end."""
    if any(isinstance(thread, Computing) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
