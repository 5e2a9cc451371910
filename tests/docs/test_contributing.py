"""The diffs in the contributing guide apply to the source and do what the guide says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"```diff\n(.*?)```", GUIDE, re.DOTALL)
CHECKS = {
    "config/model.py": [
        "-c",
        """
import clearhead as ch
model = ch.new("tiny-decoder", position="logarithmic")
assert all(result.passed is not False for result in ch.verify(model))
""",
    ],
    "families/starcoder2.py": [
        *("-m", "pytest", "-k", "starcoder2 or every_family"),
        *("tests/weights/test_huggingface.py", "tests/parity/test_transformers.py"),
    ],
    "lens/entropy.py": [
        "-c",
        """
import torch, clearhead as ch
model = ch.new("tiny-decoder")
view = ch.lens.attention_entropy(model, [1, 2, 3])
pattern = ch.lens.attention(model, [1, 2, 3]).values
plain = -(pattern * pattern.clamp(min=1e-30).log()).sum(-1)
torch.testing.assert_close(view.values, plain)
import runpy, pytest
runpy.run_path("docs/hooks.py", run_name="__main__")
assert pytest.main(["-q", "tests/docs/test_site.py", "-k", "up_to_date or in_the_reference"]) == 0
""",
    ],
}


def patch_source(diff, folder):
    unneeded = shutil.ignore_patterns("bundled", "page", "__pycache__")
    for name in ("src", "tests", "docs", "claims", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", folder)
    subprocess.run(["patch", "-p1", "--quiet"], input=diff, text=True, cwd=folder, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", CHECKS)
def test_diff_in_guide_works(path, tmp_path):
    (diff,) = [text for text in DIFFS if path in text]
    patch_source(diff, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    subprocess.run([sys.executable, *CHECKS[path]], cwd=tmp_path, env=environment, check=True)


def test_diffs_in_guide_pass_ruff(tmp_path):
    patch_source("".join(DIFFS), tmp_path)
    for command in (["check"], ["format", "--check"]):
        files = ["src", "tests/parity/huggingface_models.py"]
        options = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), *files]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
