"""What the guide tells a reader to ask is answered as it shows."""

import json
import re
from pathlib import Path

import clearhead as ch
from serving import ask, running

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "chat-and-serve.md").read_text()
ASKED = re.findall(
    r"\$ curl -s http://127\.0\.0\.1:8000(\S+) [^']*'[^']+' \\\n +-d '(.*)'\n(.*)\n", GUIDE
)


def test_requests_of_the_guide_are_answered_as_it_shows():
    with running({name: ch.load(name, device="cpu") for name in ("story", "fill")}) as served:
        for path, body, shown in ASKED:
            status, _, content = ask(served.port, "POST", path, json.loads(body))
            parts = map(re.escape, re.split(r" ?… ?", shown))
            assert status == 200
            assert re.fullmatch(".*".join(parts), content.decode()), content
    assert [path for path, *_ in ASKED] == ["/v1/completions", "/fill"]
