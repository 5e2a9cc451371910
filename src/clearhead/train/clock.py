"""How long training takes, without what is done beside it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds since it was started. A GPU works behind the program, so what is done aside is timed by the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self.start()

    def start(self) -> None:
        self.began, self.others = time.monotonic(), list[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens meanwhile does not count."""
        if not self.gpu:
            now = time.monotonic()
            yield
            self.began += time.monotonic() - now
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        yield
        after.record()
        self.others.append((before, after))

    def seconds(self) -> float:
        """Once the GPU has done what it was given."""
        for _, after in self.others:
            after.synchronize()
        return time.monotonic() - self.began - sum(a.elapsed_time(b) for a, b in self.others) / 1000
