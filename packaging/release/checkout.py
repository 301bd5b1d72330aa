"""The checkout to release from: version, commit time, and what prevents a release."""

from __future__ import annotations

import re
from pathlib import Path

from aks_flex_lab.processes import run


class ReleaseError(Exception):
    """The release cannot be made; the message says why and what to do."""


HOME = Path(__file__).resolve().parents[2]
SOURCES = HOME / "src" / "aks_flex_node"
REQUIREMENTS = HOME / "requirements"
# Each distribution by its name, and the folder of its pyproject.toml.
DISTRIBUTIONS = {
    "aks-flex-node": HOME,
    "aks-flex-rp": HOME / "packaging" / "aks-flex-rp",
    "aks-flex-lab": HOME / "packaging" / "aks-flex-lab",
}
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
PRERELEASE = re.compile(r"(a|b|rc)\d+$")


def version_in(text: str) -> str:
    """The version as the package's __init__ has it, the one place where it stands."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        raise ReleaseError("src/aks_flex_node/__init__.py has no __version__.")
    return found[1]


def version() -> str:
    return version_in((SOURCES / "__init__.py").read_text())


def changed_at() -> int:
    """When the last commit was made; nothing that is built carries a later time, so that it can be built again."""
    return int(run("git", "log", "-1", "--format=%ct", cwd=HOME).out)


def problems(wanted: str, *, present: str, changelog: str, status: str, tested: bool) -> list[str]:
    """Everything that stands in the way of a release, at once."""
    found = []
    if not tested and not PRERELEASE.search(wanted):
        found.append("A final version is made with all tests. --skip-tests is for those before it, such as 1.3.0rc1.")
    if not VERSION.fullmatch(wanted):
        found.append(f"{wanted} is not a version. Versions look like 1.2.3 or 1.3.0rc1.")
    if wanted != present:
        found.append(
            f"src/aks_flex_node/__init__.py says {present}, not {wanted}. Change it there, and nowhere else."
        )
    if not re.search(rf"^## \[?{re.escape(wanted)}\]?($|\s)", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## {wanted}`. Write what this release means to its users.")
    if status.strip():
        found.append(f"Not everything is committed:\n{status.rstrip()}")
    return found


def require_ready(wanted: str, *, tested: bool) -> None:
    status = run("git", "status", "--porcelain", cwd=HOME).out
    changelog = (HOME / "CHANGELOG.md").read_text()
    found = problems(wanted, present=version(), changelog=changelog, status=status, tested=tested)
    if found:
        raise ReleaseError("\n".join(found))
