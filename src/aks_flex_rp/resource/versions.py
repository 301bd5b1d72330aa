"""Kubernetes versions: parsing, comparison, and the component versions that were tested with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# A minor version without a row uses the nearest lower row, or the first.
TESTED_COMPONENTS: dict[tuple[int, int], dict[str, str]] = {
    (1, 33): {"containerd": "2.4.2", "runc": "1.5.2", "cni": "1.9.1", "npd": "1.34.0"},
    (1, 34): {"containerd": "2.4.2", "runc": "1.5.2", "cni": "1.9.1", "npd": "1.34.0"},
}
MAX_KUBELET_SKEW = 3  # minor versions that a kubelet may be behind its API server

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, order=True)
class KubernetesVersion:
    major: int
    minor: int
    patch: int = 0
    final: bool = True  # a pre-release sorts before its release
    preview: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.preview}" if self.preview else "")


@lru_cache(maxsize=1024)
def parse_version(text: str) -> KubernetesVersion | None:
    found = _VERSION.fullmatch(text)
    if not found:
        return None
    major, minor, patch, preview = found.groups()
    return KubernetesVersion(int(major), int(minor), int(patch or 0), preview is None, preview or "")


def tested_components(kubernetes: str) -> dict[str, str]:
    """Returns the component versions that were tested with this Kubernetes version."""
    version = parse_version(kubernetes)
    fitting = [row for row in TESTED_COMPONENTS if version and row <= (version.major, version.minor)]
    return dict(TESTED_COMPONENTS[max(fitting, default=min(TESTED_COMPONENTS))])
