"""The built wheel, installed into an environment of its own, runs every bundled model.

The environment sees the libraries of this one, but no other clearhead: .pth files of an editable
installation are not followed folder.
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
from clearhead.weights.bundled import BUNDLED_DIR, bundled_card, bundled_models, bundled_path

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(*command, **options):
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    result = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin folder of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "bin" / "python"
    assert run(sys.executable, "-m", "venv", "--without-pip", folder).returncode == 0
    result = run(
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
    assert result.returncode == 0, result.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    return python.parent


def run_installed(bin_folder, command, folder):
    program, *words = shlex.split(command)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(bin_folder / program, *words, cwd=folder, env=env)


def test_wheel_contains_models_and_page(wheel):
    assert wheel.stat().st_size < 70e6
    names = zipfile.ZipFile(wheel).namelist()
    assert "clearhead/serve/page/vendor/lit-html.js" in names
    assert "clearhead/serve/page/vendor/package-lock.json" not in names
    for name in bundled_models():
        for path in bundled_path(name).iterdir():
            assert f"clearhead/bundled/{name}/{path.name}" in names


def test_installed_package_is_imported(installed, tmp_path):
    result = run_installed(
        installed, "python -c 'import clearhead; print(clearhead.__file__)'", tmp_path
    )
    assert result.stdout.startswith(str(installed.parent)), result.stderr


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_model_runs_by_the_command_of_its_card(installed, tmp_path, name):
    card = run_installed(installed, f"clearhead models {name}", tmp_path)
    assert card.returncode == 0, card.stderr
    command = (
        bundled_card(name)
        .usage[0]
        .replace(str(BUNDLED_DIR), str(next(installed.parent.rglob("bundled"))))
    )
    assert command in card.stdout
    result = run_installed(installed, command, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_page_is_saved(installed, tmp_path):
    result = run_installed(
        installed, f'clearhead explore story --text "{SENTENCE}" --output page.html', tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
