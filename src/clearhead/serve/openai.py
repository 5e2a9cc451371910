"""What may be asked, field by field. What is unknown, or cannot be done here, is refused by its name."""

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from starlette.types import Receive, Scope, Send

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.chat import encode_chat, turn_config
from clearhead.generate.detokenizer import REPLACEMENT_CHARACTER
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.generation import TextChunk
from clearhead.generate.sampling import MAX_COUNT, SamplingConfig, sampling_config
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.registry import LoadedModel, ModelRegistry
from clearhead.serve.scheduler import GenerationJob, SequenceState
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- schemas: What may be asked, field by field. What is unknown, or cannot be done here, is refused by its name.

# Fields of OpenAI's that change nothing here.
IGNORED_FIELDS = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
# Those that nothing here can honour, but for the values that ask for nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "function_call": ("none",), "functions": ([],), "modalities": (["text"],),
    "moderation": (), "prediction": (), "reasoning_effort": ("none",), "response_format": ({"type": "text"},),
    "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],), "verbosity": (), "web_search_options": (),
}  # fmt: skip


class HashableFailFast(FailFast):
    """The first mistake of a list is told, not all million of them."""

    __hash__ = object.__hash__  # parts of unions need one


FAIL_FAST = HashableFailFast()
TextList = Annotated[list[str], FAIL_FAST]
TokenIds = Annotated[list[int], FAIL_FAST]
Prompt = str | TextList | TokenIds | Annotated[list[TokenIds], FAIL_FAST]
TextPair = Annotated[list[str], Field(min_length=2, max_length=2)]


class APIRequest(BaseModel):
    """What every request has."""

    model_config = ConfigDict(
        extra="ignore", strict=True, json_schema_extra={"additionalProperties": False}
    )
    model: str = Field(description="A name that /v1/models tells.")

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, given: Any) -> Any:
        """A field that is null is as good as none."""
        if not isinstance(given, dict):
            return given
        told = {name: value for name, value in given.items() if value is not None}
        for name, value in told.items():
            if (
                name in cls.model_fields
                or name in IGNORED_FIELDS
                or value in UNSUPPORTED_FIELDS.get(name, ())
            ):
                continue
            if name in UNSUPPORTED_FIELDS:
                raise APIError(f"{name} is not done here; leave it out.", param=name)
            known = suggest(name[:80], cls.model_fields)
            raise APIError(f"{name[:80]!r} is no field of this request; {known}", param=name[:80])
        return told


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class SamplingRequest(APIRequest):
    """How texts are drawn; the fields are those of `model.generate`."""

    temperature: float = Field(1.0, description="0 takes the likeliest token.")
    top_p: float = 1.0
    top_k: int = Field(
        0, le=MAX_COUNT, description="Ours, not OpenAI's: only the k likeliest; 0 = all."
    )
    min_p: float = Field(0.0, description="Ours: only those this share as likely as the likeliest.")
    repetition_penalty: float = Field(
        1.0, description="Ours: divides the logits of all that was read or written."
    )
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] = Field(
        {}, description="What is added to the logits of tokens, by id."
    )
    stop: str | Annotated[list[str], FAIL_FAST, Field(max_length=16)] = []
    seed: int | None = Field(
        None, description="The same seed, the same text; without one, a new one is drawn."
    )
    n: int = Field(1, ge=1, le=MAX_COUNT)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class CompletionRequest(SamplingRequest):
    prompt: Prompt
    max_tokens: int | None = Field(
        None, ge=0, description="Else 16. 0, with echo, tells of the prompt alone."
    )
    logprobs: int | None = Field(
        None, ge=0, le=20, description="So many of the likeliest with each token."
    )
    echo: bool = False


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One of a conversation; what else OpenAI's messages hold may be there, and is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], FAIL_FAST] | None = None

    def to_dict(self) -> dict[str, str]:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatCompletionRequest(SamplingRequest):
    messages: Annotated[list[ChatMessage], FAIL_FAST, Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, description="Without, as many as fit.")
    max_completion_tokens: int | None = Field(
        None, ge=1, description="The newer name of max_tokens."
    )
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


class EmbeddingRequest(APIRequest):
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class TaskRequest(APIRequest):
    """What is asked on paths of ours."""

    model: str = Field("", description="May be left out where one model is served.")


class ClassifyRequest(TaskRequest):
    input: str | TextList | Annotated[list[TextPair], FAIL_FAST] = Field(
        description="Texts, or pairs to be judged together."
    )


class FillRequest(TaskRequest):
    input: str | TextList = Field(description="Texts with [MASK] where a word is missing.")
    top_k: int = Field(5, ge=1, le=100, description="So many of the likeliest words for each gap.")


class TranslateRequest(TaskRequest):
    text: str | TextList
    num_beams: int = Field(5, ge=1, le=32)
    n_best: int = Field(1, ge=1, le=32)
    max_tokens: int = Field(0, ge=0)
    length_penalty: float = 1.0
    early_stopping: bool = False
    no_repeat_ngram_size: int = Field(0, ge=0)
    prefix: str = ""
    alternatives: int | None = None
    align: int | Literal["all"] | None = None
    split: bool = False


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """How everything that goes wrong is told."""

    error: ErrorInfo


# ---- asking: What requests ask for, as the model takes it, and not more of it than the server's limits allow.

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
WRONG_ENDPOINT_REASONS = {
    "/v1/completions": "does not write text after a prompt",
    "/v1/embeddings": "gives no vectors",
    "/translate": "does not translate",
    "/classify": "tells no classes",
    "/fill": "fills no gaps",
}  # what is said of a model that another path asks
DEFAULT_MAX_TOKENS = (
    16  # tokens of a completion that asks for no number of them; so it is with OpenAI
)


def client_address(request: Request) -> str:
    """Whom turns are counted for: an address."""
    return request.client.host if request.client else ""


def check_endpoint(held: LoadedModel, path: str) -> None:
    """Refuses a model that another path asks, or none; vectors are those of any model that reads one text."""
    m = held.model.config.model
    if not isinstance(m.main_input, c.Tokens):
        raise APIError(
            f"{held.name} reads {m.main_input.kind}, but only texts are read here.", param="model"
        )
    own = _path_of(m)
    if path != own and (path != "/v1/embeddings" or own == "/translate"):
        raise APIError(
            f"{held.name} {WRONG_ENDPOINT_REASONS[path]}; POST {own} asks it.", param="model"
        )


def _path_of(m: c.ModelConfig) -> str:
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


def to_list(given: Prompt | list[list[str]], limits: Limits, n: int = 1) -> list[Any]:
    """One or several texts, pairs of them or lists of ids, as several; not more than one request may bring."""
    several: list[Any] = (
        [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else [*given]
    )
    if len(several) * n > limits.max_texts:
        raise APIError(
            f"{len(several) * n} texts are more than the {limits.max_texts} of one request here."
        )
    if (size := sum(map(_length, several))) > limits.max_prompt_chars:
        raise APIError(
            f"{size} characters are more than the {limits.max_prompt_chars} of one request here."
        )
    return several


def _length(one: Any) -> int:
    """Characters, of a pair in both texts; or ids."""
    return (
        sum(map(len, one))
        if isinstance(one, list) and one and isinstance(one[0], str)
        else len(one)
    )


def make_sampling_config(asked: SamplingRequest, limits: Limits, max_tokens: int) -> SamplingConfig:
    """The options of writing; where no seed is given, a new one is drawn."""
    if max_tokens > limits.max_tokens:
        much = (
            f"{max_tokens} tokens are more than the {limits.max_tokens} that one text may get here."
        )
        raise APIError(much, param="max_tokens")
    try:
        bias = {int(token): float(value) for token, value in asked.logit_bias.items()}
    except (ValueError, TypeError, OverflowError):
        raise APIError(
            'logit_bias must give ids numbers: {"5": 2.0}.', param="logit_bias"
        ) from None
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    same = {name: getattr(asked, name) for name in SAMPLING_FIELDS}
    try:
        return SamplingConfig(
            max_tokens=max_tokens, logit_bias=bias, stop=stop, seed=seed, **same
        )
    except ClearheadError as error:  # most begin with the name of the option
        name = str(error).partition(" ")[0]
        raise APIError(
            str(error), param=name if name in type(asked).model_fields else None
        ) from None


def make_completion_sequences(
    held: LoadedModel, asked: CompletionRequest, given: list[Any], limits: Limits
) -> list[SequenceState]:
    """The texts of a completion, up to one that is too long. To tell of the prompt alone, nothing is written."""
    scribe = held.worker.scheduler
    prompts = held.model.encode_texts(
        given, endless=True
    )  # read one by one while the engine looks at them
    most = (
        min(DEFAULT_MAX_TOKENS, limits.max_tokens) if asked.max_tokens is None else asked.max_tokens
    )
    wish = make_sampling_config(asked, limits, 1 if asked.echo and not most else most)
    return scribe.make_sequences(prompts, wish, asked.n, asked.logprobs or 0, asked.echo)


def make_chat_sequences(
    held: LoadedModel, asked: ChatCompletionRequest, limits: Limits
) -> list[SequenceState]:
    """The texts of an answer in a chat; it may get as long as it is asked to, or as the context allows."""
    model = held.model
    scribe = held.worker.scheduler
    messages = [message.to_dict() for message in asked.messages]
    ids = encode_chat(model.config.inference.chat_template, messages, model.tokenizer)
    most = asked.max_completion_tokens or asked.max_tokens or limits.max_tokens
    wish = make_sampling_config(asked, limits, most)
    wish = turn_config(wish, messages, ids, scribe.engine.capacity)
    return scribe.make_sequences([ids], wish, asked.n, asked.top_logprobs, False)


async def compute_prompt_logprobs(
    held: LoadedModel, client: str, asked: CompletionRequest, texts: list[SequenceState]
) -> dict[int, list[TokenLogprob]]:
    """How likely the tokens of each text's prompt were, where that is asked for; of the first nothing is known."""
    if not asked.echo or asked.logprobs is None:
        return {}

    def told(prompt: list[int]) -> list[TokenLogprob]:
        read = held.model.generate(
            prompt, max_tokens=1, logprobs=asked.logprobs or 0, echo=True
        ).prompt_logprobs
        return [TokenLogprob(prompt[0], math.nan), *read]

    prompts = {tuple(text.request.prompt): text.request.prompt for text in texts}
    found = {
        key: await held.worker.call(client, partial(told, prompt))
        for key, prompt in prompts.items()
    }
    return {text.index: found[tuple(text.request.prompt)] for text in texts}


# ---- shapes: Answers in OpenAI's shapes: texts, pieces of them as they come, and how likely each token was.

JSONDict = dict[str, Any]
MIN_LOGPROB = -9999.0  # what the API says for no chance at all


class TokenTexts:
    """What each token says inside a text, remembered; a part of a character is told as a label."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.known = dict[int, str]()
        self.parts = set[int]()

    def __call__(self, token: int) -> str:
        if token not in self.known:
            self.known[token] = self._told(token)
        return self.known[token]

    def _told(self, token: int) -> str:
        if self.tokenizer is None:
            self.parts.add(token)
            return str(token)
        once = self.tokenizer.decode([token])
        twice = self.tokenizer.decode([token, token])
        if REPLACEMENT_CHARACTER in once:
            self.parts.add(token)
            return self.tokenizer.to_str_tokens([token])[0]
        return twice[len(once) :]  # a text's first token may lose its space; the second does not

    def bytes(self, token: int) -> list[int] | None:
        text = self(token)
        return None if token in self.parts else list(text.encode())


class ResponseBuilder:
    """How one answer is told: as a completion, or as messages of a chat; all at once, or in chunks."""

    def __init__(
        self, held: LoadedModel, texts: Sequence[SequenceState], chat: bool, logprobs: bool,
        echoed: Mapping[int, Sequence[TokenLogprob]] | None = None,
    ) -> None:  # fmt: skip
        self.texts = texts
        self.chat = chat
        self.logprobs = logprobs
        self.words = TokenTexts(held.model.tokenizer)
        self.echoed = dict(echoed or {})
        self.num_prompt_tokens = sum(
            len(text.request.prompt) for text in texts if not text.request.sample_index
        )
        self.written = 0
        self.offsets = dict[int, int]()
        self.head: JSONDict = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": held.name,
            "seed": texts[
                0
            ].request.config.seed,  # ours: with it, the same can be asked for again
        }

    def full_response(self, pieces: Sequence[TextChunk]) -> JSONDict:
        """All at once, of all pieces."""
        choices = []
        each = [list[TextChunk]() for _ in self.texts]
        for piece in pieces:
            each[piece.index].append(piece)
        for index, own in enumerate(each):
            said = "".join(piece.text for piece in own)
            told = (
                {"message": {"role": "assistant", "content": said, "refusal": None}}
                if self.chat
                else {"text": said}
            )
            choices.append(self._choice(index, told, own, own[-1].finish_reason))
        return self._tree(choices) | {"usage": self.usage()}

    def prompt_response(self) -> JSONDict:
        """The prompts alone."""
        choices = [
            self._choice(text.index, {"text": text.prompt_text}, [], "length")
            for text in self.texts
        ]
        return self._tree(choices) | {"usage": self.usage()}

    def opening_chunks(self) -> list[JSONDict]:
        """A chat's first chunks say who speaks."""
        who = {"delta": {"role": "assistant", "content": ""}}
        return (
            [self._tree([self._choice(t.index, who, [], "")], ".chunk") for t in self.texts]
            if self.chat
            else []
        )

    def chunk(self, piece: TextChunk) -> JSONDict:
        told = {"delta": {"content": piece.text}} if self.chat else {"text": piece.text}
        return self._tree([self._choice(piece.index, told, [piece], piece.finish_reason)], ".chunk")

    def usage_chunk(self) -> JSONDict:
        """The chunk that tells how much it was."""
        return self._tree([], ".chunk") | {"usage": self.usage()}

    def usage(self) -> JSONDict:
        both = self.num_prompt_tokens + self.written
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.written,
            "total_tokens": both,
        }

    def _tree(self, choices: list[JSONDict], part: str = "") -> JSONDict:
        kind = f"chat.completion{part}" if self.chat else "text_completion"
        return {"object": kind, **self.head, "choices": choices}

    def _choice(
        self, index: int, told: JSONDict, pieces: Sequence[TextChunk], reason: str
    ) -> JSONDict:
        self.written += len(pieces)
        logprobs = None
        if self.logprobs and self.chat:
            logprobs = {
                "content": [self._token(*piece.token_logprob) for piece in pieces],
                "refusal": None,
            }
        elif self.logprobs:
            logprobs = self._table(index, pieces)
        return {"index": index, **told, "logprobs": logprobs, "finish_reason": reason or None}

    def _table(self, index: int, pieces: Sequence[TextChunk]) -> JSONDict:
        """The older form; `text_offset` is how much of the text stood there when a token was written."""
        echoed = self.echoed.pop(index, ())
        at = self.offsets.get(index, 0)
        told = [*echoed, *(piece.token_logprob for piece in pieces)]
        lengths = [len(self.words(one.token)) for one in echoed]
        lengths += [len(piece.text) for piece in pieces]
        if echoed and pieces:
            lengths[len(echoed)] -= len(self.texts[index].prompt_text)
        *offsets, self.offsets[index] = accumulate(lengths, initial=at)
        return {
            "tokens": [self.words(one.token) for one in told],
            "token_logprobs": [
                None if isnan(one.logprob) else max(one.logprob, MIN_LOGPROB) for one in told
            ],
            "top_logprobs": [
                {self.words(token): max(p, MIN_LOGPROB) for token, p in one.top} or None
                for one in told
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> JSONDict:
        return self._said(token, logprob) | {"top_logprobs": [self._said(*one) for one in top]}

    def _said(self, token: int, logprob: float) -> JSONDict:
        return {
            "token": self.words(token),
            "logprob": max(logprob, MIN_LOGPROB),
            "bytes": self.words.bytes(token),
        }


# ---- openai: The API that programs already speak: /v1/models, completions and chat completions.

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse} for status in (400, 401, 403, 404, 413, 429, 500, 503, 504)
}
SSE_MEDIA_TYPE = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SSE_DONE = b"data: [DONE]\n\n"


def add_openai_routes(app: FastAPI, shelf: ModelRegistry, limits: Limits) -> None:
    """The paths of the API that write."""

    @app.get("/v1/models")
    async def models() -> JSONDict:
        return {"object": "list", "data": [_model(shelf, name) for name in shelf.names]}

    @app.get("/v1/models/{name:path}", responses=ERROR_RESPONSES)
    async def model(name: str) -> JSONDict:
        shelf.check_name(name)
        return _model(shelf, name)

    @app.post("/v1/completions", responses=ERROR_RESPONSES)
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        given = to_list(asked.prompt, limits, asked.n)
        client = client_address(request)
        async with shelf.using(asked.model) as held:
            check_endpoint(held, "/v1/completions")
            held.worker.check_room(client, len(given) * asked.n)
            texts = await asyncio.to_thread(make_completion_sequences, held, asked, given, limits)
            told = asked.logprobs is not None
            shape = ResponseBuilder(
                held, texts, False, told, await compute_prompt_logprobs(held, client, asked, texts)
            )
            if asked.max_tokens == 0:
                shelf.metrics.prompt_tokens.inc(shape.num_prompt_tokens, model=held.name)
                return _whole(shape.prompt_response(), asked.stream)
            job = held.worker.submit(client, texts)
        return await _answer(job, shape, asked)

    @app.post("/v1/chat/completions", responses=ERROR_RESPONSES)
    async def chat_completions(asked: ChatCompletionRequest, request: Request) -> Response:
        client = client_address(request)
        to_list(
            "".join(message.to_dict()["content"] for message in asked.messages), limits, asked.n
        )
        if asked.top_logprobs and not asked.logprobs:
            raise APIError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        async with shelf.using(asked.model) as held:
            check_endpoint(held, "/v1/completions")
            held.worker.check_room(client, asked.n)
            texts = await asyncio.to_thread(make_chat_sequences, held, asked, limits)
            job = held.worker.submit(client, texts)
        return await _answer(job, ResponseBuilder(held, texts, True, asked.logprobs), asked)


async def _answer(job: GenerationJob, shape: ResponseBuilder, asked: SamplingRequest) -> Response:
    """All at once, or a stream. That begins with the first token: what goes wrong before has a status of its own."""
    if asked.stream:
        try:
            await job.wait_for_output()
        except BaseException:
            job.close()
            raise
        return SSEResponse(job, shape, asked.stream_options.include_usage)
    all_of_it = []
    with job:
        while pieces := await job.take_output():
            all_of_it += pieces
    return JSONResponse(shape.full_response(all_of_it))


def _whole(tree: JSONDict, stream: bool) -> Response:
    """What is known already; where a stream was asked for, as its only event."""
    return (
        Response(_event(tree) + SSE_DONE, headers=STREAM_HEADERS, media_type=SSE_MEDIA_TYPE)
        if stream
        else JSONResponse(tree)
    )


class SSEResponse(StreamingResponse):
    """A job's answer while it is written; when it ends, or nobody listens any more, so does the job."""

    def __init__(self, job: GenerationJob, shape: ResponseBuilder, usage: bool) -> None:
        super().__init__(
            _events(job, shape, usage), headers=STREAM_HEADERS, media_type=SSE_MEDIA_TYPE
        )
        self.job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.job.reader_task = asyncio.current_task()
        with self.job:
            await self.stream_response(send)


async def _events(job: GenerationJob, shape: ResponseBuilder, usage: bool) -> AsyncIterator[bytes]:
    """What is there already goes out together."""
    some = shape.opening_chunks()
    try:
        while pieces := await job.take_output():
            yield b"".join(map(_event, [*some, *map(shape.chunk, pieces)]))
            some = []
        if usage:
            some.append(shape.usage_chunk())
    except APIError as error:
        some.append(error.payload)
    yield b"".join(map(_event, some)) + SSE_DONE


def _event(tree: JSONDict) -> bytes:
    return (
        b"data: "
        + json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        + b"\n\n"
    )


def _model(shelf: ModelRegistry, name: str) -> JSONDict:
    path = Path(shelf.paths.get(name, ""))
    created = int(path.stat().st_mtime) if path.name and path.exists() else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "clearhead"}
