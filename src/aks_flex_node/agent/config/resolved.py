"""Values derived from a configuration: the target cluster, the CA certificate, the kubelet's authentication, files.
Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aks_flex_node.api import value_rules as rules

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig
    from aks_flex_node.settings.secret import Secret

ClusterName = tuple[str, str, str]
# Settings of the section azure with which a node signs in, beside its identity.
CLOUD_SETTINGS = ("tenantId", "cloud", "resourceManager", "authorityHost", "caCertData")
IdentityKind = Literal["arc", "servicePrincipal", "managedIdentity", "workloadIdentity"]
KubeletAuth = Literal["bootstrapToken", "exec", "certificate"]
ConfigSourceKind = Literal["provider", "aksPool", "local"]


def config_source_kind(config: NodeConfig) -> ConfigSourceKind:
    """Returns where the daemon reads the node's desired settings: the resource provider, the node's Machine in an AKS
    pool, or the stored configuration. A node of a pool without an Azure identity cannot read its Machine.
    """
    if config.continuous_monitoring:
        return "provider"
    pool = config.azure.target_agent_pool_name and target_cluster(config)
    return "aksPool" if pool and has_azure_identity(config) else "local"


def target_cluster(config: NodeConfig) -> ClusterName | None:
    """Returns subscription, resource group and name of the cluster, or None if the configuration is incomplete."""
    return next((parts for _, parts in cluster_references(config) if all(parts)), None)


def cluster_resource_id(cluster: ClusterName) -> str:
    subscription, group, name = cluster
    provider = "Microsoft.ContainerService/managedClusters"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{provider}/{name}"


def cluster_references(config: NodeConfig) -> list[tuple[str, ClusterName]]:
    """Returns each key that names the cluster with the subscription, resource group and name that it sets."""
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
        subscription = "" if found else azure.subscription_id or ""  # already set by the target cluster
        found.append(("azure.arc.targetCluster", (subscription, group, arc.name)))
    return found


def ca_certificate(config: NodeConfig) -> bytes | None:
    """Returns the CA certificate of the cluster (PEM). The loader sets it from `caCertFile`."""
    data = config.node.kubelet.ca_cert_data
    return rules.read_certificate(data) if data else None


def join_token(config: NodeConfig) -> Secret | None:
    """Returns the bootstrap token. The loader sets it from `tokenFile`."""
    return config.azure.bootstrap_token.token if config.azure.bootstrap_token else None


def log_file(config: NodeConfig) -> str:
    return config.agent.log_file or f"{config.paths.log_dir.rstrip('/')}/agent.log"


def kubelet_auth(config: NodeConfig) -> KubeletAuth:
    """Returns how the kubelet authenticates to the API server."""
    azure, method = config.azure, config.node.kubelet.auth
    if method:
        return method
    if azure.target_agent_pool_name:
        return "bootstrapToken"  # of the pool's bootstrap data, which is not stored in the configuration
    if azure.bootstrap_token or config.continuous_monitoring or config.provider.url:
        return "bootstrapToken"  # a join stores `auth` in the configuration of a managed node that has no token
    return "certificate" if has_azure_identity(config) else "bootstrapToken"


def azure_identities(config: NodeConfig) -> list[IdentityKind]:
    """Returns the Azure identities that are configured, first the one that the node uses."""
    azure = config.azure
    sections: dict[IdentityKind, object] = {
        "arc": azure.arc.enabled or None,
        "servicePrincipal": azure.service_principal,
        "managedIdentity": azure.managed_identity,
        "workloadIdentity": azure.workload_identity,
    }
    return [kind for kind, section in sections.items() if section is not None]


def has_azure_identity(config: NodeConfig) -> bool:
    return bool(azure_identities(config))


def kubelet_credential_file(config: NodeConfig) -> str:
    """Returns the credential file of the kubelet. It exists after the machine has joined."""
    folder = config.paths.kubernetes.kubelet_dir
    own = "kubeconfig" if kubelet_auth(config) == "exec" else "pki/kubelet-client-current.pem"
    return f"{folder}/{own}"


def arc_settings(config: NodeConfig) -> dict[str, str]:
    """Returns the values that a registration with Azure Arc requires, by the setting that sets each."""
    azure, cluster = config.azure, target_cluster(config)
    arc, target, principal = azure.arc, azure.target_cluster, azure.service_principal
    found = {
        "azure.subscriptionId": azure.subscription_id or (cluster[0] if cluster else ""),
        "azure.tenantId": azure.tenant_id or (principal.tenant_id if principal else ""),
        "azure.resourceGroup": arc.resource_group or azure.resource_group or (cluster[1] if cluster else ""),
        "azure.location": arc.location or azure.location or (target.location if target else ""),
    }
    if arc.auto_role_assignment:
        found["azure.targetCluster.resourceId"] = "/".join(cluster or ())
    return {path: value or "" for path, value in found.items()}
