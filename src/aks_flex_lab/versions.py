"""Default versions of the programs on the lab's nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeVersions:
    kubernetes: str = "1.36.3"
    containerd: str = "2.4.2"
    runc: str = "1.5.2"
    cni: str = "1.9.1"
    npd: str = "1.34.0"
