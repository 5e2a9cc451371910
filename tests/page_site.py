"""The page's API, asked without a network."""

import asyncio
import io
import json

import numpy as np

from clearhead.serve.app import create_app
from clearhead.serve.explorer.snapshot import asgi_request
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry


class Site:
    def __init__(self, limits=Limits(), **models):
        self.app = create_app(ModelRegistry.from_models(models), limits, page=True)

    def ask(self, method, url, body=None):
        return asyncio.run(asgi_request(self.app, method, url, body))

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
