"""Whatever follows the schema, or breaks it, is answered, and never by a mistake of ours."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

import clearhead as ch
from clearhead.serve.app import create_app
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry
from serving import BYTES, writer

SMALL = Limits(max_tokens=8, max_texts=4, request_timeout=10.0)
READS = {"tokenizer": BYTES, "vocabulary": 257, "context": 64}
MODELS = {
    "writer": writer(),
    "/classify": ch.new(
        "tiny-encoder", **READS, inference__sep_tokens=[256], head__kind="classification"
    ),
    "/fill": ch.new("tiny-encoder", **READS, inference__mask_token=[256]),
    "/translate": ch.new(
        "tiny-encoder-decoder",
        **READS,
        inference__decoder_start_tokens=[256],
        architecture__source_context_length=64,
    ),
}  # those that are asked there alone, by the path
APP = create_app(ModelRegistry.from_models(MODELS), SMALL, hosts=["testserver"])
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server(case):
    if isinstance(case.body, dict) and "model" in case.body:
        name = case.path if case.path in MODELS else "writer"
        case.body = {**case.body, "model": name}  # else all that is tried is a name that nobody has
    case.call_and_validate(checks=[not_a_server_error])
