"""Tensors in safetensors files, read one by one through memory maps."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.config.model import Config, EncoderDecoder, ModelConfig
from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError, suggest
from clearhead.io import write_json
from clearhead.model.int8 import quantize
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.tokenizers.huggingface import PretrainedTokenizer, with_post_processor
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- store: Tensors in safetensors files, read one by one through memory maps.


class SafetensorsReader:
    """All tensors of some files, by name; a name stands in one file only.

    Each read opens its file anew: pages that were read are given back with the tensor, not kept with the file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            with _open_safetensors(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no dictionary
                    if name in self.files:
                        raise ClearheadError(
                            f"{name} stands in {self.files[name].name} and again in {file.name}."
                        )
                    self.files[name] = file
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())

    def get_tensor(self, name: str) -> Tensor:
        with _open_safetensors(self.files[name]) as tensors:
            return tensors.get_tensor(name)


@contextmanager
def _open_safetensors(file: Path) -> Iterator[Any]:
    """The file with its errors told in a sentence; what is not whole inside is refused by the library."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise ClearheadError(
            f"{file} cannot be read as safetensors: {error}; the download may be incomplete."
        ) from None


# ---- checkpoint: A model as it goes in and out of files: its network, what it is, and its tokenizers.

TOKENIZER_FILE = "tokenizer.json"
SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
# the dtype that leaves weights as they are, and the one that is made of float32
STORED = "stored"
INT8 = "int8"
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Checkpoint:
    net: Transformer
    config: Config
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = (
        None  # where the source is cut by another rule than the target
    )
    no_tokenizer_reason: str = ""  # it cannot read text, where it has no tokenizer

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """That of what it writes and that of what it reads, which are one unless a source has its own."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer

    def save_tokenizers(self, folder: Path) -> None:
        for tokenizer, name in (
            (self.tokenizer, TOKENIZER_FILE),
            (self.source_tokenizer, SOURCE_TOKENIZER_FILE),
        ):
            if tokenizer is not None:
                tokenizer.save(folder / name)

    def export_tokenizers(self, folder: Path) -> None:
        """The tokenizers and the chat template, for engines that have no way of their own to hold them.

        The one that reads what is given puts around it what the model reads there.
        """
        self.save_tokenizers(folder)
        if reading := self.source_tokenizer or self.tokenizer:
            with_post_processor(reading, self.config.inference).save(
                folder / (SOURCE_TOKENIZER_FILE if self.source_tokenizer else TOKENIZER_FILE)
            )
        if self.config.inference.chat_template:
            (folder / CHAT_TEMPLATE_FILE).write_text(
                self.config.inference.chat_template, encoding="utf-8"
            )


@dataclass(frozen=True)
class Placement:
    """Where weights are to live, and in which dtype; None leaves each in the one it was stored in."""

    device: str = "cpu"
    dtype: torch.dtype | None = None
    min_dtype: torch.dtype | None = None  # what is stored in less becomes this
    int8: bool = False  # matrices become int8 when all are there

    @classmethod
    def from_names(cls, device: str | torch.device, dtype: str | torch.dtype) -> Self:
        """By names. Without: on a GPU as stored, where there is one; else on the CPU in 32 bits, for 16 are slower."""
        name = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = str(dtype or "")
        kind = kind.removeprefix("torch.")
        if kind and kind not in (known := [*DTYPES, STORED, INT8]):
            raise ClearheadError(f"dtype {kind!r} is unknown; {suggest(kind, known)}")
        try:
            where = torch.empty(0, device=name).device.type
        except (RuntimeError, AssertionError):
            raise ClearheadError(f"there is no device {name!r} here; cpu always works.") from None
        if kind == INT8:
            if where != "cpu":
                raise ClearheadError(
                    f"int8 is for CPUs, not for {name}; choose device cpu, or dtype bfloat16."
                )
            return cls(name, torch.float32, int8=True)
        if where == "meta":
            raise ClearheadError("device 'meta' holds no weights; cpu always works.")
        return cls(name, DTYPES.get(kind), torch.float32 if where == "cpu" and not kind else None)

    def __call__(self, tensor: Tensor) -> Tensor:
        wide = (
            tensor.dtype
            if self.min_dtype is None
            else torch.promote_types(tensor.dtype, self.min_dtype)
        )
        return tensor.to(self.device, self.dtype or wide).contiguous()


def meta_model(m: ModelConfig, tensors: int) -> Transformer:
    """The network that a file of so many tensors may hold, without weights; no block is made of nothing."""
    deep = m.n_layers + (
        m.architecture.encoder_layers if isinstance(m.architecture, EncoderDecoder) else 0
    )
    if deep > tensors:
        raise ClearheadError(
            f"its configuration asks for {deep:,} layers, but there are only {tensors:,} tensors."
        )
    return build_transformer(m, seed=None)


def load_weights(
    net: Transformer, tensors: Iterable[tuple[str, Tensor]], home: Placement, where: str
) -> Transformer:
    """The network with every parameter from the tensor of its name: nothing missing, left over, or no number.

    Tensors come one by one, so that only one is ever there twice.
    """
    wanted = dict(net.named_parameters())
    state = dict[str, Tensor]()
    for name, tensor in tensors:
        if name not in wanted:
            raise ClearheadError(
                f"{where} holds {name}, which this model does not have; {suggest(name, wanted)}"
            )
        if tensor.shape != wanted[name].shape:
            raise ClearheadError(
                f"{where}: {name} is {tuple(tensor.shape)}, but the model needs {tuple(wanted[name].shape)}."
            )
        if tensor.dtype not in DTYPES.values():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ClearheadError(
                f"{where}: {name} is stored as {kind}; weights are {', '.join(DTYPES)}."
            )
        if not all(bound.isfinite() for bound in tensor.aminmax()):
            raise ClearheadError(
                f"{where}: {name} holds values that are no finite numbers (NaN or infinity)."
            )
        state[name] = home(tensor)
    if missing := [name for name in wanted if name not in state]:
        raise ClearheadError(
            f"{where} lacks {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}."
        )
    net.load_state_dict(state, strict=False, assign=True)  # shared matrices are stored once
    for p in net.parameters():
        p.requires_grad_()
    if home.int8:
        quantize(net)
    return net.eval()


# ---- folder: A model as a folder of clearhead's own: `clearhead.json`, `model.safetensors`, and its tokenizers.

CONFIG_FILE = "clearhead.json"
WEIGHTS_FILE = "model.safetensors"


def save_checkpoint(folder: Path, model: Checkpoint) -> None:
    save_file(
        {name: p.detach().contiguous() for name, p in model.net.named_parameters()},
        folder / WEIGHTS_FILE,
    )
    write_json(folder / CONFIG_FILE, model.config.to_dict(), 1)
    model.save_tokenizers(folder)


def load_checkpoint(folder: Path, home: Placement) -> Checkpoint:
    config = Config.from_dict(read_config_file(folder / CONFIG_FILE))
    stored = SafetensorsReader([folder / WEIGHTS_FILE])
    tensors = ((name, stored.get_tensor(name)) for name in stored.shapes)
    net = load_weights(
        build_transformer(config.model, seed=None), tensors, home, str(folder / WEIGHTS_FILE)
    )
    own = load_checkpoint_tokenizers(folder)
    return Checkpoint(net, config, own.tokenizer, own.source_tokenizer)


def load_checkpoint_tokenizers(folder: Path) -> PretrainedTokenizer:
    """How the model reads text."""
    use = Config.from_dict(read_config_file(folder / CONFIG_FILE)).inference
    tokenizer, source = (
        Tokenizer.load(path) if path.exists() else None
        for path in (folder / TOKENIZER_FILE, folder / SOURCE_TOKENIZER_FILE)
    )
    return PretrainedTokenizer(
        tokenizer,
        source,
        use.bos_tokens,
        use.sep_tokens,
        use.chat_template,
        missing_reason=f"{folder} holds no {TOKENIZER_FILE}.",
    )
