"""docs/models.md shows what comes. `python tests/bundled/test_models_page.py` writes it anew after a model changed."""

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
from clearhead.weights.model_cards import BUNDLED_DIR, BUNDLED_NAMES, bundled_models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SHELL = r"```console\n\$ (?P<command>.*)\n(?P<shown>(?:.*\n)*?)```"
PYTHON = r"```python\n(?P<code>(?:.*\n)*?)```\n```text\n(?P<came>(?:.*\n)*?)```"
BLOCKS = [*re.finditer(f"{SHELL}|{PYTHON}", PAGE.read_text(encoding="utf-8"))]
WIDE = {"COLUMNS": "100"}
NUMBER = r"[-+]?\d+\.\d+"


def run(command, code):
    """What a command or some Python prints."""
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
    return out.getvalue().replace(
        str(BUNDLED_DIR), "…/clearhead/bundled"
    )  # wherever it is installed


def missing(block):
    """The models of a block that are not here."""
    away = {*BUNDLED_NAMES, *hub.WHEEL_MODELS} - {*bundled_models(), *hub.downloaded_models()}
    return {
        name for name in away if re.search(rf'[ "]{name}[ "]', block["command"] or block["code"])
    }


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: (block["command"] or block["code"]).splitlines()[-1][:60]
)
def test_the_page_shows_what_comes(block, tmp_path, monkeypatch):
    if names := missing(block):
        pytest.skip(f"not here: {', '.join(sorted(names))}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDE["COLUMNS"])
    if block["command"] == "clearhead models":
        monkeypatch.setattr(hub, "fetched", dict)
    came = run(block["command"], block["code"])
    if block["command"]:
        alike = difflib.SequenceMatcher(None, block["shown"], came, autojunk=False).ratio()
        assert alike > 0.7, came  # another machine's last digits may lead elsewhere
    else:
        assert re.sub(NUMBER, "#", came) == re.sub(NUMBER, "#", block["came"])
        shown, found = (
            [float(number) for number in re.findall(NUMBER, text)] for text in (block["came"], came)
        )
        assert found == pytest.approx(shown, abs=0.01)


def write() -> None:
    os.environ |= WIDE
    text = PAGE.read_text(encoding="utf-8")
    fetched = hub.downloaded_models()
    for block in BLOCKS:
        if names := missing(block):
            print(f"left as it is, without {', '.join(names)}: {block['command'] or block['code']}")
            continue
        hub.downloaded_models = dict if block["command"] == "clearhead models" else lambda: fetched
        came = run(block["command"], block["code"])
        came = "\n".join(line.rstrip() for line in came.splitlines()) + "\n"
        code = f"```python\n{block['code']}```\n```text\n{came}```"
        text = text.replace(
            block[0], f"```console\n$ {block['command']}\n{came}```" if block["command"] else code
        )
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
