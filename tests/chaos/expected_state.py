"""The model: the desired state of a node, and the properties of its resource."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDER = {"kubernetes": "1.35.4", "containerd": "1.7.29", "runc": "1.4.0"}
NEWER = {"kubernetes": "1.36.3", "containerd": "2.4.2", "runc": "1.5.2"}
OURS = "chaos.example/"  # prefix of the labels and taints under test: other components also set some
# A change that is damaged during its health check is rolled back. The test does not wait five minutes for that.
POLICY = {"healthTimeoutSeconds": 45, "drainTimeoutSeconds": 30}


@dataclass(frozen=True)
class Wanted:
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)  # key -> value
    max_pods: int = 110
    pod_pids: int = 1000
    versions: Mapping[str, str] = field(default_factory=lambda: dict(OLDER))
    secret: str = field(default="", repr=False)

    @property
    def properties(self) -> dict[str, Any]:
        settings = {
            "labels": dict(self.labels),
            "taints": self.node_taints,
            "maxPods": self.max_pods,
            "kubelet": {"podPidsLimit": self.pod_pids},
            "updatePolicy": POLICY,
        }
        return {"versions": dict(self.versions), "nodeConfig": settings}

    @property
    def node_taints(self) -> list[dict[str, str]]:
        """Returns the taints as a Node contains them."""
        return [{"key": key, "value": value, "effect": "PreferNoSchedule"} for key, value in self.taints.items()]
