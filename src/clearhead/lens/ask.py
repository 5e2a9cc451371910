"""The question that a model is asked about: which answer's logit, or which of two answers, at which token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, nearest
from clearhead.lens.logit_lens import answers
from clearhead.lens.parts import check_token

if TYPE_CHECKING:
    from clearhead.inside import Inside

Answer = str | int | None  # a token, its id, a class; None for the likeliest


@dataclass(frozen=True)
class Question:
    """The logit of `answer`, less that of `against` if there is one."""

    answer: int
    against: int | None
    at: int  # the token whose logits are meant; 0 where there is one row for a whole text
    words: str

    def of(self, logits: Tensor) -> Tensor:
        """… × outputs → …"""
        chosen = logits[..., self.answer]
        return chosen if self.against is None else chosen - logits[..., self.against]


def ask(model: "Inside", logits: Tensor, answer: Answer, against: Answer, token: int) -> Question:
    """The question in numbers; `logits` are the model's own, token × outputs or outputs."""
    pooled = logits.dim() == 1
    at = 0 if pooled else check_token(token, len(logits))
    row = logits if pooled else logits[at]
    first = int(row.argmax()) if answer is None else one_id(model, answer, len(row))
    second = None if against is None else one_id(model, against, len(row))
    names = answers(model.config, model.tokenizer, [i for i in (first, second) if i is not None])
    return Question(first, second, at, f"logit of {' less that of '.join(map(repr, names))}")


def one_id(model: "Inside", answer: str | int, outputs: int) -> int:
    """The number of an answer, by its name or as it is."""
    if isinstance(answer, str):
        return _named(model, answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < outputs:
        raise ClearheadError(f"there is no answer {answer!r}; they go from 0 to {outputs - 1}.")
    return answer


def _named(model: "Inside", answer: str) -> int:
    if isinstance(model.config.model.head, c.Classes):
        labels = model.config.use.labels
        if answer not in labels:
            raise ClearheadError(f"there is no class {answer!r}; {nearest(answer, labels)}")
        return labels.index(answer)
    if model.tokenizer is None:
        raise ClearheadError(f"this model has no tokenizer, so {answer!r} means nothing to it; give a token id.")
    ids = model.tokenizer.encode(answer)
    if len(ids) != 1:
        pieces = ", ".join(map(repr, model.tokenizer.pieces(ids)))
        raise ClearheadError(f"{answer!r} is {len(ids)} tokens here ({pieces}); ask for one token, or for its id.")
    return ids[0]
