"""The commands and snippets of the README work as written, in order, and print what it shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SHELLS = [
    [line.split("    #")[0].strip() for line in text.splitlines()]
    for kind, text in BLOCKS
    if kind == "sh"
]
COMMANDS = [line for shell in SHELLS for line in shell if not line.startswith("#")]
SNIPPETS = [text for kind, text in BLOCKS if kind == "python"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reader")
    shutil.copy(ROOT / "README.md", path)
    shutil.copytree(ROOT / "docs", path / "docs")
    return path


def run(words, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_shown(lines, output):
    """Every comment line is in the output, whatever the spaces."""
    words = " ".join(output.split())
    for line in lines:
        if line.startswith("# "):
            assert " ".join(line[2:].split()) in words


@pytest.mark.parametrize("number", range(len(SHELLS)))
def test_commands_print_what_the_readme_shows(number, folder):
    output = ""
    for line in SHELLS[number]:
        if line.startswith("clearhead"):
            done = run(["bash", "-c", line], folder)
            assert done.returncode == 0, done.stderr
            assert done.stdout
            output += done.stdout
    assert_shown(SHELLS[number], output)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_print_what_the_readme_shows(number, folder):
    done = run([sys.executable, "-c", SNIPPETS[number]], folder)
    assert done.returncode == 0, done.stderr
    assert_shown(SNIPPETS[number].splitlines(), done.stdout)


def test_make_targets_exist():
    assert {"make demo", "make test"} <= set(COMMANDS)
    for target in ("demo", "test"):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
