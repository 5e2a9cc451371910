"""How a model is trained, as frozen values: its data, and the run. Stdlib only, like all of the configuration."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from clearhead.errors import ClearheadError
from clearhead.optimisers import AdamW, Option
from clearhead.schedule import Cosine, Schedule
from clearhead.variants import say


@dataclass(frozen=True)
class Data:
    """What is learned from."""

    train: tuple[str, ...] = say("files, folders or globs of text; .gz, .xz, .zst and .jsonl too", ())
    valid: tuple[str, ...] = say("the same, held out; without it a share of train is", ())
    held_out: float = say("share of train that is held out where there is no valid", 0.1, least=0, below=1)
    field: str = say("the field of a JSON line, or the column of a table, that is the text", "text")
    second: str = say("the column of a second text to judge together with the first; none if empty", "")
    label: str = say(
        "the column of labels; for pictures and sounds: folder, or stem (what a name has before _)", "label"
    )
    sides: tuple[str, ...] = say("the two columns, fields or languages of pairs, where a file has more", ())
    most: int = say("pairs with more tokens on a side are left out; 0 = only what no row holds", 0, least=0)
    ratio: float = say("pairs with a side so many times as long as the other are left out; 0 = none", 0.0, least=0)
    shift: int = say("pictures are moved by up to so many pixels, anew each time", 0, least=0)
    tokenizer: str = say("bpe, characters or bytes, made from train; or a tokenizer.json, or a model", "bpe")
    vocabulary: int = say("how many tokens a bpe learns", 8192)
    broken: Literal["refuse", "skip"] = say("what becomes of broken lines", "refuse")


@dataclass(frozen=True)
class Train:
    """How it is learned."""

    steps: int = say("how many steps", 2000)
    start: str = say("a model to start from, instead of random weights: a folder, a name, a .gguf file", "")
    learns: Literal["all", "head"] = say("which weights change", "all")
    rows: int = say("rows of a batch", 16)
    length: int = say("tokens of a row; 0 = as many as the context", 0, least=0)
    accumulate: int = say("batches whose gradients are added up for one step", 1)
    optimiser: Option = field(default=AdamW())
    schedule: Schedule = field(default=Cosine())
    warmup: int = say("steps in which the rate rises", 100, least=0)
    clip: float = say("gradients longer than this are shortened to it; 0 = never", 1.0, least=0)
    smoothing: float = say("share of each lesson that is spread evenly over all words", 0.0, least=0, below=1)
    ema: float = say("share of the averaged weights that is kept in a step; 0 = no averages", 0.0, least=0, below=1)
    average: int = say("at the end, the mean of so many last checkpoints is saved as well; 0 = not", 0, least=0)
    precision: Literal["auto", "float32", "bfloat16"] = say("of the passes; auto = bfloat16 on a GPU", "auto")
    sharded: bool = say("whether several processes share the weights (FSDP2) or each have all (DDP)", False)
    probes: tuple[str, ...] = say("texts that are looked at during training with --microscope", ())
    expected: tuple[float, ...] = say("validation loss to be expected: step, lowest, highest, step, …", ())
    seed: int = say("the order of the data, the first weights and dropout follow from it", 0, least=0)
    report: int = say("steps from one report to the next", 10)
    check: int = say("steps from one validation to the next", 200)
    save: int = say("steps from one checkpoint to the next", 200)
    keep: int = say("how many checkpoints remain besides the best", 2)
    patience: int = say("validations without a better one after which it stops; 0 = never", 0, least=0)

    def __post_init__(self) -> None:
        steps, lowest, highest = (self.expected[i::3] for i in range(3))
        if len(self.expected) % 3 or not all(a <= b for a, b in zip(lowest, highest, strict=True)):
            raise ClearheadError(f"train.expected = {list(self.expected)} must be threes of step, lowest, highest.")
        if not all(a < b for a, b in pairwise(steps)):
            raise ClearheadError(f"train.expected has the steps {list(steps)}, which must rise.")
