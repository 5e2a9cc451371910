"""The page's API without a network."""

import asyncio
import io
import json

import numpy as np
from fastapi.testclient import TestClient

from clearhead.serve.app import create_app
from clearhead.serve.explorer.saved_page import asgi_client
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry

JSON = {"Content-Type": "application/json"}


class PageSite:
    """A server with the page, for models by name."""

    def __init__(self, limits=Limits(), **models):
        self.app = create_app(ModelRegistry.from_models(models), limits, page=True)

    def request(self, method, url, body=None, address=("127.0.0.1", 0)):
        return asyncio.run(self.send(method, url, body, address))

    async def send(self, method, url, body=None, address=("127.0.0.1", 0)):
        async with asgi_client(self.app, address=address) as client:
            content = None if body is None else json.dumps(body)  # httpx would refuse a NaN
            response = await client.request(method, url, content=content, headers=JSON)
        return response.status_code, response.headers, response.content

    def json(self, method, url, body=None):
        status, _, content = self.request(method, url, body)
        assert status == 200, content
        return json.loads(content)

    def npy(self, url):
        status, headers, content = self.request("GET", url)
        assert status == 200, content
        return np.load(io.BytesIO(content)), headers

    def run(self, text="hello", **fields):
        return self.json("POST", "/api/runs", {"text": text, **fields})


def page_client(models, limits=Limits()):
    """An HTTP client for the page's API; use it as a context manager."""
    registry = models if isinstance(models, ModelRegistry) else ModelRegistry.from_models(models)
    return TestClient(create_app(registry, limits, page=True, hosts=["testserver"]))
