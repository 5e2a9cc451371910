"""How a model is trained, as frozen values: its data, and the run. Stdlib only, like all of the configuration."""

from dataclasses import dataclass, field
from typing import Literal

from clearhead.errors import ClearheadError
from clearhead.options import AdamW, Option
from clearhead.schedule import Cosine, Schedule
from clearhead.variants import say


@dataclass(frozen=True)
class Data:
    """What is learned from."""

    train: tuple[str, ...] = say("files, folders or globs of text; .gz, .xz, .zst and .jsonl too", ())
    valid: tuple[str, ...] = say("the same, held out; without it a share of train is", ())
    held_out: float = say("share of train that is held out where there is no valid", 0.1, least=0)
    field: str = say("which field of a JSON line is the text", "text")
    tokenizer: str = say("bpe, characters or bytes, made from train; or a tokenizer.json, or a model", "bpe")
    vocabulary: int = say("how many tokens a bpe learns", 8192)
    broken: Literal["refuse", "skip"] = say("what becomes of broken lines", "refuse")

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ClearheadError(f"data.held_out = {self.held_out} must be a share of at least 0 and less than 1.")


@dataclass(frozen=True)
class Train:
    """How it is learned."""

    steps: int = say("how many steps", 2000)
    rows: int = say("rows of a batch, each as long as the context", 16)
    accumulate: int = say("batches whose gradients are added up for one step", 1)
    optimiser: Option = field(default=AdamW())
    schedule: Schedule = field(default=Cosine())
    warmup: int = say("steps in which the rate rises", 100, least=0)
    clip: float = say("gradients longer than this are shortened to it; 0 = never", 1.0, least=0)
    smoothing: float = say("share of each lesson that goes to all other words", 0.0, least=0)
    ema: float = say("share of the averaged weights that is kept in a step; 0 = no averages", 0.0, least=0)
    seed: int = say("the order of the data, the first weights and dropout follow from it", 0, least=0)
    report: int = say("steps from one report to the next", 10)
    check: int = say("steps from one validation to the next", 200)
    save: int = say("steps from one checkpoint to the next", 200)
    keep: int = say("how many checkpoints remain besides the best", 2)
    patience: int = say("validations without a better one after which it stops; 0 = never", 0, least=0)

    def __post_init__(self) -> None:
        for name in ("smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ClearheadError(f"train.{name} = {getattr(self, name)} must be at least 0 and less than 1.")
        if self.clip < 0:
            raise ClearheadError(f"train.clip = {self.clip} must be at least 0.")
