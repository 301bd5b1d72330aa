"""The checkout of a release: version, commit time, and release prerequisites."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterable


class ReleaseError(Exception):
    """The release failed. The message contains the cause and the remedy."""


HOME = Path(__file__).resolve().parents[2]
SOURCES = HOME / "src" / "aks_flex_node"
SHIPPED_KEYS = SOURCES / "agent" / "release-keys.gpg"
REQUIREMENTS = HOME / "requirements"
# Distributions by name, with the directory of their pyproject.toml.
DISTRIBUTIONS = {
    "aks-flex-node": HOME,
    "aks-flex-rp": HOME / "packaging" / "aks-flex-rp",
    "aks-flex-lab": HOME / "packaging" / "aks-flex-lab",
}
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
PRERELEASE = re.compile(r"(a|b|rc)\d+$")


def version_in(text: str) -> str:
    """Returns the version in the text of the package's __init__."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        raise ReleaseError("src/aks_flex_node/__init__.py has no __version__.")
    return found[1]


def version() -> str:
    return version_in((SOURCES / "__init__.py").read_text())


def changed_at() -> int:
    """Returns the time of the last commit, which is the timestamp of all build results for reproducible builds."""
    return int(run("git", "log", "-1", "--format=%ct", cwd=HOME).out)


def tracked_files(folders: Iterable[Path], checkout: Path = HOME) -> list[Path]:
    """Returns the files of directories that git tracks: what else is in the working tree is never packed."""
    listed = run("git", "ls-files", "-z", "--", *folders, cwd=checkout, check=False)
    if not listed.ok:
        raise ReleaseError(
            f"git does not list the files of {checkout}: {listed.last_line}. Build from a clone of the repository."
        )
    paths = [checkout / name for name in listed.out.split("\0") if name]
    return sorted(path for path in paths if path.is_file())  # a tracked file may be deleted in the working tree


def problems(wanted: str, *, present: str, changelog: str, status: str, tested: bool) -> list[str]:
    """Returns all problems that prevent a release."""
    found = []
    if not tested and not PRERELEASE.search(wanted):
        found.append(
            "A final version requires all tests. Use --skip-tests only for pre-releases, for example 1.3.0rc1."
        )
    if not VERSION.fullmatch(wanted):
        found.append(f"{wanted} is not a valid version. Use a version like 1.2.3 or 1.3.0rc1.")
    if wanted != present:
        found.append(f"The version in src/aks_flex_node/__init__.py is {present}, not {wanted}. Change it there.")
    if not re.search(rf"^## \[?{re.escape(wanted)}\]?($|\s)", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## {wanted}`. Describe the changes for users.")
    if status.strip():
        found.append(f"The working tree has uncommitted changes:\n{status.rstrip()}")
    return found


def require_ready(wanted: str, *, tested: bool) -> None:
    status = run("git", "status", "--porcelain", cwd=HOME).out
    changelog = (HOME / "CHANGELOG.md").read_text()
    found = problems(wanted, present=version(), changelog=changelog, status=status, tested=tested)
    if found:
        raise ReleaseError("\n".join(found))
