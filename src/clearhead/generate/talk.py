"""A conversation that goes on (L5.5): what the model has read of it stays in its memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clearhead.errors import ClearheadError
from clearhead.generate import chat
from clearhead.generate.engine import Engine
from clearhead.generate.sampling import sampling
from clearhead.generate.write import Piece, Writer, check_writes

if TYPE_CHECKING:
    from clearhead.api import Model


class Talk:
    """Messages with a model; options are those of writing. Weights must stay as they are meanwhile."""

    def __init__(self, model: "Model", system: str = "", **options: Any) -> None:
        check_writes(model.config.model)
        self.model, self.messages = model, list[chat.Message]()
        self.options: dict[str, Any] = {"max_tokens": 200, "temperature": 0.7, **options}
        sampling(**self.options)  # what is wrong with them is said at once
        if system:
            self.messages.append({"role": "system", "content": system})
        chat.encode(model.config.use.chat, [*self.messages, {"role": "user", "content": "Hello"}], model.tokenizer)
        known = len(model.tokenizer) if model.tokenizer else None
        self.engine = Engine(model.net, model.config.use, 1, model.net.context, known)

    def say(self, text: str, **options: Any) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.stream(text, **options))

    def again(self, **options: Any) -> str:
        """Another answer to the last message."""
        return "".join(piece.text for piece in self.stream_again(**options))

    def stream(self, text: str, **options: Any) -> Iterator[Piece]:
        """The answer while it is written; what was written when one stops listening is the answer."""
        self.messages.append({"role": "user", "content": text})
        return self._answer(options)

    def stream_again(self, **options: Any) -> Iterator[Piece]:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ClearheadError("there is no answer yet that could be given again.")
        self.messages.pop()
        self.options["seed"] = self.options.get("seed", 0) + 1
        return self._answer(options)

    def _answer(self, options: dict[str, Any]) -> Iterator[Piece]:
        model, heard = self.model, ""
        try:
            ids = chat.encode(model.config.use.chat, self.messages, model.tokenizer)
            how = {**self.options, **options}
            how["max_tokens"] = min(how["max_tokens"], max(1, model.net.context - len(ids)))
            pieces = iter(Writer(self.engine, model.tokenizer, [ids], sampling(**how)))
        except ClearheadError:
            self.messages.pop()
            raise
        try:
            for piece in pieces:
                heard += piece.text
                yield piece
        finally:
            self.messages.append({"role": "assistant", "content": heard})
