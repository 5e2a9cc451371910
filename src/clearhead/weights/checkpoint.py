"""A model as it goes in and out of files: its network, what it is, and its tokenizers."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from clearhead.config import Config, EncoderDecoder, ModelConfig
from clearhead.errors import ClearheadError, nearest
from clearhead.model.int8 import quantise
from clearhead.model.transformer import Transformer, build
from clearhead.tokens.published import framing
from clearhead.tokens.text import Tokenizer

TOKENIZER, SOURCE_TOKENIZER, CHAT = "tokenizer.json", "source_tokenizer.json", "chat_template.jinja"
STORED, INT8 = "stored", "int8"  # the dtype that leaves weights as they are, and the one that is made of float32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class Checkpoint:
    net: Transformer
    config: Config
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None  # where the source is cut by another rule than the target
    why: str = ""  # it cannot read text, where it has no tokenizer

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """That of what it writes and that of what it reads, which are one unless a source has its own."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer

    def save_tokenizers(self, folder: Path) -> None:
        for tokenizer, name in ((self.tokenizer, TOKENIZER), (self.source_tokenizer, SOURCE_TOKENIZER)):
            if tokenizer is not None:
                tokenizer.save(folder / name)

    def save_tokenizers_for_engines(self, folder: Path) -> None:
        """The tokenizers and the chat template, for engines that have no way of their own to hold them.

        The one that reads what is given puts around it what the model reads there.
        """
        self.save_tokenizers(folder)
        if reading := self.source_tokenizer or self.tokenizer:
            framing(reading, self.config.use).save(folder / (SOURCE_TOKENIZER if self.source_tokenizer else TOKENIZER))
        if self.config.use.chat:
            (folder / CHAT).write_text(self.config.use.chat, encoding="utf-8")


@dataclass(frozen=True)
class Home:
    """Where weights are to live, and in which dtype; None leaves each in the one it was stored in."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    least: torch.dtype | None = None  # what is stored in less becomes this
    int8: bool = False  # matrices become int8 when all are there

    @classmethod
    def of(cls, device: str | torch.device, dtype: str | torch.dtype) -> Self:
        """By names. Without: on a GPU as stored, where there is one; else on the CPU in 32 bits, for 16 are slower."""
        name, kind = str(device or ("cuda" if torch.cuda.is_available() else "cpu")), str(dtype or "")
        kind = kind.removeprefix("torch.")
        if kind and kind not in (known := [*DTYPES, STORED, INT8]):
            raise ClearheadError(f"dtype {kind!r} is unknown; {nearest(kind, known)}")
        try:
            where = torch.empty(0, device=name).device.type
        except (RuntimeError, AssertionError):
            raise ClearheadError(f"there is no device {name!r} here; cpu always works.") from None
        if kind == INT8:
            if where != "cpu":
                raise ClearheadError(f"int8 is for CPUs, not for {name}; choose device cpu, or dtype bfloat16.")
            return cls(name, torch.float32, int8=True)
        if where == "meta":
            raise ClearheadError("device 'meta' holds no weights; cpu always works.")
        return cls(name, DTYPES.get(kind), torch.float32 if where == "cpu" and not kind else None)

    def __call__(self, tensor: Tensor) -> Tensor:
        wide = tensor.dtype if self.least is None else torch.promote_types(tensor.dtype, self.least)
        return tensor.to(self.device, self.dtype or wide).contiguous()


def promised(m: ModelConfig, tensors: int) -> Transformer:
    """The network that a file of so many tensors may hold, without weights; no block is made of nothing."""
    deep = m.layers + (m.shape.layers if isinstance(m.shape, EncoderDecoder) else 0)
    if deep > tensors:
        raise ClearheadError(f"its configuration asks for {deep:,} layers, but there are only {tensors:,} tensors.")
    return build(m, seed=None)


def fill(net: Transformer, tensors: Iterable[tuple[str, Tensor]], home: Home, where: str) -> Transformer:
    """The network with every parameter from the tensor of its name: nothing missing, left over, or no number.

    Tensors come one by one, so that only one is ever there twice.
    """
    wanted, state = dict(net.named_parameters()), dict[str, Tensor]()
    for name, tensor in tensors:
        if name not in wanted:
            raise ClearheadError(f"{where} holds {name}, which this model does not have; {nearest(name, wanted)}")
        if tensor.shape != wanted[name].shape:
            raise ClearheadError(
                f"{where}: {name} is {tuple(tensor.shape)}, but the model needs {tuple(wanted[name].shape)}."
            )
        if tensor.dtype not in DTYPES.values():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ClearheadError(f"{where}: {name} is stored as {kind}; weights are {', '.join(DTYPES)}.")
        if not all(bound.isfinite() for bound in tensor.aminmax()):
            raise ClearheadError(f"{where}: {name} holds values that are no finite numbers (NaN or infinity).")
        state[name] = home(tensor)
    if missing := [name for name in wanted if name not in state]:
        raise ClearheadError(
            f"{where} lacks {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}."
        )
    net.load_state_dict(state, strict=False, assign=True)  # shared matrices are stored once
    for p in net.parameters():
        p.requires_grad_()
    if home.int8:
        quantise(net)
    return net.eval()
