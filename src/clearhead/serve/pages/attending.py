"""The arithmetic of attention: from what is read to what each head gathers (L3.3 – L3.8)."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clearhead.model.attention import Attention
from clearhead.serve.pages.runs import tokens
from clearhead.serve.pages.terms import Step, Term, dimension, dot, linear, normalised, parted

if TYPE_CHECKING:
    from clearhead.serve.pages.reasons import Reasons


class Attending:
    """The steps to one number of an attention: self or cross."""

    def __init__(self, reasons: "Reasons", part: str, attention: Attention) -> None:
        self.of, self.part, self.attention = reasons, part, attention
        self.index = reasons.index

    def steps(self, what: str) -> list[Step]:
        match what:
            case "q" | "k" | "v":
                return self._projected(what)
            case "q_turned" | "k_turned":
                return self._turned(what[0])
            case "scores":
                return self._scores()
            case "masked":
                return self._masked()
            case "pattern":
                return self._pattern()
            case "z":
                return self._gathered()
        return self._out()

    def _here(self, *names: str) -> list[Tensor]:
        return self.of.here(*(f"{self.part}.{name}" for name in names))

    def _group(self, head: int, shared: Tensor) -> int:
        """Which of the shared heads of keys and values a head of queries looks at."""
        return head // (self.of.trace.config.attention.heads // len(shared))

    def _projected(self, what: str) -> list[Step]:
        head, at, j = self.index
        source = (
            self.of.trace.streams["encoder.norm"][0] if self.part == "cross" and what != "q" else self._here("in")[0]
        )
        layer: nn.Module = getattr(self.attention, what)
        width = self.attention.head_width
        norm = {"q": self.attention.q_norm, "k": self.attention.k_norm}.get(what)
        if norm is not None and not isinstance(norm, nn.Identity):
            raw = layer(source[at])[head * width : (head + 1) * width]
            return [Step(f"h · W_{what.upper()}, before the norm", float(raw[j])), *normalised(norm, raw, j)]
        step = linear(f"h · a column of W_{what.upper()}", layer, head * width + j, source[at], dimension)
        return [step] if step else []

    def _turned(self, what: str) -> list[Step]:
        head, at, j = self.index
        x = self._here(what)[0][head, at]
        rotary = None if self.part == "cross" else self.of.rotary
        if rotary is None:
            return [Step(f"{what} itself: positions are not rotary here", float(x[j]))]
        rates = rotary.rates(x.device)
        half = len(rates)
        if j >= 2 * half:
            return [Step(f"{what} itself: this dimension does not turn", float(x[j]))]
        i = j % half
        angle = at * float(rates[i])
        a, b, cos, sin = float(x[i]), float(x[i + half]), math.cos(angle), math.sin(angle)
        turn = Step(f"angle: position {at} × {float(rates[i]):.5g} radians", angle)
        if j < half:
            terms: list[Term] = [
                (f"dimension {i} × cos", a, cos, a * cos),
                (f"dimension {i + half} × −sin", b, -sin, -b * sin),
            ]
        else:
            terms = [(f"dimension {i + half} × cos", b, cos, b * cos), (f"dimension {i} × sin", a, sin, a * sin)]
        return [turn, Step("the pair, turned", sum(term[3] for term in terms), terms)]

    def _scores(self) -> list[Step]:
        head, at, key = self.index
        q, k = self._here("q_turned", "k_turned")
        product = dot("q · k", q[head, at], k[self._group(head, k), key], dimension)
        scale = self.attention.scale
        words = f"divided by √{self.attention.head_width}" if scale != 1.0 else "not scaled in this model"
        scaled = Step(words, product.value * scale)
        bias = self.of.place(self.part).bias(q[None], scale)
        if bias is None:
            return [product, scaled]
        added = float(bias[0, head, at, key])
        return [product, scaled, Step(f"with the bias of positions, {added:.5g}", scaled.value + added)]

    def _masked(self) -> list[Step]:
        head, at, key = self.index
        scores, masked = self._here("scores", "masked")
        if masked[head, at, key] != -torch.inf:
            return [Step("the score: this key may be looked at", float(scores[head, at, key]))]
        reason = "the key comes after the query" if key > at and self.of.stack.causal else "the key is too far away"
        return [Step(f"−∞: {reason}", -math.inf)]

    def _pattern(self) -> list[Step]:
        head, at, key = self.index
        row = self._here("masked")[0][head, at].double()
        most = float(row.max())
        if most == -math.inf:
            return [Step("this query may look at nothing", 0.0)]
        raised = (row - most).exp()
        labels, order = self._keys(), raised.argsort(descending=True)
        first, rest = parted(order[raised[order] > 0])
        terms: list[Term] = [(labels[i], None, None, float(raised[i])) for i in first.tolist()]
        if len(rest):
            terms.append((f"{len(rest)} others", None, None, float(raised[rest].sum())))
        return [
            Step(f"exp(score − largest) = exp({float(row[key]):.5g} − {most:.5g})", float(raised[key])),
            Step("the sum of the row", float(raised.sum()), terms),
            Step("divided by it", float(raised[key] / raised.sum())),
        ]

    def _gathered(self) -> list[Step]:
        head, at, j = self.index
        pattern, v = self._here("pattern", "v")
        labels = self._keys()
        return [dot("weights · values", pattern[head, at], v[self._group(head, v), :, j], lambda i: labels[i])]

    def _out(self) -> list[Step]:
        at, j = self.index
        z, out = self._here("z")[0][:, at], self.attention.out
        if not isinstance(out, nn.Linear):
            return []
        given = (z * out.weight[j].view_as(z)).sum(dim=-1)
        terms: list[Term] = [(f"head {h}", None, None, float(value)) for h, value in enumerate(given)]
        if out.bias is not None:
            terms.append(("bias", None, None, float(out.bias[j])))
        return [Step("what each head writes: z · W_O", sum(term[3] for term in terms), terms)]

    def _keys(self) -> list[str]:
        trace = self.of.trace
        source = bool(self.of.side) or self.part == "cross"
        ids = trace.batch.source if source else trace.batch.ids
        assert ids is not None
        return [f"{token['text']} ({i})" for i, token in enumerate(tokens(trace.model, ids, trace, source))]
