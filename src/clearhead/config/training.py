"""The optimisers to choose from, as tagged values; they are read without torch."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from clearhead.config.parse import kind, option
from clearhead.errors import ClearheadError

# ---- optimisers: The optimisers to choose from, as tagged values; they are read without torch.


@dataclass(frozen=True)
class Adam:
    """Each weight moves by the mean of its gradients over the root of their mean square."""

    lr: float = option("how far a weight moves in a step at the peak of the schedule", 1e-3)
    beta1: float = option("share of the mean gradient that is kept in a step", 0.9, ge=0, lt=1)
    beta2: float = option(
        "share of the mean squared gradient that is kept in a step", 0.95, ge=0, lt=1
    )
    eps: float = option("added to the root of the mean square", 1e-8)


@dataclass(frozen=True)
class AdamW(Adam):
    kind: Literal["adamw"] = kind("Adam with decay apart from the gradient", "adamw")
    weight_decay: float = option(
        "matrices of the blocks shrink by decay x rate in a step", 0.1, ge=0
    )


@dataclass(frozen=True)
class Muon:
    kind: Literal["muon"] = kind(
        "matrices of the blocks move by orthogonal matrices, the rest by Adam", "muon"
    )
    lr: float = option("the size of the step of a matrix at the peak of the schedule", 0.02)
    momentum: float = option("share of the mean gradient that is kept in a step", 0.95, ge=0, lt=1)
    weight_decay: float = option(
        "matrices of the blocks shrink by decay x rate in a step", 0.1, ge=0
    )
    adam: Adam = field(default=Adam())


OptimizerConfig = AdamW | Muon


# ---- schedule: How large a step is, as a share of the peak rate: pure functions of the step, read without torch.


@dataclass(frozen=True)
class Constant:
    kind: Literal["constant"] = kind("the same rate to the end", "constant")

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        return warmup_factor(step, warmup_steps)


@dataclass(frozen=True)
class Cosine:
    kind: Literal["cosine"] = kind("down along half a cosine", "cosine")
    min_lr_ratio: float = option("share of the peak rate at the end", 0.1, ge=0, le=1)

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        way = min(1.0, max(0, step - warmup_steps) / max(1, max_steps - warmup_steps))
        return warmup_factor(step, warmup_steps) * (
            self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * way)) / 2
        )


@dataclass(frozen=True)
class WSD:
    kind: Literal["wsd"] = kind("flat, then down in a straight line to zero (WSD)", "wsd")
    decay_fraction: float = option(
        "share of all steps in which the rate goes down; 1 = from the start", 0.4, ge=0, le=1
    )

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        left = max(0, max_steps - step)
        down = self.decay_fraction * max_steps
        return min(warmup_factor(step, warmup_steps), left / down if left < down else 1.0)


@dataclass(frozen=True)
class InverseSqrt:
    """min(n^-1/2, n · warmup^-3/2) for the n-th step (Vaswani et al. 2017), divided by its peak, warmup^-1/2."""

    kind: Literal["inverse_sqrt"] = kind(
        "down with the root of the step, as in 2017", "inverse_sqrt"
    )

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        return min(warmup_factor(step, warmup_steps), math.sqrt(max(1, warmup_steps) / (step + 1)))


Schedule = Constant | Cosine | WSD | InverseSqrt


def warmup_factor(step: int, warmup_steps: int) -> float:
    """From 1/warmup at the first step to 1 at the last of the warm-up; with no warm-up, 1."""
    return min(1.0, (step + 1) / max(1, warmup_steps))


# ---- training: How a model is trained, as frozen values: its data, and the run. Stdlib only, like all of the configuration.


@dataclass(frozen=True)
class DataConfig:
    """What is learned from."""

    train: tuple[str, ...] = option(
        "files, folders or globs of text; .gz, .xz, .zst and .jsonl too", ()
    )
    valid: tuple[str, ...] = option("the same, held out; without it a share of train is", ())
    valid_fraction: float = option(
        "share of train that is held out where there is no valid", 0.1, ge=0, lt=1
    )
    text_column: str = option(
        "the field of a JSON line, or the column of a table, that is the text", "text"
    )
    text_pair_column: str = option(
        "the column of a second text to judge together with the first; none if empty", ""
    )
    label_column: str = option(
        "the column of labels; for pictures and sounds: folder, or stem (what a name has before _)",
        "label",
    )
    source_column: str = option("column, field or language of the source text of a pair", "")
    target_column: str = option("column, field or language of the target text of a pair", "")
    max_tokens: int = option(
        "pairs with more tokens on a side are left out; 0 = only what no row holds", 0, ge=0
    )
    max_length_ratio: float = option(
        "pairs with a side so many times as long as the other are left out; 0 = none", 0.0, ge=0
    )
    random_shift: int = option(
        "pictures are moved by up to so many pixels, anew each time", 0, ge=0
    )
    tokenizer: str = option(
        "bpe, characters or bytes, made from train; or a tokenizer.json, or a model", "bpe"
    )
    vocab_size: int = option("how many tokens a bpe learns", 8192)
    on_error: Literal["fail", "skip"] = option("what becomes of broken lines", "fail")


@dataclass(frozen=True)
class TrainConfig:
    """How it is learned."""

    max_steps: int = option("how many steps", 2000)
    init_from: str = option(
        "a model to start from, instead of random weights: a folder, a name, a .gguf file", ""
    )
    trainable: Literal["all", "head"] = option("which weights change", "all")
    batch_size: int = option("rows of a batch", 16)
    seq_len: int = option("tokens of a row; 0 = as many as the context", 0, ge=0)
    grad_accum: int = option("batches whose gradients are added up for one step", 1)
    optimizer: OptimizerConfig = field(default=AdamW())
    schedule: Schedule = field(default=Cosine())
    warmup_steps: int = option("steps in which the rate rises", 100, ge=0)
    grad_clip: float = option(
        "gradients longer than this are shortened to it; 0 = never", 1.0, ge=0
    )
    label_smoothing: float = option(
        "share of each lesson that is spread evenly over all words", 0.0, ge=0, lt=1
    )
    ema_decay: float = option(
        "share of the averaged weights that is kept in a step; 0 = no averages", 0.0, ge=0, lt=1
    )
    average_checkpoints: int = option(
        "at the end, the mean of so many last checkpoints is saved as well; 0 = not", 0, ge=0
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "of the passes; auto = bfloat16 on a GPU", "auto"
    )
    strategy: Literal["ddp", "fsdp"] = option(
        "ddp: each process holds all weights. fsdp: weights are sharded (FSDP2)", "ddp"
    )
    probe_texts: tuple[str, ...] = option(
        "texts that are looked at during training with --microscope", ()
    )
    expected_loss: tuple[float, ...] = option(
        "validation loss to be expected: step, lowest, highest, step, …", ()
    )
    seed: int = option(
        "the order of the data, the first weights and dropout follow from it", 0, ge=0
    )
    log_every: int = option("steps from one report to the next", 10)
    eval_every: int = option("steps from one validation to the next", 200)
    save_every: int = option("steps from one checkpoint to the next", 200)
    keep_checkpoints: int = option("how many checkpoints remain besides the best", 2)
    patience: int = option(
        "validations without a better one after which it stops; 0 = never", 0, ge=0
    )

    def __post_init__(self) -> None:
        steps, lowest, highest = (self.expected_loss[i::3] for i in range(3))
        if len(self.expected_loss) % 3 or not all(
            a <= b for a, b in zip(lowest, highest, strict=True)
        ):
            raise ClearheadError(
                f"train.expected_loss = {list(self.expected_loss)} must be threes of step, lowest, highest."
            )
        if not all(a < b for a, b in pairwise(steps)):
            raise ClearheadError(
                f"train.expected_loss has the steps {list(steps)}, which must rise."
            )
