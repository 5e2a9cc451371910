"""A conversation as the model reads it (L5.5): exactly its tokens, and which of them somebody said."""

from typing import Any

from fastapi import APIRouter

from clearhead.api import Model
from clearhead.generate import chat
from clearhead.generate.stream import TextStream
from clearhead.serve.pages.asked import Asked
from clearhead.serve.pages.desk import Desk
from clearhead.serve.pages.pieces import pieces

BEGIN, END = "\ufdd1", "\ufdd2"  # code points that are no characters, around what is said
Span = tuple[int, int, int]  # begin and end in the text, and the number of the message


class Conversation(Asked):
    messages: list[dict[str, str]]


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/chat/tokens")
    async def tokens(asked: Conversation) -> dict[str, Any]:
        """The tokens up to where the assistant is to answer; `message` is whose words they are, null the template's."""
        return await desk.answer(asked, templated, asked.messages)

    return router


def templated(model: Model, messages: list[dict[str, str]]) -> dict[str, Any]:
    use, tokenizer = model.config.use, model.tokenizer
    ids = chat.encode(use.chat, messages, tokenizer)
    assert tokenizer is not None  # or it could not have been encoded
    ends = list[int]()
    stream = TextStream(tokenizer, [])
    for token in ids:
        stream.feed(token)
        ends.append(len(stream.text))
    stream.end()
    spans = _spans(use.chat, messages, stream.text)
    said = [_whose(begin, end, spans) for begin, end in zip([0, *ends], ends, strict=False)]
    tokens = [{**piece, "message": number} for piece, number in zip(pieces(tokenizer, ids), said, strict=True)]
    return {"ids": ids, "tokens": tokens, "told": bool(spans) or not any(m["content"].strip() for m in messages)}


def _spans(template: str, messages: list[dict[str, str]], text: str) -> list[Span]:
    """Where in the text each message stands; nowhere if the text is another than the marks were put into."""
    marked = chat.render(template, [{**message, "content": _marked(message["content"])} for message in messages])
    plain, spans, begin, number = "", list[Span](), 0, 0
    for character in marked:
        if character == BEGIN:
            begin = len(plain)
        elif character == END:
            spans.append((begin, len(plain), number))
            number += 1
        else:
            plain += character
    return spans if plain == text and number == len(messages) else []


def _marked(content: str) -> str:
    """Marks around the words; templates may trim the space around those."""
    words = content.strip()
    before, _, after = content.partition(words) if words else (content, "", "")
    return f"{before}{BEGIN}{words}{END}{after}"


def _whose(begin: int, end: int, spans: list[Span]) -> int | None:
    """The message that a token is a part of; a piece of a character counts with the whole."""
    for first, last, number in spans:
        if min(end, last) > max(begin, first) or first <= begin == end < last:
            return number
    return None
