"""Gates and their runs for tests, and a small cluster in memory that runs Jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2

from aks_flex_rp.rollouts.gate_run import GateRun
from aks_flex_rp.rollouts.gate_specs import GateSpec
from aks_flex_rp.rollouts.job_gate import GRANT, RBAC
from tests.unit.rp.clusters.fakes import FakeApi, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTER = "/subscriptions/1/resourcegroups/edge/providers/microsoft.containerservice/managedclusters/plant"
CONTAINER = {"name": "check", "image": "registry.example/check:1", "command": ["check"]}
JOBS, PODS = "/apis/batch/v1/namespaces/gates/jobs", "/api/v1/namespaces/gates/pods"
NOW = 1_800_000_000.0


def job_gate(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [CONTAINER], **spec}}
    return {"name": "smoke", "job": {"namespace": "gates", "template": template}}


def webhook_gate(receiver: str = "release", **more: Any) -> dict[str, Any]:
    return {"name": "ask", "webhook": {"receiver": receiver}, **more}


def prometheus_gate(more: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
    spec = {"server": "main", "query": "up", "comparison": "==", "threshold": 1, **query}
    return {"name": "errors", "prometheus": spec, **(more or {})}


def run_of(gate: dict[str, Any], *nodes: str, started: float = NOW, wave: int = 2) -> GateRun:
    spec = GateSpec.model_validate(gate)
    return GateRun(CLUSTER, "edge", "june", wave, 7, nodes or ("edge-1",), spec, started)


def condition(kind: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "message": message}]}


SUCCEEDED, RUNNING = condition("Complete"), {"active": 1}


class JobCluster(FakeApi):
    """An API server whose Jobs have the status that `outcome` returns for their node."""

    def __init__(self, *nodes: str, outcome: Callable[[str], dict[str, Any]] = lambda _: SUCCEEDED) -> None:
        super().__init__()
        self.outcome = outcome
        self.created: list[str] = []  # nodes, in order
        self.most_active = 0
        self.put(f"{RBAC}/namespaces/gates/rolebindings/{GRANT}", {})
        for node in nodes or ("edge-1",):
            self.put(f"/api/v1/nodes/{node}", {})

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == JOBS and request.method == "POST" and f"POST {JOBS}" not in self.answers:
            return self._create(request)
        if path.startswith(f"{JOBS}/") and request.method == "GET" and path in self.objects:
            job = self.objects[path]
            job["status"] = self.outcome(_node_of(job))
        if path == PODS:
            items = [each for at, each in self.objects.items() if at.startswith(f"{PODS}/")]
            return httpx2.Response(200, json={"items": items, "metadata": {"resourceVersion": "1"}})
        return super().handle(request)

    def _create(self, request: httpx2.Request) -> httpx2.Response:
        answer = FakeApi.handle(self, request) if not self._exists(request) else refusal(409, "AlreadyExists")
        if answer.status_code == 201:
            self.created.append(_node_of(answer.json()))
            active = [each for at, each in self.objects.items() if at.startswith(f"{JOBS}/") and not _ended(each)]
            self.most_active = max(self.most_active, len(active))
        return answer

    def _exists(self, request: httpx2.Request) -> bool:
        name = httpx2.Response(200, content=request.content).json()["metadata"]["name"]
        return f"{JOBS}/{name}" in self.objects


def _ended(job: dict[str, Any]) -> bool:
    return bool(job.get("status", {}).get("conditions"))


def _node_of(job: dict[str, Any]) -> str:
    return str(job["metadata"]["annotations"]["flex.aks.azure.com/node"])
