"""Random requests to the page's API never cause a server error."""

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from clearhead.serve.app import create_app
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from serving import tiny_writer

SMALL = Limits(max_tokens=8, max_texts=4, request_timeout=10.0)
APP = create_app(
    ModelRegistry.from_models({"writer": tiny_writer()}), SMALL, hosts=["testserver"], page=True
)
RUN = TestClient(APP).post("/api/runs", json={"text": "hello"}).json()
pytestmark = pytest.mark.slow
schema = schemathesis.openapi.from_asgi("/openapi.json", APP).include(path_regex="^/api/")


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_server_error(case):
    if isinstance(case.body, dict) and "model" in case.body:
        case.body = {
            **case.body,
            "model": "writer",
        }  # random names would all be unknown
    parts = case.path_parameters or {}
    known = {"run_id": RUN["id"], "model": "writer"}
    if "run_id" in parts and isinstance(case.query, dict) and "name" in case.query:
        case.query["name"] = "blocks.0.attn.pattern"
    for name in parts:
        if name in known or (name == "name" and "/models/" in case.path):
            parts[name] = known.get(name, "writer")
        elif name == "name":
            parts[name] = "final_norm"
    case.call_and_validate(checks=[not_a_server_error])
