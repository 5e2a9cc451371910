"""The page as one file that needs no server: it is asked what a browser would ask, and the answers go inside."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import FastAPI

from clearhead.errors import ClearheadError
from clearhead.serve.pages.shell import safe

MOST = 24 << 20  # bytes of patterns that go inside


async def page(app: FastAPI, text: str, source: str = "") -> str:
    """The page of the first model with a text, as it is when it opens; its heads can be looked through."""
    found = {key: answer async for key, answer in _answers(app, text, source)}
    hash_ = "&".join(f"{k}={quote(v)}" for k, v in (("text", text), ("source", source)) if v)
    whole: str = app.state.shell.whole(safe({**found, "hash": f"#{hash_}" if hash_ else ""}))
    return whole


async def _answers(app: FastAPI, text: str, source: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    (first, *_) = json.loads((await ask(app, "GET", "/api/models"))[2])
    name = first["name"]
    card = json.loads((await ask(app, "GET", f"/api/models/{quote(name)}"))[2])
    reads = text or card["examples"]["text"]
    read = {"model": name, **({} if reads is None else {"text": reads})}
    if card["kind"] == "encoder-decoder":
        read["source"] = source or card["examples"]["source"]
    run = json.loads((await _asked(app, "POST", "/api/runs", read))[2])
    yield await _kept(app, "GET", "/api/models")
    yield await _kept(app, "GET", f"/api/models/{quote(name)}")
    yield await _kept(app, "GET", f"/api/models/{quote(name)}/vocabulary")
    yield await _kept(app, "POST", "/api/runs", read)
    for url in _urls(card, run):
        try:
            yield await _kept(app, "GET", url)
        except ClearheadError:  # what this model has not, the page does not ask for
            continue


def _urls(card: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """What the views ask about a run, heads while there is room for them."""
    base, both = f"/api/runs/{run['id']}", card["kind"] == "encoder-decoder"
    parts = {
        "attention": "blocks.{}.attn",
        **({"cross": "blocks.{}.cross", "encoder": "encoder.blocks.{}.attn"} if both else {}),
    }
    found = [f"{base}/residual", *([f"{base}/residual?encoder=true"] if both else []), f"{base}/logits?at=-1"]
    room = MOST
    for part, path in parts.items():
        found += [f"{base}/atlas?part={part}", f"{base}/heads?part={part}"]
        for layer in range(card["encoder_layers"] if part == "encoder" else card["layers"]):
            at = path.format(layer)
            _, rows, cols = run["names"][f"{at}.pattern"]["shape"]
            room -= 4 * rows * cols * card["heads"]
            found += [f"{base}/tensor/{at}.pattern?head={head}" for head in range(card["heads"]) if room > 0]
    for what in ("q_turned", "k_turned", "v", "scores", "masked", "z") if room > 0 else ():
        found.append(f"{base}/tensor/blocks.0.attn.{what}?head=0")
    return found


async def _asked(app: FastAPI, method: str, url: str, body: object = None) -> tuple[int, dict[str, str], bytes]:
    status, headers, content = await ask(app, method, url, body)
    if status != 200:
        raise ClearheadError(json.loads(content)["error"]["message"])
    return status, headers, content


async def _kept(app: FastAPI, method: str, url: str, body: object = None) -> tuple[str, dict[str, Any]]:
    """The key under which the page looks for an answer, and the answer."""
    _, headers, content = await _asked(app, method, url, body)
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

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        import asyncio

        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told["status"] = message["status"]
            told["headers"] = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return told["status"], told["headers"], b"".join(pieces)
