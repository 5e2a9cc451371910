"""Static files of the page: content-hashed URLs, import map, content security policy, HTML."""

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from clearhead.errors import ClearheadError

PAGE_FOLDER = Path(__file__).parent.parent / "page"
VENDOR_FOLDER = "vendor"
LIBRARIES = {  # by import name
    "lit-html": "lit-html",
    "lit-element": "lit-element",
    "@lit/reactive-element": "reactive-element",
    "@lit/reactive-element/css-tag.js": "css-tag",
}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
CACHE_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
DATA_PLACEHOLDER = '"SNAPSHOT_DATA"'  # in the standalone page

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
<div id="page"><p class="loading">Loading…</p></div>
<noscript>This page needs JavaScript. The same data is available from
<code>clearhead see</code> and in Python.</noscript>
{data}
</body>
</html>
"""


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    name: str  # path without suffix
    suffix: str
    content: bytes

    @property
    def url(self) -> str:
        return f"page/{self.name}.{hashlib.sha256(self.content).hexdigest()[:12]}{self.suffix}"

    @cached_property
    def gzipped(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @property
    def data_url(self) -> str:
        return f"data:{MEDIA_TYPES[self.suffix]};base64,{base64.b64encode(self.content).decode()}"


class PageAssets:
    """All files of the page, loaded once."""

    def __init__(self, folder: Path = PAGE_FOLDER) -> None:
        self.assets = []
        for path in sorted(folder.rglob("*")):
            if path.suffix in MEDIA_TYPES:
                name = path.relative_to(folder).with_suffix("").as_posix()
                self.assets.append(Asset(name, path.suffix, path.read_bytes()))
        names = {asset.name for asset in self.assets}
        if missing := [f"{name}.js" for name in LIBRARIES.values() if _vendored(name) not in names]:
            raise ClearheadError(
                f"{', '.join(missing)} missing in {folder / VENDOR_FOLDER}; reinstall clearhead."
            )

    @property
    def modules(self) -> dict[str, Asset]:
        """JavaScript modules by import name: those of Lit, and `ch/NAME` for the page's own."""
        modules = {name: self._get(_vendored(file)) for name, file in LIBRARIES.items()}
        for asset in self.assets:
            if asset.suffix == ".js" and not asset.name.startswith(VENDOR_FOLDER):
                modules[f"ch/{asset.name}"] = asset
        return modules

    @property
    def styles(self) -> list[Asset]:
        """Style sheets: the common one, then those of views."""
        styles = [asset for asset in self.assets if asset.suffix == ".css"]
        return sorted(styles, key=lambda asset: (asset.name != "style", asset.name))

    @cached_property
    def import_map(self) -> str:
        urls = {name: f"./{asset.url}" for name, asset in self.modules.items()}
        return json.dumps({"imports": urls})

    @property
    def content_security_policy(self) -> str:
        """Allow own files only, and the inline import map by its hash."""
        digest = base64.b64encode(hashlib.sha256(self.import_map.encode()).digest()).decode()
        return (
            f"default-src 'self'; script-src 'self' 'sha256-{digest}'; style-src 'self'; "
            "img-src 'self' data: blob:; media-src 'self' blob:; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )

    @cached_property
    def html(self) -> str:
        """The page as served."""
        styles = [f'<link rel="stylesheet" href="{asset.url}">' for asset in self.styles]
        # After the import map: a module that is preloaded before it could not resolve its imports.
        scripts = [
            f'<link rel="modulepreload" href="{asset.url}">' for asset in self.modules.values()
        ]
        scripts.append(f'<script type="module" src="{self.modules["ch/main"].url}"></script>')
        return HTML_TEMPLATE.format(
            icon=self._get("icon").url,
            styles="\n".join(styles),
            imports=self.import_map,
            scripts="\n".join(scripts),
            data="",
        )

    def standalone_html(self, data: str) -> str:
        """The page as one file without server: modules as data: URLs, responses as JSON."""
        urls = {name: asset.data_url for name, asset in self.modules.items()}
        styles = [f"<style>{asset.content.decode()}</style>" for asset in self.styles]
        return HTML_TEMPLATE.format(
            icon=self._get("icon").data_url,
            styles="\n".join(styles),
            imports=json.dumps({"imports": urls}),
            scripts='<script type="module">import "ch/main";</script>',
            data=f'<script type="application/json" id="snapshot">{data}</script>',
        )

    def _get(self, name: str) -> Asset:
        return next(asset for asset in self.assets if asset.name == name)


def _vendored(name: str) -> str:
    return f"{VENDOR_FOLDER}/{name}"


def to_script_json(data: object) -> str:
    """JSON for a <script> element, which no string in it can close."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def asset_routes(assets: PageAssets) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    assets_by_url = {asset.url: asset for asset in assets.assets}

    @router.get("/")
    async def page() -> HTMLResponse:
        headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": assets.content_security_policy,
        }
        return HTMLResponse(assets.html, headers=headers)

    @router.get("/page/{path:path}")
    async def asset_file(path: str, request: Request) -> Response:
        asset = assets_by_url.get(f"page/{path}")
        if asset is None:
            return Response("File not found.", status_code=404, media_type="text/plain")
        media_type = f"{MEDIA_TYPES[asset.suffix]}; charset=utf-8"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {**CACHE_FOREVER, "Content-Encoding": "gzip"}
            return Response(asset.gzipped, media_type=media_type, headers=headers)
        return Response(asset.content, media_type=media_type, headers=CACHE_FOREVER)

    @router.get("/api/standalone")
    async def standalone() -> HTMLResponse:
        """The page as one file, with a placeholder for its data."""
        return HTMLResponse(assets.standalone_html(DATA_PLACEHOLDER))

    return router
