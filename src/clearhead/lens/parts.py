"""Where to look: the attention of which stack, which layer, head and token, and what rows and columns are called."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, NoNumbers, nearest
from clearhead.model.attention import Attention
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.lens.seen import Seen

S = TypeVar("S", bound=Mapping[str, Tensor])
Part = Literal["attention", "cross", "encoder"]
PARTS: tuple[Part, ...] = ("attention", "cross", "encoder")
PATHS = {"attention": "blocks.{}.attn", "cross": "blocks.{}.cross", "encoder": "encoder.blocks.{}.attn"}


def parts_of(m: c.ModelConfig) -> tuple[Part, ...]:
    """Which attention a model has."""
    return PARTS if isinstance(m.shape, c.EncoderDecoder) else PARTS[:1]


def layers_of(m: c.ModelConfig, part: str) -> int:
    """How many layers have that attention: to the text itself, to its source (cross), or of the source (encoder)."""
    if part not in PARTS:
        raise ClearheadError(f"there is no part {part!r}; {nearest(str(part), PARTS)}")
    if part not in parts_of(m):
        raise ClearheadError(f"{part} is a part of encoder-decoders; this model is of shape {m.shape.kind}.")
    return m.shape.layers if part == "encoder" and isinstance(m.shape, c.EncoderDecoder) else m.layers


def path_of(part: str, layer: int) -> str:
    """The path of its values."""
    return PATHS[part].format(layer)


def module_of(net: Transformer, part: str, layer: int) -> Attention:
    """The attention itself, with its matrices."""
    stack = net.encoder if part == "encoder" and net.encoder is not None else net
    found: Attention = stack.get_submodule(path_of(part, layer).removeprefix("encoder."))  # type: ignore[assignment]
    return found


def check_layer(layer: int, layers: int) -> int:
    return check_place(layer, layers, "layer", "this model")


def check_head(head: int, heads: int) -> int:
    return check_place(head, heads, "head", "this layer")


def check_token(token: int, tokens: int) -> int:
    return check_place(token, tokens, "token", "the text")


def check_place(number: int, count: int, what: str, where: str) -> int:
    """Which of so many, counted from 0, or from the end below 0."""
    if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
        raise ClearheadError(f"there is no {what} {number}; {where} has {what}s 0 to {count - 1}.")
    return number % count


def asked_at(model: "Model", at: int | None, x: Any, given: dict[str, Any]) -> int:
    """The place of the token that is asked about: the last, or the first that is hidden where words are."""
    if at is not None:
        if isinstance(at, bool) or not isinstance(at, int):
            raise ClearheadError(f"at = {at!r} must be the number of a token.")
        return at
    if not isinstance(model.config.model.head, c.MaskedWord):
        return -1
    ids = model._batch(x, **{name: value for name, value in given.items() if name != "edits"}).ids[0].tolist()
    return next((place for place, token in enumerate(ids) if token in model.config.use.mask), -1)


def check_top(top: int) -> int:
    """How many of the best are wanted."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ClearheadError(f"top = {top!r} must be at least 1, and whole.")
    return top


def labels_of(seen: "Seen", part: str, shape: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Names for queries and keys: the tokens, or numbers where patches and paddings have none."""
    own, source = (seen.tokens, shape[0]), (seen.source_tokens, shape[0])
    sides = {
        "attention": (own, (seen.tokens, shape[1])),
        "cross": (own, (seen.source_tokens, shape[1])),
        "encoder": (source, (seen.source_tokens, shape[1])),
    }[part]
    down, across = ([*names, *map(str, range(len(names), size))] for names, size in sides)
    return down, across


def of_one_text(value: Tensor) -> Tensor:
    """The value of the one text there is."""
    if len(value) != 1:
        raise ClearheadError(f"this looks at one text at a time, not at {len(value)}.")
    return value[0].detach().float().cpu()


def numbers(seen: S) -> S:
    """What was seen, unless some of it is no number."""
    for name, value in seen.items():
        if bool(value.isnan().any()):
            raise NoNumbers(f"the values of {name}")
    return seen


def watch_one(model: "Model", x: Any, names: Any, given: dict[str, Any]) -> "Seen":
    """What a model did with one text (or source=, pictures=, sound=), unless some of it is no number."""
    seen = numbers(model.watch(x, names, **given))
    for value in seen.values():
        of_one_text(value[..., :0])
    return seen
