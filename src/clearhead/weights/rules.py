"""Tables that translate weights. A rule is (theirs, ours…, op); every op reads and writes, so a table serves both ways.

`{i}` stands for the number of a block and `{p}` for a prefix that some files have. A rule holds where our model has
the parameters that it names. Every key of theirs must meet one rule or a named skip, and every parameter of ours
must be filled.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError, nearest


@dataclass(frozen=True)
class Op:
    """How a tensor of theirs becomes ours, and ours theirs again."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[..., Tensor]

    def then(self, after: "Op") -> "Op":
        return Op(lambda t: after.read(*self.read(t)), lambda *ours: self.write(after.write(*ours)))


SAME = Op(lambda t: (t,), lambda t: t)
TRANSPOSED = Op(lambda t: (t.mT,), lambda t: t.mT)


def split(*sizes: int) -> Op:
    """Several matrices, one below the other."""
    return Op(lambda t: t.split(sizes), lambda *ours: torch.cat(ours))


def reshaped(theirs: tuple[int, ...], ours: tuple[int, ...]) -> Op:
    return Op(lambda t: (t.reshape(ours),), lambda t: t.reshape(theirs))


def by_turns(heads: int) -> Op:
    """Rows of each head in rotary pairs (0, 1), (2, 3) …; ours pair the first half with the second."""
    return Op(
        lambda t: (t.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2),),
        lambda t: t.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2),
    )


@dataclass(frozen=True)
class Rule:
    theirs: str
    ours: tuple[str, ...]
    op: Op = SAME


def layer(theirs: str, *ours: str, weight: Op = SAME, bias: Op = SAME) -> list[Rule]:
    """The weight and the bias of a layer."""
    return [
        Rule(f"{theirs}.{part}", tuple(f"{name}.{part}" for name in ours), op)
        for part, op in (("weight", weight), ("bias", bias))
    ]


def layers(pairs: Mapping[str, str]) -> list[Rule]:
    """Layers that are the same as ours under other names."""
    return [rule for theirs, ours in pairs.items() for rule in layer(theirs, ours)]


@dataclass(frozen=True)
class Table:
    rules: Iterable[Rule]
    skips: tuple[str, ...] = ()  # patterns of keys that hold nothing new, each with its reason beside it
    prefixes: tuple[str, ...] = ("",)  # as files have them; the first is written
    older: Mapping[str, str] = field(default_factory=dict)  # older names of the ends of keys
    copies: Mapping[str, str] = field(default_factory=dict)  # keys that must repeat another


class Stored(Protocol):
    """Named tensors somewhere."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Tensor: ...


def spelled_out(table: Table, net: nn.Module, m: c.ModelConfig, prefix: str) -> dict[str, Rule]:
    """Each rule that holds for this model, block by block, by the key of theirs."""
    names = {name for name, _ in net.named_parameters()}
    found = {}
    for rule in table.rules:
        deep = (
            m.shape.layers
            if rule.ours[0].startswith("encoder.") and isinstance(m.shape, c.EncoderDecoder)
            else m.layers
        )
        for i in range(deep if "{i}" in rule.ours[0] else 1):
            ours = tuple(name.replace("{i}", str(i)) for name in rule.ours)
            if names.issuperset(ours):
                theirs = rule.theirs.replace("{i}", str(i)).replace("{p}", prefix)
                found[theirs] = Rule(theirs, ours, rule.op)
    return found


def read(table: Table, stored: Stored, net: nn.Module, m: c.ModelConfig, where: str) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by name, one tensor of theirs after the other."""
    known = {_newer(name, table.older): name for name in stored.shapes}
    for prefix in table.prefixes:
        rules = spelled_out(table, net, m, prefix)
        if rules.keys() <= known.keys():
            break
    else:
        rules = max((spelled_out(table, net, m, p) for p in table.prefixes), key=lambda r: len(r.keys() & known.keys()))
        lacking = sorted(rules.keys() - known.keys())
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ClearheadError(f"{where} lacks {lacking[0]}{more}, which its configuration calls for.")
    for name in known.keys() - rules.keys():
        if name in table.copies:
            if not torch.equal(stored.read(known[name]), stored.read(known[table.copies[name]])):
                raise ClearheadError(f"{where}: {name} should repeat {table.copies[name]}, but it differs.")
        elif not any(re.fullmatch(skip, name.removeprefix(prefix)) for skip in table.skips):
            offer = nearest(name, rules)
            raise ClearheadError(f"{where} holds {name}, which its configuration does not call for; {offer}")
    for theirs, rule in rules.items():
        tensor = stored.read(known[theirs])
        try:
            parts = rule.op.read(tensor)
            yield from zip(rule.ours, parts, strict=True)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ClearheadError):
                raise
            raise ClearheadError(f"{where}: {theirs} has the wrong shape, {tuple(tensor.shape)}.") from None


def write(table: Table, net: nn.Module, m: c.ModelConfig, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of theirs by name; every parameter of ours goes into one."""
    ours = {name: p.detach() for name, p in net.named_parameters()}
    rules = spelled_out(table, net, m, prefix)
    if left := ours.keys() - {name for rule in rules.values() for name in rule.ours}:
        raise ClearheadError(f"there is no place for {min(left)} in this format.")
    for theirs, rule in rules.items():
        yield theirs, rule.op.write(*(ours[name] for name in rule.ours)).contiguous()


def _newer(name: str, older: Mapping[str, str]) -> str:
    for old, new in older.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
