"""What Azure knows of the cluster and a configuration leaves out: the API server, its CA, its version, its DNS.

It is asked before anything is changed, until the machine has become a node; and kept without any credential in it.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.agent import CLUSTER
from aks_flex_node.agent.config.derived import ca_certificate, cluster
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.azure.arm import ArmReader
    from aks_flex_node.host.host import Host

API_VERSION = "2025-05-01"
KNOWN = ("node.kubelet.serverURL", "node.kubelet.caCertData", "kubernetes.version")  # what a join needs of it


@dataclass(frozen=True)
class Discovered:
    cluster: str  # its id
    server: str
    ca_cert_data: str
    version: str = ""
    dns_service_ip: str = ""


def lacks(config: NodeConfig) -> bool:
    """Whether a join needs something that Azure knows, and the configuration names the cluster to ask about."""
    kubelet = config.node.kubelet
    complete = kubelet.server_url and ca_certificate(config) and config.kubernetes.version
    return not complete and cluster(config) is not None


def cluster_id(config: NodeConfig) -> str:
    subscription, group, name = cluster(config) or ("", "", "")
    provider = "Microsoft.ContainerService/managedClusters"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{provider}/{name}"


def told(
    config: NodeConfig,
    before: Discovered | None,
    ask: Callable[[], Discovered],
    say: Callable[[str], None],
    *,
    joined: bool,
) -> tuple[NodeConfig, Discovered | None]:
    """The configuration with what Azure says where it says nothing itself; and that, when it was asked just now.

    A node stays what it became by the first answer. For a machine that never became one that answer may be about a
    cluster that has been made anew since; so it counts only when nobody can be asked.
    """
    known = completed(config, before)
    if not lacks(config) or (joined and not lacks(known)):
        return known, None
    try:
        found = ask()
    except FlexError as error:
        if lacks(known):
            raise
        say(f"What Azure said before counts, because now it says nothing: {error.message}")
        return known, None
    return completed(config, found), found


def discover(config: NodeConfig, arm: ArmReader) -> Discovered:
    """Ask Azure. Of the credential that it gives, the address and the CA are taken, and the rest is dropped."""
    path = cluster_id(config)
    properties = arm.get(path, API_VERSION).get("properties") or {}
    network = properties.get("networkProfile") or {}
    given = arm.post(f"{path}/listClusterAdminCredential", API_VERSION)
    server, authority = _endpoint(given, path)
    version = str(properties.get("currentKubernetesVersion") or properties.get("kubernetesVersion") or "")
    return Discovered(path, server, authority, version, str(network.get("dnsServiceIP") or ""))


def _endpoint(given: dict[str, Any], path: str) -> tuple[str, str]:
    import yaml  # noqa: PLC0415 - slow to import

    try:
        text = base64.b64decode(given["kubeconfigs"][0]["value"], validate=True)
        found = yaml.safe_load(text)["clusters"][0]["cluster"]
        return str(found["server"]), str(found["certificate-authority-data"])
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error, yaml.YAMLError):
        raise ClusterError(
            "cluster-credential-unreadable",
            f"What Azure gives as the credential of {path} names no API server with its CA.",
            "Set node.kubelet.serverURL and node.kubelet.caCertData in the configuration.",
        ) from None


def keep(host: Host, found: Discovered) -> None:
    """In the agent's own directory, which a join has made."""
    host.do(WriteFile(CLUSTER, (json.dumps(asdict(found), indent=1) + "\n").encode(), 0o600))


def kept(host: Host) -> Discovered | None:
    try:
        return Discovered(**json.loads(host.read(CLUSTER) or b""))
    except (ValueError, TypeError):
        return None


def completed(config: NodeConfig, found: Discovered | None) -> NodeConfig:
    """The configuration with what was found where it says nothing itself."""
    if found is None or not lacks(config) or found.cluster.lower() != cluster_id(config).lower():
        return config
    kubelet, kubernetes = config.node.kubelet, config.kubernetes
    filled = {
        "server_url": kubelet.server_url or found.server,
        "ca_cert_data": kubelet.ca_cert_data or found.ca_cert_data,
        "dns_service_ip": kubelet.dns_service_ip or found.dns_service_ip or None,
    }
    node = config.node.model_copy(update={"kubelet": kubelet.model_copy(update=filled)})
    version = kubernetes.model_copy(update={"version": kubernetes.version or found.version})
    return config.model_copy(update={"node": node, "kubernetes": version})
