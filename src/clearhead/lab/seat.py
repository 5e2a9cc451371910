"""Where a process of an experiment works: its device, its neighbours, and how much memory it takes."""

import gc
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from clearhead.weights.checkpoint import Home


@dataclass(frozen=True)
class Seat:
    device: str
    processes: int  # that share the machine

    @classmethod
    def take(cls, device: str) -> Self:
        """Of the processes that torchrun started each has a GPU of its own, as far as there are so many."""
        here, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        device = Home.of(device, "").device
        if device == "cuda":
            device = f"cuda:{here % torch.cuda.device_count()}"
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        if "WORLD_SIZE" in os.environ:  # from here on each trains, and speaks, for itself
            os.environ |= {"WORLD_SIZE": "1", "RANK": "0"}
        return cls(device, processes)

    def forget(self) -> None:
        """All that earlier runs have left behind; the peak of memory counts from here."""
        if "torch._dynamo" in sys.modules:  # it compiles only so many variants of one function
            torch.compiler.reset()
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        elif (refs := Path("/proc/self/clear_refs")).exists():
            with suppress(OSError):  # some containers show it and refuse it
                refs.write_text("5")

    def peak(self) -> int | None:
        """In bytes: what tensors took of a GPU; else what the whole process took, where the system tells."""
        if self.device.startswith("cuda"):
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
