"""Chat: conversations as prompts, written by the model's own chat template in a sandbox (L5.5)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Unpack

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clearhead.errors import ClearheadError, reraise_as
from clearhead.generate.engine import BatchEngine
from clearhead.generate.generation import (
    Generation,
    GenerationStream,
    TextChunk,
    check_can_generate,
)
from clearhead.generate.sampling import MAX_SEED, AnswerOptions, SamplingConfig, check_option_names
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

MAX_TEMPLATE_CHARS = 10_000_000  # of a prompt, and of every string on the way to it
MAX_TEMPLATE_NUMBER = 2**63
MAX_JSON_INDENT = 32
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
TEMPLATE_GLOBALS = ("range", "dict", "namespace")
SEED_STRIDE = 1_000_003  # between the seeds of successive answers
# A Unicode noncharacter in special tokens that a user typed, so they are encoded as plain text.
SPECIAL_TOKEN_GUARD = "\ufdd0"

Message = Mapping[str, str]


class ConcatCodeGenerator(CodeGenerator):
    """Compile `a ~ b` to a call of `TemplateSandbox.join`, which checks the size."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja's name
        self.write("environment.join('', (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template cannot build huge strings or numbers either."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = ConcatCodeGenerator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters |= {"join": self._join_filter, "replace": self.replace, "tojson": _to_json}
        self.globals = {name: self.globals[name] for name in TEMPLATE_GLOBALS}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or not (are_numbers or operator == "+"):
            raise TemplateError(f"{left!r:.20} {operator} {right!r:.20} is not allowed")
        if not are_numbers and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        result = self.binop_table[operator](left, right)
        if are_numbers and not abs(result) <= MAX_TEMPLATE_NUMBER:
            raise TemplateError(f"the result of {operator} exceeds {MAX_TEMPLATE_NUMBER}")
        return result

    def wrap_str_format(self, value: Any) -> None:
        """Block str.format, which Jinja would replace before calling `is_safe_attribute`."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in BLOCKED_STRING_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function for the template; str.join and str.replace check their size first."""
        name = getattr(obj, "__name__", "")
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and name == "join":
            return self.join(owner, *args)
        if isinstance(owner, str) and name == "replace":
            return self.replace(owner, *args)
        return super().call(context, obj, *args, **kwargs)

    def join(self, separator: str, parts: Iterable[Any]) -> str:
        strings = [str(part) for part in parts]
        _check_size(sum(map(len, strings)) + len(separator) * len(strings))
        return separator.join(strings)

    def _join_filter(
        self, parts: Iterable[Any], d: str = "", attribute: str | int | None = None
    ) -> str:
        if attribute is not None:
            parts = [self.getitem(part, attribute) for part in parts]
        return self.join(str(d), parts)

    def replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        string = str(text)
        _check_size(len(string) + string.count(old) * len(new))
        return string.replace(old, new, -1 if count is None else count)


def _check_size(num_chars: int) -> None:
    if num_chars > MAX_TEMPLATE_CHARS:
        raise TemplateError(f"a string exceeds {MAX_TEMPLATE_CHARS:,} characters")


def _to_json(value: Any, **options: Any) -> str:
    if len(str(options)) > 200 or (options.get("indent") or 0) > MAX_JSON_INDENT:
        raise TemplateError(f"the indent of tojson exceeds {MAX_JSON_INDENT}")
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=32)
def _compile_template(template: str) -> Template:
    # {% generation %} only marks the assistant's text for training.
    template = re.sub(r"(\{%-?\s*)generation\b", r"\1if true", template)
    template = re.sub(r"(\{%-?\s*)endgeneration\b", r"\1endif", template)
    return TemplateSandbox().from_string(template)


def render_chat_template(template: str, messages: Sequence[Message]) -> str:
    """Render a conversation, up to where the assistant answers."""
    prompt = ""
    with reraise_as(  # a template is a program: it can raise what Python's operators raise
        "the chat template cannot render this conversation",
        TemplateError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ):
        pieces = _compile_template(template).generate(
            messages=messages, tools=None, documents=None, add_generation_prompt=True
        )
        for piece in pieces:
            prompt += piece
            if len(prompt) > MAX_TEMPLATE_CHARS:
                raise ClearheadError(
                    f"the chat template writes more than {MAX_TEMPLATE_CHARS:,} characters."
                )
    return prompt


def encode_chat(
    template: str, messages: Sequence[Message], tokenizer: Tokenizer | None
) -> list[int]:
    """Encode a conversation, up to where the assistant answers.

    Only the template produces special tokens; those typed into a message stay plain text.
    """
    if tokenizer is None:
        raise ClearheadError("this model has no tokenizer, so it cannot chat.")
    if not template:
        raise ClearheadError("this model has no chat template; set inference.chat_template.")
    check_messages(messages)
    by_length = sorted(tokenizer.special_tokens, key=len, reverse=True)
    special = "|".join(map(re.escape, by_length)) or r"(?!)"

    def guard(text: str) -> str:
        text = text.replace(SPECIAL_TOKEN_GUARD, "")
        return re.sub(special, lambda m: m[0][0] + SPECIAL_TOKEN_GUARD + m[0][1:], text)

    guarded = [{key: guard(value) for key, value in message.items()} for message in messages]
    prompt = render_chat_template(template, guarded)
    if SPECIAL_TOKEN_GUARD not in prompt:
        return tokenizer.encode(prompt, allow_special=True)
    ids: list[int] = []
    for part in re.split(f"({special})", prompt):
        if part in tokenizer.special_tokens:
            ids.append(tokenizer.special_tokens[part])
        elif part:
            encoder = tokenizer.without_prefix_space if ids else tokenizer
            ids += encoder.encode(part.replace(SPECIAL_TOKEN_GUARD, ""))
    return ids


def check_messages(messages: object) -> None:
    """Raise unless this is a list of messages with a role and content."""
    expected = 'a list of messages like {"role": "user", "content": "…"}'
    if not isinstance(messages, list | tuple) or not messages:
        raise ClearheadError(f"a conversation must be {expected}, got {messages!r:.60}.")
    for message in messages:
        if not isinstance(message, Mapping) or {"role", "content"} - message.keys():
            raise ClearheadError(f"a conversation must be {expected}; one is {message!r:.60}.")
        if not all(isinstance(value, str) for value in message.values()):
            raise ClearheadError(f"the values of a message must be strings, got {message!r:.60}.")


def turn_config(
    config: SamplingConfig, messages: Sequence[Message], prompt: Sequence[int], context_length: int
) -> SamplingConfig:
    """The config of the next answer: no longer than the context allows, with a seed of its own.

    With the same noise, all answers would start alike.
    """
    max_tokens = config.max_tokens
    if config.overflow != "slide":
        max_tokens = min(max_tokens, max(1, context_length - len(prompt)))
    turns = sum(message.get("role") == "assistant" for message in messages)
    return replace(
        config, max_tokens=max_tokens, seed=(config.seed + SEED_STRIDE * turns) & MAX_SEED
    )


class ChatSession:
    """A conversation with a model, whose earlier messages stay in the KV cache.

    The weights must not change during the session.
    """

    def __init__(
        self, model: "Model", system: str = "", config: SamplingConfig | None = None
    ) -> None:
        check_can_generate(model.config.model)
        self.model = model
        self.config = config or SamplingConfig(max_tokens=200, temperature=0.7)
        self.messages: list[Message] = []
        self._num_regenerations = 0  # of the last answer
        if system:
            self.messages.append({"role": "system", "content": system})
        self._encode([*self.messages, {"role": "user", "content": "Hello"}])  # check the template
        self._engine = BatchEngine(
            model.net,
            model.config.inference,
            1,
            model.net.context_length,
            len(model.tokenizer) if model.tokenizer else None,
        )

    def send(
        self, text: str, max_tokens: int | None = None, **options: Unpack[AnswerOptions]
    ) -> Generation:
        """Send a message and return the answer. Options override those of the session."""
        return _join_chunks(self.stream(text, max_tokens, **options))

    def regenerate(
        self, max_tokens: int | None = None, **options: Unpack[AnswerOptions]
    ) -> Generation:
        """Replace the last answer by another one."""
        return _join_chunks(self.stream_regenerate(max_tokens, **options))

    def stream(
        self, text: str, max_tokens: int | None = None, **options: Unpack[AnswerOptions]
    ) -> Iterator[TextChunk]:
        """Send a message and stream the answer. Closing the iterator keeps the text so far."""
        config = self._turn_config(max_tokens, options)
        self._check_idle()
        self._encode([*self.messages, {"role": "user", "content": text}])
        return self._stream_answer(text, config)

    def stream_regenerate(
        self, max_tokens: int | None = None, **options: Unpack[AnswerOptions]
    ) -> Iterator[TextChunk]:
        """Stream another answer to the last message; with a new seed, unless one is given."""
        config = self._turn_config(max_tokens, options)
        self._check_idle()
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ClearheadError("there is no answer to regenerate; send a message first.")
        if "seed" not in options:
            config = replace(config, seed=(config.seed + self._num_regenerations + 1) & MAX_SEED)
        return self._stream_answer(None, config)

    def _turn_config(self, max_tokens: int | None, options: Mapping[str, Any]) -> SamplingConfig:
        check_option_names("a chat", options, ("max_tokens", *AnswerOptions.__annotations__))
        config = replace(self.config, **options)
        return config if max_tokens is None else replace(config, max_tokens=max_tokens)

    def _check_idle(self) -> None:
        if not self._engine.is_idle:
            raise ClearheadError("the last answer is still streaming; finish or close it first.")

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return encode_chat(
            self.model.config.inference.chat_template, messages, self.model.tokenizer
        )

    def _stream_answer(self, text: str | None, config: SamplingConfig) -> Iterator[TextChunk]:
        """Answer a message, or again the last one. Nothing changes before the first chunk."""
        self._check_idle()  # another stream may have started since this one was created
        if text is None:
            messages = self.messages[:-1]
        else:
            messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self._encode(messages)
        config = turn_config(config, messages, prompt, self.model.net.context_length)
        stream = GenerationStream(self._engine, self.model.tokenizer, [prompt], config)
        self._num_regenerations = self._num_regenerations + 1 if text is None else 0
        answer = ""
        try:
            for chunk in stream:
                answer += chunk.text
                yield chunk
        finally:
            self.messages = [*messages, {"role": "assistant", "content": answer}]


def _join_chunks(chunks: Iterable[TextChunk]) -> Generation:
    """The answer that these chunks stream."""
    chunks = list(chunks)
    logprobs = [chunk.token_logprob for chunk in chunks]
    return Generation(
        text="".join(chunk.text for chunk in chunks),
        tokens=[token.token for token in logprobs],
        finish_reason=chunks[-1].finish_reason,
        token_logprobs=logprobs,
    )
