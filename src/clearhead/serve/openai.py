"""OpenAI-compatible API: request schemas, /v1/models, completions and chat completions."""

import asyncio
import json
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from starlette.types import Receive, Scope, Send

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.chat import encode_chat, turn_config
from clearhead.generate.detokenizer import REPLACEMENT_CHARACTER, IncrementalDetokenizer
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.sampling import MAX_COUNT, SamplingConfig
from clearhead.generate.teacher_forcing import prompt_logprobs_in_steps
from clearhead.generate.text_generation import OutputSequence, TextChunk
from clearhead.serve.errors import APIError, JSONDict
from clearhead.serve.limits import Limits
from clearhead.serve.middleware import MAX_NAME_CHARS
from clearhead.serve.registry import LoadedModel, ModelRegistry
from clearhead.serve.scheduler import FairThreads, GenerationJob
from clearhead.tokenizers.tokenizer import Tokenizer

# OpenAI's fields that have no effect here.
IGNORED_FIELDS = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# OpenAI's fields that are not supported, with the values that request nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
WRONG_ENDPOINT_REASONS = {
    "/v1/completions": "does not generate text from a prompt",
    "/v1/embeddings": "does not produce embeddings",
    "/translate": "does not translate",
    "/classify": "does not classify",
    "/fill": "does not fill masks",
}
DEFAULT_MAX_TOKENS = 16  # of a completion, as in OpenAI's API
MIN_LOGPROB = -9999.0  # stands for −∞, as in OpenAI's API
SEED_BITS = 31
CANONICAL_ID = "0|[1-9][0-9]{0,9}"  # other spellings could be duplicates
MAX_ECHOED_TOKENS = 1 << 15  # with log-probabilities, in all texts of a response
MAX_QUICK_CHUNKS = 64  # with log-probabilities, more are encoded in a thread
JSON_MEDIA_TYPE = "application/json"
SSE_MEDIA_TYPE = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SSE_DONE = b"data: [DONE]\n\n"


# Schemas


class HashableFailFast(FailFast):
    """Report the first invalid element of a list, not millions of them."""

    __hash__ = object.__hash__  # needed in unions


FAIL_FAST = HashableFailFast()
TextList = Annotated[list[str], FAIL_FAST]
TokenIds = Annotated[list[int], FAIL_FAST]
Prompt = str | TextList | TokenIds | Annotated[list[TokenIds], FAIL_FAST]
TextPair = Annotated[list[str], FAIL_FAST, Field(min_length=2, max_length=2)]


def unknown_field_error(name: str, known: Iterable[str]) -> APIError:
    """The error for a field that a request does not have."""
    short_name = name[:MAX_NAME_CHARS]
    hint = suggest(short_name, known)
    return APIError(f"Unknown field {short_name!r}; {hint}", param=short_name)


class APIRequest(BaseModel):
    """Base class of requests."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"additionalProperties": False}
    )
    model: str = Field(
        "", description="A name listed by /v1/models; optional if one model is served."
    )

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, fields: Any) -> Any:
        """Drop null fields; reject unknown and unsupported ones."""
        if not isinstance(fields, dict):
            return fields
        fields = {name: value for name, value in fields.items() if value is not None}
        for name, value in fields.items():
            is_ignored = name in IGNORED_FIELDS or any(
                type(value) is type(other) and value == other  # true == 1
                for other in UNSUPPORTED_FIELDS.get(name, ())
            )
            if name in cls.model_fields or is_ignored:
                continue
            if name in UNSUPPORTED_FIELDS:
                raise APIError(f"{name} is not supported; remove it.", param=name)
            raise unknown_field_error(name, cls.model_fields)
        return fields


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class SamplingRequest(APIRequest):
    """Sampling options, named as in `model.generate`."""

    temperature: float = Field(1.0, description="0 is greedy decoding.")
    top_p: float = 1.0
    top_k: int = Field(0, le=MAX_COUNT, description="Keep the k most likely tokens; 0: all.")
    min_p: float = Field(
        0.0, description="Keep tokens with at least this fraction of the highest probability."
    )
    repetition_penalty: float = Field(
        1.0, description="Divides the positive logits of tokens in the prompt or output."
    )
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] = Field({}, description="Added to the logits of token ids.")
    stop: str | Annotated[list[str], FAIL_FAST, Field(max_length=16)] = []
    seed: int | None = Field(None, description="Same seed, same text; random by default.")
    n: int = Field(1, ge=1, le=MAX_COUNT)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class CompletionRequest(SamplingRequest):
    prompt: Prompt
    max_tokens: int | None = Field(
        None, ge=0, description="Default 16. With echo, 0 returns the prompt only."
    )
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Number of most likely tokens at each position."
    )
    echo: bool = False


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of a conversation; other fields of OpenAI's messages are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], FAIL_FAST] | None = None

    def to_dict(self) -> dict[str, str]:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatCompletionRequest(SamplingRequest):
    messages: Annotated[list[ChatMessage], FAIL_FAST, Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, description="Default: as many as fit.")
    max_completion_tokens: int | None = Field(None, ge=1, description="Same as max_tokens.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


class EmbeddingRequest(APIRequest):
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Body of all error responses."""

    error: ErrorInfo


ERROR_RESPONSES: dict[int | str, JSONDict] = {
    status: {"model": ErrorResponse} for status in (400, 401, 403, 404, 413, 429, 500, 503, 504)
}


# From requests to sequences


def client_address(request: Request) -> str:
    """Identifies a client for quotas and fair queues."""
    return request.client.host if request.client else ""


def check_endpoint(loaded_model: LoadedModel, path: str) -> None:
    """Raise an error if a model does not support an endpoint."""
    name = loaded_model.name
    m = loaded_model.model.config.model
    if not isinstance(m.main_input, c.Tokens):
        raise APIError(f"Model {name!r} reads {m.main_input.kind}, not text.", param="model")
    own_path = _endpoint_of(m)
    has_embeddings = own_path != "/translate"
    if path == own_path or (path == "/v1/embeddings" and has_embeddings):
        return
    reason = WRONG_ENDPOINT_REASONS[path]
    raise APIError(f"Model {name!r} {reason}; use POST {own_path}.", param="model")


def _endpoint_of(m: c.ModelConfig) -> str:
    match m.architecture, m.head:
        case c.EncoderDecoder(), _:
            return "/translate"
        case c.Decoder(), c.LMHead():
            return "/v1/completions"
        case _, c.ClassificationHead() | c.RegressionHead():
            return "/classify"
        case _, c.MLMHead():
            return "/fill"
    return "/v1/embeddings"


def to_list(inputs: Prompt | list[list[str]], limits: Limits, n: int = 1) -> list[Any]:
    """One or several texts, pairs or id lists as a list, within the limits of a request."""
    is_single = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
    texts: list[Any] = [inputs] if is_single else [*inputs]
    num_texts = len(texts) * n
    if num_texts > limits.max_texts:
        raise APIError(f"Request has {num_texts} texts; the limit is {limits.max_texts}.")
    num_chars = sum(map(_num_chars, texts))
    if num_chars > limits.max_prompt_chars:
        raise APIError(
            f"Request has {num_chars} characters; the limit is {limits.max_prompt_chars}."
        )
    return texts


def _num_chars(text: Any) -> int:
    """Characters of a text or of both texts of a pair; number of ids."""
    is_pair = isinstance(text, list) and bool(text) and isinstance(text[0], str)
    return sum(map(len, text)) if is_pair else len(text)


def check_max_tokens(max_tokens: int, limits: Limits) -> None:
    """Raise an error if a request asks for more tokens than the server generates."""
    if max_tokens > limits.max_tokens:
        raise APIError(
            f"max_tokens must be at most {limits.max_tokens} on this server, got {max_tokens}.",
            param="max_tokens",
        )


def make_sampling_config(
    request: SamplingRequest, limits: Limits, max_tokens: int
) -> SamplingConfig:
    check_max_tokens(max_tokens, limits)
    bias: dict[int, float] = {}
    for token, value in request.logit_bias.items():
        if not re.fullmatch(CANONICAL_ID, token) or type(value) not in (int, float):
            raise APIError(
                'logit_bias must map token ids to numbers, as in {"5": 2.0}.', param="logit_bias"
            )
        bias[int(token)] = value
    try:
        return SamplingConfig(
            max_tokens=max_tokens,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            logit_bias=bias,
            stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop),
            seed=secrets.randbelow(1 << SEED_BITS) if request.seed is None else request.seed,
        )
    except ClearheadError as error:
        field = str(error).partition(" ")[0]  # most errors start with the option's name
        param = field if field in type(request).model_fields else None
        raise APIError(str(error), param=param) from None


def make_completion_sequences(
    loaded_model: LoadedModel, request: CompletionRequest, prompts: list[Any], limits: Limits
) -> list[OutputSequence]:
    """Sequences of a completion; with max_tokens = 0 (echo), they are not generated."""
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = min(DEFAULT_MAX_TOKENS, limits.max_tokens)
    sampling = make_sampling_config(
        request, limits, 1 if request.echo and not max_tokens else max_tokens
    )
    # encoded lazily: the first prompt that is too long ends it
    encoded_prompts = loaded_model.model.encode_texts(prompts, allow_overflow=True)
    return loaded_model.worker.scheduler.make_sequences(
        encoded_prompts, sampling, request.n, request.logprobs or 0, request.echo
    )


def make_chat_sequences(
    loaded_model: LoadedModel, request: ChatCompletionRequest, limits: Limits
) -> list[OutputSequence]:
    """Sequences of a chat answer, limited by the context length."""
    model = loaded_model.model
    scheduler = loaded_model.worker.scheduler
    messages = [message.to_dict() for message in request.messages]
    ids = encode_chat(model.chat_template, messages, model.tokenizer)
    both = {request.max_completion_tokens, request.max_tokens} - {None}
    if len(both) > 1:
        raise APIError(
            f"max_tokens = {request.max_tokens} and max_completion_tokens = "
            f"{request.max_completion_tokens} differ; set one of them.",
            param="max_tokens",
        )
    max_tokens = request.max_completion_tokens or request.max_tokens or limits.max_tokens
    sampling = make_sampling_config(request, limits, max_tokens)
    sampling = turn_config(sampling, messages, ids, scheduler.engine.capacity)
    return scheduler.make_sequences([ids], sampling, request.n, request.top_logprobs, echo=False)


async def compute_prompt_logprobs(
    loaded_model: LoadedModel,
    client: str,
    request: CompletionRequest,
    sequences: list[OutputSequence],
) -> dict[int, list[TokenLogprob]]:
    """Log-probabilities of prompt tokens by sequence, for echo with logprobs; NaN for the first."""
    if not request.echo or request.logprobs is None:
        return {}
    num_tokens = sum(len(sequence.request.prompt) for sequence in sequences)
    if num_tokens > MAX_ECHOED_TOKENS:
        raise APIError(
            f"echo with logprobs returns {num_tokens:,} prompt tokens; the limit is "
            f"{MAX_ECHOED_TOKENS:,}. Send fewer or shorter prompts, or reduce n.",
            param="echo",
        )
    model = loaded_model.model
    vocab_size = len(model.tokenizer) if model.tokenizer else None
    logprobs: dict[tuple[int, ...], list[TokenLogprob]] = {}
    for sequence in sequences:
        prompt = sequence.request.prompt
        if tuple(prompt) in logprobs:
            continue
        steps = prompt_logprobs_in_steps(model.net, prompt, request.logprobs, vocab_size)
        found = [TokenLogprob(prompt[0], math.nan)]
        while step := await loaded_model.worker.call(client, partial(next, steps, [])):
            found += step
        logprobs[tuple(prompt)] = found
    return {sequence.index: logprobs[tuple(sequence.request.prompt)] for sequence in sequences}


# Responses


class TokenTexts:
    """Text of each token inside a longer text, cached; labels for incomplete characters."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._labeled: set[int] = set()  # tokens whose text is a label

    def __call__(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._decode(token)
        return self._texts[token]

    def _decode(self, token: int) -> str:
        if self.tokenizer is None:
            self._labeled.add(token)
            return str(token)
        once = self.tokenizer.decode([token])
        if REPLACEMENT_CHARACTER in once:
            self._labeled.add(token)
            return self.tokenizer.to_str_tokens([token])[0]
        # The first token of a text may lose its leading space, the second does not.
        return self.tokenizer.decode([token, token])[len(once) :]

    def bytes(self, token: int) -> list[int] | None:
        text = self(token)
        return None if token in self._labeled else list(text.encode())


class ResponseBuilder:
    """Builds completion or chat responses, complete or in chunks."""

    def __init__(
        self,
        loaded_model: LoadedModel,
        sequences: Sequence[OutputSequence],
        is_chat: bool,
        has_logprobs: bool,
        prompt_logprobs: Mapping[int, Sequence[TokenLogprob]] | None = None,
    ) -> None:
        self.sequences = sequences
        self.is_chat = is_chat
        self.has_logprobs = has_logprobs
        self.prompt_logprobs = dict(prompt_logprobs or {})
        self.token_texts = TokenTexts(loaded_model.model.tokenizer)
        self.num_prompt_tokens = sum(
            len(sequence.request.prompt)
            for sequence in sequences
            if not sequence.request.sample_index
        )
        self.num_completion_tokens = 0
        self.text_offsets: dict[int, int] = {}  # by sequence
        self.echoed_lengths: dict[tuple[int, ...], list[int]] = {}  # by prompt
        self.common_fields: JSONDict = {
            "id": ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": loaded_model.name,
            "seed": sequences[0].request.config.seed,  # an extension, to reproduce the response
        }

    def full_response(self, chunks: Iterable[TextChunk]) -> bytes:
        """The JSON of a complete response."""
        return self._encode_response(self._full_choices(chunks))

    def prompt_response(self) -> bytes:
        """The JSON of a response with the prompts only (max_tokens = 0)."""
        return self._encode_response(
            self._choice(sequence.index, {"text": sequence.prompt_text}, [], "length")
            for sequence in self.sequences
        )

    def _encode_response(self, choices: Iterable[JSONDict]) -> bytes:
        # One at a time: other threads, such as the event loop, wait while an object is encoded.
        encoded_choices = b",".join(map(_to_json, choices))
        fields = {**self._common_fields(), "usage": self.usage()}
        return _to_json(fields)[:-1] + b',"choices":[' + encoded_choices + b"]}"

    def _full_choices(self, chunks: Iterable[TextChunk]) -> Iterator[JSONDict]:
        chunks_by_index: list[list[TextChunk]] = [[] for _ in self.sequences]
        for chunk in chunks:
            chunks_by_index[chunk.index].append(chunk)
        for index, own_chunks in enumerate(chunks_by_index):
            text = "".join(chunk.text for chunk in own_chunks)
            message = {"role": "assistant", "content": text, "refusal": None}
            content = {"message": message} if self.is_chat else {"text": text}
            yield self._choice(index, content, own_chunks, own_chunks[-1].finish_reason)

    def opening_chunks(self) -> list[JSONDict]:
        """The first chunks of a chat stream, with the role."""
        if not self.is_chat:
            return []
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [
            self._chunk_response([self._choice(sequence.index, delta, [], "")])
            for sequence in self.sequences
        ]

    def is_slow(self, chunks: Sequence[TextChunk]) -> bool:
        """Whether encoding these chunks would block the event loop for long."""
        return self.has_logprobs and (bool(self.prompt_logprobs) or len(chunks) > MAX_QUICK_CHUNKS)

    def chunk_events(self, chunks: Iterable[TextChunk]) -> bytes:
        """Server-sent events of chunks."""
        return b"".join(_to_event(self._chunk(chunk)) for chunk in chunks)

    def _chunk(self, chunk: TextChunk) -> JSONDict:
        content = {"delta": {"content": chunk.text}} if self.is_chat else {"text": chunk.text}
        choice = self._choice(chunk.index, content, [chunk], chunk.finish_reason)
        return self._chunk_response([choice])

    def usage_chunk(self) -> JSONDict:
        return {**self._chunk_response([]), "usage": self.usage()}

    def usage(self) -> JSONDict:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }

    def _chunk_response(self, choices: list[JSONDict]) -> JSONDict:
        return {**self._common_fields(".chunk"), "choices": choices}

    def _common_fields(self, suffix: str = "") -> JSONDict:
        object_type = f"chat.completion{suffix}" if self.is_chat else "text_completion"
        return {"object": object_type, **self.common_fields}

    def _choice(
        self, index: int, content: JSONDict, chunks: Sequence[TextChunk], finish_reason: str
    ) -> JSONDict:
        self.num_completion_tokens += len(chunks)
        logprobs = None
        if self.has_logprobs and self.is_chat:
            tokens = [self._chat_logprob(chunk.token_logprob) for chunk in chunks]
            logprobs = {"content": tokens, "refusal": None}
        elif self.has_logprobs:
            logprobs = self._completion_logprobs(index, chunks)
        return {
            "index": index,
            **content,
            "logprobs": logprobs,
            "finish_reason": finish_reason or None,
        }

    def _completion_logprobs(self, index: int, chunks: Sequence[TextChunk]) -> JSONDict:
        """The format of completions; `text_offset` is the length of the text before each token."""
        token_texts = self.token_texts
        echoed = self.prompt_logprobs.pop(index, ())
        offset = self.text_offsets.get(index, 0)
        tokens = [*echoed, *(chunk.token_logprob for chunk in chunks)]
        prompt = tuple(token.token for token in echoed)
        if prompt not in self.echoed_lengths:
            self.echoed_lengths[prompt] = self._echoed_lengths(prompt)
        lengths = self.echoed_lengths[prompt] + [len(chunk.text) for chunk in chunks]
        if echoed and chunks:  # the first chunk repeats the prompt
            lengths[len(echoed)] -= len(self.sequences[index].prompt_text)
        *offsets, self.text_offsets[index] = accumulate(lengths, initial=offset)
        logprobs = []
        top_logprobs = []
        for token in tokens:
            is_first = math.isnan(token.logprob)
            logprobs.append(None if is_first else max(token.logprob, MIN_LOGPROB))
            top = {token_texts(other): max(p, MIN_LOGPROB) for other, p in token.top}
            top_logprobs.append(top or None)
        return {
            "tokens": [token_texts(token.token) for token in tokens],
            "token_logprobs": logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": offsets,
        }

    def _echoed_lengths(self, prompt: Sequence[int]) -> list[int]:
        """The number of characters that each token of a prompt adds to its echo."""
        tokenizer = self.token_texts.tokenizer
        if tokenizer is None:
            return [0] * len(prompt)
        detokenizer = IncrementalDetokenizer(tokenizer, ())
        special = tokenizer.special_tokens.values()  # not echoed
        last = len(prompt) - 1
        return [len(detokenizer.add(token, special, i == last)) for i, token in enumerate(prompt)]

    def _chat_logprob(self, token: TokenLogprob) -> JSONDict:
        top = [self._token_info(other, logprob) for other, logprob in token.top]
        return {**self._token_info(token.token, token.logprob), "top_logprobs": top}

    def _token_info(self, token: int, logprob: float) -> JSONDict:
        return {
            "token": self.token_texts(token),
            "logprob": max(logprob, MIN_LOGPROB),
            "bytes": self.token_texts.bytes(token),
        }


class SSEResponse(StreamingResponse):
    """Streams the output of a job; closes the job when the stream ends or the client leaves."""

    def __init__(
        self,
        job: GenerationJob,
        builder: ResponseBuilder,
        threads: FairThreads,
        include_usage: bool,
    ) -> None:
        events = _stream_events(job, builder, threads, include_usage)
        super().__init__(events, headers=STREAM_HEADERS, media_type=SSE_MEDIA_TYPE)
        self.job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.job.reader_task = asyncio.current_task()
        with self.job:
            await self.stream_response(send)


async def _stream_events(
    job: GenerationJob, builder: ResponseBuilder, threads: FairThreads, include_usage: bool
) -> AsyncIterator[bytes]:
    """Server-sent events; chunks that are ready are sent together."""
    events = b"".join(map(_to_event, builder.opening_chunks()))
    try:
        while chunks := await job.take_output():
            if builder.is_slow(chunks):
                events += await threads.call(job.client, partial(builder.chunk_events, chunks))
            else:
                events += builder.chunk_events(chunks)
            yield events
            events = b""
        if include_usage:
            events += _to_event(builder.usage_chunk())
    except APIError as error:
        events += _to_event(error.payload)
    yield events + SSE_DONE


def _to_event(data: JSONDict) -> bytes:
    return b"data: " + _to_json(data) + b"\n\n"


def _to_json(data: JSONDict) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


# Routes


def add_openai_routes(app: FastAPI, registry: ModelRegistry, limits: Limits) -> None:
    @app.get("/v1/models")
    async def models() -> JSONDict:
        return {"object": "list", "data": [_model_info(registry, name) for name in registry.names]}

    @app.get("/v1/models/{name:path}", responses=ERROR_RESPONSES)
    async def model(name: str) -> JSONDict:
        registry.check_name(name)
        return _model_info(registry, name)

    @app.post("/v1/completions", responses=ERROR_RESPONSES)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        prompts = to_list(body.prompt, limits, body.n)
        client = client_address(request)
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/v1/completions")
            worker = loaded_model.worker
            worker.check_room(client, len(prompts) * body.n)
            make_sequences = partial(make_completion_sequences, loaded_model, body, prompts, limits)
            sequences = await registry.tokenizer_threads.call(client, make_sequences)
            logprobs = await compute_prompt_logprobs(loaded_model, client, body, sequences)
            has_logprobs = body.logprobs is not None
            builder = ResponseBuilder(
                loaded_model,
                sequences,
                is_chat=False,
                has_logprobs=has_logprobs,
                prompt_logprobs=logprobs,
            )
            if body.max_tokens == 0:
                count = registry.metrics.prompt_tokens.labels(loaded_model.name)
                count.inc(builder.num_prompt_tokens)
                content = await registry.tokenizer_threads.call(client, builder.prompt_response)
                return _prompt_response(content, body.stream)
            job = worker.submit(client, sequences)
        return await _respond(job, builder, registry.tokenizer_threads, body)

    @app.post("/v1/chat/completions", responses=ERROR_RESPONSES)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        client = client_address(request)
        texts = [message.to_dict()["content"] for message in body.messages]
        to_list("".join(texts), limits, body.n)  # checks the limits
        if body.top_logprobs and not body.logprobs:
            raise APIError("top_logprobs requires logprobs to be true.", param="top_logprobs")
        async with registry.using(body.model) as loaded_model:
            check_endpoint(loaded_model, "/v1/completions")
            worker = loaded_model.worker
            worker.check_room(client, body.n)
            make_sequences = partial(make_chat_sequences, loaded_model, body, limits)
            sequences = await registry.tokenizer_threads.call(client, make_sequences)
            job = worker.submit(client, sequences)
        builder = ResponseBuilder(loaded_model, sequences, is_chat=True, has_logprobs=body.logprobs)
        return await _respond(job, builder, registry.tokenizer_threads, body)


async def _respond(
    job: GenerationJob, builder: ResponseBuilder, threads: FairThreads, request: SamplingRequest
) -> Response:
    """Respond completely or as a stream, which starts with the first token.

    Errors before the first token have their own status.
    """
    if request.stream:
        try:
            await job.wait_for_output()
        except BaseException:  # also a cancelled request
            job.close()
            raise
        return SSEResponse(job, builder, threads, request.stream_options.include_usage)
    all_chunks = list[TextChunk]()
    with job:
        while chunks := await job.take_output():
            all_chunks += chunks
    if builder.is_slow(all_chunks):
        encode = partial(builder.full_response, all_chunks)
        content = await threads.call(job.client, encode)
    else:
        content = builder.full_response(all_chunks)
    return Response(content, media_type=JSON_MEDIA_TYPE)


def _prompt_response(content: bytes, stream: bool) -> Response:
    if not stream:
        return Response(content, media_type=JSON_MEDIA_TYPE)
    events = b"data: " + content + b"\n\n" + SSE_DONE
    return Response(events, headers=STREAM_HEADERS, media_type=SSE_MEDIA_TYPE)


def _model_info(registry: ModelRegistry, name: str) -> JSONDict:
    path = Path(registry.paths.get(name, ""))
    created = int(path.stat().st_mtime) if path.name and path.exists() else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "clearhead"}
