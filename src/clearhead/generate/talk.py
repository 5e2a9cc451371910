"""A conversation that goes on (L5.5): what the model has read of it stays in its memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clearhead.errors import ClearheadError
from clearhead.generate import chat
from clearhead.generate.engine import Engine
from clearhead.generate.sampling import Sampling, sampling
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
        return self._answer([*self.messages, {"role": "user", "content": text}], options)

    def stream_again(self, **options: Any) -> Iterator[Piece]:
        """Another answer to the last message, while it is written."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ClearheadError("there is no answer yet that could be given again.")
        seed = options.setdefault("seed", self.options.get("seed", 0) + 1)
        answer = self._answer(self.messages[:-1], options)
        self.options["seed"] = seed
        return answer

    def _answer(self, messages: list[chat.Message], options: dict[str, Any]) -> Iterator[Piece]:
        """What was said before stays as it is until the answer has begun."""
        model, how = self.model, {**self.options, **options}
        if not self.engine.idle:
            raise ClearheadError("an answer is being written; let it end, or close it, before the next.")
        ids = chat.encode(model.config.use.chat, messages, model.tokenizer)
        how["seed"] = chat.turned(how.get("seed", 0), messages)
        how["max_tokens"] = chat.room(how["max_tokens"], ids, model.net.context, how)
        return self._heard(messages, [ids], sampling(**how))

    def _heard(self, messages: list[chat.Message], prompt: list[list[int]], how: Sampling) -> Iterator[Piece]:
        heard, writer = "", Writer(self.engine, self.model.tokenizer, prompt, how)
        try:
            for piece in writer:
                heard += piece.text
                yield piece
        finally:
            self.messages = [*messages, {"role": "assistant", "content": heard}]
