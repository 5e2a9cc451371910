"""docs/models.md shows real outputs; `python tests/bundled/test_models_page.py` updates them."""

import difflib
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from clearhead.cli.main import app
from clearhead.weights import hub
from clearhead.weights.bundled import BUNDLED_DIR, BUNDLED_NAMES, bundled_models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SHELL = r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```"
PYTHON = r"```python\n(?P<code>(?:.*\n)*?)```\n```text\n(?P<printed>(?:.*\n)*?)```"
BLOCKS = [*re.finditer(f"{SHELL}|{PYTHON}", PAGE.read_text(encoding="utf-8"))]
TERMINAL = {"COLUMNS": "100"}
pytestmark = pytest.mark.slow
NUMBER = r"[-+]?\d+\.\d+"


def run(command, code):
    """The output of a command or of Python code."""
    if command and "|" in command:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.check_output(
            ["bash", "-c", command], env={**os.environ, "PATH": path}, text=True
        )
    with redirect_stdout(io.StringIO()) as out:
        if command:
            app(shlex.split(command)[1:], standalone_mode=False)
        else:
            exec(code, {})
    return out.getvalue().replace(str(BUNDLED_DIR), "…/clearhead/bundled")


def missing_models(block):
    """The models of a block that are not downloaded."""
    missing = {*BUNDLED_NAMES, *hub.WHEEL_MODELS} - {*bundled_models(), *hub.downloaded_models()}
    return {
        name for name in missing if re.search(rf'[ "]{name}[ "]', block["command"] or block["code"])
    }


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: (block["command"] or block["code"]).splitlines()[-1][:60]
)
def test_page_shows_real_output(block, tmp_path, monkeypatch):
    if names := missing_models(block):
        pytest.skip(f"not here: {', '.join(sorted(names))}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", TERMINAL["COLUMNS"])
    if block["command"] == "clearhead models":
        monkeypatch.setattr(hub, "downloaded_models", dict)
    printed = run(block["command"], block["code"])
    if block["command"]:
        matcher = difflib.SequenceMatcher(None, block["output"], printed, autojunk=False)
        assert matcher.ratio() > 0.7, printed  # rounding differs between machines
    else:
        assert re.sub(NUMBER, "#", printed) == re.sub(NUMBER, "#", block["printed"])
        expected, actual = (
            [float(number) for number in re.findall(NUMBER, text)]
            for text in (block["printed"], printed)
        )
        assert actual == pytest.approx(expected, abs=0.01)


def write() -> None:
    os.environ |= TERMINAL
    text = PAGE.read_text(encoding="utf-8")
    downloaded = hub.downloaded_models()
    for block in BLOCKS:
        if names := missing_models(block):
            print(f"skipped, missing {', '.join(names)}: {block['command'] or block['code']}")
            continue
        hub.downloaded_models = (
            dict if block["command"] == "clearhead models" else lambda: downloaded
        )
        printed = run(block["command"], block["code"])
        printed = "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"
        if block["command"]:
            new = f"```console\n$ {block['command']}\n{printed}```"
        else:
            new = f"```python\n{block['code']}```\n```text\n{printed}```"
        text = text.replace(block[0], new)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
