"""The HTML form in which a browser enters the API key, which then moves into a cookie."""

import re
from html import escape
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from clearhead.serve.errors import APIError

KEY_PATH = "/key"
KEY_COOKIE = "clearhead_key"
INVALID_KEY = "This key is not valid."
MAX_FORM_BYTES = 1 << 14
MAX_FORM_FIELDS = 8
FORM_HEADERS = {
    "www-authenticate": "Bearer",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",  # without a referrer, the form's Origin would be null
}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>clearhead: enter the key</title>
<style>
  body {{ font: 1.1em system-ui, sans-serif; max-width: 22em; margin: 15vh auto; padding: 0 1em }}
  input, button {{ font: inherit; padding: .4em .6em; margin: .4em 0 }}
  input {{ width: 100%; box-sizing: border-box }}
  :root {{ color-scheme: light dark }}
</style>
<h1>clearhead</h1>
<form method="post" action="{path}">
  <p role="alert">{message}</p>
  <label for="key">Key of this server</label>
  <input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
  <input name="next" type="hidden" value="{next_url}">
  <button>Continue</button>
</form>
</html>
"""


def wants_key_form(request: Request) -> bool:
    """Whether a browser asks for a page, rather than a program for data."""
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def render_key_form(next_url: str, message: str = "") -> Response:
    page = PAGE.format(path=KEY_PATH, message=escape(message), next_url=escape(next_url))
    return HTMLResponse(page, 401, FORM_HEADERS)


def parse_key_form(body: bytes) -> tuple[str, str]:
    """The key that was entered, and the URL of this server to continue at."""
    try:
        fields = parse_qs(body.decode(errors="replace"), max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise APIError("The form has too many fields.") from None
    key, url = (fields.get(name, [""])[0] for name in ("key", "next"))
    return key.strip(), url if re.match(r"/(?![/\\])", url) else "/"


def local_url(path: str, parameters: dict[str, str]) -> str:
    """A URL of this server, which cannot lead to another host."""
    return "/" + quote(path.lstrip("/")) + (f"?{urlencode(parameters)}" if parameters else "")


def key_cookie(host: str) -> str:
    """The name of the cookie; browsers share cookies between the ports of a host."""
    port = urlsplit(f"//{host}").port
    return f"{KEY_COOKIE}_{port}" if port else KEY_COOKIE


def redirect_with_cookie(url: str, api_key: bytes, host: str) -> Response:
    redirect = RedirectResponse(url, 303)
    cookie = quote(api_key, safe="")
    redirect.set_cookie(key_cookie(host), cookie, httponly=True, samesite="lax")
    return redirect
