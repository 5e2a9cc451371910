"""A translation and the search that found it, to be drawn: every text considered, what became of it, and its worth."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import torch
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field

from clearhead import config as c
from clearhead.api import Edits, Model
from clearhead.errors import ClearheadError
from clearhead.generate.beam_search import ROOT_NODE, BeamTree
from clearhead.generate.chat import encode_chat, render_chat_template
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.generation import GenerationChunk
from clearhead.generate.tasks import check_can_classify, classification_results
from clearhead.lens.activations import token_labels
from clearhead.serve.explorer.runs import (
    DEFAULT_NUM_BEAMS,
    EditableRequest,
    ExplorerRequest,
    RunRequest,
    RunStore,
    decode_audio,
)
from clearhead.serve.explorer.serialize import describe_tokens, finite_or_none
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.openai import TokenIds
from clearhead.serve.registry import LoadedModel

# ---- beams: A translation and the search that found it, to be drawn: every text considered, what became of it, and its worth.

MAX_OUTPUT_TOKENS = 128  # tokens of an output: trees of longer ones cannot be drawn
JSONDict = dict[str, Any]
ModelInputs = dict[str, Any]  # source= or sound=, as `model.logits` takes them


def translate_with_tree(
    model: Model, given: ModelInputs, beam: int, length_penalty: float
) -> dict[str, Any]:
    """The best texts with the log-probability of each step, and the tree of the search."""
    wishes: ModelInputs = {
        "beam": beam,
        "n_best": beam,
        "length_penalty": length_penalty,
        "max_tokens": _room(model),
    }
    found = model.translate(given.get("source"), audio=given.get("sound"), **wishes, tree=True)
    texts = found[0] if isinstance(found[0], list) else found  # one beam finds one text
    tree = texts[0].tree
    if tree is None:
        raise ClearheadError("there is nothing to translate; write a sentence.")
    nodes = _nodes(model, tree, length_penalty)
    best = [
        {
            "text": one.text,
            "score": one.score,
            "logprob": one.logprob,
            "tokens": one.tokens,
            "path": _path(tree, one.tokens),
        }
        for one in texts
    ]
    return {**_read(model, given), "best": best, "nodes": nodes}


def translate_with_edits(
    model: Model, given: ModelInputs, edits: Edits
) -> Iterator[dict[str, Any] | None]:
    """What an edited model writes, the likeliest token each time: a whole pass for each, for edits reach every one."""
    use = model.config.inference
    known = len(model.tokenizer) if model.tokenizer else None
    written = list(use.decoder_start_tokens)
    owns = list[float]()
    for _ in range(_room(model)):
        chances = (
            model.logits(written, **given, edits=edits)[-1, :known].float().log_softmax(dim=-1)
        )
        never = use.suppress_tokens if owns else (*use.suppress_tokens, *use.begin_suppress_tokens)
        chances[[token for token in never if token < len(chances)]] = -torch.inf
        if use.renormalize_logits:
            chances = chances.log_softmax(dim=-1)
        token = int(chances.argmax())
        owns.append(float(chances[token]))
        written.append(token)
        if token in use.eos_tokens:
            break
        yield None
    tokens = written[len(use.decoder_start_tokens) :]
    plain = [token for token in tokens if token not in use.eos_tokens]
    steps = zip(describe_tokens(model.tokenizer, tokens), owns, strict=True)
    yield {
        **_read(model, given),
        "text": model.tokenizer.decode(plain) if model.tokenizer else "",
        "logprob": sum(owns),
        "tokens": tokens,
        "steps": [{**piece, "own": own} for piece, own in steps],
    }


def _room(model: Model) -> int:
    return max(
        1,
        min(
            MAX_OUTPUT_TOKENS,
            model.net.context_length - len(model.config.inference.decoder_start_tokens),
        ),
    )


def _read(model: Model, given: ModelInputs) -> dict[str, Any]:
    """What the two stacks begin with: the source (patches have numbers), and what every output starts with."""
    use = model.config.inference
    tokenizer = model.tokenizers[1]
    shape = model.config.model.architecture
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.source_input, c.Tokens):
        source = describe_tokens(None, range(c.num_input_tokens(shape.source_input)))
    else:
        ids = tokenizer.encode(given["source"]) if tokenizer else ()
        source = describe_tokens(tokenizer, [*use.bos_tokens, *ids, *use.sep_tokens])
    return {"source": source, "start": describe_tokens(model.tokenizer, use.decoder_start_tokens)}


def _nodes(model: Model, tree: BeamTree, length_penalty: float) -> list[JSONDict]:
    """Each node with what its text gained by it; what ended also with what it was ranked by."""
    labels = token_labels(model.tokenizer, [node.token for node in tree.nodes])
    return [
        {
            "id": node.token,
            "text": label,
            "own": node.logprob
            - (0.0 if node.parent == ROOT_NODE else tree.nodes[node.parent].logprob),
            "logprob": node.logprob,
            "score": node.logprob / node.step**length_penalty if node.fate == "finished" else None,
            "parent": node.parent,
            "step": node.step,
            "fate": node.fate,
        }
        for node, label in zip(tree.nodes, labels, strict=True)
    ]


def _path(tree: BeamTree, tokens: list[int]) -> list[int]:
    """The nodes of a text that was found, from its first token on."""
    children = {(node.parent, node.token): number for number, node in enumerate(tree.nodes)}
    path = list[int]()
    parent = ROOT_NODE
    for token in tokens:
        parent = children[parent, token]
        path.append(parent)
    return path


# ---- chats: A conversation as the model reads it (L5.5): exactly its tokens, and which of them somebody said.

# code points that are no characters, around what is said
SPAN_START = "\ufdd1"
SPAN_END = "\ufdd2"
Span = tuple[int, int, int]  # begin and end in the text, and the number of the message


class ChatTokensRequest(ExplorerRequest):
    messages: list[dict[str, str]]


def chat_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/chat/tokens")
    async def tokens(asked: ChatTokensRequest) -> dict[str, Any]:
        """The tokens up to where the assistant is to answer; `message` is whose words they are, null the template's."""
        return await desk.call(asked, tokenize_chat, asked.messages)

    return router


def tokenize_chat(model: Model, messages: list[dict[str, str]]) -> dict[str, Any]:
    use = model.config.inference
    tokenizer = model.tokenizer
    ids = encode_chat(use.chat_template, messages, tokenizer)
    assert tokenizer is not None  # or it could not have been encoded
    ends = list[int]()
    stream = IncrementalDetokenizer(tokenizer, [])
    for token in ids:
        stream.feed(token)
        ends.append(len(stream.text))
    stream.flush()
    spans = _spans(use.chat_template, messages, stream.text)
    said = [_whose(begin, end, spans) for begin, end in zip([0, *ends], ends, strict=False)]
    tokens = [
        {**piece, "message": number}
        for piece, number in zip(describe_tokens(tokenizer, ids), said, strict=True)
    ]
    return {
        "ids": ids,
        "tokens": tokens,
        "told": bool(spans) or not any(m["content"].strip() for m in messages),
    }


def _spans(template: str, messages: list[dict[str, str]], text: str) -> list[Span]:
    """Where in the text each message stands; nowhere if the text is another than the marks were put into."""
    marked = render_chat_template(
        template, [{**message, "content": _marked(message["content"])} for message in messages]
    )
    plain = ""
    spans = list[Span]()
    begin = 0
    number = 0
    for character in marked:
        if character == SPAN_START:
            begin = len(plain)
        elif character == SPAN_END:
            spans.append((begin, len(plain), number))
            number += 1
        else:
            plain += character
    return spans if plain == text and number == len(messages) else []


def _marked(content: str) -> str:
    """Marks around the words; templates may trim the space around those."""
    words = content.strip()
    before, _, after = content.partition(words) if words else (content, "", "")
    return f"{before}{SPAN_START}{words}{SPAN_END}{after}"


def _whose(begin: int, end: int, spans: list[Span]) -> int | None:
    """The message that a token is a part of; a piece of a character counts with the whole."""
    for first, last, number in spans:
        if min(end, last) > max(begin, first) or first <= begin == end < last:
            return number
    return None


# ---- shapes: What each shape of model is for: an encoder-decoder translates (L6.2), an encoder fills gaps and judges (L6.3).

MAX_TOP_K = 50  # fillers that may be asked for


class BeamTreeRequest(EditableRequest):
    text: str = ""
    audio: str | None = None  # in base64, for a model that listens
    num_beams: int = Field(DEFAULT_NUM_BEAMS, ge=1, le=16)
    length_penalty: float = Field(1.0, ge=-10, le=10)


class MaskFillRequest(EditableRequest):
    text: str
    mask_positions: TokenIds = Field([])  # tokens that become gaps, besides those the text has
    top_k: int = Field(8, ge=1, le=MAX_TOP_K)


class ClassifyRunRequest(RunRequest):
    text_pair: str | None = None  # the other text of a pair


def task_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/translate")
    async def translate(asked: BeamTreeRequest) -> dict[str, Any]:
        """The tree of a beam search; of an edited model, what it writes greedily."""
        async with desk.model_for(asked) as held:
            return await desk.run_steps(translate_text(desk.runs, held, asked))

    @router.post("/fill")
    async def fill(asked: MaskFillRequest) -> dict[str, Any]:
        async with desk.model_for(asked) as held:
            return await desk.submit(fill_masks, desk.runs, held, asked)

    @router.post("/classify")
    async def classify(asked: ClassifyRunRequest) -> dict[str, Any]:
        async with desk.model_for(asked) as held:
            return await desk.submit(classify_text, desk.runs, held, asked)

    return router


def translate_text(
    runs: RunStore, held: LoadedModel, asked: BeamTreeRequest
) -> Iterator[dict[str, Any] | None]:
    """The translation, after nothing for each step that can be waited for."""
    model = held.model
    shape = held.model.config.model.architecture
    if not isinstance(shape, c.EncoderDecoder):
        raise ClearheadError(
            f"this {shape.kind} has no source to read; an encoder-decoder translates."
        )
    given: dict[str, Any] = {"source": asked.text}
    if asked.audio is not None and isinstance(shape.source_input, c.MelSpectrogram):
        given = {"sound": decode_audio(asked.audio, shape.source_input)}
    if asked.edits:
        yield from translate_with_edits(
            model, given, runs.edits_for(held, asked, source=asked.text)
        )
    else:
        yield translate_with_tree(model, given, asked.num_beams, asked.length_penalty)


def fill_masks(runs: RunStore, held: LoadedModel, asked: MaskFillRequest) -> dict[str, Any]:
    """The tokens with their gaps, and for each gap the likeliest words; of a hidden word also how likely it was."""
    model = held.model
    use = held.model.config.inference
    if (
        not isinstance(model.config.model.head, c.MLMHead)
        or model.tokenizer is None
        or not use.mask_token
    ):
        raise ClearheadError(
            f"this {model.architecture} fills no gaps; an encoder with a masked-word head does."
        )
    ids = model.make_batch(asked.text).unpadded_rows()[0]
    for place in asked.mask_positions:
        if not 0 <= place < len(ids):
            raise ClearheadError(
                f"there is no token {place} to hide; the text has tokens 0 to {len(ids) - 1}."
            )
    was = {place: ids[place] for place in asked.mask_positions if ids[place] != use.mask_token[0]}
    shown = [use.mask_token[0] if place in was else token for place, token in enumerate(ids)]
    gaps = [place for place, token in enumerate(shown) if token == use.mask_token[0]]
    found: list[dict[str, Any]] = []
    if gaps:
        logits = model.logits(shown, edits=runs.edits_for(held, asked))[
            gaps, : len(model.tokenizer)
        ].float()
        found = [
            _gap(model, place, row, asked.top_k, was.get(place))
            for place, row in zip(gaps, logits.softmax(dim=-1), strict=True)
        ]
    return {"ids": shown, "tokens": describe_tokens(model.tokenizer, shown), "gaps": found}


def _gap(
    model: Model, place: int, shares: torch.Tensor, top: int, was: int | None
) -> dict[str, Any]:
    best = shares.topk(min(top, len(shares)))
    words = zip(
        describe_tokens(model.tokenizer, best.indices.tolist()), best.values.tolist(), strict=True
    )
    found: dict[str, Any] = {
        "at": place,
        "words": [{**piece, "probability": p} for piece, p in words],
        "was": None,
    }
    if was is not None:
        rank = int((shares > shares[was]).sum()) + 1
        found["was"] = {
            **describe_tokens(model.tokenizer, [was])[0],
            "probability": float(shares[was]),
            "rank": rank,
        }
    return found


def classify_text(runs: RunStore, held: LoadedModel, asked: ClassifyRunRequest) -> dict[str, Any]:
    """Each class with its probability, or the number that the model gives."""
    model = held.model
    check_can_classify(model.config.model)
    given = asked.model_inputs(model)
    if asked.text_pair is not None:
        given["x"] = (asked.text or "", asked.text_pair)
    logits = model.logits(**given, edits=runs.edits_for(held, asked, asked.source)).float()
    verdict = classification_results(logits[None], model.config)[0]
    if isinstance(verdict, float):
        return {"number": verdict, "classes": None}
    return {
        "number": None,
        "classes": [{"text": name, "probability": p} for name, p in verdict.probabilities.items()],
    }


# ---- writing: Texts that are written before one's eyes: a token an event, with what could have come instead of it.


class GenerateRequest(EditableRequest):
    """What to go on from and how to draw, as `model.generate` takes it; `forced` is what the text begins with."""

    text: str = ""
    ids: TokenIds | None = None  # instead of a text, as they are
    forced_tokens: TokenIds = Field([])
    max_tokens: int = Field(40, ge=1)  # the forced ones among them
    temperature: float = 1.0
    top_k: int = Field(0, le=2**31)
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = Field(0, lt=2**64)
    stop: list[str] = Field([], max_length=8)
    logprobs: int = Field(8, ge=0, le=50)  # alternatives told with each token

    def options(self) -> dict[str, Any]:
        named = ("forced", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")
        return {**{name: getattr(self, name) for name in named}, "logprobs": self.logprobs}


def generation_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/generate", response_class=StreamingResponse)
    async def generate(asked: GenerateRequest) -> StreamingResponse:
        """Server-sent events: `token` for each token, then `done` with the whole text, or `error` with a sentence."""
        if asked.max_tokens > desk.limits.max_tokens:
            raise ClearheadError(
                f"{asked.max_tokens} tokens are more than the {desk.limits.max_tokens} allowed here."
            )
        events = _events(desk, asked)
        await anext(events)  # what cannot be written has a status of its own
        return StreamingResponse(events, media_type="text/event-stream")

    @router.get("/models/{name}/drawing")
    async def drawing(name: str) -> dict[str, Any]:
        """What a draw needs to know besides the logits: how many tokens there are, which never come, which end it."""
        async with desk.use_model(name) as held:
            model = held.model
            use = held.model.config.inference
            size = len(model.tokenizer) if model.tokenizer else model.config.model.vocab_size
            return {
                "known": size,
                "never": use.suppress_tokens,
                "never_first": use.begin_suppress_tokens,
                "stop": use.eos_tokens,
            }

    return router


async def _events(desk: ExplorerService, asked: GenerateRequest) -> AsyncIterator[str]:
    """Nothing when all is ready, then one step of the model at a time, so that others get their turn; who leaves ends
    it with the step under way."""
    text = ""
    tokens = 0
    reason = ""
    async with desk.model_for(asked) as held:
        written = await desk.submit(_begun, desk.runs, held, asked)
        yield ""
        try:
            while (piece := await desk.submit(next, written, None)) is not None:
                yield _event("token", _token(held.model, piece, tokens))
                text = text + piece.text
                tokens = tokens + 1
                reason = piece.finish_reason
        except ClearheadError as error:
            yield _event("error", {"message": str(error)})
            return
    yield _event("done", {"text": text, "tokens": tokens, "finish_reason": reason})


def _begun(runs: RunStore, held: LoadedModel, asked: GenerateRequest) -> Iterator[GenerationChunk]:
    edits: dict[str, Any] = {"edits": runs.edits_for(held, asked)} if asked.edits else {}
    given = asked.text if asked.ids is None else asked.ids
    written: Iterator[GenerationChunk] = held.model.generate(
        given, stream=True, **asked.options(), **edits
    )
    return written


def _token(model: Model, piece: GenerationChunk, index: int) -> dict[str, Any]:
    chosen = piece.token_logprob
    names = token_labels(model.tokenizer, [chosen.token, *(i for i, _ in chosen.top)])
    best = [
        [i, name, finite_or_none(logprob)]
        for (i, logprob), name in zip(chosen.top, names[1:], strict=True)
    ]
    told = {"index": index, "id": chosen.token, "text": names[0], "piece": piece.text}
    return {**told, "logprob": finite_or_none(chosen.logprob), "top": best}


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
