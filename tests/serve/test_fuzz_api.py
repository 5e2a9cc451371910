"""Random requests from the OpenAPI schema never cause a server error."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

import clearhead as ch
from clearhead.serve.app import create_app
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from serving import BYTES, tiny_writer

SMALL = Limits(max_tokens=8, max_texts=4, request_timeout=10.0)
ENCODER = {"tokenizer": BYTES, "vocab_size": 257, "context_length": 64}
MODELS = {
    "writer": tiny_writer(),
    "/classify": ch.new(
        "tiny-encoder", **ENCODER, inference__sep_tokens=[256], head__kind="classification"
    ),
    "/fill": ch.new("tiny-encoder", **ENCODER, inference__mask_token=[256]),
    "/translate": ch.new(
        "tiny-encoder-decoder",
        **ENCODER,
        inference__decoder_start_tokens=[256],
        architecture__source_context_length=64,
    ),
}  # by the path of their endpoint
APP = create_app(ModelRegistry.from_models(MODELS), SMALL, hosts=["testserver"])
pytestmark = pytest.mark.slow
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_server_error(case):
    if isinstance(case.body, dict) and "model" in case.body:
        name = case.path if case.path in MODELS else "writer"
        case.body = {**case.body, "model": name}  # random names would all be unknown
    case.call_and_validate(checks=[not_a_server_error])
