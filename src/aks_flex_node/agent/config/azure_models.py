"""Configuration models of the `azure` section: identities, Azure Arc, the VPN and the target cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from aks_flex_node.agent.config.base_model import ConfigModel, DefaultText, HttpsURL, Path
from aks_flex_node.agent.config.secret import Secret  # noqa: TC001

AZURE_CLOUDS = ("AzurePublicCloud", "AzureChinaCloud", "AzureUSGovernment")


class ServicePrincipal(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[
        str | None, Meta(description="Tenant of the service principal, or `clientTenant`. Default: azure.tenantId.")
    ] = None
    client_id: Annotated[str, Meta(description="Application (client) ID.")]
    client_secret: Annotated[Secret | None, Meta(description="Client secret. Prefer clientSecretFile.")] = None
    client_secret_file: Annotated[Path | None, Meta(description="File with the client secret, mode 0600.")] = None
    client_certificate: Annotated[
        Secret | None, Meta(description="Client certificate and private key (PEM), instead of a secret.")
    ] = None
    client_certificate_file: Annotated[
        Path | None, Meta(description="File with the client certificate and key, mode 0600.")
    ] = None


class ManagedIdentity(ConfigModel, frozen=True, kw_only=True):
    client_id: Annotated[
        str | None, Meta(description="Client ID of a user-assigned identity. Default: the system-assigned identity.")
    ] = None


class WorkloadIdentity(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[str | None, Meta(description="Tenant of the identity. Default: azure.tenantId.")] = None
    client_id: Annotated[str, Meta(description="Client ID of the identity that trusts the token's issuer.")]
    token_file: Annotated[Path, Meta(description="File with the federated token, read at each sign-in.")]


class BootstrapToken(ConfigModel, frozen=True, kw_only=True):
    token: Annotated[Secret | None, Meta(description="Kubernetes bootstrap token, `abcdef.0123456789abcdef`.")] = None
    token_file: Annotated[Path | None, Meta(description="File with the bootstrap token, mode 0600.")] = None


class ArcTargetCluster(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the AKS cluster.")]
    resource_group: Annotated[
        str | None, Meta(description="Resource group of the cluster. Default: azure.resourceGroup.")
    ] = None


# Fingerprints of Microsoft's signing keys for Linux packages, for releases before and since 2025.
MICROSOFT_KEYS = ("BC528686B50D79E339D3721CEB3E94ADBE1229CF", "AA86F75E427A19DD33346403EE4D7792F748182B")


class ArcPackage(ConfigModel, frozen=True, kw_only=True):
    install: Annotated[bool, Meta(description="Install azcmagent if it is missing.")] = True
    repository: Annotated[
        str | None, Meta(description="APT repository of azcmagent. Default: Microsoft's repository for this release.")
    ] = None
    suite: Annotated[
        str | None, Meta(description="Suite of the repository. Default: the code name of the release.")
    ] = None
    key_url: Annotated[
        str | None,
        Meta(description="URL of the repository's signing key. Default: Microsoft's key for this release."),
    ] = None
    key_fingerprints: Annotated[tuple[str, ...], Meta(description="Allowed fingerprints of the signing key.")] = (
        MICROSOFT_KEYS
    )


class Arc(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Meta(
            description="Register this machine with Azure Arc. Default: true if machineName, resourceGroup, "
            "location, tags or autoRoleAssignment of this section is set."
        ),
    ] = False
    auto_register: Annotated[bool | None, Meta(description="Deprecated. Use `enabled`.")] = None
    machine_name: Annotated[str | None, Meta(description="Name of the Arc machine. Default: the host name.")] = None
    resource_group: Annotated[
        str | None, Meta(description="Resource group of the Arc machine. Default: azure.resourceGroup.")
    ] = None
    location: Annotated[str | None, Meta(description="Region of the Arc machine. Default: azure.location.")] = None
    tags: Annotated[dict[str, str], Meta(description="Tags of the Arc machine.")] = field(default_factory=dict)
    auto_role_assignment: Annotated[
        bool, Meta(description="Assign the required roles on the cluster to the machine's identity.")
    ] = False
    roles: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Roles on the cluster for autoRoleAssignment, by name or by the ID of the role definition. "
            "Default: Azure Kubernetes Service Cluster User Role, and Azure Kubernetes Service RBAC Cluster Admin "
            "for a kubelet that authenticates with this identity without a provider. For a flex node pool: Azure "
            "Kubernetes Service Flex Node Agent Role."
        ),
    ] = None
    target_cluster: Annotated[
        ArcTargetCluster | None,
        Meta(description="The cluster, in the form of the design documents. Prefer azure.targetCluster."),
    ] = None
    package: Annotated[ArcPackage, Meta(description="Source of the azcmagent package.")] = field(
        default_factory=ArcPackage
    )
    wait_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=1800,
            description="Timeout for Azure to show the machine and for its role assignments to take effect.",
        ),
    ] = 1800.0


class Vpn(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Connect to the cluster's network through a point-to-site VPN.")] = (
        False
    )
    auto_provision: Annotated[bool, Meta(description="Create the VPN gateway if it does not exist.")] = False
    p2s_gateway_cidr: Annotated[str, Meta(description="Address pool of VPN clients.")] = "192.168.100.0/24"
    gateway_sku: Annotated[str, Meta(description="SKU of a gateway that the agent creates.")] = DefaultText(
        "VpnGw2AZ"
    )
    gateway_name: Annotated[str, Meta(description="Name of the gateway to use or create.")] = "aks-flex-node"
    virtual_network_id: Annotated[
        str | None, Meta(description="ARM ID of the virtual network to connect to. Default: the cluster's network.")
    ] = None
    gateway_subnet_cidr: Annotated[
        str | None, Meta(description="Address range of the gateway's subnet. Default: a free range of the network.")
    ] = None
    adopt: Annotated[
        bool,
        Meta(
            description="Allow changes to an existing gateway that has other settings. Otherwise the "
            "command fails and changes nothing."
        ),
    ] = False
    dns_servers: Annotated[
        tuple[str, ...], Meta(description="DNS servers behind the VPN. Default: those of the virtual network.")
    ] = ()
    dns_domains: Annotated[
        tuple[str, ...],
        Meta(description="Domains to resolve with these DNS servers. Default: the domain of the API server."),
    ] = ()
    renew_days: Annotated[
        int,
        Meta(ge=1, le=365, description="Days before the expiry of the client certificate at which it is renewed."),
    ] = 30

    @property
    def has_own_sku(self) -> bool:
        """Returns whether the operator set a SKU, even if it is the default one."""
        return not isinstance(self.gateway_sku, DefaultText)


class TargetCluster(ConfigModel, frozen=True, kw_only=True):
    resource_id: Annotated[str | None, Meta(description="ARM ID of the AKS cluster.")] = None
    name: Annotated[str | None, Meta(description="Name of the cluster, if resourceId is not set.")] = None
    resource_group: Annotated[
        str | None, Meta(description="Resource group of the cluster, if resourceId is not set.")
    ] = None
    location: Annotated[str | None, Meta(description="Region of the cluster.")] = None


class Azure(ConfigModel, frozen=True, kw_only=True):
    subscription_id: Annotated[str | None, Meta(description="Subscription of the cluster.")] = None
    tenant_id: Annotated[str | None, Meta(description="Entra tenant.")] = None
    cloud: Annotated[
        str, Meta(description="Azure cloud: AzurePublicCloud, AzureChinaCloud or AzureUSGovernment.")
    ] = "AzurePublicCloud"
    resource_manager: Annotated[
        HttpsURL | None,
        Meta(description="Endpoint of Azure Resource Manager in a private cloud. Default: depends on `cloud`."),
    ] = None
    authority_host: Annotated[
        HttpsURL | None,
        Meta(description="Endpoint of the token authority in a private cloud. Default: depends on `cloud`."),
    ] = None
    ca_cert_data: Annotated[
        str | None,
        Meta(description="CA certificates of a private cloud: PEM in base64. Default: the public CAs."),
    ] = None
    location: Annotated[str | None, Meta(description="Region of resources that the agent creates in Azure.")] = None
    resource_group: Annotated[
        str | None, Meta(description="Resource group of resources that the agent creates in Azure.")
    ] = None
    service_principal: Annotated[ServicePrincipal | None, Meta(description="Sign in as a service principal.")] = None
    managed_identity: Annotated[
        ManagedIdentity | None, Meta(description="Sign in with the managed identity of this Azure VM.")
    ] = None
    workload_identity: Annotated[
        WorkloadIdentity | None,
        Meta(description="Sign in with a federated token that another program on this machine provides."),
    ] = None
    bootstrap_token: Annotated[BootstrapToken | None, Meta(description="Join with a Kubernetes bootstrap token.")] = (
        None
    )
    arc: Annotated[Arc, Meta(description="Azure Arc.")] = field(default_factory=Arc)
    vpn: Annotated[Vpn, Meta(description="VPN to the cluster's network.")] = field(default_factory=Vpn)
    target_cluster: Annotated[TargetCluster | None, Meta(description="The cluster to join.")] = None
    target_agent_pool_name: Annotated[
        str | None,
        Meta(
            description="Flex node pool of the cluster to join. The node's settings then come from the pool and from "
            "the node's Machine in it."
        ),
    ] = None
