"""Reads API server, CA, version and DNS address of the cluster from Azure where the configuration leaves them out.

Asked before anything is changed, until the machine is a node; stored without credentials.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.base_model import replace
from aks_flex_node.agent.config.loader import missing_for_join
from aks_flex_node.agent.config.problems import invalid_config_error
from aks_flex_node.agent.config.resolved import ca_certificate, target_cluster
from aks_flex_node.agent.paths import CLUSTER_FACTS
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.azure.arm import ArmReader
    from aks_flex_node.host.host import Host

AKS_API_VERSION = "2025-05-01"
DISCOVERABLE_KEYS = (
    "node.kubelet.serverURL",
    "node.kubelet.caCertData",
    "kubernetes.version",
)  # what a join needs of it


@dataclass(frozen=True)
class ClusterFacts:
    cluster: str  # its id
    server: str
    ca_cert_data: str
    version: str = ""
    dns_service_ip: str = ""


def needs_discovery(config: NodeConfig) -> bool:
    """Whether a join needs something that Azure knows, and the configuration names the cluster to ask about."""
    kubelet = config.node.kubelet
    complete = kubelet.server_url and ca_certificate(config) and config.kubernetes.version
    return not complete and target_cluster(config) is not None


def check_join(config: NodeConfig) -> None:
    """Raises InvalidConfigError for what a join lacks, and Azure cannot be asked for."""
    told_by_azure = DISCOVERABLE_KEYS if needs_discovery(config) else ()
    problems = [one for one in missing_for_join(config) if one.path not in told_by_azure]
    if problems:
        raise invalid_config_error(problems)


def cluster_id(config: NodeConfig) -> str:
    subscription, group, name = target_cluster(config) or ("", "", "")
    provider = "Microsoft.ContainerService/managedClusters"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{provider}/{name}"


def complete_from_azure(
    config: NodeConfig,
    before: ClusterFacts | None,
    ask: Callable[[], ClusterFacts],
    say: Callable[[str], None],
    *,
    joined: bool,
) -> tuple[NodeConfig, ClusterFacts | None]:
    """The configuration with what Azure says where it says nothing itself; and that, when it was asked just now.

    A node stays what it became by the first answer. For a machine that never became one that answer may be about a
    cluster that has been made anew since; so it counts only when nobody can be asked.
    """
    known = with_facts(config, before)
    if not needs_discovery(config) or (joined and not needs_discovery(known)):
        return known, None
    try:
        found = ask()
    except FlexError as error:
        if needs_discovery(known):
            raise
        say(f"What Azure said before counts, because now it says nothing: {error.message}")
        return known, None
    return with_facts(config, found), found


def discover(config: NodeConfig, arm: ArmReader) -> ClusterFacts:
    """Ask Azure. Of the credential that it gives, the address and the CA are taken, and the rest is dropped."""
    path = cluster_id(config)
    properties = arm.get(path, AKS_API_VERSION).get("properties") or {}
    network = properties.get("networkProfile") or {}
    given = arm.post(f"{path}/listClusterAdminCredential", AKS_API_VERSION)
    server, authority = _endpoint(given, path)
    version = str(properties.get("currentKubernetesVersion") or properties.get("kubernetesVersion") or "")
    return ClusterFacts(path, server, authority, version, str(network.get("dnsServiceIP") or ""))


def _endpoint(given: dict[str, Any], path: str) -> tuple[str, str]:
    import yaml

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


def store_facts(host: Host, found: ClusterFacts) -> None:
    """In the agent's own directory, which a join has made."""
    host.apply(WriteFile(CLUSTER_FACTS, (json.dumps(asdict(found), indent=1) + "\n").encode(), 0o600))


def stored_facts(host: Host) -> ClusterFacts | None:
    try:
        return ClusterFacts(**json.loads(host.read(CLUSTER_FACTS) or b""))
    except (ValueError, TypeError):
        return None


def with_facts(config: NodeConfig, found: ClusterFacts | None) -> NodeConfig:
    """The configuration with what was found where it says nothing itself."""
    if found is None or not needs_discovery(config) or found.cluster.lower() != cluster_id(config).lower():
        return config
    kubelet, kubernetes = config.node.kubelet, config.kubernetes
    filled = {
        "server_url": kubelet.server_url or found.server,
        "ca_cert_data": kubelet.ca_cert_data or found.ca_cert_data,
        "dns_service_ip": kubelet.dns_service_ip or found.dns_service_ip or None,
    }
    node = replace(config.node, kubelet=replace(kubelet, **filled))
    version = replace(kubernetes, version=kubernetes.version or found.version)
    return replace(config, node=node, kubernetes=version)
