"""A run on TensorBoard, for those who have it."""

from pathlib import Path

from clearhead.errors import ClearheadError
from clearhead.train.run import Progress

FOLDER = "tensorboard"


class Board:
    """Event files in out/tensorboard. What an earlier process wrote from `step` on is taken back, as in the log."""

    def __init__(self, out: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ClearheadError("--tensorboard needs a package more: pip install 'clearhead[tensorboard]'.") from None
        self.writer = SummaryWriter(out / FOLDER, purge_step=step + 1)

    def write(self, at: Progress) -> None:
        values = {
            "loss/training": at.loss,
            "loss/validation": at.valid,
            "accuracy": at.accuracy,
            "share of the rate": at.factor,
            "lessons a second": at.lessons,
        }
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, at.step)

    def close(self) -> None:
        self.writer.close()
