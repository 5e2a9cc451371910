"""Chat: conversations as prompts, written by the model's own chat template (L5.5)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from clearhead.config.model import InferenceConfig
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.chat_template_process import Message, render_chat_template
from clearhead.generate.engine import BatchEngine
from clearhead.generate.sampling import MAX_SEED, AnswerOptions, SamplingConfig, check_option_names
from clearhead.generate.text_generation import (
    Generation,
    GenerationStream,
    TextChunk,
    check_can_generate,
)
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model

ROLES = ("system", "developer", "user", "assistant", "tool")  # a template may name others
SEED_STRIDE = 1_000_003  # between the seeds of successive answers
# A Unicode noncharacter in special tokens that a user typed, so they are encoded as plain text.
SPECIAL_TOKEN_GUARD = "\ufdd0"


def continuation_template(inference: InferenceConfig, tokenizer: Tokenizer) -> str:
    """The template of a model without one: it joins all messages into one text to continue."""
    special_tokens = tokenizer.special_tokens.items()
    bos = "".join(name for name, token in special_tokens if token in inference.bos_tokens)
    texts = "{{ messages | map(attribute='content') | map('trim') | join(' ') }}"
    return f"{{{{ {json.dumps(bos, ensure_ascii=False)} }}}}{texts}"


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
    for message in messages:
        role = message["role"]
        if role not in ROLES and f"'{role}'" not in template and f'"{role}"' not in template:
            raise ClearheadError(f"there is no role {role!r:.60}; {suggest(role, ROLES)}")
    special = tokenizer.special_pattern

    def guard(text: str) -> str:
        text = text.replace(SPECIAL_TOKEN_GUARD, "")
        return special.sub(lambda m: m[0][0] + SPECIAL_TOKEN_GUARD + m[0][1:], text)

    guarded = [{key: guard(value) for key, value in message.items()} for message in messages]
    prompt = render_chat_template(template, guarded)
    if SPECIAL_TOKEN_GUARD not in prompt:
        return tokenizer.encode(prompt, allow_special=True)
    ids: list[int] = []
    for part in special.split(prompt):
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
        check_option_names("send", options, ("max_tokens", *AnswerOptions.__annotations__))
        config = replace(self.config, **options)
        return config if max_tokens is None else replace(config, max_tokens=max_tokens)

    def _check_idle(self) -> None:
        if not self._engine.is_idle:
            raise ClearheadError("the last answer is still streaming; finish or close it first.")

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return encode_chat(self.model.chat_template, messages, self.model.tokenizer)

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
