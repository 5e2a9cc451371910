"""Whatever follows the schema, or breaks it, is answered, and never by a mistake of ours."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from clearhead.serve.app import build
from clearhead.serve.limits import Limits
from clearhead.serve.shelf import Shelf
from serving import writer

SMALL = Limits(max_tokens=8, texts=4, seconds=10.0)
APP = build(Shelf.of({"writer": writer()}), SMALL, hosts=["testserver"])
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server(case):
    if isinstance(case.body, dict) and "model" in case.body:
        case.body = {**case.body, "model": "writer"}  # else all that is tried is a name that nobody has
    case.call_and_validate(checks=[not_a_server_error])
