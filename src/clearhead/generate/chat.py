"""A conversation as tokens: the model's own template writes it out, in a sandbox (L5.5)."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from clearhead.errors import ClearheadError, understood
from clearhead.generate.sampling import LARGEST_SEED
from clearhead.generate.sandbox import LONGEST, Sandbox
from clearhead.tokens.text import Tokenizer

Message = Mapping[str, str]
TURN = 1_000_003  # from the seed of an answer to that of the next
GUARD = "\ufdd0"  # a code point that is no character, so no text has it


def encode(template: str, messages: Sequence[Message], tokenizer: Tokenizer | None) -> list[int]:
    """The conversation up to where the assistant is to answer.

    Special tokens come from the template only: those that somebody typed into a message stay the text they are.
    """
    if tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so it cannot chat.")
    if not template:
        raise ClearheadError("this model has no chat template; it was not made for conversations.")
    special = "|".join(map(re.escape, sorted(tokenizer.special, key=len, reverse=True))) or r"(?!)"

    def guarded(text: str) -> str:
        return re.sub(special, lambda found: found[0][0] + GUARD + found[0][1:], text.replace(GUARD, ""))

    written = render(template, [{k: guarded(v) for k, v in m.items()} for m in _checked(messages)])
    if GUARD not in written:
        return tokenizer.encode(written, allow_special=True)
    ids: list[int] = []
    for part in re.split(f"({special})", written):
        if part in tokenizer.special:
            ids.append(tokenizer.special[part])
        elif part:
            ids += (tokenizer.going_on if ids else tokenizer).encode(part.replace(GUARD, ""))
    return ids


def room(max_tokens: int, ids: Sequence[int], context: int, options: Mapping[str, Any]) -> int:
    """How long an answer may get: what the context leaves, unless that slides."""
    return max_tokens if options.get("overflow") == "slide" else min(max_tokens, max(1, context - len(ids)))


def turned(seed: int, messages: Sequence[Message]) -> int:
    """The seed of the answer that comes now: with the same noise in each turn all answers would begin alike."""
    if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
        return seed  # as it is, to be refused
    return (seed + TURN * sum(message.get("role") == "assistant" for message in messages)) & LARGEST_SEED


def shown(template: str, messages: Sequence[Message], tokenizer: Tokenizer | None) -> str:
    """What the tokens of the conversation say."""
    ids = encode(template, messages, tokenizer)
    return tokenizer.decode(ids) if tokenizer else ""


def render(template: str, messages: Sequence[Message]) -> str:
    """The template can loop and choose; it cannot reach anything outside the conversation, nor write without end."""

    def refuse(sentence: str) -> None:
        raise TemplateError(sentence)

    room = Sandbox()
    kept = {name: room.globals[name] for name in ("range", "dict", "namespace")}
    room.globals.clear()
    room.globals |= kept | {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    template = re.sub(r"(\{%-?\s*)generation\b", r"\1if true", template)  # a mark for those who train
    template = re.sub(r"(\{%-?\s*)endgeneration\b", r"\1endif", template)
    written = ""
    with understood("the chat template cannot write this conversation"):
        for piece in room.from_string(template).generate(messages=messages, add_generation_prompt=True):
            written += piece
            if len(written) > LONGEST:
                raise ClearheadError(f"the chat template writes more than {LONGEST:,} characters.")
    return written


def _checked(messages: Sequence[Message]) -> Sequence[Message]:
    wanted = 'a list of {"role": "user", "content": "…"}'
    if not isinstance(messages, list | tuple) or not messages:
        raise ClearheadError(f"a conversation is {wanted}, not {messages!r:.60}.")
    for message in messages:
        if not isinstance(message, Mapping) or {"role", "content"} - message.keys():
            raise ClearheadError(f"a conversation is {wanted}; {message!r:.60} is no such message.")
        if not all(isinstance(value, str) for value in message.values()):
            raise ClearheadError(f"a message holds texts only; {message!r:.60} does not.")
    return messages
