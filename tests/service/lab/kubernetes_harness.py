"""A small Kubernetes API server on loopback: Nodes, pods, Secrets and role bindings, as the lab's AKS uses them."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.service.http_servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority

KubeDocument = dict[str, Any]
TOKEN = "of-the-administrator"


@dataclass
class FakeKubernetes:
    """The objects of the cluster, and what happened to its Nodes."""

    nodes: dict[str, KubeDocument] = field(default_factory=dict)
    pods: dict[str, KubeDocument] = field(default_factory=dict)  # by namespace/name
    secrets: list[KubeDocument] = field(default_factory=list)
    bindings: dict[str, KubeDocument] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)  # pods whose eviction a disruption budget refuses
    events: list[tuple[str, str]] = field(default_factory=list)  # (what, name) in order
    on_deleted: Callable[[str], None] = lambda _: None  # called with the name of a deleted Node
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add_node(self, name: str, version: str, *, is_ready: bool = True) -> KubeDocument:
        """Registers a Node as its kubelet does, with a new UID."""
        node = {
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "resourceVersion": "1", "labels": {}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
                "nodeInfo": {"kubeletVersion": f"v{version}"},
            },
        }
        with self.lock:
            self.nodes[name] = node
            self.events.append(("registered", name))
        return node

    def add_pod(self, name: str, node: str, owner: str = "ReplicaSet") -> None:
        owners = [{"kind": owner, "name": "x", "controller": True}]
        metadata = {"name": name, "namespace": "default", "uid": str(uuid.uuid4()), "ownerReferences": owners}
        with self.lock:
            self.pods[f"default/{name}"] = {"metadata": metadata, "spec": {"nodeName": node}, "status": {}}

    def answer(  # noqa: PLR0911 - a table of requests
        self, method: str, path: str, query: dict[str, list[str]], body: KubeDocument
    ) -> tuple[int, Any]:
        with self.lock:
            if path.startswith("/api/v1/nodes/"):
                return self._node(method, path.rpartition("/")[2], body)
            if path == "/api/v1/nodes":
                return 200, _listed(self.nodes.values())
            if path == "/api/v1/pods":
                node = query["fieldSelector"][0].partition("=")[2]
                return 200, _listed(each for each in self.pods.values() if each["spec"]["nodeName"] == node)
            if path.endswith("/eviction"):
                return self._evict(path.split("/"))
            if path == "/api/v1/namespaces/kube-system/secrets" and method == "POST":
                self.secrets.append(body)
                return 201, body
            if "/clusterrolebindings/" in path and method == "PATCH":
                self.bindings[path.rpartition("/")[2]] = body
                return 200, body
            return 404, _status(404, f"{method} {path} is not part of this server")

    def _node(self, method: str, name: str, body: KubeDocument) -> tuple[int, Any]:
        node = self.nodes.get(name)
        if node is None:
            return 404, _status(404, f'nodes "{name}" not found')
        if method == "PATCH":
            version = (body.get("metadata") or {}).get("resourceVersion")
            if version and version != node["metadata"]["resourceVersion"]:
                return 409, _status(409, "the object has been modified")
            if "unschedulable" in (body.get("spec") or {}):
                self.events.append(("cordoned" if body["spec"]["unschedulable"] else "uncordoned", name))
            _merge(node, body)
            node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        if method == "DELETE":
            if body["preconditions"].get("uid", node["metadata"]["uid"]) != node["metadata"]["uid"]:
                return 409, _status(409, "the UID does not match")
            del self.nodes[name]
            self.events.append(("deleted", name))
            threading.Thread(target=self.on_deleted, args=(name,)).start()
        return 200, node

    def _evict(self, path: list[str]) -> tuple[int, Any]:
        name = f"{path[4]}/{path[6]}"
        if name in self.protected:
            return 429, _status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        if self.pods.pop(name, None) is None:
            return 404, _status(404, f'pods "{name}" not found')
        self.events.append(("evicted", path[6]))
        return 201, _status(201, "")


@contextmanager
def running_kubernetes(authority: CertificateAuthority, folder: Path) -> Iterator[tuple[FakeKubernetes, Path]]:
    """Yields the cluster and the kubeconfig of its administrator."""
    cluster = FakeKubernetes()

    class Api(Handler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            found = urlsplit(self.path)
            status, document = 401, _status(401, "Unauthorized")
            if self.headers.get("authorization") == f"Bearer {TOKEN}":
                body = json.loads(data) if data else {}
                status, document = cluster.answer(self.command, found.path, parse_qs(found.query), body)
                text = json.dumps(document).encode()
            else:
                text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _respond  # noqa: N815 - http.server's names

    with listening(Api, authority.issue("kubernetes", "kubernetes", names=("localhost",))) as url:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(url, str(authority.certificate))))
        yield cluster, kubeconfig


def _kubeconfig(url: str, ca: str) -> KubeDocument:
    return {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": url, "certificate-authority": ca}}],
        "users": [{"name": "x", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }


def _merge(into: KubeDocument, change: KubeDocument) -> None:
    """Applies a JSON merge patch."""
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _listed(items: Any) -> KubeDocument:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def _status(code: int, message: str) -> KubeDocument:
    return {"kind": "Status", "code": code, "reason": "", "message": message}
