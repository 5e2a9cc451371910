"""The page's API, asked without a network."""

import asyncio
import io
import json

import numpy as np

from clearhead.serve.app import build
from clearhead.serve.limits import Limits
from clearhead.serve.pages.snapshot import ask
from clearhead.serve.shelf import Shelf


class Site:
    def __init__(self, limits=Limits(), **models):
        self.app = build(Shelf.of(models), limits, page=True)

    def ask(self, method, url, body=None):
        return asyncio.run(ask(self.app, method, url, body))

    def json(self, method, url, body=None):
        status, _, content = self.ask(method, url, body)
        assert status == 200, content
        return json.loads(content)

    def npy(self, url):
        status, headers, content = self.ask("GET", url)
        assert status == 200, content
        return np.load(io.BytesIO(content)), headers

    def run(self, text="hello", **more):
        return self.json("POST", "/api/runs", {"text": text, **more})
