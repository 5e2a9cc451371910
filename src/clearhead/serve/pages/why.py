"""Why a number is what it is: the arithmetic that made it, with the operands that this run had."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.lens.logit_lens import answers
from clearhead.serve.pages.copied import python
from clearhead.serve.pages.reasons import Reasons
from clearhead.serve.pages.runs import Run, Runs, tokens
from clearhead.serve.pages.terms import Step, number


def why(runs: Runs, run: Run, name: str, index: list[int]) -> dict[str, Any]:
    """One value: where it stands, what it is larger than, how it came to be, and the Python that prints it."""
    trace = run.trace
    shape = trace.shape(name)
    if len(index) != len(shape) or not all(0 <= i < size for i, size in zip(index, shape, strict=True)):
        raise ClearheadError(f"{name} is {' × '.join(map(str, shape))}; there is no {index}.")

    def values(wanted: Iterable[str]) -> dict[str, Tensor]:
        return runs.values(run, wanted)

    with torch.no_grad():
        whole = trace.logits(-1 if trace.pooled else index[0]) if name == "logits" else values([name])[name]
        value = whole[index[-1]] if name == "logits" else whole[tuple(index)]
        steps = Reasons(trace, values, name, index).steps()
    if name in trace.edits:
        steps.append(Step("after the edits of this value", float(value)))
    finite = whole[whole.isfinite()]
    percentile = float((finite < value).float().mean() * 100) if finite.numel() and value.isfinite() else None
    return {
        "name": name,
        "shape": shape,
        "index": index,
        "labels": labels(run, name, index),
        **number(float(value)),
        "percentile": percentile,
        "largest": percentile is not None and bool(value >= finite.max()),
        "formula": trace.table[name].formula,
        "steps": [step.told() for step in steps],
        "python": python(run, name, index),
    }


def labels(run: Run, name: str, index: list[int]) -> list[str]:
    """What each index means, in words."""
    trace, model = run.trace, run.trace.model
    encoder = name.startswith("encoder.")

    def token(i: int, source: bool) -> str:
        ids = trace.batch.source if source else trace.batch.ids
        assert ids is not None
        return f"{tokens(model, ids, trace, source)[i]['text']} (token {i})"

    def label(word: str, i: int) -> str:
        match word:
            case "token":
                return token(i, encoder)
            case "key":
                return "from " + token(i, encoder or ".cross." in name)
            case "vocabulary" | "outputs":
                return answers(model.config, model.tokenizer, [i])[0]
            case "head" | "kv_head":
                shared = word == "kv_head" and trace.config.kv_heads != trace.config.attention.heads
                return f"{'shared ' if shared else ''}head {i}"
            case "ffn_width":
                return f"neuron {i}"
        return f"dimension {i}"

    words = trace.table[name].shape.split()[1:]
    if isinstance(trace.config.head, c.Number) and name == "logits":
        return ["the number"]
    return [label(word, i) for word, i in zip(words, index, strict=True)]
