"""Where chat templates are run: they come with models of strangers, and may write, but make nothing huge."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clearhead.errors import ClearheadError, reraise_as
from clearhead.generate.engine import BatchEngine
from clearhead.generate.generation import GenerationChunk, GenerationStream, check_can_generate
from clearhead.generate.sampling import MAX_SEED, SamplingConfig, sampling_config
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

# ---- sandbox: Where chat templates are run: they come with models of strangers, and may write, but make nothing huge.

MAX_TEMPLATE_CHARS = 10_000_000  # characters of a conversation, and of every text on the way to it
MAX_TEMPLATE_NUMBER = 2**63
MAX_JSON_INDENT = 32  # characters that each line of JSON is moved by
BLOCKED_STRING_METHODS = {
    "center",
    "expandtabs",
    "format",
    "format_map",
    "ljust",
    "rjust",
    "to_bytes",
    "translate",
    "zfill",
}
REMOVED_FILTERS = (
    "batch",
    "center",
    "format",
    "indent",
    "pprint",
    "round",
    "slice",
    "sum",
    "urlize",
    "wordwrap",
    "xmlattr",
)


class ConcatCodeGenerator(CodeGenerator):
    """Lets the sandbox see a ~ b, which is no operator to it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - the name is jinja's
        self.write("environment.join('', (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The sandbox of jinja, in which nothing can be added, multiplied or filled up into something huge."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = ConcatCodeGenerator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.filters = {
            name: work for name, work in self.filters.items() if name not in REMOVED_FILTERS
        }
        self.filters |= {"join": self._joined, "replace": self.replace, "tojson": _json}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or not (numbers or operator == "+"):
            raise TemplateError(f"{left!r:.20} {operator} {right!r:.20} is no work for a template")
        if not numbers and isinstance(left, Sized) and isinstance(right, Sized):
            _check(len(left) + len(right))
        found = self.binop_table[operator](left, right)
        if numbers and not abs(found) <= MAX_TEMPLATE_NUMBER:
            raise TemplateError(
                f"{operator} gives a number beyond {MAX_TEMPLATE_NUMBER}, which is no work for a template"
            )
        return found

    def wrap_str_format(self, value: Any) -> None:
        """No text is filled in; jinja would give a method of its own before it asks the next."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in BLOCKED_STRING_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *given: Any, **named: Any) -> Any:
        """What a template calls; texts are joined and replaced by what looks at their size before."""
        name = getattr(obj, "__name__", "")
        text = getattr(obj, "__self__", None)
        if isinstance(text, str) and name in ("join", "replace"):
            return getattr(self, name)(text, *given)  # no names: those in `named` are jinja's own
        return super().call(context, obj, *given, **named)

    def join(self, between: str, parts: Iterable[Any]) -> str:
        texts = [str(part) for part in parts]
        _check(sum(map(len, texts)) + len(between) * len(texts))
        return between.join(texts)

    def _joined(self, parts: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        return self.join(
            str(d), (part if attribute is None else self.getitem(part, attribute) for part in parts)
        )

    def replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        text = str(text)
        times = -1 if count is None else count
        _check(len(text) + text.count(old) * len(new))
        return text.replace(old, new, times)


def _check(size: int) -> None:
    if size > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"a text of more than {MAX_TEMPLATE_CHARS:,} characters is no work for a template"
        )


def _json(value: Any, **options: Any) -> str:
    if len(str(options)) > 200 or (options.get("indent") or 0) > MAX_JSON_INDENT:
        raise TemplateError(f"JSON is moved by at most {MAX_JSON_INDENT} characters")
    return json.dumps(value, **{"ensure_ascii": False, **options})


# ---- chat: A conversation as tokens: the model's own template writes it out, in a sandbox (L5.5).

Message = Mapping[str, str]
SEED_STRIDE = 1_000_003  # from the seed of an answer to that of the next
SPECIAL_TOKEN_GUARD = "\ufdd0"  # a code point that is no character, so no text has it


def encode_chat(
    template: str, messages: Sequence[Message], tokenizer: Tokenizer | None
) -> list[int]:
    """The conversation up to where the assistant is to answer.

    Special tokens come from the template only: those that somebody typed into a message stay the text they are.
    """
    if tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so it cannot chat.")
    if not template:
        raise ClearheadError("this model has no chat template; it was not made for conversations.")
    special = (
        "|".join(map(re.escape, sorted(tokenizer.special_tokens, key=len, reverse=True))) or r"(?!)"
    )

    def guarded(text: str) -> str:
        return re.sub(
            special,
            lambda found: found[0][0] + SPECIAL_TOKEN_GUARD + found[0][1:],
            text.replace(SPECIAL_TOKEN_GUARD, ""),
        )

    written = render_chat_template(
        template, [{k: guarded(v) for k, v in m.items()} for m in _checked(messages)]
    )
    if SPECIAL_TOKEN_GUARD not in written:
        return tokenizer.encode(written, allow_special=True)
    ids: list[int] = []
    for part in re.split(f"({special})", written):
        if part in tokenizer.special_tokens:
            ids.append(tokenizer.special_tokens[part])
        elif part:
            ids += (tokenizer.without_prefix_space if ids else tokenizer).encode(
                part.replace(SPECIAL_TOKEN_GUARD, "")
            )
    return ids


def answer_length(
    max_tokens: int, ids: Sequence[int], context: int, options: Mapping[str, Any]
) -> int:
    """How long an answer may get: what the context leaves, unless that slides."""
    return (
        max_tokens
        if options.get("overflow") == "slide"
        else min(max_tokens, max(1, context - len(ids)))
    )


def turn_seed(seed: int, messages: Sequence[Message]) -> int:
    """The seed of the answer that comes now: with the same noise in each turn all answers would begin alike."""
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        return seed  # as it is, to be refused
    return (
        seed + SEED_STRIDE * sum(message.get("role") == "assistant" for message in messages)
    ) & MAX_SEED


def chat_prompt(template: str, messages: Sequence[Message], tokenizer: Tokenizer | None) -> str:
    """What the tokens of the conversation say."""
    ids = encode_chat(template, messages, tokenizer)
    return tokenizer.decode(ids) if tokenizer else ""


def render_chat_template(template: str, messages: Sequence[Message]) -> str:
    """The template can loop and choose; it cannot reach anything outside the conversation, nor write without end."""

    def refuse(sentence: str) -> None:
        raise TemplateError(sentence)

    room = TemplateSandbox()
    kept = {name: room.globals[name] for name in ("range", "dict", "namespace")}
    room.globals.clear()
    room.globals |= kept | {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    template = re.sub(
        r"(\{%-?\s*)generation\b", r"\1if true", template
    )  # a mark for those who train
    template = re.sub(r"(\{%-?\s*)endgeneration\b", r"\1endif", template)
    written = ""
    with reraise_as("the chat template cannot write this conversation"):
        for piece in room.from_string(template).generate(
            messages=messages, add_generation_prompt=True
        ):
            written += piece
            if len(written) > MAX_TEMPLATE_CHARS:
                raise ClearheadError(
                    f"the chat template writes more than {MAX_TEMPLATE_CHARS:,} characters."
                )
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


# ---- talk: A conversation that goes on (L5.5): what the model has read of it stays in its memory.


class ChatSession:
    """Messages with a model; options are those of writing. Weights must stay as they are meanwhile."""

    def __init__(self, model: "Model", system: str = "", **options: Any) -> None:
        check_can_generate(model.config.model)
        self.model = model
        self.messages = list[Message]()
        self.options: dict[str, Any] = {"max_tokens": 200, "temperature": 0.7, **options}
        sampling_config(**self.options)  # what is wrong with them is said at once
        if system:
            self.messages.append({"role": "system", "content": system})
        encode_chat(
            model.config.inference.chat_template,
            [*self.messages, {"role": "user", "content": "Hello"}],
            model.tokenizer,
        )
        known = len(model.tokenizer) if model.tokenizer else None
        self.engine = BatchEngine(
            model.net, model.config.inference, 1, model.net.context_length, known
        )

    def send(self, text: str, **options: Any) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.stream(text, **options))

    def regenerate(self, **options: Any) -> str:
        """Another answer to the last message."""
        return "".join(piece.text for piece in self.stream_regenerate(**options))

    def stream(self, text: str, **options: Any) -> Iterator[GenerationChunk]:
        """The answer while it is written; what was written when one stops listening is the answer."""
        return self._answer([*self.messages, {"role": "user", "content": text}], options)

    def stream_regenerate(self, **options: Any) -> Iterator[GenerationChunk]:
        """Another answer to the last message, while it is written."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ClearheadError("there is no answer yet that could be given again.")
        seed = options.setdefault("seed", self.options.get("seed", 0) + 1)
        answer = self._answer(self.messages[:-1], options)
        self.options["seed"] = seed
        return answer

    def _answer(
        self, messages: list[Message], options: dict[str, Any]
    ) -> Iterator[GenerationChunk]:
        """What was said before stays as it is until the answer has begun."""
        model = self.model
        how = {**self.options, **options}
        if not self.engine.is_idle:
            raise ClearheadError(
                "an answer is being written; let it end, or close it, before the next."
            )
        ids = encode_chat(model.config.inference.chat_template, messages, model.tokenizer)
        how["seed"] = turn_seed(how.get("seed", 0), messages)
        how["max_tokens"] = answer_length(how["max_tokens"], ids, model.net.context_length, how)
        return self._heard(messages, [ids], sampling_config(**how))

    def _heard(
        self, messages: list[Message], prompt: list[list[int]], how: SamplingConfig
    ) -> Iterator[GenerationChunk]:
        heard = ""
        writer = GenerationStream(self.engine, self.model.tokenizer, prompt, how)
        try:
            for piece in writer:
                heard += piece.text
                yield piece
        finally:
            self.messages = [*messages, {"role": "assistant", "content": heard}]
