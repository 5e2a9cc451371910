"""The page as one file that needs no server: it is asked what a browser would ask, and the answers go inside."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import FastAPI

from clearhead.errors import ClearheadError
from clearhead.serve.pages.shell import safe

Question = tuple[str, str, dict[str, Any] | None]  # method, address, body

MOST = 24 << 20  # bytes of patterns that go inside
VECTORS: list[dict[str, Any]] = [  # what the vector lab begins with
    {"written": "king - man + woman", "own": False, "layer": None},
    {
        "pairs": [["cat", "cats"], ["dog", "dogs"]],
        "words": ["one", "two", "student", "students", "teacher", "teachers", "house", "houses"],
        "layer": None,
    },
    {"words": ["king", "queen", "man", "woman", "apple"], "layer": None},
]


async def page(app: FastAPI, text: str, source: str = "") -> str:
    """The page of the first model with a text, as it is when it opens; its heads can be looked through."""
    found = {key: answer async for key, answer in _answers(app, text, source)}
    hash_ = "&".join(f"{k}={quote(v)}" for k, v in (("text", text), ("source", source)) if v)
    whole: str = app.state.shell.whole(safe({**found, "hash": f"#{hash_}" if hash_ else ""}))
    return whole


async def _answers(app: FastAPI, text: str, source: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    (first, *_) = json.loads((await _asked(app, "GET", "/api/models"))[1])
    here = f"/api/models/{quote(first['name'])}"
    card = json.loads((await _asked(app, "GET", here))[1])
    text = text or card["examples"]["text"]
    read = {"model": card["name"], **({} if text is None else {"text": text})}
    if card["kind"] == "encoder-decoder":
        read["source"] = source or card["examples"]["source"]
    run = json.loads((await _asked(app, "POST", "/api/runs", read))[1])
    asked: list[Question] = [("GET", "/api/models", None), ("GET", here, None), ("POST", "/api/runs", read)]
    for question in (*asked, *_about_the_run(card, run), *_about_the_model(here, card, run, read)):
        try:
            yield await _kept(app, *question)
        except ClearheadError:  # what this model has not, the page does not ask for
            continue


def _about_the_run(card: dict[str, Any], run: dict[str, Any]) -> list[Question]:
    """What the views ask about a run when they open; every head, while there is room."""
    both, last = card["kind"] == "encoder-decoder", len(run["tokens"]) - 1
    paths = {"attention": "blocks.{}.attn", "cross": "blocks.{}.cross", "encoder": "encoder.blocks.{}.attn"}
    found = ["residual", "residual?encoder=false", "residual?encoder=true", "logits?at=-1", "lens?at=-1"]
    found += [
        f"tensor/{name}"
        for name in ("encoder.embed.tokens", "embed.tokens", "embed.positions", "embed", f"norm?rows={last}:{last + 1}")
    ]
    found += [f"tensor/blocks.0.attn.{what}?head=0" for what in ("q", "k", "v", "q_turned", "k_turned", "z")]
    found += [f"tensor/blocks.0.attn.{what}?head=0" for what in ("scores", "masked")]
    found += [f"block?layer={layer}&token={last}&encoder=false" for layer in range(min(12, card["layers"]))]
    found += [f"attribution?token={run['top'][0]['id']}"] if run["top"] else []
    room = MOST
    for part in paths if both else ("attention",):
        found += [f"atlas?part={part}", f"heads?part={part}"]
        for layer in range(card["encoder_layers"] if part == "encoder" else card["layers"]):
            at = paths[part].format(layer)
            _, rows, cols = run["names"][f"{at}.pattern"]["shape"]
            room -= 4 * rows * cols * card["heads"]
            found += [f"tensor/{at}.pattern?head={head}" for head in range(card["heads"]) if room > 0]
    return [("GET", f"/api/runs/{run['id']}/{tail}", None) for tail in found]


def _about_the_model(here: str, card: dict[str, Any], run: dict[str, Any], read: dict[str, str]) -> list[Question]:
    """What they ask about its words."""
    source, model = "source" in read, {"model": card["name"]}
    text = read["source"] if source else read["text"]
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
        "positions": [{"count": 32}],
        "order": [{"text": text}],
        "shifted": [{"text": text, "by": 4}],
        "context": [{"word": "mole", "texts": card["examples"]["mole"]}],
        "vectors": VECTORS,
        **({"translate": [{"text": text, "beam": 4, "length_penalty": 1}]} if source else {}),
    }
    asked: list[Question] = [("GET", f"{here}/{tail}", None) for tail in tails]
    return asked + [("POST", f"/api/{name}", model | body) for name, bodies in posts.items() for body in bodies]


async def _asked(app: FastAPI, method: str, url: str, body: object = None) -> tuple[dict[str, str], bytes]:
    status, headers, content = await ask(app, method, url, body)
    if status != 200:
        raise ClearheadError(json.loads(content)["error"]["message"])
    return headers, content


async def _kept(app: FastAPI, method: str, url: str, body: object = None) -> tuple[str, dict[str, Any]]:
    """The key under which the page looks for an answer, and the answer."""
    headers, content = await _asked(app, method, url, body)
    written = "" if body is None else " " + json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    key = f"{method} {url.removeprefix('/')}{written}"
    if "json" in headers.get("content-type", ""):
        return key, {"type": "json", "content": json.loads(content)}
    pooled = int(headers.get("x-pooled", "1"))
    return key, {"type": "npy", "headers": {"pooled": pooled}, "content": base64.b64encode(content).decode()}


async def ask(app: FastAPI, method: str, url: str, body: object = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of an answer, without a network."""
    parts = urlsplit(url)
    content = b"" if body is None else json.dumps(body).encode()
    given = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
        "headers": given, "client": ("127.0.0.1", 0), "server": ("localhost", 80),
    }  # fmt: skip
    waiting, told, pieces = [{"type": "http.request", "body": content, "more_body": False}], {}, list[bytes]()

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Future()  # nobody goes away

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told["status"] = message["status"]
            told["headers"] = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return told["status"], told["headers"], b"".join(pieces)
