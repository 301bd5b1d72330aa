"""Finds the cause of a node failure in the journals of containerd and the kubelet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError, FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.resolved import KubeletAuth
    from aks_flex_node.host.host import Host, UnitState

NEW_TOKEN_HINT = (
    "With a resource provider, run `aks-flex-rp node join-command --name NAME` where it runs, and run the printed "  # noqa: S105
    "command on this machine. Without one, put a new token into the configuration and run the same command again."
)
# klog starts a line with severity and date; logrus writes level=.
ERROR_LINE = re.compile(r'^[EF]\d{4} |level=(?:error|fatal)|"level":"(?:error|fatal)"|^panic:|^Error:|^containerd: ')
SYSTEMD_LINE = re.compile(r"^(?:\S+\.service: |Start(?:ed|ing) |Stopp(?:ed|ing) |Failed to start )")
OBJECT_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # the user name of an Azure identity in the cluster
# Lines about pods are ignored: for example, a registry that rejects a pull is not a failure of the node.
POD_LINE = re.compile(r"\bpods?=|\bpodUID=|[Ii]mage")
NO_CRI = re.compile(r"unknown service runtime\.v1|CRI v1 runtime API is not implemented")
KLOG_PREFIX = re.compile(r"^[A-Z]\d{4} [\d:.]+\s+\d+ \S+\] ?")


def read_journal(host: Host, unit: UnitState, since: float = 0.0, lines: int = 400) -> list[str]:
    """Returns the last log lines of a unit since a time, without the journal's columns."""
    arguments = ("--unit", unit.name, "--lines", str(lines), "--output", "cat", "--no-pager")
    answer = host.query("journalctl", *arguments, *((f"--since=@{since:.0f}",) if since else ()))
    return [line for line in answer.out.splitlines() if line.strip()]


def find_fatal_cause(
    unit: str, state: UnitState, lines: Sequence[str], *, shows: KubeletAuth | None
) -> FlexError | None:
    """Returns the failure found in a unit's log that waiting does not resolve, or None.

    `shows` is the authentication with which the kubelet joins; None when it already has its credential.
    """
    text = "\n".join(line for line in lines if not POD_LINE.search(line))
    if unit == "kubelet.service" and (found := _refused_by_cluster(text, shows)):
        return found
    if state.active == "failed" or state.restarts >= 3 or (state.restarts and state.active != "active"):
        return service_failed_error(unit, lines)
    return None


def _refused_by_cluster(text: str, shows: KubeletAuth | None) -> FlexError | None:
    if "certificate signed by unknown authority" in text or "certificate verify failed" in text:
        return ClusterError(
            "api-server-untrusted",
            "The certificate of the API server is not signed by the configured cluster CA.",
            "Compare `node.kubelet.caCertData` with `certificate-authority-data` of a working kubeconfig.",
        )
    if shows == "bootstrapToken":
        return _refused_token(text)
    role = "system:node" if shows == "exec" else "system:node-bootstrapper"
    return _refused_identity(text, role) if shows else None


def _refused_token(text: str) -> FlexError | None:
    if re.search(r"(?:cannot create certificate signing request|failed to run Kubelet): Unauthorized", text):
        return ClusterError(
            "bootstrap-token-rejected",
            "The API server rejects the bootstrap token: it expired, was already used, or is for another cluster.",
            NEW_TOKEN_HINT,
        )
    if re.search(r"cannot create certificate signing request.*forbidden", text):
        return ClusterError(
            "bootstrap-token-forbidden",
            "The bootstrap token is not allowed to request a node certificate.",
            "Bind its group to the cluster role `system:node-bootstrapper`, or create the token with `aks-flex-rp`.",
        )
    return None


def _refused_identity(text: str, role: str) -> FlexError | None:
    # Only for an object ID: a role must not be bound to the user of a kubelet without a certificate.
    if found := re.search(rf'User \\?"({OBJECT_ID})\\?" cannot (create|get|list|patch|update) resource', text):
        return ClusterError(
            "azure-identity-forbidden",
            f"This node's Azure identity (object ID {found[1]}) has no permissions in the cluster.",
            f"Let `aks-flex-rp` bind it, or run `kubectl create clusterrolebinding flex-{found[1][:8]} "
            f"--clusterrole={role} --user={found[1]}`.",
        )
    if re.search(r"getting credentials: exec:", text):
        errors = [line for line in text.splitlines() if re.match(r"[a-z]+(-[a-z0-9]+)+: ", line)]
        return ClusterError(
            "azure-token-unavailable",
            "The kubelet cannot get a token of this node's Azure identity: "
            f"{errors[-1] if errors else 'token.sh printed no error'}",
            "Run `aks-flex-node token kubernetes` to see the error.",
            retryable=True,
        )
    if re.search(r"\bUnauthorized\b", text):
        return ClusterError(
            "azure-identity-rejected",
            "The API server rejects the token of this node's Azure identity.",
            "Check that the cluster uses Entra ID (`az aks show --query aadProfile`) and that `azure.tenantId` is "
            "its tenant.",
        )
    return None


def service_failed_error(unit: str, lines: Sequence[str]) -> FlexError:
    name = unit.removesuffix(".service")
    if name == "kubelet" and any(NO_CRI.search(line) for line in lines):
        return MachineError(
            "container-runtime-without-cri",
            "containerd runs, but its CRI plugin was not loaded, so the kubelet cannot start.",
            "Check `df /var/lib/containerd` and `journalctl -u containerd -n 50`. Free space if the disk is full, "
            "then run the same command again. It restarts containerd.",
            retryable=True,
        )
    return MachineError(
        "service-failed",
        f"{name} keeps failing: {most_relevant_line(lines)}",
        f"Check `journalctl -u {name} -n 50`, then run the same command again.",
    )


def most_relevant_line(lines: Sequence[str]) -> str:
    """Returns the log line that best explains a failure: the last error, else the program's last line."""
    bad = [line for line in lines if ERROR_LINE.search(line)]
    own = [line for line in lines if not SYSTEMD_LINE.match(line)]
    line = (bad or own or ["no log output"])[-1]
    if found := re.search(r'\berr(?:or)?="((?:[^"\\]|\\.)*)"', line):
        return found[1].replace('\\"', '"')
    if found := re.search(r'msg="((?:[^"\\]|\\.)*)"', line):
        return found[1].replace('\\"', '"')
    return KLOG_PREFIX.sub("", line)[:400]


def timeout_cause(unit: str, lines: Sequence[str], otherwise: str, node: ClusterNode | None) -> FlexError:
    """Returns the error for a timeout without a known cause."""
    if node is not None and not node.ready:
        return ClusterError(
            "node-not-ready",
            f"Node {node.name} is not Ready: {node.message or node.reason or 'the kubelet has not reported yet'}",
            _ready_hint(node),
            retryable=True,
        )
    if "certificate" in otherwise:
        return ClusterError(
            "certificate-not-issued",
            f"The kubelet requested a certificate, but {otherwise}.",
            "Approve the request (`kubectl get csr`, `kubectl certificate approve NAME`), then run the same command "
            "again.",
            retryable=True,
        )
    return ClusterError(
        "node-not-registered",
        f"{otherwise[0].upper()}{otherwise[1:]}. Last log line of {unit}: {most_relevant_line(lines)}",
        f"Check `journalctl -u {unit.removesuffix('.service')} -n 50`, then run the same command again.",
        retryable=True,
    )


def _ready_hint(node: ClusterNode) -> str:
    if "cni" in node.message.lower() and not node.pod_cidr:
        return (
            "The cluster did not assign a pod CIDR, so the node waits for the cluster's network plugin."
            " Check `kubectl get pods -n kube-system -o wide`."
        )
    return f"Check `kubectl describe node {node.name}` and `journalctl -u kubelet -n 50`."
