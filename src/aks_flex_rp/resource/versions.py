"""Kubernetes versions: parsing, comparison, and the component versions that were tested with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from aks_flex_node.settings.table import by_path

if TYPE_CHECKING:
    from collections.abc import Mapping

# How each minor version is tested: by every change, by the long tests, or not at all. docs/compatibility.md describes
# the tests. A minor version without a row uses the nearest lower row, or the first.
TESTS: dict[tuple[int, int], str] = {
    (1, 31): "not run",
    (1, 32): "not run",
    (1, 33): "long tests",
    (1, 34): "long tests",
    (1, 35): "every change",
    (1, 36): "every change",
}
# All are tested with the agent's default versions.
_DEFAULTS = {name: str(by_path()[f"{name}.version"].default) for name in ("containerd", "runc", "cni", "npd")}
TESTED_COMPONENTS: dict[tuple[int, int], dict[str, str]] = dict.fromkeys(TESTS, _DEFAULTS)
# Earlier versions that upgrades start from in the tests.
ALSO_TESTED: dict[str, tuple[str, ...]] = {"containerd": ("1.7.29",), "runc": ("1.4.0",), "cni": ("1.7.1",)}
TITLES = {
    "kubernetes": "Kubernetes",
    "containerd": "containerd",
    "runc": "runc",
    "cni": "CNI plugins",
    "npd": "node-problem-detector",
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


def is_older(text: str, than: str) -> bool:
    """Returns whether a version is older than another one; False if one of them is unknown."""
    one, other = parse_version(text), parse_version(than)
    return one is not None and other is not None and one < other


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


def tested_table() -> list[dict[str, str]]:
    """Returns the table of tested versions, the newest Kubernetes version first."""
    newest = sorted(TESTED_COMPONENTS.items(), reverse=True)
    return [{"kubernetes": f"{major}.{minor}", **row, "tests": TESTS[major, minor]} for (major, minor), row in newest]


@cache
def tested_series(component: str) -> tuple[str, ...]:
    """Returns the minor versions of a component that are in the table, the oldest first."""
    if component == "kubernetes":
        return tuple(f"{major}.{minor}" for major, minor in sorted(TESTED_COMPONENTS))
    known = {row[component] for row in TESTED_COMPONENTS.values()} | set(ALSO_TESTED.get(component, ()))
    parsed = sorted(version for text in known if (version := parse_version(text)))
    return tuple(dict.fromkeys(f"{version.major}.{version.minor}" for version in parsed))


def untested_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of a configuration whose minor version is not in the table, by component."""
    chosen = {name: config.get(name, {}).get("version") for name in TITLES}
    return {name: text for name, text in chosen.items() if text and not _is_tested(name, text)}


@lru_cache(maxsize=1024)
def _is_tested(component: str, text: str) -> bool:
    version = parse_version(text)
    return version is not None and f"{version.major}.{version.minor}" in tested_series(component)


def untested_message(untested: Mapping[str, str]) -> str:
    """Returns the warning for versions that are not in the table."""
    sentences = [
        f"{TITLES[name]} {text.removeprefix('v')} is not in the table of tested versions "
        f"({', '.join(tested_series(name))})."
        for name, text in untested.items()
    ]
    return " ".join(sentences)
