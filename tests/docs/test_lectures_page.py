"""From the lecture to the command: commands run, notebook sections and stops of the page exist."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clearhead.cli.main import app
from clearhead.weights import hub
from clearhead.weights.bundled import bundled_models

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "lectures.md").read_text(encoding="utf-8")
TOUR = (ROOT / "src/clearhead/serve/page/view-tour.js").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.count("|") > 4 and line.startswith("| ")
]
POINTS = [row for row in ROWS if len(row) == 4 and row[0] != "point"]
COMMANDS = list(
    dict.fromkeys(
        re.findall(r"`(clearhead (?!get|explore)[^`]+)`", PAGE)
        + re.findall(r"^\$ (?:echo .* \| )?(clearhead .*)", PAGE, re.MULTILINE)
    )
)
NUM_ITEMS = 81  # of the five lecture notes


def test_every_item_has_a_row_and_a_place_to_see_it():
    assert len(POINTS) >= NUM_ITEMS
    for point, *places in POINTS:
        assert any(places) or "](#" in point, point


def test_stops_of_the_page_exist():
    stops = {*re.findall(r'id: "(L[\d.a-z]+)"', TOUR)}
    known = {*bundled_models(), *hub.WHEEL_MODELS}
    links = re.findall(r"`#(?:model=([\w-]+)&)?tour=([^`]+)`", PAGE)
    assert len(links) > 60
    for model, stop in links:
        assert stop in stops
        assert not model or model in known


def test_sections_of_notebooks_exist():
    links = re.findall(r"\[\d\]\((tour/[^)]+\.ipynb)\) \*([^*]+)\*", PAGE)
    assert len(links) > 60
    for path, section in links:
        cells = json.loads((DOCS / path).read_text(encoding="utf-8"))["cells"]
        lines = {line.strip() for cell in cells for line in cell["source"]}
        assert f"## {section}" in lines, (path, section)


def test_the_page_is_linked_for_teachers():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in readme.splitlines() if line.startswith("| **teacher**"))
    assert "docs/lectures.md" in row


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command, tmp_path, monkeypatch):
    words = shlex.split(command)[1:]
    missing = {*words} & {*hub.WHEEL_MODELS} - {*hub.downloaded_models()}
    if missing:
        pytest.skip(f"{', '.join(missing)} is not downloaded")
    shutil.copy(ROOT / "src/clearhead/bundled/digits/seven.png", tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words, input="Hello, who are you?\n", catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.strip()
