"""What `pip install` gives: the built wheel in an environment of its own, and every bundled model through its command.

The environment sees the libraries of this one, but no other clearhead: nested .pth files, as of an editable
installation, are not followed.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from clearhead.cli.demo import SENTENCE
from clearhead.weights.model_cards import BUNDLED_DIR, bundled_card, bundled_models, bundled_path

ROOT = Path(__file__).parents[2]


def run(*words, **options):
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    there = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", there, ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = there.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of the environment's programs."""
    there = tmp_path_factory.mktemp("installed")
    python = there / "bin" / "python"
    assert run(sys.executable, "-m", "venv", "--without-pip", there).returncode == 0
    done = run(
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    )
    assert done.returncode == 0, done.stderr
    (packages,) = there.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    return python.parent


def typed(installed, command, folder):
    program, *words = shlex.split(command)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(installed / program, *words, cwd=folder, env=env)


def test_the_wheel_is_small_and_holds_the_models_and_the_page(wheel):
    assert wheel.stat().st_size < 62e6
    inside = zipfile.ZipFile(wheel).namelist()
    assert "clearhead/serve/page/vendor/lit-html.js" in inside
    assert "clearhead/serve/page/vendor/package-lock.json" not in inside
    for name in bundled_models():
        for path in bundled_path(name).iterdir():
            assert f"clearhead/bundled/{name}/{path.name}" in inside


def test_it_is_the_installed_one_that_runs(installed, tmp_path):
    done = typed(installed, "python -c 'import clearhead; print(clearhead.__file__)'", tmp_path)
    assert done.stdout.startswith(str(installed.parent)), done.stderr


@pytest.mark.parametrize("name", bundled_models())
def test_every_bundled_model_works_by_its_command(installed, tmp_path, name):
    told = typed(installed, f"clearhead models {name}", tmp_path)
    assert told.returncode == 0, told.stderr
    command = (
        bundled_card(name)
        .usage[0]
        .replace(str(BUNDLED_DIR), str(next(installed.parent.rglob("bundled"))))
    )
    assert command in told.stdout
    done = typed(installed, command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_page_is_saved_by_the_installed_one(installed, tmp_path):
    done = typed(
        installed, f'clearhead explore story --text "{SENTENCE}" --output page.html', tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
