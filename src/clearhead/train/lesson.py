"""One pass: a batch where the network is, through it, to a summed loss; compiled where the compiler can."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from clearhead.data.packed import Packed
from clearhead.model.transformer import Transformer

Call = TypeVar("Call", bound=Callable[..., Any])


def hidden_of(net: Transformer, batch: Packed) -> Tensor:
    return net(
        batch.tokens,
        segments=batch.segments,
        kinds=batch.kinds,
        source=batch.source,
        source_segments=batch.source_segments,
    )


def loss_of(net: Transformer, batch: Packed, smoothing: float) -> tuple[Tensor, Tensor]:
    return net.loss(hidden_of(net, batch), batch.targets, batch.segments, smoothing)


def to(batch: Packed, device: torch.device, net: Transformer) -> Packed:
    """The batch where the network is; pictures and sounds in its numbers."""
    dtype = next(net.parameters()).dtype

    def moved(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        return t.to(device, dtype if t.is_floating_point() and t.dim() > 1 else t.dtype, non_blocking=True)

    parts: dict[str, Any] = {name: moved(t) for name, t in vars(batch).items()}
    return Packed(**parts)


GAVE_UP = "the compiler gave up ({}); going on without it"


def compiled_or_not(call: Call, say: Callable[[str], None]) -> Call:
    """Compiled; where the compiler fails, one line says so and the loop goes on without it."""
    fast: Any = torch.compile(call, dynamic=False)

    def either(*args: Any, **kwargs: Any) -> Any:
        nonlocal fast
        try:
            return fast(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if fast is call:
                raise
            say(GAVE_UP.format(type(error).__name__))
            fast = call
            return fast(*args, **kwargs)

    return cast(Call, either)
