"""Reads the journals of containerd and the kubelet and finds the cause of a failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError, FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.resolved import KubeletAuth
    from aks_flex_node.host.host import Host, UnitState

TOKEN_HINT = "Get a new token, put it into the configuration, and run the same command again."  # noqa: S105
# klog begins a line with its severity and the date; logrus writes level=.
ERROR_LINE = re.compile(r'^[EF]\d{4} |level=(?:error|fatal)|"level":"(?:error|fatal)"|^panic:|^Error:|^containerd: ')
SYSTEMD_LINE = re.compile(r"^(?:\S+\.service: |Start(?:ed|ing) |Stopp(?:ed|ing) |Failed to start )")
OBJECT_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # by which a cluster knows an Azure identity
# What a kubelet says of its pods: a registry that refuses one, or that nobody trusts, is no fault of the node's.
POD_LINE = re.compile(r"\bpods?=|\bpodUID=|[Ii]mage")
KLOG_PREFIX = re.compile(r"^[A-Z]\d{4} [\d:.]+\s+\d+ \S+\] ?")


def read_journal(host: Host, unit: UnitState, since: float = 0.0, lines: int = 400) -> list[str]:
    """The last words of a unit since a moment, without the journal's own columns."""
    arguments = ("--unit", unit.name, "--lines", str(lines), "--output", "cat", "--no-pager")
    answer = host.query("journalctl", *arguments, *((f"--since=@{since:.0f}",) if since else ()))
    return [line for line in answer.out.splitlines() if line.strip()]


def find_fatal_cause(
    unit: str, state: UnitState, lines: Sequence[str], *, shows: KubeletAuth | None
) -> FlexError | None:
    """The cause that a unit's own words name and that waiting does not cure; None when there is none.

    `shows` is what a kubelet shows the cluster; nothing, when it has what it needs.
    """
    text = "\n".join(line for line in lines if not POD_LINE.search(line))
    if unit == "kubelet.service" and (found := _refused_by_cluster(text, shows)):
        return found
    if state.active == "failed" or state.restarts >= 3 or (state.restarts and state.active != "active"):
        return _failed(unit, lines)
    return None


def _refused_by_cluster(text: str, shows: KubeletAuth | None) -> FlexError | None:
    if "certificate signed by unknown authority" in text or "certificate verify failed" in text:
        return ClusterError(
            "api-server-untrusted",
            "The API server does not show a certificate that the cluster's CA has signed.",
            "Compare node.kubelet.caCertData with the certificate-authority-data of a kubeconfig that works.",
        )
    if shows == "bootstrapToken":
        return _refused_token(text)
    role = "system:node" if shows == "exec" else "system:node-bootstrapper"
    return _refused_identity(text, role) if shows else None


def _refused_token(text: str) -> FlexError | None:
    if re.search(r"(?:cannot create certificate signing request|failed to run Kubelet): Unauthorized", text):
        return ClusterError(
            "bootstrap-token-rejected",
            "The API server does not accept the bootstrap token: it expired, was used up, or is another cluster's.",
            TOKEN_HINT,
        )
    if re.search(r"cannot create certificate signing request.*forbidden", text):
        return ClusterError(
            "bootstrap-token-forbidden",
            "The bootstrap token may not ask this cluster for a node's certificate.",
            "Bind its group to the role system:node-bootstrapper, or let `aks-flex-rp` make the token.",
        )
    return None


def _refused_identity(text: str, role: str) -> FlexError | None:
    # Only of an object id: who has no certificate yet is somebody that nobody should bind anything to.
    if found := re.search(rf'User \\?"({OBJECT_ID})\\?" cannot (create|get|list|patch|update) resource', text):
        return ClusterError(
            "azure-identity-forbidden",
            f"The cluster knows this node's Azure identity (object id {found[1]}), but lets it do nothing.",
            f"Let `aks-flex-rp` bind it, or do it by hand: `kubectl create clusterrolebinding flex-{found[1][:8]} "
            f"--clusterrole={role} --user={found[1]}`.",
        )
    if re.search(r"getting credentials: exec:", text):
        errors = [line for line in text.splitlines() if re.match(r"[a-z]+(-[a-z0-9]+)+: ", line)]
        return ClusterError(
            "azure-token-unavailable",
            f"The kubelet gets no token of this node's Azure identity: {errors[-1] if errors else 'nobody said why'}",
            "Try `aks-flex-node token kubernetes`; it says what is wrong.",
            retryable=True,
        )
    if re.search(r"\bUnauthorized\b", text):
        return ClusterError(
            "azure-identity-rejected",
            "The API server does not accept a token of this node's Azure identity.",
            "Does the cluster accept Entra ID (`az aks show --query aadProfile`), and is azure.tenantId its tenant?",
        )
    return None


def _failed(unit: str, lines: Sequence[str]) -> FlexError:
    name = unit.removesuffix(".service")
    return MachineError(
        "service-failed",
        f"{name} does not stay up: {most_telling_line(lines)}",
        f"Look at `journalctl -u {name} -n 50`; then run the same command again.",
    )


def most_telling_line(lines: Sequence[str]) -> str:
    """The one line that says most about why a program ended."""
    bad = [line for line in lines if ERROR_LINE.search(line)]
    own = [line for line in lines if not SYSTEMD_LINE.match(line)]
    line = (bad or own or ["it said nothing"])[-1]
    if found := re.search(r'\berr(?:or)?="((?:[^"\\]|\\.)*)"', line):
        return found[1].replace('\\"', '"')
    if found := re.search(r'msg="((?:[^"\\]|\\.)*)"', line):
        return found[1].replace('\\"', '"')
    return KLOG_PREFIX.sub("", line)[:400]


def timeout_cause(unit: str, lines: Sequence[str], otherwise: str, node: ClusterNode | None) -> FlexError:
    """What to say when time is up and nothing plain is wrong."""
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
            f"The kubelet asked for its certificate, but {otherwise}.",
            "Approve it (`kubectl get csr`, `kubectl certificate approve NAME`), then run the same command again.",
            retryable=True,
        )
    return ClusterError(
        "node-not-registered",
        f"{otherwise[0].upper()}{otherwise[1:]}. The last words of {unit}: {most_telling_line(lines)}",
        f"Look at `journalctl -u {unit.removesuffix('.service')} -n 50`; then run the same command again.",
        retryable=True,
    )


def _ready_hint(node: ClusterNode) -> str:
    if "cni" in node.message.lower() and not node.pod_cidr:
        return (
            "The cluster gave this node no pod addresses (podCIDR), so it waits for the cluster's own network plugin."
            " Look at `kubectl get pods -n kube-system -o wide`."
        )
    return f"Look at `kubectl describe node {node.name}` and `journalctl -u kubelet -n 50`."
