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
    first = int(row.argmax()) if answer is None else _number(model, answer, len(row))
    second = None if against is None else _number(model, against, len(row))
    names = answers(model.config, model.tokenizer, [i for i in (first, second) if i is not None])
    return Question(first, second, at, f"logit of {' less that of '.join(map(repr, names))}")


def _number(model: "Inside", answer: str | int, outputs: int) -> int:
    """Which of the outputs an answer is, by its name or as it is."""
    if not isinstance(answer, str) or not isinstance(model.config.model.head, c.Classes | c.Number):
        return token_id(model, answer, outputs)
    names = answers(model.config, None, range(outputs))
    if answer not in names:
        raise ClearheadError(f"there is no class {answer!r}; {nearest(answer, names)}")
    return names.index(answer)


def token_id(model: "Inside", token: str | int, count: int) -> int:
    """The id of a token, by its text or as it is; a word that is one token only after a space is meant so."""
    if not isinstance(token, str):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < count:
            raise ClearheadError(f"there is no answer {token!r}; they go from 0 to {count - 1}.")
        return token
    if model.tokenizer is None:
        raise ClearheadError(f"this model has no tokenizer, so {token!r} means nothing to it; give a token id.")
    ids = model.tokenizer.encode(token)
    if len(ids) > 1 and model.tokenizer.spaces_first and len(within := model.tokenizer.encode(f" {token}")) == 1:
        ids = within
    if len(ids) != 1:
        pieces = ", ".join(map(repr, model.tokenizer.pieces(ids)))
        raise ClearheadError(f"{token!r} is {len(ids)} tokens here ({pieces}); ask for one token, or for its id.")
    return ids[0]
