"""Reads API server, CA, version and DNS address of the cluster from Azure if the configuration does not set them.

Runs before any change, until the machine is a node. The facts are stored without credentials.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.files import TOKEN_FILE
from aks_flex_node.agent.config.loader import missing_for_join
from aks_flex_node.agent.config.problems import ConfigProblem, invalid_config_error
from aks_flex_node.agent.config.resolved import (
    ca_certificate,
    cluster_resource_id,
    has_azure_identity,
    join_token,
    target_cluster,
)
from aks_flex_node.agent.paths import CLUSTER_FACTS
from aks_flex_node.azure.arm import ArmClient, AzureCallError
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.settings.models import NodeConfig

AKS_API_VERSION = "2025-05-01"
DISCOVERABLE_KEYS = (
    "node.kubelet.serverURL",
    "node.kubelet.caCertData",
    "kubernetes.version",
)  # required for a join


@frozen
class ClusterFacts:
    cluster: str  # resource ID
    server: str
    ca_cert_data: str
    version: str = ""
    dns_service_ip: str = ""


FACTS_FILE = RecordFile(CLUSTER_FACTS, ClusterFacts)


def reads_pool(config: NodeConfig) -> bool:
    """Returns whether a join requests the bootstrap data of an AKS pool, which has all facts and a token."""
    named = config.azure.target_agent_pool_name and target_cluster(config)
    return bool(named) and (has_azure_identity(config) or join_token(config) is None)


def needs_discovery(config: NodeConfig) -> bool:
    """Returns whether a join needs facts that can be read from Azure: some are missing and the cluster is named."""
    kubelet = config.node.kubelet
    complete = kubelet.server_url and ca_certificate(config) and config.kubernetes.version
    return not complete and target_cluster(config) is not None


def check_join(config: NodeConfig, *, is_node: bool = False) -> None:
    """Raises InvalidConfigError for settings that a join requires and that cannot be read from Azure."""
    problems = missing_for_join(config, is_node=is_node)
    known = (*DISCOVERABLE_KEYS, TOKEN_FILE) if reads_pool(config) else DISCOVERABLE_KEYS
    if needs_discovery(config) or reads_pool(config):
        problems = [one for one in problems if one.path not in known]
    if problems := [_with_azure_hint(one) for one in problems]:
        raise invalid_config_error(problems)


def _with_azure_hint(problem: ConfigProblem) -> ConfigProblem:
    if problem.path not in DISCOVERABLE_KEYS:
        return problem
    reason = f"{problem.reason} Set it, or set azure.targetCluster.resourceId to read it from Azure."
    return dataclasses.replace(problem, reason=reason)


def describe_discovery(config: NodeConfig) -> dict[str, str]:
    """Returns the settings that a join reads from Azure, with the request that returns each."""
    kubelet, cluster = config.node.kubelet, cluster_id(config)
    credential = f"POST {cluster}/listClusterAdminCredential, or else listClusterUserCredential"
    sources = (
        ("node.kubelet.serverURL", kubelet.server_url, credential),
        ("node.kubelet.caCertData", ca_certificate(config), credential),
        ("kubernetes.version", config.kubernetes.version, f"GET {cluster}"),
        ("node.kubelet.dnsServiceIP", kubelet.dns_service_ip, f"GET {cluster}"),
    )
    missing = {key: source for key, value, source in sources if not value}
    if reads_pool(config):
        request = f"POST {cluster}/agentPools/{config.azure.target_agent_pool_name}/listBootstrapData"
        return {"azure.bootstrapToken.token": request, **dict.fromkeys(missing, request)}
    return missing if needs_discovery(config) else {}


def dns_warnings(config: NodeConfig) -> list[str]:
    """Returns a warning if no DNS address is set and none is read from Azure."""
    if config.node.kubelet.dns_service_ip or needs_discovery(config) or reads_pool(config):
        return []
    return ["node.kubelet.dnsServiceIP is not set, so pods have no cluster DNS. Set the address of the DNS service."]


def cluster_id(config: NodeConfig) -> str:
    return cluster_resource_id(target_cluster(config) or ("", "", ""))


def complete_from_azure(
    config: NodeConfig,
    before: ClusterFacts | None,
    ask: Callable[[], ClusterFacts],
    say: Callable[[str], None],
    *,
    joined: bool,
) -> tuple[NodeConfig, ClusterFacts | None]:
    """Completes the configuration with facts from Azure; returns also the facts if they were read by this call.

    A joined node keeps its stored facts. On other machines stored facts may be about a cluster that was recreated
    since, so they are used only when Azure cannot be reached.
    """
    known = with_facts(config, before)
    if not needs_discovery(config) or (joined and not needs_discovery(known)):
        return known, None
    try:
        found = ask()
    except FlexError as error:
        if needs_discovery(known):
            raise
        say(f"Using the stored cluster facts, because Azure cannot be read: {error.message}")
        return known, None
    return with_facts(config, found), found


def discover(config: NodeConfig, arm: ArmClient) -> ClusterFacts:
    """Reads the cluster's facts from Azure. Uses only server and CA of the credential and discards the rest."""
    path = cluster_id(config)
    properties = arm.get(path, AKS_API_VERSION).get("properties") or {}
    network = properties.get("networkProfile") or {}
    server, authority = _endpoint(_credential(arm, path), path)
    version = str(properties.get("currentKubernetesVersion") or properties.get("kubernetesVersion") or "")
    return ClusterFacts(path, server, authority, version, str(network.get("dnsServiceIP") or ""))


def _credential(arm: ArmClient, path: str) -> dict[str, Any]:
    """Returns the admin credential, or else the user credential: for a caller with the Cluster User Role, and for a
    cluster without local accounts. Both contain the API server and its CA.
    """
    try:
        return arm.post(f"{path}/listClusterAdminCredential", AKS_API_VERSION)
    except AzureCallError as error:
        if error.status not in {400, 403}:
            raise
        try:
            return arm.post(f"{path}/listClusterUserCredential", AKS_API_VERSION)
        except AzureCallError:
            raise error from None


def _endpoint(credential: dict[str, Any], path: str) -> tuple[str, str]:
    import yaml

    try:
        text = base64.b64decode(credential["kubeconfigs"][0]["value"], validate=True)
        found = yaml.safe_load(text)["clusters"][0]["cluster"]
        return str(found["server"]), str(found["certificate-authority-data"])
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error, yaml.YAMLError):
        raise ClusterError(
            "cluster-credential-unreadable",
            f"The credential of {path} from Azure does not contain an API server and its CA.",
            "Set `node.kubelet.serverURL` and `node.kubelet.caCertData` in the configuration.",
        ) from None


def with_facts(config: NodeConfig, found: ClusterFacts | None) -> NodeConfig:
    """Returns the configuration with facts filled in for settings that it does not set."""
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
