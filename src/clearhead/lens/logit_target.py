"""The logit, or difference of logits, that a function of the lens explains."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead import config as c
from clearhead.errors import ClearheadError, InputTextError, suggest
from clearhead.lens.argument_checks import check_token
from clearhead.lens.hook_points import has_pooled_head
from clearhead.lens.tokens import output_labels, token_labels
from clearhead.tokenizers.tokenizer import VISIBLE_WHITESPACE

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
    tokens = [int(row.argmax()) if answer is None else answer]
    if against is not None:
        tokens.append(against)
    indices = _output_indices(model, tokens, len(row))
    labels = [repr(label) for label in output_labels(model.config, model.tokenizer, indices)]
    if model.tokenizer is not None and not has_pooled_head(model.config.model):
        labels = [f"{label} (id {i})" for label, i in zip(labels, indices, strict=True)]
    return LogitTarget(
        answer=indices[0],
        against=None if against is None else indices[1],
        position=position,
        description=f"logit of {' minus '.join(labels)}",
    )


def _output_indices(model: "Model", answers: Sequence[str | int], num_outputs: int) -> list[int]:
    """The indices of outputs from class names, tokens, or the indices themselves."""
    if not has_pooled_head(model.config.model):
        return token_ids(model, answers, num_outputs)
    labels = output_labels(model.config, None, range(num_outputs))
    for answer in answers:
        if isinstance(answer, str) and answer not in labels:
            raise ClearheadError(f"there is no class {answer!r}; {suggest(answer, labels)}")
    return [
        labels.index(answer) if isinstance(answer, str) else _check_id(answer, num_outputs)
        for answer in answers
    ]


def token_ids(model: "Model", tokens: Sequence[str | int], count: int) -> list[int]:
    """The ids of tokens from their texts, or the ids themselves.

    All words are resolved the same way: to tokens with a leading space if each has
    one, else to tokens without.
    """
    candidates = [
        _single_tokens(model, token) if isinstance(token, str) else [_check_id(token, count)]
        for token in tokens
    ]
    words = [i for i, token in enumerate(tokens) if isinstance(token, str) and _is_word(token)]
    if words:
        for is_spaced in (True, False):
            matching = [
                [one for one in candidates[i] if _has_space(model, one) == is_spaced] for i in words
            ]
            if all(matching):
                break
        else:
            ids = [candidates[i][0] for i in words]
            labels = token_labels(model.tokenizer, ids)
            names = [f"{label!r} (id {i})" for label, i in zip(labels, ids, strict=True)]
            raise ClearheadError(
                f"{' and '.join(names)} differ in their leading space; choose other words, or "
                "give token ids in Python."
            )
        for i, ids in zip(words, matching, strict=True):
            candidates[i] = ids
    return [ids[0] for ids in candidates]


def _is_word(token: str) -> bool:
    """Whether tokenizers have the token with a leading space, unlike punctuation."""
    return token.strip()[:1].isalnum()


def _has_space(model: "Model", token: int) -> bool:
    return token_labels(model.tokenizer, [token])[0].startswith(VISIBLE_WHITESPACE[" "])


def _check_id(token: int, count: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < count:
        raise ClearheadError(f"a token id must be from 0 to {count - 1}, got {token!r}.")
    return token


def _single_tokens(model: "Model", text: str) -> list[int]:
    """The tokens that a text is by itself and after a space."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ClearheadError(f"this model has no tokenizer; give a token id instead of {text!r}.")
    encodings = [tokenizer.encode(text)]
    if not text.startswith(" "):
        with suppress(InputTextError):  # a vocabulary without a space
            encodings.append(tokenizer.encode(f" {text}"))
    ids = [encoding[0] for encoding in encodings if len(encoding) == 1]
    if not ids:
        pieces = ", ".join(map(repr, tokenizer.to_str_tokens(encodings[0])))
        raise ClearheadError(
            f"{text!r} is {len(encodings[0])} tokens ({pieces}); give one token or an id."
        )
    return ids


def answer_preposition(head: c.Head) -> str:
    """A masked language model predicts the token at a position, others the one after it."""
    return "at" if isinstance(head, c.MLMHead) else "after"
