"""The page as one file that needs no server: it is asked what a browser would ask, and the answers go inside."""

import asyncio
import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, FastAPI, Request

from clearhead.errors import ClearheadError
from clearhead.lens.activations import ATTENTION_KINDS, attention_path
from clearhead.serve.explorer.assets import to_script_json
from clearhead.serve.explorer.runs import DEFAULT_NUM_BEAMS, RunRequest

Question = tuple[str, str, dict[str, Any] | None]  # method, address, body

MAX_PATTERN_BYTES = 24 << 20  # bytes of patterns that go inside
MEDIA_FIELDS = "picture", "sound"
VECTOR_LAB_REQUESTS: list[dict[str, Any]] = [  # what the vector lab begins with
    {"written": "king - man + woman", "own": False, "layer": None},
    {
        "pairs": [["cat", "cats"], ["dog", "dogs"]],
        "words": ["one", "two", "student", "students", "teacher", "teachers", "house", "houses"],
        "layer": None,
    },
    {"words": ["king", "queen", "man", "woman", "apple"], "layer": None},
]


Selection = tuple[int, int, int]  # layer, head and token; −1 is the last
Answers = dict[str, dict[str, Any]]  # what the page would ask for -> the answer


@dataclass(frozen=True)
class Requester:
    """In whose name the page is asked: by headers that let them in, and an address that turns are counted for."""

    headers: Sequence[tuple[bytes, bytes]] = ((b"host", b"localhost"),)
    address: tuple[str, int] | None = ("127.0.0.1", 0)


LOCAL_REQUESTER = Requester()


def snapshot_routes() -> APIRouter:
    router = APIRouter(prefix="/api", tags=["page"])

    @router.post("/page")
    async def kept(
        asked: RunRequest, request: Request, layer: int = 0, head: int = 0, query: int = -1
    ) -> Answers:
        """What a saved page of this run needs, where someone has chosen a layer, a head and a token."""
        names = (b"authorization", b"cookie", b"host")
        asker = Requester(
            [(name, value) for name, value in request.headers.raw if name in names], request.client
        )
        return await collect_answers(request.app, await request.json(), asker, (layer, head, query))

    return router


async def build_saved_page(app: FastAPI, text: str, source: str = "") -> str:
    """The page of the first model with a text, as it is when it opens; its heads can be looked through."""
    given = {key: value for key, value in (("text", text), ("source", source)) if value}
    found = await collect_answers(app, given)
    hash_ = "&".join(f"{key}={quote(value)}" for key, value in given.items())
    whole: str = app.state.shell.whole(
        to_script_json({**found, "hash": f"#{hash_}" if hash_ else ""})
    )
    return whole


async def collect_answers(
    app: FastAPI,
    asked: dict[str, Any],
    asker: Requester = LOCAL_REQUESTER,
    chosen: Selection = (0, 0, -1),
) -> Answers:
    """All that the views ask for when they open on a run, and on the same without its edits."""
    (first, *_) = json.loads((await _asked(app, "GET", "/api/models", None, asker))[1])
    here = f"/api/models/{quote(asked.get('model') or first['name'], safe='')}"
    card = json.loads((await _asked(app, "GET", here, None, asker))[1])
    plain = {
        key: value for key, value in _read(card, asked).items() if key not in ("edits", "against")
    }
    if (card["pictures"] or card["sound"]) and not any(kind in plain for kind in MEDIA_FIELDS):
        raise ClearheadError(
            f"no example came with {card['name']}; open the page, give it one, and save the page there."
        )
    edited = {**plain, **{key: asked[key] for key in ("edits", "against") if asked.get(key)}}
    questions: list[Question] = [("GET", here, None)]
    for read in (plain, edited) if edited != plain else (plain,):
        run = json.loads((await _asked(app, "POST", "/api/runs", read, asker))[1])
        questions += [("POST", "/api/runs", read), *_about_the_run(card, run, chosen)]
        if read is plain:
            questions += _about_the_model(here, card, run, read)
            questions += await _other(app, card, run, plain, asker)
    found: Answers = {}
    for question in questions:
        with suppress(ClearheadError):  # what this model has not, the page does not ask for
            key, answer = await _kept(app, *question, asker=asker)
            found[key] = answer
    found["GET api/models"] = {
        "type": "json",
        "content": [card],
    }  # of others there is nothing to show
    return found


def _read(card: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A request of a run as the page writes it: with the model's examples where nothing was typed."""
    wanted = {name: asked.get(name) or card["examples"][name] for name in ("text", "source")}
    more = {key: value for key, value in asked.items() if value is not None}
    if card["kind"] != "encoder-decoder":
        del wanted["source"]
        more.pop("source", None)
    given = {
        "model": card["name"],
        **{name: value for name, value in wanted.items() if value is not None},
    }
    return {
        **given,
        **_file(card),
        **{key: value for key, value in more.items() if key not in given},
    }


def _file(card: dict[str, Any]) -> dict[str, str]:
    """The example of a model that reads pictures or sound, where there is one."""
    kind = "picture" if card["pictures"] else "sound" if card["sound"] else ""
    file = card["examples"]["file"]
    return {kind: file["data"]} if kind and file else {}


def _about_the_run(card: dict[str, Any], run: dict[str, Any], chosen: Selection) -> list[Question]:
    """What the views ask about a run when they open; every head, while there is room."""
    layer, head, query = chosen
    both = card["kind"] == "encoder-decoder"
    last = len(run["tokens"]) - 1
    token = query if query >= 0 else last if run["gap"] is None else run["gap"]
    found = [
        "residual",
        "residual?encoder=false",
        "residual?encoder=true",
        "logits?at=-1",
        f"lens?at={query}",
    ]
    found += [
        f"tensor/{name}"
        for name in (
            "encoder.full_embed",
            "embed",
            "pos_embed",
            "full_embed",
            f"final_norm?rows={last}:{last + 1}",
        )
    ]
    found += [
        f"tensor/blocks.{layer}.attn.{what}?head={head}"
        for what in ("q", "k", "v", "rot_q", "rot_k", "z")
    ]
    found += [f"tensor/blocks.{layer}.attn.{what}?head={head}" for what in ("scores", "masked")]
    found += [
        f"block?layer={at}&token={token}&encoder=false" for at in range(min(12, card["layers"]))
    ]
    found += [f"attribution?token={run['top'][0]['id']}"] if run["top"] else []
    found += [
        f"tensor/blocks.{at}.attn.pattern?rows=0:1"
        for at in range(card["layers"])
        if "patches" in card["views"]
    ]
    room = MAX_PATTERN_BYTES
    for part in ATTENTION_KINDS if both else ATTENTION_KINDS[:1]:
        found += [f"atlas?part={part}", f"heads?part={part}"]
        for layer in range(card["encoder_layers"] if part == "encoder" else card["layers"]):
            at = attention_path(part, layer)
            _, rows, cols = run["names"][f"{at}.pattern"]["shape"]
            room -= 4 * rows * cols * card["heads"]
            found += [
                f"tensor/{at}.pattern?head={head}" for head in range(card["heads"]) if room > 0
            ]
    return [("GET", f"/api/runs/{run['id']}/{tail}", None) for tail in found]


async def _other(
    app: FastAPI, card: dict[str, Any], run: dict[str, Any], plain: dict[str, Any], asker: Requester
) -> list[Question]:
    """The run that a view begins with besides, and what it asks about that."""
    beside, tails = _beside(card, run, plain)
    try:
        other = json.loads((await _asked(app, "POST", "/api/runs", beside, asker))[1])["id"]
    except ClearheadError:  # not every model can read the lectures' sentences
        return []
    return [
        ("POST", "/api/runs", beside),
        *(("GET", f"/api/runs/{other}/{tail}", None) for tail in tails),
    ]


def _beside(
    card: dict[str, Any], run: dict[str, Any], read: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """A translation to look at, or a text to compare; and which of its values."""
    part = "cross" if "source" in read else "attn"
    count = min(12, card["layers"])
    heads = [
        f"tensor/blocks.{at}.{part}.pattern?head={head}"
        for at in range(count)
        for head in range(card["heads"])
    ]
    if "source" in read:
        ids = [token["id"] for token in run["tokens"]]
        return {"model": card["name"], "ids": ids, "source": read["source"]}, heads
    return {**read, **({"text": card["examples"]["beside"]} if card["text"] else {})}, [
        "logits?at=-1",
        *heads,
    ]


def _about_the_model(
    here: str, card: dict[str, Any], run: dict[str, Any], read: dict[str, Any]
) -> list[Question]:
    """What they ask about its words."""
    source = "source" in read
    model = {"model": card["name"]}
    text = read.get("source" if source else "text", "")
    mole = {"word": "mole", "texts": card["examples"]["mole"]}
    ids = [token["id"] for token in run["source" if source else "tokens"]][-2:]
    best = [answer["id"] for answer in run["top"][:1]]
    tails = [
        "vocabulary",
        "drawing",
        "matrix",
        *(f"rows?ids={i}" for i in ids),
        *(f"rows?ids={i}&out=true" for i in best),
    ]
    posts: dict[str, list[dict[str, Any]]] = {
        "tokens": [{"text": text, "source": source}],
        "positions": [{"count": max(2, min(32, card["context"]))}],
        "order": [{"text": text}],
        "shifted": [{"text": text, "by": 4}],
        "context": [mole],
        "instead": [{**mole, "others": card["examples"]["others"], "layer": -1}],
        "vectors": VECTOR_LAB_REQUESTS,
        **(
            {"translate": [{"text": text, "beam": DEFAULT_NUM_BEAMS, "length_penalty": 1}]}
            if source
            else {}
        ),
        **({"fill": [{"text": text, "hide": [], "top": 10}]} if "fill" in card["views"] else {}),
        **({"classify": [{"text": text}]} if "classify" in card["views"] else {}),
        **(
            {"patches": [file], "classify": [file]}
            if (file := {k: read[k] for k in MEDIA_FIELDS if k in read})
            else {}
        ),
    }
    asked: list[Question] = [("GET", f"{here}/{tail}", None) for tail in tails]
    return asked + [
        ("POST", f"/api/{name}", model | body) for name, bodies in posts.items() for body in bodies
    ]


async def _asked(
    app: FastAPI, method: str, url: str, body: object = None, asker: Requester = LOCAL_REQUESTER
) -> tuple[dict[str, str], bytes]:
    status, headers, content = await asgi_request(app, method, url, body, asker)
    if status != 200:
        raise ClearheadError(json.loads(content)["error"]["message"])
    return headers, content


async def _kept(
    app: FastAPI, method: str, url: str, body: object, asker: Requester
) -> tuple[str, dict[str, Any]]:
    """The key under which the page looks for an answer, and the answer."""
    headers, content = await _asked(app, method, url, body, asker)
    written = (
        "" if body is None else " " + json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    )
    key = f"{method} {url.removeprefix('/')}{written}"
    if "json" in headers.get("content-type", ""):
        return key, {"type": "json", "content": json.loads(content)}
    pooled = int(headers.get("x-pooled", "1"))
    return key, {
        "type": "npy",
        "headers": {"pooled": pooled},
        "content": base64.b64encode(content).decode(),
    }


async def asgi_request(
    app: FastAPI, method: str, url: str, body: object = None, asker: Requester = LOCAL_REQUESTER
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of an answer, without a network."""
    parts = urlsplit(url)
    content = b"" if body is None else json.dumps(body).encode()
    given = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    given += asker.headers
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
        "headers": given, "client": asker.address, "server": ("localhost", 80),
    }  # fmt: skip
    waiting = [{"type": "http.request", "body": content, "more_body": False}]
    told = {}
    pieces = list[bytes]()

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Future()  # nobody goes away

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told["status"] = message["status"]
            told["headers"] = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return told["status"], told["headers"], b"".join(pieces)
