"""The page itself: its files under names that change with their content, and the map from bare names to them."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from clearhead.errors import ClearheadError

PAGE_FOLDER = Path(__file__).parent.parent / "page"
VENDOR_FOLDER = "vendor"
LIBRARY = f"{VENDOR_FOLDER}/lit-html"
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
COMMENT_LINE = re.compile(
    rb"^[ \t]*(?://.*|/\*(?:[^*]|\*(?!/))*\*/[ \t]*)$", re.MULTILINE
)  # on lines of its own
CACHE_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}

HTML_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>clearhead</title>
<link rel="icon" href="{icon}">
{styles}
<script type="importmap">{imports}</script>
{scripts}
</head>
<body>
<div id="page"><p class="loading">The page is loading …</p></div>
<noscript>This page needs JavaScript; every number is also in <code>clearhead see</code> and in Python.</noscript>
{data}
</body>
</html>
"""


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    name: str  # its path without the ending
    suffix: str
    content: bytes

    @property
    def url(self) -> str:
        return f"page/{self.name}.{hashlib.sha256(self.content).hexdigest()[:12]}{self.suffix}"

    @cached_property
    def gzipped(self) -> bytes:
        """For those who come over a network."""
        return gzip.compress(self.content, mtime=0)

    @property
    def data_url(self) -> str:
        return f"data:{MEDIA_TYPES[self.suffix]};base64,{base64.b64encode(self.content).decode()}"


def read_asset(path: Path) -> bytes:
    """A file as it is sent: ours without comments, each line where it was; those of others as they are."""
    content = path.read_bytes()
    return (
        content
        if path.parent.name == VENDOR_FOLDER
        else COMMENT_LINE.sub(lambda found: b"\n" * found[0].count(b"\n"), content)
    )


class PageAssets:
    """All files of the page, read once."""

    def __init__(self, folder: Path = PAGE_FOLDER) -> None:
        self.assets = [
            Asset(
                path.relative_to(folder).with_suffix("").as_posix(), path.suffix, read_asset(path)
            )
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        ]
        if not any(asset.name == LIBRARY for asset in self.assets):
            raise ClearheadError(
                f"{folder / VENDOR_FOLDER} lacks lit-html; install the package again to have the page."
            )

    @property
    def modules(self) -> dict[str, Asset]:
        """By bare name: lit-html, and ch/NAME for ours."""
        own = {
            f"ch/{a.name}": a
            for a in self.assets
            if a.suffix == ".js" and not a.name.startswith(VENDOR_FOLDER)
        }
        return {"lit-html": self._named(LIBRARY), **own}

    @property
    def styles(self) -> list[Asset]:
        """The page's own first, then those of single views."""
        return sorted(
            (a for a in self.assets if a.suffix == ".css"),
            key=lambda a: (a.name != "style", a.name),
        )

    @cached_property
    def import_map(self) -> str:
        return json.dumps(
            {"imports": {name: f"./{asset.url}" for name, asset in self.modules.items()}}
        )

    @property
    def content_security_policy(self) -> str:
        """What a browser may load for the page: its own files, and the import map, known by its hash."""
        known = base64.b64encode(hashlib.sha256(self.import_map.encode()).digest()).decode()
        sources = f"script-src 'self' 'sha256-{known}'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:"
        return f"default-src 'self'; {sources}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

    @cached_property
    def html(self) -> str:
        """As it is served."""
        styles = "\n".join(f'<link rel="stylesheet" href="{asset.url}">' for asset in self.styles)
        # After the import map: a module that is loaded ahead of it, from a cache, would not know its imports.
        ahead = "\n".join(
            f'<link rel="modulepreload" href="{asset.url}">' for asset in self.modules.values()
        )
        scripts = f'<script type="module" src="{self.modules["ch/main"].url}"></script>'
        return HTML_TEMPLATE.format(
            icon=self._named("icon").url,
            styles=styles,
            imports=self.import_map,
            scripts=f"{ahead}\n{scripts}",
            data="",
        )

    def standalone_html(self, data: str) -> str:
        """As one file that needs no server: the same modules under data: URLs, and what they would have asked for."""
        imports = json.dumps(
            {"imports": {name: asset.data_url for name, asset in self.modules.items()}}
        )
        styles = "\n".join(f"<style>{asset.content.decode()}</style>" for asset in self.styles)
        scripts = '<script type="module">import "ch/main";</script>'
        held = f'<script type="application/json" id="snapshot">{data}</script>'
        return HTML_TEMPLATE.format(
            icon=self._named("icon").data_url,
            styles=styles,
            imports=imports,
            scripts=scripts,
            data=held,
        )

    def _named(self, name: str) -> Asset:
        return next(asset for asset in self.assets if asset.name == name)


def to_script_json(tree: object) -> str:
    """JSON that may stand inside a <script>: no text in it can end that."""
    return json.dumps(tree, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


DATA_PLACEHOLDER = '"the numbers go here"'


def asset_routes(shell: PageAssets) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    served = {asset.url: asset for asset in shell.assets}

    @router.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(
            shell.html,
            headers={
                "Cache-Control": "no-cache",
                "Content-Security-Policy": shell.content_security_policy,
            },
        )

    @router.get("/page/{path:path}")
    async def file(path: str, request: Request) -> Response:
        asset = served.get(f"page/{path}")
        if asset is None:
            return Response("There is no such file.", status_code=404, media_type="text/plain")
        packs = "gzip" in request.headers.get("accept-encoding", "")
        headers = {**CACHE_FOREVER, "Content-Encoding": "gzip"} if packs else CACHE_FOREVER
        content = asset.gzipped if packs else asset.content
        return Response(
            content, media_type=f"{MEDIA_TYPES[asset.suffix]}; charset=utf-8", headers=headers
        )

    @router.get("/api/whole")
    async def whole() -> HTMLResponse:
        """The page as one file, with a hole where its data go."""
        return HTMLResponse(shell.standalone_html(DATA_PLACEHOLDER))

    return router
