"""What is asked of an evaluation: a model, data, and how."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from clearhead.config import Data
from clearhead.data.packed import Report
from clearhead.errors import ClearheadError
from clearhead.tokens.text import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model


@dataclass(frozen=True)
class Task:
    model: "Model"
    paths: tuple[str, ...]
    data: Data  # which columns are read
    report: Report
    stride: int
    beam: int
    seed: int

    @property
    def tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            why = self.model._why or "this model has no tokenizer, so it cannot read text."
            raise ClearheadError(f"{why.removesuffix('.')}; there is nothing to be evaluated.")
        return self.model.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.model.net.parameters()).device

    def refuse_nothing(self, found: int, what: str) -> None:
        if not found:
            raise ClearheadError(f"there is no {what} in {', '.join(self.paths)} to evaluate on.")
