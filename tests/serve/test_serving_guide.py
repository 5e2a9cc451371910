"""The requests of the serving guide give the responses it shows."""

import json
import re
from pathlib import Path

import pytest

import clearhead as ch
from serving import run_server, send_request

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "chat-and-serve.md").read_text()
REQUESTS = re.findall(
    r"\$ curl -s http://127\.0\.0\.1:8000(\S+) [^']*'[^']+' \\\n +-d '(.*)'\n(.*)\n", GUIDE
)


@pytest.mark.slow
def test_guide_requests():
    with run_server({name: ch.load(name, device="cpu") for name in ("story", "fill")}) as served:
        for path, body, shown in REQUESTS:
            status, _, content = send_request(served.port, "POST", path, json.loads(body))
            parts = map(re.escape, re.split(r" ?… ?", shown))
            assert status == 200
            assert re.fullmatch(".*".join(parts), content.decode()), content
    assert [path for path, *_ in REQUESTS] == ["/v1/completions", "/fill"]
