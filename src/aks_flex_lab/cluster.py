"""The lab's cluster through kubectl: RBAC for bootstrap tokens, tokens, and node readiness."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import ComponentError
from aks_flex_lab.processes import run
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.processes import CommandResult

BOOTSTRAP_GROUP = "system:bootstrappers:flex-lab"
TOKEN_SECONDS = 24 * 3600
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def _binding(name: str, role: str, group: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"flex-lab:{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    }


CSR_API = "system:certificates.k8s.io:certificatesigningrequests"
# The same roles as kubeadm: a token can request a node certificate, which is approved, and a node can renew its own.
BINDINGS = (
    _binding("ask-for-certificate", "system:node-bootstrapper", BOOTSTRAP_GROUP),
    _binding("grant-certificate", f"{CSR_API}:nodeclient", BOOTSTRAP_GROUP),
    _binding("renew-certificate", f"{CSR_API}:selfnodeclient", "system:nodes"),
)


def new_bootstrap_token(seconds: int, description: str = "bootstrap token of the lab") -> tuple[str, dict[str, Any]]:
    """Returns a new token and its Secret."""
    token_id, token_secret = ("".join(secrets.choice(ALPHABET) for _ in range(length)) for length in (6, 16))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": "kube-system"},
        "stringData": {
            "description": description,
            "token-id": token_id,
            "token-secret": token_secret,
            "expiration": format_utc(time.time() + seconds),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": BOOTSTRAP_GROUP,
        },
    }
    return f"{token_id}.{token_secret}", secret


@dataclass(frozen=True)
class LabCluster:
    kubectl: Path
    kubeconfig: Path

    def run(
        self,
        *arguments: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float = 60,
    ) -> CommandResult:
        return run(
            self.kubectl, f"--kubeconfig={self.kubeconfig}", *arguments, check=check, input=input, timeout=timeout
        )

    def get(self, *arguments: str) -> Any:
        """Returns the parsed JSON output of `kubectl get`, or None when the object does not exist."""
        done = self.run("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(done.out) if done.out.strip() else None

    def apply(self, *objects: dict[str, Any]) -> None:
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--server-side", "-f", "-", input=json.dumps(bundle))

    def prepare(self, seconds: float = 30) -> None:
        """Grants the bootstrap roles and waits for the default service account, which pods need."""
        self.apply(*BINDINGS)
        end = time.monotonic() + seconds
        while not self.get("serviceaccount", "default"):
            if time.monotonic() > end:
                raise ComponentError(
                    "cluster-not-ready",
                    f"The controller manager did not create the default service account within {seconds:.0f} s.",
                    "Run `aks-flex-lab logs kube-controller-manager`.",
                )
            time.sleep(0.1)

    def bootstrap_token(self, seconds: int = TOKEN_SECONDS) -> str:
        """Creates a bootstrap token, with which a kubelet can join, and returns it."""
        token, secret = new_bootstrap_token(seconds)
        self.apply(secret)
        return token

    def node_ready(self, name: str) -> bool:
        node = self.get("node", name)
        conditions = node["status"].get("conditions", []) if node else []
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
