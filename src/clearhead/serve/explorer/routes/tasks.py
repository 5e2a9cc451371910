"""Tasks: translation with its beam tree, masks, classification, chat tokens, streaming."""

import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Annotated

import torch
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.beam_search import ROOT_NODE, BeamTree
from clearhead.generate.chat import encode_chat
from clearhead.generate.chat_template_process import render_chat_template
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.tasks import check_can_classify, classification_results
from clearhead.generate.text_generation import TextChunk, check_can_generate
from clearhead.lens.tokens import token_labels
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.cost import check_num_tokens
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.forward_passes import RunStore
from clearhead.serve.explorer.requests import (
    DEFAULT_NUM_BEAMS,
    EditableRequest,
    Edits,
    ExplorerRequest,
    Messages,
    ModelInputs,
    RunRequest,
    check_source,
    decode_audio,
)
from clearhead.serve.explorer.routes.words import check_shown_tokens
from clearhead.serve.explorer.serialize import describe_tokens, finite_or_none
from clearhead.serve.openai import FAIL_FAST, TokenIds, check_max_tokens
from clearhead.serve.registry import LoadedModel
from clearhead.serve.scheduler import cache_bytes_per_token

MAX_OUTPUT_TOKENS = 128  # of a translation: larger trees cannot be drawn
MAX_TOP_K = 50
# Unicode noncharacters, which mark the content of messages
SPAN_START = "\ufdd1"
SPAN_END = "\ufdd2"

Span = tuple[int, int, int]  # start, end, index of the message


class BeamTreeRequest(EditableRequest):
    text: str = ""
    audio: str | None = None  # base64
    num_beams: int = Field(DEFAULT_NUM_BEAMS, ge=1, le=16)
    length_penalty: float = Field(1.0, ge=-10, le=10)


class MaskFillRequest(EditableRequest):
    text: str
    mask_positions: TokenIds = Field([])  # tokens to mask, besides masks in the text
    top_k: int = Field(8, ge=1, le=MAX_TOP_K)


class ClassifyRunRequest(RunRequest):
    text_pair: str | None = None  # the second text of a pair


class ChatTokensRequest(ExplorerRequest):
    messages: Messages


class GenerateRequest(EditableRequest):
    """A prompt with options of `model.stream`; the output starts with `forced_tokens`."""

    text: str = ""
    ids: TokenIds | None = None  # instead of the text
    forced_tokens: TokenIds = Field([])
    max_tokens: int = Field(40, ge=1)  # including the forced tokens
    temperature: float = 1.0
    top_k: int = Field(0, le=2**31)
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = Field(0, lt=2**64)
    stop: Annotated[list[str], FAIL_FAST] = Field([], max_length=8)
    logprobs: int = Field(8, ge=0, le=50)  # alternatives of each token


def task_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])
    runs = executor.runs

    @router.post("/translate")
    async def translate(request: BeamTreeRequest) -> JSONDict:
        """Beam search with its tree; greedy decoding for an edited model."""
        async with executor.model_for(request) as loaded_model:
            return await executor.run_steps(translation_steps(runs, loaded_model, request))

    @router.post("/fill")
    async def fill(request: MaskFillRequest) -> JSONDict:
        async with executor.model_for(request) as loaded_model:
            return await executor.submit(fill_masks, runs, loaded_model, request)

    @router.post("/classify")
    async def classify(request: ClassifyRunRequest) -> JSONDict:
        async with executor.model_for(request) as loaded_model:
            return await executor.submit(classify_text, runs, loaded_model, request)

    @router.post("/chat/tokens")
    async def chat_tokens(request: ChatTokensRequest) -> JSONDict:
        """The tokens of a conversation; `message` is null for tokens of the template."""
        return await executor.call(request, tokenize_chat, request.messages)

    @router.post("/generate", response_class=StreamingResponse)
    async def generate(request: GenerateRequest) -> StreamingResponse:
        """Server-sent events: `token` for each token, then `done`, or `error`."""
        check_max_tokens(request.max_tokens, executor.limits)
        events = _generation_events(executor, request)
        await anext(events)  # errors before the first token have their own status
        return StreamingResponse(events, media_type="text/event-stream")

    return router


# Translation


def translation_steps(
    runs: RunStore, loaded_model: LoadedModel, request: BeamTreeRequest
) -> Iterator[JSONDict | None]:
    """Yields None after each step that others may interrupt, then the translation."""
    model = loaded_model.model
    architecture = model.config.model.architecture
    if not isinstance(architecture, c.EncoderDecoder):
        raise ClearheadError(
            "Translation needs an encoder-decoder; this model has architecture "
            f"{architecture.kind}."
        )
    inputs: ModelInputs = {"source": request.text}
    if request.audio is not None and isinstance(architecture.source_input, c.MelSpectrogram):
        inputs = {"audio": decode_audio(request.audio, architecture.source_input)}
    check_source(model, inputs)
    if request.edits:
        edits = runs.edits_for(loaded_model, request, source=request.text)
        yield from translate_with_edits(model, inputs, edits)
    else:
        yield translate_with_tree(model, inputs, request.num_beams, request.length_penalty)


def translate_with_tree(
    model: Model, inputs: ModelInputs, num_beams: int, length_penalty: float
) -> JSONDict:
    """The best translations, and the tree of all hypotheses of the beam search."""
    translation = model.translate(
        inputs.get("source"),
        num_beams=num_beams,
        audio=inputs.get("audio"),
        n_best=num_beams,
        length_penalty=length_penalty,
        max_tokens=_max_output_tokens(model),
        return_tree=True,
    )
    if isinstance(translation, list):  # of audio
        translation = translation[0]
    tree = translation.tree
    if tree is None:
        raise ClearheadError("There is nothing to translate; enter a sentence.")
    best = [
        {
            "text": choice.text,
            "score": choice.score,
            "logprob": choice.logprob,
            "tokens": choice.tokens,
            "path": _tree_path(tree, choice.tokens),
        }
        for choice in translation.choices
    ]
    nodes = _tree_nodes(model, tree, length_penalty)
    return {**_input_tokens(model, inputs), "best": best, "nodes": nodes}


def translate_with_edits(
    model: Model, inputs: ModelInputs, edits: Edits
) -> Iterator[JSONDict | None]:
    """Greedy translation of an edited model, with a full pass per token, as edits may be global."""
    inference = model.config.inference
    vocab_size = len(model.tokenizer) if model.tokenizer else None
    start_tokens = list(inference.decoder_start_tokens)
    ids = list(start_tokens)
    token_logprobs = list[float]()
    for _ in range(_max_output_tokens(model)):
        logits = model.logits(
            ids, source=inputs.get("source"), audio=inputs.get("audio"), edits=edits
        )[-1, :vocab_size]
        logprobs = logits.float().log_softmax(dim=-1)
        suppressed = list(inference.suppress_tokens)
        if not token_logprobs:
            suppressed += inference.begin_suppress_tokens
        logprobs[[token for token in suppressed if token < len(logprobs)]] = -torch.inf
        if inference.renormalize_logits:
            logprobs = logprobs.log_softmax(dim=-1)
        token = int(logprobs.argmax())
        token_logprobs.append(float(logprobs[token]))
        ids.append(token)
        if token in inference.eos_tokens:
            break
        yield None
    tokens = ids[len(start_tokens) :]
    steps = describe_tokens(model.tokenizer, tokens)
    for step, logprob in zip(steps, token_logprobs, strict=True):
        step["token_logprob"] = logprob
    text_tokens = [token for token in tokens if token not in inference.eos_tokens]
    yield {
        **_input_tokens(model, inputs),
        "text": model.tokenizer.decode(text_tokens) if model.tokenizer else "",
        "logprob": sum(token_logprobs),
        "tokens": tokens,
        "steps": steps,
    }


def _max_output_tokens(model: Model) -> int:
    room = model.net.context_length - len(model.config.inference.decoder_start_tokens)
    return max(1, min(MAX_OUTPUT_TOKENS, room))


def _input_tokens(model: Model, inputs: ModelInputs) -> JSONDict:
    """Tokens of the source (numbers for patches), and start tokens of the decoder."""
    inference = model.config.inference
    source_tokenizer = model.tokenizers[1]
    architecture = model.config.model.architecture
    assert isinstance(architecture, c.EncoderDecoder)
    if isinstance(architecture.source_input, c.Tokens):
        ids = source_tokenizer.encode(inputs["source"]) if source_tokenizer else []
        all_ids = [*inference.bos_tokens, *ids, *inference.sep_tokens]
        source = describe_tokens(source_tokenizer, all_ids)
    else:
        source = describe_tokens(None, range(c.num_input_tokens(architecture.source_input)))
    start = describe_tokens(model.tokenizer, inference.decoder_start_tokens)
    return {"source": source, "decoder_start": start}


def _tree_nodes(model: Model, tree: BeamTree, length_penalty: float) -> list[JSONDict]:
    """Nodes of a beam tree; finished ones have a score."""
    labels = token_labels(model.tokenizer, [node.token for node in tree.nodes])
    nodes = []
    for node, label in zip(tree.nodes, labels, strict=True):
        parent_logprob = 0.0 if node.parent == ROOT_NODE else tree.nodes[node.parent].logprob
        is_finished = node.status == "finished"
        nodes.append(
            {
                "id": node.token,
                "text": label,
                "token_logprob": node.logprob - parent_logprob,
                "logprob": node.logprob,
                "score": node.logprob / node.step**length_penalty if is_finished else None,
                "parent": node.parent,
                "step": node.step,
                "status": node.status,
            }
        )
    return nodes


def _tree_path(tree: BeamTree, tokens: list[int]) -> list[int]:
    """The nodes of a hypothesis, from its first token."""
    children = {(node.parent, node.token): number for number, node in enumerate(tree.nodes)}
    path = list[int]()
    parent = ROOT_NODE
    for token in tokens:
        parent = children[parent, token]
        path.append(parent)
    return path


# Masked language modeling and classification


def fill_masks(runs: RunStore, loaded_model: LoadedModel, request: MaskFillRequest) -> JSONDict:
    """Top words for each mask; for a masked token also its own probability and rank."""
    model = loaded_model.model
    tokenizer = model.tokenizer
    mask_tokens = model.config.inference.mask_token
    is_mlm = isinstance(model.config.model.head, c.MLMHead)
    if not is_mlm or tokenizer is None or not mask_tokens:
        raise ClearheadError(
            "Filling masks needs a tokenizer, a mask token and an mlm head; this model has head "
            f"{model.config.model.head.kind}."
        )
    mask_token = mask_tokens[0]
    ids = model.make_batch(request.text).unpadded_rows()[0]
    check_num_tokens(model, [len(ids)])
    originals: dict[int, int] = {}
    for position in request.mask_positions:
        if not 0 <= position < len(ids):
            raise ClearheadError(
                f"mask_positions must be between 0 and {len(ids) - 1}, got {position}."
            )
        if ids[position] != mask_token:
            originals[position] = ids[position]
            ids[position] = mask_token
    positions = [position for position, token in enumerate(ids) if token == mask_token]
    masks = []
    if positions:
        edits = runs.edits_for(loaded_model, request)
        logits = model.logits(ids, edits=edits)[positions, : len(tokenizer)]
        for position, row in zip(positions, logits.float().softmax(dim=-1), strict=True):
            original = originals.get(position)
            masks.append(_describe_mask(model, position, row, request.top_k, original))
    return {"ids": ids, "tokens": describe_tokens(tokenizer, ids), "masks": masks}


def _describe_mask(
    model: Model, position: int, probabilities: Tensor, top_k: int, original: int | None
) -> JSONDict:
    top = probabilities.topk(min(top_k, len(probabilities)))
    answers = describe_tokens(model.tokenizer, top.indices.tolist())
    for answer, probability in zip(answers, top.values.tolist(), strict=True):
        answer["probability"] = probability
    mask: JSONDict = {"token": position, "answers": answers, "original": None}
    if original is not None:
        probability = probabilities[original]
        [token] = describe_tokens(model.tokenizer, [original])
        rank = int((probabilities > probability).sum()) + 1
        mask["original"] = {**token, "probability": float(probability), "rank": rank}
    return mask


def classify_text(
    runs: RunStore, loaded_model: LoadedModel, request: ClassifyRunRequest
) -> JSONDict:
    """Probabilities and logits of all labels, or the value that a regression model predicts."""
    model = loaded_model.model
    check_can_classify(model.config.model)
    inputs = request.model_inputs(model)
    if request.text_pair is not None:
        inputs["x"] = (request.text or "", request.text_pair)
    runs.check_length(model, model.make_batch(**inputs))
    edits = runs.edits_for(loaded_model, request, request.source)
    logits = model.logits(**inputs, edits=edits).float()
    [result] = classification_results(logits[None], model.config)
    if isinstance(model.config.model.head, c.RegressionHead):
        return {"value": result.score, "labels": None}
    labels = [
        {"text": label, "probability": probability, "logit": logit}
        for (label, probability), logit in zip(
            result.probabilities.items(), logits.tolist(), strict=True
        )
    ]
    return {"value": None, "labels": labels}


# Chat (L5.5)


def tokenize_chat(model: Model, messages: list[dict[str, str]]) -> JSONDict:
    """The exact tokens of a conversation, and the message that each belongs to."""
    template = model.chat_template
    tokenizer = model.tokenizer
    ids = encode_chat(template, messages, tokenizer)
    check_shown_tokens(ids)
    assert tokenizer is not None  # else encode_chat raises
    ends = list[int]()  # of each token in the text
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    for token in ids:
        detokenizer.feed(token)
        ends.append(len(detokenizer.text))
    detokenizer.flush()
    spans = _message_spans(template, messages, detokenizer.text)
    tokens = describe_tokens(tokenizer, ids)
    for description, message in zip(tokens, _messages_of(ends, spans), strict=True):
        description["message"] = message
    has_content = any(message["content"].strip() for message in messages)
    return {"ids": ids, "tokens": tokens, "spans_found": bool(spans) or not has_content}


def _message_spans(template: str, messages: list[dict[str, str]], text: str) -> list[Span]:
    """Where each message is in the text; empty if the template changes messages."""
    marked_messages = [
        {**message, "content": _mark_content(message["content"])} for message in messages
    ]
    plain = ""
    spans = list[Span]()
    start = 0
    for character in render_chat_template(template, marked_messages):
        if character == SPAN_START:
            start = len(plain)
        elif character == SPAN_END:
            spans.append((start, len(plain), len(spans)))
        else:
            plain += character
    return spans if plain == text and len(spans) == len(messages) else []


def _mark_content(content: str) -> str:
    """Mark the content without surrounding whitespace, which templates may strip."""
    stripped = content.strip()
    before, _, after = content.partition(stripped) if stripped else (content, "", "")
    return f"{before}{SPAN_START}{stripped}{SPAN_END}{after}"


def _messages_of(ends: list[int], spans: list[Span]) -> Iterator[int | None]:
    """The message that each token belongs to; tokens of part of a character have no length."""
    remaining = deque(span for span in spans if span[0] < span[1])
    for start, end in pairwise([0, *ends]):
        while remaining and remaining[0][1] <= start:
            remaining.popleft()
        if remaining and remaining[0][0] < max(end, start + 1):
            yield remaining[0][2]
        else:
            yield None


# Generation


async def _generation_events(
    executor: ExplorerExecutor, request: GenerateRequest
) -> AsyncIterator[str]:
    """An empty string when ready, then events. Yields to other requests between tokens."""
    text = ""
    num_tokens = 0
    finish_reason = ""
    async with executor.model_for(request) as loaded_model:
        model = loaded_model.model
        with executor.reserve_cache(_cache_bytes(model, request)):
            chunks = await executor.submit(_start_stream, executor.runs, loaded_model, request)
            yield ""
            try:
                while (chunk := await executor.submit(next, chunks, None)) is not None:
                    yield _to_event("token", _token_event(model, chunk, num_tokens))
                    text += chunk.text
                    num_tokens += 1
                    finish_reason = chunk.finish_reason
            except ClearheadError as error:
                yield _to_event("error", {"message": str(error)})
                return
    done = {"text": text, "num_tokens": num_tokens, "finish_reason": finish_reason}
    yield _to_event("done", done)


def _cache_bytes(model: Model, request: GenerateRequest) -> int:
    """At most the memory of the KV cache: a token of a text has at least one byte."""
    check_can_generate(model.config.model)
    prompt = request.text.encode() if request.ids is None else request.ids
    num_tokens = min(model.net.context_length, len(prompt) + request.max_tokens)
    return num_tokens * cache_bytes_per_token(model)


def _start_stream(
    runs: RunStore, loaded_model: LoadedModel, request: GenerateRequest
) -> Iterator[TextChunk]:
    model = loaded_model.model
    prompt = request.text if request.ids is None else request.ids
    [ids] = model.make_batch(prompt, allow_overflow=True).unpadded_rows()
    check_num_tokens(model, [len(ids)], runs.max_length)
    edits = runs.edits_for(loaded_model, request) if request.edits else None
    return model.stream(
        ids,
        request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed,
        stop=request.stop,
        prefix_tokens=request.forced_tokens,
        logprobs=request.logprobs,
        edits=edits,
    )


def _token_event(model: Model, chunk: TextChunk, index: int) -> JSONDict:
    token = chunk.token_logprob
    labels = token_labels(model.tokenizer, [token.token, *(other for other, _ in token.top)])
    top = [
        [other, label, finite_or_none(logprob)]
        for (other, logprob), label in zip(token.top, labels[1:], strict=True)
    ]
    return {
        "index": index,
        "id": token.token,
        "text": labels[0],
        "piece": chunk.text,
        "logprob": finite_or_none(token.logprob),
        "top": top,
    }


def _to_event(event: str, data: JSONDict) -> str:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"
