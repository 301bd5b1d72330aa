"""Checks the health of this node on the machine (services, certificate, kubeconfig) and in the cluster. Read-only."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent import certificates
from aks_flex_node.agent.cluster import diagnosis, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.config.resolved import kubelet_auth, kubelet_credential_file
from aks_flex_node.errors import ClusterError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.host.host import Host, UnitState
    from aks_flex_node.settings.models import NodeConfig

KUBELET_UNIT = "kubelet.service"
NODE_SERVICES = ("containerd.service", KUBELET_UNIT)
EXPIRING_FRACTION = 0.08  # of a certificate's lifetime: the kubelet renews it while at least a tenth is left


def has_server(kubeconfig: bytes) -> bool:
    """Returns whether a kubeconfig, in YAML or JSON, names a server. An empty or truncated one does not."""
    return re.search(rb'\bserver"?:', kubeconfig) is not None


def has_kubelet_credential(host: Host, config: NodeConfig) -> bool:
    """Returns whether the machine has the kubelet's credential for the cluster, and it is not damaged."""
    path = kubelet_credential_file(config)
    if kubelet_auth(config) == "exec":  # the credential is a kubeconfig
        return host.stat(path) is not None
    return not certificates.find_damage(host, path)


@frozen
class NodeHealth:
    node: ClusterNode | None = None
    node_missing: bool = False  # the cluster responded that the Node does not exist
    api_error: str = ""  # why the cluster could not be queried
    credentials_rejected: bool = False  # the cluster responded 401
    has_certificate: bool = True
    certificate_seconds: float = 0.0  # until expiry; negative after it
    certificate_lifetime: float = 1.0  # total validity in seconds
    uses_tokens: bool = False  # authenticates with tokens of its Azure identity instead of a certificate
    has_kubeconfig: bool = True
    failed_services: tuple[tuple[str, str], ...] = ()  # failed services and their last log lines

    @property
    def expired(self) -> bool:
        return self.has_certificate and self.certificate_seconds <= 0

    @property
    def expiring(self) -> bool:
        """Whether the certificate should have been renewed already."""
        return self.certificate_seconds < EXPIRING_FRACTION * self.certificate_lifetime

    @property
    def lost_reason(self) -> str:
        """Which credential or object the node has lost and cannot regain by waiting; empty when nothing is lost."""
        if not self.has_certificate:
            return "its certificate is missing or damaged"
        if self.expired:
            return "its certificate has expired"
        if not self.has_kubeconfig:
            return "the kubelet's kubeconfig is missing or damaged"
        if self.credentials_rejected:
            return f"the cluster no longer accepts its {'Azure identity' if self.uses_tokens else 'certificate'}"
        return "its Node was deleted from the cluster" if self.node_missing else ""

    @property
    def recovery_reason(self) -> str:
        """What the node has lost, or will lose because its certificate was not renewed; empty otherwise."""
        expiring = self.has_certificate and self.expiring
        return self.lost_reason or ("its certificate expires soon and was not renewed" if expiring else "")


def check_node_health(
    host: Host,
    config: NodeConfig,
    name: str,
    api: ApiClient,
    now: Callable[[], float] = time.time,
    unit: Callable[[str], UnitState] | None = None,
) -> NodeHealth:
    """Checks the health of this node. `unit` returns the state of a systemd unit, if not the host does."""
    by_token = kubelet_auth(config) == "exec"
    seconds, life = (
        (math.inf, math.inf) if by_token else _certificate_lifetime(host, kubelet_credential_file(config), now())
    )
    node, missing, unknown, refused = _find_node(api, name) if seconds > 0 else (None, False, "", False)
    return NodeHealth(
        node,
        missing,
        unknown,
        refused,
        has_certificate=life > 0,
        certificate_seconds=seconds,
        certificate_lifetime=life,
        uses_tokens=by_token,
        has_kubeconfig=has_server(host.read(f"{config.paths.kubernetes.kubelet_dir}/kubeconfig") or b""),
        failed_services=tuple(_failed_services(host, unit or host.unit)),
    )


def _certificate_lifetime(host: Host, path: str, now: float) -> tuple[float, float]:
    """Returns the seconds until a certificate expires and its total lifetime; zeros when there is none, or when it or
    its key cannot be read.
    """
    validity = None if certificates.find_damage(host, path) else certificates.validity(host.read(path) or b"")
    if validity is None:
        return 0.0, 0.0
    start, end = (moment.timestamp() for moment in validity)
    return end - now, end - start


def _find_node(api: ApiClient, name: str) -> tuple[ClusterNode | None, bool, str, bool]:
    try:
        node = nodes.find(api, name)
        return node, node is None and nodes.is_missing(api, name), "", False
    except ClusterError as error:
        return None, False, error.message, False
    except ApiStatusError as refusal:
        return None, False, refusal.message, refusal.status == 401


def _failed_services(host: Host, unit: Callable[[str], UnitState]) -> list[tuple[str, str]]:
    units = [unit(name) for name in NODE_SERVICES]
    now = time.monotonic()
    down = [each for each in units if not each.running or (each.restarts >= 3 and not each.is_stable(now))]
    return [(each.name, diagnosis.most_relevant_line(diagnosis.read_journal(host, each, lines=60))) for each in down]
