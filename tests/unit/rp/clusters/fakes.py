"""A small API server in memory, with resource versions, optimistic locking and predefined responses."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import httpx2

from aks_flex_rp.clusters.bootstrap_tokens import RECORDS
from aks_flex_rp.clusters.client import FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import DirectConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.clusters.client import ConnectionSource

DIRECT = DirectConnection("https://api.example.com", "a certificate", token="canary-token")
KINDS = (
    "nodes",
    "secrets",
    "configmaps",
    "certificatesigningrequests",
    "clusterrolebindings",
)  # kinds whose lists may be empty
BORN = "2026-01-01T00:00:00Z"


class FakeApi:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.answers: dict[str, Callable[[httpx2.Request], httpx2.Response]] = {}  # by "GET /path", with priority
        self._version = 100

    def client(self, source: ConnectionSource | None = None) -> KubeClient:
        def opened(direct: DirectConnection) -> httpx2.AsyncClient:
            headers = {"Authorization": f"Bearer {direct.token}"}
            transport = httpx2.MockTransport(self.handle)
            return httpx2.AsyncClient(transport=transport, base_url=direct.server, headers=headers)

        return KubeClient(source or FixedConnection(DIRECT), opened)

    def put(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """Creates or replaces an object."""
        self._version += 1
        name = path.rpartition("/")[2]
        given = {"name": name, "uid": f"uid-{name}", "creationTimestamp": BORN}
        metadata = {**given, **document.get("metadata", {}), "resourceVersion": str(self._version)}
        self.objects[path] = {**document, "metadata": metadata}
        return deepcopy(self.objects[path])

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        call = f"{request.method} {path}"
        self.calls.append(call)
        if special := self.answers.get(call):
            return special(request)
        body = json.loads(request.content or b"{}")
        if request.method == "POST":
            if path == RECORDS and RECORDS.rpartition("/")[0] not in self.objects:
                return refusal(404, "NotFound")  # without its namespace, as before the manifest is applied
            name = body["metadata"].get("name") or f"made-{self._version}"
            return httpx2.Response(201, json=self.put(f"{path}/{name}", body))
        kept = path.removesuffix("/approval").removesuffix("/status")
        if request.method == "GET" and kept not in self.objects:
            return self._listed(path, request.url.params.get("labelSelector", ""))
        if request.method == "PATCH" and "apply" in request.headers["content-type"] and kept not in self.objects:
            return httpx2.Response(201, json=self.put(kept, body))
        return self._changed(request.method, kept, body)

    def _listed(self, path: str, selector: str = "") -> httpx2.Response:
        items = [one for at, one in self.objects.items() if at.rpartition("/")[0] == path and chosen(one, selector)]
        if not items and not path.endswith(KINDS):
            return refusal(404, "NotFound")
        return httpx2.Response(200, json={"items": items, "metadata": {"resourceVersion": str(self._version)}})

    def _changed(self, method: str, path: str, body: dict[str, Any]) -> httpx2.Response:
        there = self.objects.get(path)
        if there is None:
            return refusal(404, "NotFound")
        if method == "GET":
            return httpx2.Response(200, json=there)
        if method == "DELETE":
            if not body["preconditions"].items() <= there["metadata"].items():
                return refusal(409, "Conflict")
            return httpx2.Response(200, json=self.objects.pop(path))
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != there["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        return httpx2.Response(200, json=self.put(path, merged(there, body)))


def chosen(one: dict[str, Any], selector: str) -> bool:
    """Returns whether an object matches the selector `label` or `label=value`."""
    label, equals, value = selector.partition("=")
    labels = one["metadata"].get("labels", {})
    return not label or (label in labels and (not equals or labels[label] == value))


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    result = dict(one)
    for name, value in other.items():
        nested = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if nested else value
    return result


def refusal(status: int, reason: str, message: str = "no") -> httpx2.Response:
    return httpx2.Response(status, json={"kind": "Status", "code": status, "reason": reason, "message": message})
