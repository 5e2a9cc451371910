"""Who may come in: the first thing that a request meets, before a byte of its body is read."""

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from clearhead.serve.exchange import OPEN, Exchange, Traffic
from clearhead.serve.limits import Limits
from clearhead.serve.metrics import Count
from clearhead.serve.refused import Refused

COOKIE = "clearhead_key"


class Guard:
    """Around an app, as plain ASGI: the name it is called by, the page that calls, the key, how much is under way."""

    def __init__(self, app: ASGIApp, limits: Limits, key: str, hosts: Sequence[str], counted: Count) -> None:
        self.app, self.key, self.counted = app, key.encode(), counted
        self.hosts, self.traffic = {"localhost", *(host.lower() for host in hosts)}, Traffic(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(self.traffic, scope, receive, send)
            await exchange.run(self.check, self.app)
            route = getattr(scope.get("route"), "path", "other")
            self.counted.add(path=route, status=str(exchange.status or 499))  # 499: nobody waited for the answer
        else:  # nothing here speaks WebSocket
            await send({"type": "websocket.close", "code": 1008})

    def check(self, headers: Mapping[str, str], path: str, query: str) -> dict[str, str]:
        """Refuses whom it must. Who brings the key in an address is sent on, with a cookie: the headers of that."""
        self._check_names(headers.get("host", ""), headers.get("origin"))
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            raise Refused("pages of others may not use this server; a link to it is fine.", 403)
        if not self.key or path in OPEN:
            return {}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if (scheme.lower() == "bearer" and self._opens(token)) or self._opens(_cookie(headers.get("cookie", ""))):
            return {}
        asked = dict(parse_qsl(query)) if len(query) < 4096 else {}
        if not self._opens(asked.pop("key", "")):
            raise Refused("this server wants its key: Authorization: Bearer KEY.", 401, code="invalid_api_key")
        there = "/" + quote(path.lstrip("/")) + (f"?{urlencode(asked)}" if asked else "")
        kept = f"{COOKIE}={quote(self.key, safe='')}; HttpOnly; SameSite=Lax; Path=/"
        return {"location": there, "set-cookie": kept}

    def _opens(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.key)

    def _check_names(self, host: str, origin: str | None) -> None:
        """A page elsewhere can let its own name point to this machine, but then Host holds that name, and no number."""
        if not self._known(host):
            allow = "--allow-host, where it was started, allows more"
            raise Refused(f"this server does not answer to the name {host[:80]!r}; {allow}.", 421)
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise Refused(f"pages of {origin[:80]!r} may not use this server.", 403)

    def _known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port  # a port that is no number is an error too
            return parts.username is None and (name in self.hosts or bool(ipaddress.ip_address(name)))
        except ValueError:
            return False


def _cookie(header: str) -> str:
    """The key that a browser kept."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return unquote(value)
    return ""
