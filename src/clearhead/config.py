"""What a model is, and a run, as frozen values. Stdlib only: reading a configuration never waits for torch.

Variants are tagged values (`position = {kind = "rotary", theta = 10000}`), so an option that belongs to one
variant cannot be written for another. What is still impossible is refused when the value is made.
"""

# mypy: implicit-reexport
# ruff: noqa: F403, F405
# The variants are names of this module too: whoever needs `c.ModelConfig` needs `c.Rotary` next to it.
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from clearhead import check, count, reader
from clearhead.training import Data, Train
from clearhead.variants import *


@dataclass(frozen=True)
class ModelConfig:
    """One Transformer. The defaults are the lecture's decoder."""

    vocabulary: int = say("how many different tokens; 0 where the input is no text", 512, least=0)
    context: int = say("most tokens it reads at once", 128)
    width: int = say("width of the residual stream", 128)
    layers: int = say("how many blocks", 4)
    wiring: Literal["pre", "post"] = say("norm before each part (pre), or after its sum (post, 2017)", "pre")
    shape: Shape = field(default=Decoder())
    input: Input = field(default=Tokens())
    position: Position = field(default=Learned())
    attention: Attention = field(default=Attention())
    ffn: FeedForward = field(default=FeedForward())
    norm: Norm = field(default=LayerNorm())
    dropout: Dropout = field(default=Dropout())
    head: Head = field(default=Language())

    @property
    def kv_heads(self) -> int:
        return self.attention.kv_heads or self.attention.heads

    @property
    def head_width(self) -> int:
        return self.attention.head_width or self.width // self.attention.heads

    @property
    def ffn_width(self) -> int:
        return self.ffn.width or 4 * self.width

    @property
    def reads(self) -> Input:
        """What the model is given: the source, where there is one, else its only input."""
        return self.shape.input if isinstance(self.shape, EncoderDecoder) else self.input

    def __post_init__(self) -> None:
        check.model(self)


@dataclass(frozen=True)
class Use:
    """How a model is used: what stands around the texts it reads and writes, as ids unless said otherwise."""

    begin: tuple[int, ...] = say("tokens put before a text that is read: [CLS], <s>", ())
    end: tuple[int, ...] = say("tokens put after it: [SEP], </s>", ())
    start: tuple[int, ...] = say("tokens that an encoder-decoder's output starts with", ())
    stop: tuple[int, ...] = say("tokens that end what is written", ())
    closed: bool = say("whether beam search ends a text with the first of those where it must break off", False)
    never: tuple[int, ...] = say("tokens that are never written", ())
    never_first: tuple[int, ...] = say("tokens that are never written first", ())
    renormalised: bool = say("whether the probability of those goes to the others in beam search", False)
    pad: tuple[int, ...] = say("the token that fills up rows, for engines that need one", ())
    mask: tuple[int, ...] = say("the token that hides a word", ())
    pooling: Literal["mean", "first"] = say("how the vectors of a text become one: their mean, or the first", "mean")
    normalised: bool = say("whether that vector is scaled to length 1", False)
    longest: int = say("tokens after which a text is cut for its vector or class; 0 = as many as fit", 0, least=0)
    labels: tuple[str, ...] = say("names of the classes", ())
    chat: str = say("how a conversation is written out, as a Jinja template", "")


@dataclass(frozen=True)
class Config:
    """Everything a run is made of."""

    model: ModelConfig = field(default=ModelConfig())
    use: Use = field(default=Use())
    data: Data = field(default=Data())
    train: Train = field(default=Train())

    def __post_init__(self) -> None:
        check.use(self.use, self.model)
        check.ranges(self.data, "data")
        check.ranges(self.train, "train")

    @classmethod
    def read(cls, path: str | Path, **changes: object) -> Self:
        """From a .toml or .json file, with dotted changes on top."""
        return cls.of(reader.load(path)).change(**changes)

    @classmethod
    def of(cls, tree: reader.Tree) -> Self:
        """From nested dictionaries, as a file of TOML or JSON holds them; unknown names are refused."""
        return reader.read(cls, tree)

    def change(self, **changes: object) -> Self:
        """The same with some options replaced: `width=64`, `attention__heads=8`, `**{"model.position": "rotary"}`.

        Two underscores are a dot, and a key without a section belongs to the model.
        """
        tree = self.tree()
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        in_section = {key if key.split(".")[0] in tree else f"model.{key}": value for key, value in dotted.items()}
        return self.of(reader.override(tree, in_section))

    def tree(self) -> reader.Tree:
        """Nested dictionaries with every option, which `of` reads back to this very configuration."""
        return reader.tree(self)

    def toml(self) -> str:
        """TOML with a sentence for each option; reads back to this very configuration."""
        return reader.toml(self)

    def parameters(self) -> int:
        """How many trainable numbers, counted without building the model."""
        return sum(count.parts(self.model).values())
