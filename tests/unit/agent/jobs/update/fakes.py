"""A cluster with one node, which reports the versions of the programs that the node's links point to."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cluster.client import STRATEGIC_MERGE_PATCH, ApiStatusError
from aks_flex_node.agent.cluster.readiness import ReadinessEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_node.host.host import Host

NODE = "/api/v1/nodes/edge-1"
LINKS = {"kubelet": "/usr/local/bin/kubelet", "containerd": "/usr/local/bin/containerd"}


def version_on(host: Host, program: str) -> str:
    """Returns the version that a link points to: /opt/aks-flex-node/kubernetes/1.34.4/bin/kubelet."""
    entry = host.stat(LINKS[program])
    parts = entry.target.split("/") if entry else []
    return parts[-3] if len(parts) > 3 else ""


class Cluster:
    def __init__(self, host: Host, server: str = "v1.34.4") -> None:
        self.host = host
        self.server = server
        self.node: dict[str, Any] = {"metadata": {"name": "edge-1", "labels": {}, "annotations": {}}, "spec": {}}
        self.pods: list[dict[str, Any]] = []
        self.budget = ""  # error of a disruption budget for every eviction, if any
        self.away: Exception | None = None  # raised for every request
        self.broken: frozenset[str] = frozenset()  # kubelet versions that do not work
        self.unhealthy: Callable[[], bool] = lambda: version_on(self.host, "kubelet") in self.broken
        self.probed: Callable[[], None] = lambda: None  # called when the kubelet's health is checked
        self.patched: Callable[[], None] = lambda: None  # called after a change of the Node
        self.seconds = 0.0
        self.asked: list[tuple[str, str]] = []
        self.missing = False  # the Node was deleted, and the kubelet has not registered it again
        self.conditions: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    @property
    def environment(self) -> ReadinessEnvironment:
        return ReadinessEnvironment(self._probe, lambda: self.seconds, self.sleep, None, lambda: 0.0)

    def _probe(self) -> bool:
        self.probed()
        return self._healthy()

    def _healthy(self) -> bool:
        return not self.unhealthy()

    def sleep(self, seconds: float) -> None:
        self.seconds += max(1.0, seconds)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(  # noqa: PLR0911 - one for each kind of request
        self, method: str, path: str, body: Any = None, content_type: str = ""
    ) -> Any:
        assert method != "PATCH" or content_type == STRATEGIC_MERGE_PATCH
        self.asked.append((method, path))
        if self.away:
            raise self.away
        match method, path.partition("?")[0]:
            case "GET", "/version":
                return {"gitVersion": self.server}
            case "GET", "/api/v1/pods":
                return {"items": copy.deepcopy(self.pods)}
            case "GET", found if found == NODE and not self.missing:
                return self.shown()
            case "PATCH", found if found == f"{NODE}/status":
                self.conditions = list(body["status"]["conditions"])
                return {}
            case "POST", "/api/v1/namespaces/default/events":
                self.events.append(body)
                return {}
            case "PATCH", found if found == NODE:
                return self.patch(body)
            case "POST", found if found.endswith("/eviction"):
                return self._evict(body["metadata"]["name"])
        raise ApiStatusError(404, "NotFound", "there is no such thing")

    def shown(self) -> dict[str, Any]:
        ready = {
            "type": "Ready",
            "status": "True" if self._healthy() else "False",
            "message": "words of the kubelet",
            "lastHeartbeatTime": "9999-01-01T00:00:00Z",
        }
        info = {
            "kubeletVersion": f"v{version_on(self.host, 'kubelet')}",
            "containerRuntimeVersion": f"containerd://{version_on(self.host, 'containerd')}",
        }
        return {**copy.deepcopy(self.node), "status": {"conditions": [ready, *self.conditions], "nodeInfo": info}}

    def patch(self, body: dict[str, Any]) -> dict[str, Any]:
        for part in ("labels", "annotations"):
            _merge(self.node["metadata"].setdefault(part, {}), body.get("metadata", {}).get(part, {}))
        _merge(self.node["spec"], body.get("spec", {}))
        self.patched()
        return {}

    def _evict(self, name: str) -> dict[str, Any]:
        if self.budget:
            raise ApiStatusError(429, "TooManyRequests", self.budget)
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]
        return {}

    @property
    def cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))


def _merge(place: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value


def pod(name: str = "web", owner: str = "ReplicaSet", *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "ownerReferences": [{"kind": owner}],
        },
        "spec": {"restartPolicy": "Always"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def names(pods: Iterable[dict[str, Any]]) -> list[str]:
    return [str(one["metadata"]["name"]) for one in pods]
