"""What a microscope sees in one pass: patterns, the logit lens and embeddings of all probes. It changes nothing.

There are no gradients, nothing is drawn at random, dropout is off for the pass, and nothing is compiled. It sees the
weights that are trained, also where an average of them (EMA) is kept beside.
"""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.lens.logit_lens import STREAMS, TOP, answers, through_the_head, token_labels
from clearhead.lens.parts import PATHS
from clearhead.model.inputs import TokenInput
from clearhead.model.transformer import Transformer
from clearhead.tap import Watch, eager, whole
from clearhead.train.lesson import to
from clearhead.train.probes import Probes
from clearhead.train.team import ALONE, Alone
from clearhead.weights.checkpoint import Checkpoint

Planes = dict[str, Tensor]


class Sight:
    """A model, the probes that are looked at, and what is the same in every look."""

    def __init__(self, model: Checkpoint, probes: Probes, team: Alone = ALONE) -> None:
        self.model, self.net, self.probes, self.team = model, model.net, probes, team
        self.tables = _tables(self.net)
        self._ids = _ids_in(probes, self.tables)

    def facts(self) -> dict[str, Any]:
        """The probes, and of which tokens the vectors are."""
        facts = {"probes": [asdict(probe) for probe in self.probes.each], "cut": self.probes.cut}
        return {**facts, "embedded": {name: ids.tolist() for name, ids in self._ids.items()}}

    def labels(self) -> dict[str, list[str]]:
        """Every token and every answer, for people to read."""
        m, model = self.model.config.model, self.model
        sides = dict(zip(("tokens", "source"), model.tokenizers, strict=True))
        found = {name: token_labels(sides[name], range(len(table.weight))) for name, table in self.tables.items()}
        if isinstance(m.head, c.Language | c.MaskedWord):
            return found  # an answer is a token
        outputs = m.head.classes if isinstance(m.head, c.Classes) else 1
        return {**found, "answers": answers(model.config, None, range(outputs))}

    @torch.no_grad()
    def see(self, before: Planes) -> dict[str, Tensor]:
        """Everything of one pass over all probes, on the CPU, cut to each probe's length.

        `before` are the planes of the look before, which those of this one are turned to. Weights that are no numbers
        show nothing.
        """
        patterns, lens = self._pass()
        weights = {name: self.team.whole(table.weight) for name, table in self.tables.items()}
        if not all(bool(t.isfinite().all()) for t in (lens["probabilities"], *patterns.values(), *weights.values())):
            return {}
        seen = {}
        for n, probe in enumerate(self.probes.each):
            own, other = len(probe.tokens), len(probe.source_tokens)
            sizes = {"attention": (own, own), "cross": (own, other), "encoder": (other, other)}
            for part, pattern in patterns.items():
                down, across = sizes[part]
                seen[f"{n}.{part}"] = pattern[:, n, :, :down, :across]
            seen |= {f"{n}.lens.{part}": value[n, :, :own] for part, value in lens.items()}
        for name, weight in weights.items():
            plane = principal_plane(weight)
            seen[f"{name}.plane"] = (aligned(plane, before[name]) if name in before else plane).half()
            seen[f"{name}.vectors"] = weight[self._ids[name].to(weight.device)].half().cpu()
        return {name: value.contiguous() for name, value in seen.items()}

    def _pass(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Patterns (layer × probe × head × query × key) and the lens (probe × layer × position × rank)."""
        kept = {f"{path.format('*')}.pattern": _half for path in PATHS.values()}
        watch = Watch(dict.fromkeys(STREAMS, whole) | kept)
        x = to(self.probes.batch, next(self.net.parameters()).device, self.net)
        sides = {"source": x.source, "source_segments": x.source_segments}
        training = self.net.training
        self.net.eval()
        try:
            with eager():
                self.net(x.tokens, segments=x.segments, kinds=x.kinds, **sides, tap=watch)
                ids, shares = through_the_head(self.net, watch.values, x.segments, TOP)
        finally:
            self.net.train(training)
            self.team.fold(self.net)
        layers = {part: _layers(watch, path) for part, path in PATHS.items()}
        patterns = {part: torch.stack(found).cpu() for part, found in layers.items() if found}
        return patterns, {"ids": ids.int().cpu(), "probabilities": shares.cpu()}


def principal_plane(table: Tensor) -> Tensor:
    """Each row's place in the plane in which the rows differ most (the first two principal components)."""
    centred = table.float() - table.float().mean(dim=0)
    spread = (centred.mT @ centred).cpu()  # solved on the CPU: a GPU would have to load its solvers first
    axes = torch.linalg.eigh(spread).eigenvectors[:, -2:].flip(1)
    return (centred @ axes.to(centred.device)).cpu()


def aligned(plane: Tensor, before: Tensor) -> Tensor:
    """The plane turned and mirrored so that its points lie nearest to where they were (orthogonal Procrustes).

    Principal axes have no sign, and two of like length swap, so a film would jump without any token having moved.
    The axes of the last look would hold a film still as well, but only if every table were kept until then, and a run
    that is still going on would have no film. Distances remain those of the look itself.
    """
    u, _, vh = torch.linalg.svd(plane.double().mT @ before.double())
    return (plane.double() @ u @ vh).float()


def _tables(net: Transformer) -> dict[str, nn.Embedding]:
    """The embedding matrices of both sides; one where they share it, none for pictures and sound."""
    found: dict[str, nn.Embedding] = {}
    for name, stack in (("tokens", net), ("source", net.encoder)):
        if stack is not None and isinstance(stack.embed, TokenInput) and stack.embed.tokens not in found.values():
            found[name] = stack.embed.tokens
    return found


def _ids_in(probes: Probes, tables: dict[str, nn.Embedding]) -> dict[str, Tensor]:
    """The different tokens of the probes, for each table."""
    sides: dict[str, list[Tensor]] = {name: [] for name in tables}
    for name, ids, segments in (
        ("tokens", probes.batch.tokens, probes.batch.segments),
        ("source", probes.batch.source, probes.batch.source_segments),
    ):
        if ids is not None and tables:
            sides[name if name in tables else "tokens"].append(ids if segments is None else ids[segments != 0])
    return {name: torch.cat([side.flatten() for side in found]).unique() for name, found in sides.items()}


def _layers(watch: Watch, path: str) -> list[Tensor]:
    found: list[Tensor] = []
    while (name := f"{path.format(len(found))}.pattern") in watch.values:
        found.append(watch.values[name])
    return found


def _half(value: Tensor) -> Tensor:
    return value.half()
