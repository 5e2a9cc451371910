"""The page's JavaScript and CSS: types, format, and delivery exactly as written."""

import shutil
import subprocess
from pathlib import Path

import pytest

from clearhead.serve.explorer.assets import PAGE_FOLDER, PageAssets
from page_models import byte_model
from page_site import PageSite

ROOT = Path(__file__).parents[2]
CHECKS = {
    "types": ["tsc", "--noEmit"],
    "format": ["prettier", "--check", "src/clearhead/serve/page/*.{js,ts,css}"],
}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_javascript_passes_tsc_and_prettier(check):
    if not (ROOT / "node_modules").is_dir() or not shutil.which("npx"):
        pytest.skip("needs `npm ci`")
    run = subprocess.run(
        ["npx", "--no-install", *CHECKS[check]], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_assets_are_sent_as_written(tmp_path):
    """Including what looks like a comment in a template literal."""
    site = PageSite(model=byte_model())
    for name, asset in PageAssets().modules.items():
        status, _, content = site.request("GET", f"/{asset.url}")
        assert (status, content) == (200, asset.content)
        if name.startswith("ch/"):
            assert content == (PAGE_FOLDER / f"{name[3:]}.js").read_bytes()
    shutil.copytree(PAGE_FOLDER / "vendor", tmp_path / "vendor")
    source = b"export const text = `\n// no comment\n`; // a comment\n"
    (tmp_path / "quotes.js").write_bytes(source)
    assert PageAssets(tmp_path).modules["ch/quotes"].content == source
