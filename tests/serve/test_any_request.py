"""Whatever follows the schema, or breaks it, is answered, and never by a mistake of ours."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

import clearhead as ch
from clearhead.serve.app import build
from clearhead.serve.limits import Limits
from clearhead.serve.shelf import Shelf
from serving import BYTES, writer

SMALL = Limits(max_tokens=8, texts=4, seconds=10.0)
READS = {"tokenizer": BYTES, "vocabulary": 257, "context": 64}
MODELS = {
    "writer": writer(),
    "/classify": ch.new("tiny-encoder", **READS, use__end=[256], head__kind="classes"),
    "/fill": ch.new("tiny-encoder", **READS, use__mask=[256]),
    "/translate": ch.new("tiny-encoder-decoder", **READS, use__start=[256], shape__context=64),
}  # those that are asked there alone, by the path
APP = build(Shelf.of(MODELS), SMALL, hosts=["testserver"])
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server(case):
    if isinstance(case.body, dict) and "model" in case.body:
        name = case.path if case.path in MODELS else "writer"
        case.body = {**case.body, "model": name}  # else all that is tried is a name that nobody has
    case.call_and_validate(checks=[not_a_server_error])
