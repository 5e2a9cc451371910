"""The page as one HTML file: sends a browser's requests to the app and embeds the responses."""

import base64
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request
from httpx2 import ASGITransport, AsyncClient, Response

from clearhead.errors import ClearheadError
from clearhead.lens.hook_points import ATTENTION_KINDS, attention_path
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.assets import to_script_json
from clearhead.serve.explorer.requests import DEFAULT_NUM_BEAMS, RunRequest
from clearhead.serve.explorer.routes.measurements import CONTRAST_NAMES

MAX_PATTERN_BYTES = 24 << 20  # of embedded attention patterns
MAX_MEASURED_PARAMETERS = 50_000_000  # larger models would take minutes
DEFAULT_OFFSET = 4  # of the shifted text
MAX_LAYERS = 12  # of embedded block and head comparisons
MEDIA_FIELDS = ("image", "audio")
EDIT_FIELDS = ("edits", "patch_from")
UNESCAPED = "!'()*"  # by JavaScript's encodeURIComponent, which the page uses
FORWARDED_HEADERS = (b"authorization", b"cookie", b"host")
VECTOR_LAB_REQUESTS: list[JSONDict] = [  # the defaults of the vector lab
    {"expression": "king - man + woman", "include_inputs": False, "layer": None},
    {"equation": "queen - king = woman - man", "layer": None},
    {
        "pairs": [["cat", "cats"], ["dog", "dogs"]],
        "words": ["one", "two", "student", "students", "teacher", "teachers", "house", "houses"],
        "layer": None,
    },
    {"words": ["king", "queen", "man", "woman", "apple"], "layer": None},
]

Responses = dict[str, JSONDict]  # the page's request -> its response


class Selection(NamedTuple):
    """The selected layer, head and query token; −1 is the last token."""

    layer: int = 0
    head: int = 0
    query: int = -1


class PageRequest(NamedTuple):
    method: str
    url: str
    body: JSONDict | None = None

    @property
    def key(self) -> str:
        """The key under which the page looks up the response."""
        key = f"{self.method} {self.url.removeprefix('/')}"
        if self.body is None:
            return key
        return f"{key} {json.dumps(self.body, ensure_ascii=False, separators=(',', ':'))}"


def asgi_client(
    app: FastAPI,
    headers: Sequence[tuple[bytes, bytes]] = (),
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> AsyncClient:
    """A client of an app without network, with headers (for access) and address (for quotas)."""
    transport = ASGITransport(app, client=address)
    url = "http://localhost"
    return AsyncClient(transport=transport, base_url=url, headers=headers, trust_env=False)


def snapshot_routes() -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/snapshot")
    async def snapshot(
        run_request: RunRequest, request: Request, layer: int = 0, head: int = 0, query: int = -1
    ) -> Responses:
        """All responses that a saved page of a run needs."""
        headers = [pair for pair in request.headers.raw if pair[0] in FORWARDED_HEADERS]
        async with asgi_client(request.app, headers, request.client or ("", 0)) as client:
            selection = Selection(layer, head, query)
            return await collect_responses(client, await request.json(), selection)

    return router


async def build_saved_page(app: FastAPI, text: str, source: str = "") -> str:
    """The page of the first model with a text, as one HTML file."""
    inputs = {name: value for name, value in (("text", text), ("source", source)) if value}
    async with asgi_client(app) as client:
        responses: JSONDict = dict(await collect_responses(client, inputs))
    fragment = "&".join(f"{name}={quote(value)}" for name, value in inputs.items())
    responses["hash"] = f"#{fragment}" if fragment else ""
    html: str = app.state.assets.standalone_html(to_script_json(responses))
    return html


async def collect_responses(
    client: AsyncClient, run_fields: JSONDict, selection: Selection = Selection()
) -> Responses:
    """Responses to all requests of the views for a run, with and without its edits."""

    async def get_json(method: str, url: str, body: JSONDict | None = None) -> Any:
        return (await _send(client, PageRequest(method, url, body))).json()

    models = await get_json("GET", "/api/models")
    name = run_fields.get("model") or models[0]["name"]
    model_url = f"/api/models/{quote(name, safe=UNESCAPED)}"
    card = await get_json("GET", model_url)
    fields = _complete_run_request(card, run_fields)
    plain = {name: value for name, value in fields.items() if name not in EDIT_FIELDS}
    reads_media = card["reads_images"] or card["reads_audio"]
    if reads_media and not any(field in plain for field in MEDIA_FIELDS):
        raise ClearheadError(
            f"{card['name']} has no example input. Open the page, load a file, and save it there."
        )
    edits = {name: run_fields[name] for name in EDIT_FIELDS if run_fields.get(name)}
    requests = [PageRequest("GET", model_url), PageRequest("GET", "/api/downloads")]
    for body in (plain, {**plain, **edits}) if edits else (plain,):
        run = await get_json("POST", "/api/runs", body)
        requests.append(PageRequest("POST", "/api/runs", body))
        requests += _run_requests(card, run, selection)
        if body is plain:
            requests += _model_requests(model_url, card, run, body)
            other, paths = _comparison(card, run, plain)
            with suppress(ClearheadError):  # not every model can read the example text
                other_run = await get_json("POST", "/api/runs", other)
                requests.append(PageRequest("POST", "/api/runs", other))
                requests += _get_requests(other_run, paths)
    responses: Responses = {}
    for page_request in requests:
        with suppress(ClearheadError):  # not available for this model
            responses[page_request.key] = await _serialize_response(client, page_request)
    responses["GET api/models"] = {"type": "json", "content": [card]}  # only this model is saved
    return responses


def _complete_run_request(card: JSONDict, run_fields: JSONDict) -> JSONDict:
    """A run request with the fields in the page's order, and the model's examples as defaults."""
    names = ["text"]
    if card["architecture"] == "encoder-decoder":
        names.append("source")
    request: JSONDict = {"model": card["name"]}
    for name in names:
        value = run_fields.get(name) or card["examples"][name]
        if value is not None:
            request[name] = value
    example_file = card["examples"]["file"]
    if example_file and card["reads_images"]:
        request["image"] = example_file["data"]
    elif example_file and card["reads_audio"]:
        request["audio"] = example_file["data"]
    for name, value in run_fields.items():
        if value is not None and name != "source":
            request.setdefault(name, value)
    return request


def _get_requests(run: JSONDict, paths: Iterable[str]) -> list[PageRequest]:
    return [PageRequest("GET", f"/api/runs/{run['id']}/{path}") for path in paths]


def _run_requests(card: JSONDict, run: JSONDict, selection: Selection) -> list[PageRequest]:
    """Requests of the views about a run; attention patterns of all heads while there is room."""
    layer, head, query = selection
    last = len(run["tokens"]) - 1
    answer_token = last if run["answer_token"] is None else run["answer_token"]
    token = query if query >= 0 else answer_token
    paths = ["residual", "residual?encoder=false", "residual?encoder=true"]
    paths += ["logits?token=-1", f"lens?token={query}"]
    embeddings = ("encoder.embed", "embed", "pos_embed", "full_embed")
    paths += [f"tensor/{name}" for name in embeddings]
    paths.append(f"tensor/final_norm?rows={last}:{last + 1}")
    for name in ("q", "k", "v", "rot_q", "rot_k", "z", "scores", "masked_scores"):
        paths.append(f"tensor/blocks.{layer}.attn.{name}?head={head}")
    for i in range(min(MAX_LAYERS, card["n_layers"])):
        paths.append(f"block?layer={i}&token={token}&encoder=false")
    if run["top"]:
        paths.append(f"attribution?answer={run['top'][0]['id']}")
    if "patches" in card["views"]:
        for i in range(card["n_layers"]):
            paths.append(f"tensor/blocks.{i}.attn.pattern?rows=0:1")
    bytes_left = MAX_PATTERN_BYTES
    is_encoder_decoder = card["architecture"] == "encoder-decoder"
    for part in ATTENTION_KINDS if is_encoder_decoder else ATTENTION_KINDS[:1]:
        paths += [f"patterns?part={part}", f"head-scores?part={part}"]
        paths += [f"simple-attention?part={part}"] if part != "cross" else []
        for i in range(card["encoder_layers"] if part == "encoder" else card["n_layers"]):
            name = f"{attention_path(part, i)}.pattern"
            _, num_queries, num_keys = run["activations"][name]["shape"]
            bytes_left -= 4 * num_queries * num_keys * card["n_heads"]
            if bytes_left > 0:
                paths += [f"tensor/{name}?head={head}" for head in range(card["n_heads"])]
    return _get_requests(run, paths)


def _comparison(card: JSONDict, run: JSONDict, body: JSONDict) -> tuple[JSONDict, list[str]]:
    """The second run that views show by default, a translation or another text, and its tensors."""
    part = "cross_attn" if "source" in body else "attn"
    paths = [
        f"tensor/blocks.{layer}.{part}.pattern?head={head}"
        for layer in range(min(MAX_LAYERS, card["n_layers"]))
        for head in range(card["n_heads"])
    ]
    if "source" in body:
        ids = [token["id"] for token in run["tokens"]]
        return {"model": card["name"], "ids": ids, "source": body["source"]}, paths
    other = dict(body)
    if card["reads_text"]:
        other["text"] = card["examples"]["comparison"]
    return other, ["logits?token=-1", *paths]


def _model_requests(
    model_url: str, card: JSONDict, run: JSONDict, body: JSONDict
) -> list[PageRequest]:
    """Requests of the views that do not depend on edits."""
    is_source = "source" in body
    text = body.get("source" if is_source else "text", "")
    views = card["views"]
    paths = ["vocabulary", "sampling", "embedding-matrix", "parameters"]
    if card["reads_text"] and card["num_parameters"] <= MAX_MEASURED_PARAMETERS:
        paths += ["senses", *(f"contrasts/{name}" for name in CONTRAST_NAMES)]
    last_tokens = run["source_tokens" if is_source else "tokens"][-2:]
    paths += [f"embedding-rows?ids={token['id']}" for token in last_tokens]
    for answer in run["top"][:1]:
        paths.append(f"embedding-rows?ids={answer['id']}&unembedding=true")
    max_offset = card["context_length"] - len(run["tokens"])
    phrase, other_text = card["examples"]["shared_phrase"]
    context: JSONDict = {"word": "mole", "texts": card["examples"]["context_texts"]}
    substitutes = card["examples"]["substitutes"]
    posts: list[tuple[str, JSONDict]] = [
        ("tokenize", {"text": text, "source": is_source}),
        ("positions", {"num_positions": max(2, min(32, card["context_length"]))}),
        ("positions/reverse", {"text": text}),
        ("positions/phrase", {"text": phrase, "other": other_text, "layer": 0, "head": 0}),
        ("positions/shift", {"text": text, "offset": max(1, min(DEFAULT_OFFSET, max_offset))}),
        ("context", context),
        ("context/substitute", {**context, "substitutes": substitutes, "layer": -1}),
        *(("vectors", request) for request in VECTOR_LAB_REQUESTS),
    ]
    if is_source:
        search: JSONDict = {"num_beams": DEFAULT_NUM_BEAMS, "length_penalty": 1}
        posts.append(("translate", {"text": text, **search}))
    if "fill" in views:
        posts.append(("fill", {"text": text, "mask_positions": [], "top_k": 10}))
    if "classify" in views:
        posts.append(("classify", {"text": text}))
    file = {name: body[name] for name in MEDIA_FIELDS if name in body}
    if file:
        posts += [("patches", file), ("classify", file)]
    requests = [PageRequest("GET", f"{model_url}/{path}") for path in paths]
    for path, fields in posts:
        requests.append(PageRequest("POST", f"/api/{path}", {"model": card["name"], **fields}))
    return requests


async def _serialize_response(client: AsyncClient, page_request: PageRequest) -> JSONDict:
    response = await _send(client, page_request)
    if "json" in response.headers["content-type"]:
        return {"type": "json", "content": response.json()}
    pooled = int(response.headers.get("x-pooled", "1"))
    data = base64.b64encode(response.content).decode()
    return {"type": "npy", "headers": {"pooled": pooled}, "content": data}


async def _send(client: AsyncClient, page_request: PageRequest) -> Response:
    """A successful response."""
    method, url, body = page_request
    response = await client.request(method, url, json=body)
    if response.status_code != 200:
        raise ClearheadError(response.json()["error"]["message"])
    return response
