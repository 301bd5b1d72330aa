"""Versions of Kubernetes, how they compare, and what goes with each: one table, tested together in our own lab."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A minor that has no row of its own takes the nearest below it, or the first.
TESTED: dict[tuple[int, int], dict[str, str]] = {
    (1, 33): {"containerd": "2.4.2", "runc": "1.5.2", "cni": "1.9.1", "npd": "1.34.0"},
    (1, 34): {"containerd": "2.4.2", "runc": "1.5.2", "cni": "1.9.1", "npd": "1.34.0"},
}
OLDEST_BY = 3  # minors that a kubelet may lie behind its API server

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int
    patch: int = 0
    final: bool = True  # a preview comes before what it is a preview of
    preview: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.preview}" if self.preview else "")


def read(text: str) -> Version | None:
    found = _VERSION.fullmatch(text)
    if not found:
        return None
    major, minor, patch, preview = found.groups()
    return Version(int(major), int(minor), int(patch or 0), preview is None, preview or "")


def defaults(kubernetes: str) -> dict[str, str]:
    """The components that go with a version of Kubernetes."""
    version = read(kubernetes)
    fitting = [row for row in TESTED if version and row <= (version.major, version.minor)]
    return dict(TESTED[max(fitting, default=min(TESTED))])
