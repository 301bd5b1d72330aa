"""Values resolved from a configuration: the target cluster, the CA certificate, the kubelet's authentication,
files. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aks_flex_node.api import value_rules as rules

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.config.secret import Secret

ClusterName = tuple[str, str, str]
KubeletAuth = Literal["bootstrapToken", "exec", "certificate"]


def target_cluster(config: NodeConfig) -> ClusterName | None:
    """Subscription, resource group and name of the cluster; None when the configuration does not name it in full."""
    return next((parts for _, parts in cluster_references(config) if all(parts)), None)


def cluster_references(config: NodeConfig) -> list[tuple[str, ClusterName]]:
    """Each key that names the cluster, with the subscription, resource group and name, as far as it says them."""
    azure = config.azure
    target, arc = azure.target_cluster, azure.arc.target_cluster
    found: list[tuple[str, ClusterName]] = []
    if target and target.resource_id and (parts := rules.resource_id(target.resource_id)):
        found.append(("azure.targetCluster.resourceId", parts))
        found.append(("azure.targetCluster", ("", target.resource_group or "", target.name or "")))
        found.append(("azure.subscriptionId", (azure.subscription_id or "", "", "")))
    elif target and target.name:
        group = target.resource_group or azure.resource_group or ""
        found.append(("azure.targetCluster", (azure.subscription_id or "", group, target.name)))
    if arc:
        group = arc.resource_group or azure.resource_group or ""
        subscription = "" if found else azure.subscription_id or ""  # it has been said already
        found.append(("azure.arc.targetCluster", (subscription, group, arc.name)))
    return found


def ca_certificate(config: NodeConfig) -> bytes | None:
    """The cluster's CA certificate in PEM. Loading has put that of `caCertFile` in place."""
    data = config.node.kubelet.ca_cert_data
    return rules.read_certificate(data) if data else None


def join_token(config: NodeConfig) -> Secret | None:
    """The bootstrap token. Loading has put that of `tokenFile` in place."""
    return config.azure.bootstrap_token.token if config.azure.bootstrap_token else None


def log_file(config: NodeConfig) -> str:
    return config.agent.log_file or f"{config.paths.log_dir.rstrip('/')}/agent.log"


def kubelet_auth(config: NodeConfig) -> KubeletAuth:
    """How the kubelet shows the API server who it is."""
    azure, method = config.azure, config.node.kubelet.auth
    if method:
        return method
    if azure.bootstrap_token or config.continuous_monitoring or config.provider.url:
        return "bootstrapToken"  # a provider that wants anything else says so
    identities = (azure.service_principal, azure.managed_identity, azure.workload_identity)
    return "exec" if any(identities) or config.azure.arc.enabled else "bootstrapToken"


def kubelet_credential_file(config: NodeConfig) -> str:
    """The file that a machine has when it has joined: what it shows the API server who it is with."""
    folder = config.paths.kubernetes.kubelet_dir
    own = "kubeconfig" if kubelet_auth(config) == "exec" else "pki/kubelet-client-current.pem"
    return f"{folder}/{own}"
