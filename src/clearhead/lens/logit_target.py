"""The logit, or difference of logits, that a function of the lens explains."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.lens.argument_checks import check_token
from clearhead.lens.hook_points import has_pooled_head
from clearhead.lens.tokens import output_labels

if TYPE_CHECKING:
    from clearhead.api import Model

AnswerToken = str | int | None  # a token, its id, or a class; None for the top prediction


@dataclass(frozen=True)
class LogitTarget:
    """The logit of `answer`, or its difference to that of `against`, at a position."""

    answer: int
    against: int | None
    position: int  # 0 where the head gives one row for a whole text
    description: str

    def select(self, logits: Tensor) -> Tensor:
        """From … × outputs to …"""
        logit = logits[..., self.answer]
        return logit if self.against is None else logit - logits[..., self.against]


def logit_target(
    model: "Model", logits: Tensor, answer: AnswerToken, against: AnswerToken, position: int
) -> LogitTarget:
    """The target for a model's logits, token × outputs or outputs."""
    if logits.dim() == 1:
        row = logits
        position = 0
    else:
        position = check_token(position, len(logits))
        row = logits[position]
    indices = [int(row.argmax()) if answer is None else _output_index(model, answer, len(row))]
    if against is not None:
        indices.append(_output_index(model, against, len(row)))
    labels = output_labels(model.config, model.tokenizer, indices)
    return LogitTarget(
        answer=indices[0],
        against=None if against is None else indices[1],
        position=position,
        description=f"logit of {' minus '.join(map(repr, labels))}",
    )


def _output_index(model: "Model", answer: str | int, num_outputs: int) -> int:
    """The index of an output from a class name, a token, or the index itself."""
    if not isinstance(answer, str) or not has_pooled_head(model.config.model):
        return token_id(model, answer, num_outputs)
    labels = output_labels(model.config, None, range(num_outputs))
    if answer not in labels:
        raise ClearheadError(f"there is no class {answer!r}; {suggest(answer, labels)}")
    return labels.index(answer)


def token_id(model: "Model", token: str | int, count: int) -> int:
    """The id of a token from its text (with or without a leading space), or the id itself."""
    if not isinstance(token, str):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < count:
            raise ClearheadError(f"a token id must be from 0 to {count - 1}, got {token!r}.")
        return token
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ClearheadError(f"this model has no tokenizer; give a token id instead of {token!r}.")
    ids = tokenizer.encode(token)
    if len(ids) > 1 and tokenizer.has_space_prefix:
        ids_within_text = tokenizer.encode(f" {token}")
        if len(ids_within_text) == 1:
            ids = ids_within_text
    if len(ids) != 1:
        pieces = ", ".join(map(repr, tokenizer.to_str_tokens(ids)))
        raise ClearheadError(f"{token!r} is {len(ids)} tokens ({pieces}); give one token or an id.")
    return ids[0]


def answer_preposition(head: c.Head) -> str:
    """A masked language model predicts the token at a position, others the one after it."""
    return "at" if isinstance(head, c.MLMHead) else "after"
