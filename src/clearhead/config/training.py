"""Configuration of data, optimizer, learning-rate schedule and training run."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from clearhead.config.options import kind, option
from clearhead.errors import ClearheadError

PEAK_LR = "learning rate at the peak of the schedule"
WEIGHT_DECAY = "weight decay of the weight matrices of the blocks, decoupled (times lr)"


# --- optimizers
@dataclass(frozen=True)
class Adam:
    """Adam without weight decay: what Muon uses for everything that is not a matrix of a block."""

    lr: float = option(PEAK_LR, 1e-3)
    beta1: float = option("decay rate of the first moment (Adam β₁)", 0.9, ge=0, lt=1)
    beta2: float = option("decay rate of the second moment (Adam β₂)", 0.95, ge=0, lt=1)
    eps: float = option("added to the denominator for numerical stability", 1e-8)


@dataclass(frozen=True)
class AdamW(Adam):
    kind: Literal["adamw"] = kind("Adam with decoupled weight decay", "adamw")
    weight_decay: float = option(WEIGHT_DECAY, 0.1, ge=0)


@dataclass(frozen=True)
class Muon:
    kind: Literal["muon"] = kind(
        "orthogonalized momentum for the weight matrices of the blocks, Adam for the rest", "muon"
    )
    lr: float = option(f"{PEAK_LR}, for matrices", 0.02)
    momentum: float = option("decay rate of the momentum", 0.95, ge=0, lt=1)
    weight_decay: float = option(WEIGHT_DECAY, 0.1, ge=0)
    adam: Adam = Adam()


OptimizerConfig = AdamW | Muon


# --- schedules
# Pure functions of the step: the learning rate as a fraction of its peak. All of them warm up
# linearly; the first step already has a positive learning rate.
@dataclass(frozen=True)
class Constant:
    kind: Literal["constant"] = kind("constant after warmup", "constant")

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        return warmup_factor(step, warmup_steps)


@dataclass(frozen=True)
class Cosine:
    kind: Literal["cosine"] = kind("cosine decay", "cosine")
    min_lr_ratio: float = option("final learning rate / peak learning rate", 0.1, ge=0, le=1)

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        progress = min(1.0, max(0, step - warmup_steps) / max(1, max_steps - warmup_steps))
        cosine = (1 + math.cos(math.pi * progress)) / 2
        decay = self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine
        return warmup_factor(step, warmup_steps) * decay


@dataclass(frozen=True)
class Linear:
    kind: Literal["linear"] = kind("linear decay to zero", "linear")

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        remaining = max(0, max_steps - step) / max(1, max_steps - warmup_steps)
        return min(warmup_factor(step, warmup_steps), remaining)


@dataclass(frozen=True)
class WSD:
    kind: Literal["wsd"] = kind("warmup, stable, then linear decay to zero", "wsd")
    decay_fraction: float = option("fraction of all steps that decay", 0.4, ge=0, le=1)

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        remaining_steps = max(0, max_steps - step)
        decay_steps = self.decay_fraction * max_steps
        decay = remaining_steps / decay_steps if remaining_steps < decay_steps else 1.0
        return min(warmup_factor(step, warmup_steps), decay)


@dataclass(frozen=True)
class InverseSqrt:
    """min(n^-1/2, n · warmup^-3/2) at step n (Vaswani et al. 2017), divided by its peak."""

    kind: Literal["inverse_sqrt"] = kind(
        "inverse square root of the step (Vaswani et al. 2017)", "inverse_sqrt"
    )

    def lr_factor(self, step: int, max_steps: int, warmup_steps: int) -> float:
        return min(warmup_factor(step, warmup_steps), math.sqrt(max(1, warmup_steps) / (step + 1)))


Schedule = Constant | Cosine | Linear | WSD | InverseSqrt


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Linear warmup from 1/warmup_steps at step 0 to 1; without warmup always 1."""
    return min(1.0, (step + 1) / max(1, warmup_steps))


# --- data and run
@dataclass(frozen=True)
class DataConfig:
    """Training and validation data."""

    train: tuple[str, ...] = option(
        "training files, folders or globs; .gz, .xz, .zst and .jsonl are supported", ()
    )
    valid: tuple[str, ...] = option("validation files; if empty, a fraction of train is used", ())
    valid_fraction: float = option(
        "fraction of train used for validation if valid is empty", 0.1, ge=0, lt=1
    )
    text_column: str = option("text column of tables, text field of JSON lines", "text")
    text_pair_column: str = option("column of the second text of a pair to classify", "")
    label_column: str = option(
        "label column; for images and audio: folder, or stem (the file name up to _)", "label"
    )
    source_column: str = option("source column, field or language of sentence pairs", "")
    target_column: str = option("target column, field or language of sentence pairs", "")
    max_tokens: int = option(
        "drop sentence pairs with more tokens on one side; 0 = what fits in a row", 0, ge=0
    )
    max_length_ratio: float = option(
        "drop sentence pairs whose lengths differ by more than this factor; 0 = off", 0.0, ge=0
    )
    random_shift: int = option("shift images by up to this many pixels, at random", 0, ge=0)
    tokenizer: str = option(
        "bpe, characters or bytes (trained on train), a tokenizer.json, or a model", "bpe"
    )
    vocab_size: int = option("vocabulary size of a new bpe tokenizer", 8192)
    parse_special_tokens: bool = option(
        "read names of special tokens in running text, such as <|im_start|>, as these tokens", False
    )
    on_error: Literal["fail", "skip"] = option("what to do with malformed lines", "fail")


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    max_steps: int = option("number of optimizer steps", 2000)
    init_from: str = option("model to fine-tune: a folder, a name, or a .gguf file", "")
    trainable: Literal["all", "head"] = option("which parameters are trained", "all")
    batch_size: int = option("rows per batch", 16)
    seq_len: int = option("tokens per row; 0 = model.context_length", 0, ge=0)
    grad_accum: int = option("batches per optimizer step (gradient accumulation)", 1)
    optimizer: OptimizerConfig = AdamW()
    schedule: Schedule = Cosine()
    warmup_steps: int = option("steps of linear warmup", 100, ge=0)
    grad_clip: float = option("maximum gradient norm; 0 = no clipping", 1.0, ge=0)
    label_smoothing: float = option("label smoothing", 0.0, ge=0, lt=1)
    ema_decay: float = option(
        "decay of the exponential moving average of weights, warmed up; 0 = off", 0.0, ge=0, lt=1
    )
    average_checkpoints: int = option(
        "also save the mean of this many last checkpoints; 0 = off", 0, ge=0
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "compute dtype; auto = bfloat16 on GPU, float32 on CPU", "auto"
    )
    strategy: Literal["ddp", "fsdp"] = option(
        "data parallelism: replicated (ddp) or sharded weights (fsdp)", "ddp"
    )
    probe_texts: tuple[str, ...] = option("texts traced by --record-activations", ())
    expected_loss: tuple[float, ...] = option(
        "expected validation loss: step, lowest, highest, step, …", ()
    )
    seed: int = option("random seed of data order, initialization and dropout", 0, ge=0)
    log_every: int = option("steps between log lines", 10)
    eval_every: int = option("steps between validations", 200)
    save_every: int = option("steps between checkpoints", 200)
    keep_checkpoints: int = option("checkpoints to keep besides the best", 2)
    patience: int = option(
        "stop after this many validations without improvement; 0 = never", 0, ge=0
    )

    def __post_init__(self) -> None:
        steps = self.expected_loss[0::3]
        lowest = self.expected_loss[1::3]
        highest = self.expected_loss[2::3]
        is_complete = len(self.expected_loss) % 3 == 0
        if not is_complete or any(a > b for a, b in zip(lowest, highest, strict=True)):
            raise ClearheadError(
                "train.expected_loss must list step, lowest, highest for each check, "
                f"got {list(self.expected_loss)}."
            )
        if any(a >= b for a, b in pairwise(steps)):
            raise ClearheadError(
                f"the steps of train.expected_loss must increase, got {list(steps)}."
            )
