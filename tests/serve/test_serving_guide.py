"""The requests of the serving guide give the responses it shows."""

import json
import re
from pathlib import Path

import pytest

import clearhead as ch
from serving import run_server, send_request

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "chat-and-serve.md").read_text()
REQUEST = re.compile(
    r"curl -s http://127\.0\.0\.1:8000(\S+) .*-d '(.*)'\n```(?:\n```text\n(.*)\n)?"
)
REQUESTS = REQUEST.findall(GUIDE)


@pytest.mark.slow
def test_requests_of_the_guide_get_the_shown_responses():
    models = {name: ch.load(name, device="cpu") for name in ("story", "fill")}
    with run_server(models) as served:
        for path, body, shown in REQUESTS:
            status, _, content = send_request(served.port, "POST", path, json.loads(body))
            assert status == 200
            parts = map(re.escape, re.split(r" ?… ?", shown))
            assert not shown or re.fullmatch(".*".join(parts), content.decode()), content
    assert [path for path, _, _ in REQUESTS] == ["/v1/completions", "/fill"]
