"""Configuration models of the `azure` section: identities, Azure Arc, the VPN and the target cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules as values
from aks_flex_node.api.contract import CLIENT_CERTIFICATE_FILE
from aks_flex_node.azure.roles import CLUSTER_ROLES, find_role
from aks_flex_node.settings.base import ConfigModel, DefaultText, HttpsURL, Path
from aks_flex_node.settings.secret import Secret  # noqa: TC001
from aks_flex_node.settings.setting import (
    CLUSTER,
    CONTRIBUTOR,
    CREDENTIALS,
    FILES,
    JOIN,
    MACHINE,
    NAMES,
    NETWORK,
    NOTHING,
    PROGRAMS,
    PROVIDER,
    Setting,
)

AZURE_CLOUDS = ("AzurePublicCloud", "AzureChinaCloud", "AzureUSGovernment")


class ServicePrincipal(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[
        str | None,
        Setting(
            "Tenant of the service principal. Default: that of the cluster.",
            CONTRIBUTOR,
            CREDENTIALS,
            rule=values.azure_name,
            api="azureAuth.servicePrincipal.clientTenant",
            form="Tenant of the application",
            per_node=True,
            flag="--client-tenant",
        ),
    ] = None
    client_id: Annotated[
        str,
        Setting(
            "Service principal: its application (client) ID.",
            CONTRIBUTOR,
            CREDENTIALS,
            rule=values.azure_name,
            api_rule=values.entra_id,
            api="azureAuth.servicePrincipal.clientId",
            form="Application (client) ID",
            per_node=True,
            flag="--client-id",
        ),
    ]
    client_secret: Annotated[
        Secret | None,
        Setting(
            "Client secret of the service principal.",
            CONTRIBUTOR,
            CREDENTIALS,
            api="azureAuth.servicePrincipal.clientSecret",
            form="Client secret",
            per_node=True,
            flag="--client-secret-file",
        ),
    ] = None
    client_secret_file: Annotated[
        Path | None,
        Setting(
            "File with the client secret, mode 0600.",
            MACHINE,
            FILES,
            content="azure.servicePrincipal.clientSecret",
        ),
    ] = None
    client_certificate: Annotated[
        Secret | None,
        Setting(
            "Client certificate and private key (PEM), instead of a secret.",
            MACHINE,
            CREDENTIALS,
            rule=values.certificate_and_key,
        ),
    ] = None
    client_certificate_file: Annotated[
        Path | None,
        Setting(
            "File with the client certificate and key, mode 0600.",
            PROVIDER,
            FILES,
            content="azure.servicePrincipal.clientCertificate",
            provider_value=CLIENT_CERTIFICATE_FILE,
        ),
    ] = None


class ManagedIdentity(ConfigModel, frozen=True, kw_only=True):
    client_id: Annotated[
        str | None,
        Setting(
            "Managed identity: its client ID. Default: the system-assigned one.",
            CONTRIBUTOR,
            CREDENTIALS,
            rule=values.azure_name,
            api_rule=values.entra_id,
            api="azureAuth.managedIdentity.clientId",
            form="Client ID of the identity",
            per_node=True,
            flag="--client-id",
        ),
    ] = None


class WorkloadIdentity(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[
        str | None,
        Setting("Tenant of the identity. Default: azure.tenantId.", MACHINE, CREDENTIALS, rule=values.azure_name),
    ] = None
    client_id: Annotated[
        str,
        Setting(
            "Client ID of the identity that trusts the token's issuer.", MACHINE, CREDENTIALS, rule=values.azure_name
        ),
    ]
    token_file: Annotated[Path, Setting("File with the federated token, read at each sign-in.", MACHINE, FILES)]


class BootstrapToken(ConfigModel, frozen=True, kw_only=True):
    token: Annotated[
        Secret | None,
        Setting(
            "Kubernetes bootstrap token, `abcdef.0123456789abcdef`.",
            PROVIDER,
            CREDENTIALS,
            rule=kubernetes.bootstrap_token,
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Setting("File with the bootstrap token, mode 0600.", MACHINE, FILES, content="azure.bootstrapToken.token"),
    ] = None


class ArcTargetCluster(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[str, Setting("Name of the AKS cluster.", MACHINE, NAMES, disturbs=JOIN, rule=values.azure_name)]
    resource_group: Annotated[
        str | None,
        Setting(
            "Resource group of the cluster. Default: azure.resourceGroup.",
            MACHINE,
            NAMES,
            disturbs=JOIN,
            rule=values.azure_name,
        ),
    ] = None


# Fingerprints of Microsoft's signing keys for Linux packages, for releases before and since 2025.
MICROSOFT_KEYS = ("BC528686B50D79E339D3721CEB3E94ADBE1229CF", "AA86F75E427A19DD33346403EE4D7792F748182B")


class ArcPackage(ConfigModel, frozen=True, kw_only=True):
    install: Annotated[bool, Setting("Install azcmagent if it is missing.", MACHINE, PROGRAMS)] = True
    repository: Annotated[
        str | None,
        Setting(
            "APT repository of azcmagent. Default: Microsoft's repository for this release.",
            MACHINE,
            PROGRAMS,
            rule=values.base_url,
        ),
    ] = None
    suite: Annotated[
        str | None,
        Setting(
            "Suite of the repository. Default: the code name of the release.", MACHINE, PROGRAMS, rule=values.suite
        ),
    ] = None
    key_url: Annotated[
        str | None,
        Setting(
            "URL of the repository's signing key. Default: Microsoft's key for this release.",
            MACHINE,
            PROGRAMS,
            rule=values.url,
        ),
    ] = None
    key_fingerprints: Annotated[
        tuple[str, ...],
        Setting("Allowed fingerprints of the signing key.", MACHINE, PROGRAMS, rule=values.fingerprint),
    ] = MICROSOFT_KEYS


def _role(text: str) -> str | None:
    names = ", ".join(role.name for role in CLUSTER_ROLES)
    return None if find_role(text) else f"is not one of {names}, and not the ID of a role definition."


class Arc(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Setting(
            "Register this machine with Azure Arc. Default: true if machineName, resourceGroup, "
            "location, tags or autoRoleAssignment of this section is set.",
            PROVIDER,
            CREDENTIALS,
        ),
    ] = False
    auto_register: Annotated[bool | None, Setting("Deprecated. Use `enabled`.", MACHINE, CREDENTIALS)] = None
    machine_name: Annotated[
        str | None,
        Setting(
            "Name of the Arc machine. Default: the host name.",
            CONTRIBUTOR,
            NAMES,
            rule=values.arc_machine,
            api="azureAuth.arc.machineName",
            per_node=True,
        ),
    ] = None
    resource_group: Annotated[
        str | None,
        Setting(
            "Resource group of the Arc machine. Default: azure.resourceGroup.",
            CONTRIBUTOR,
            NAMES,
            rule=values.azure_name,
            api="azureAuth.arc.resourceGroup",
        ),
    ] = None
    location: Annotated[
        str | None,
        Setting(
            "Region of the Arc machine. Default: azure.location.",
            CONTRIBUTOR,
            NAMES,
            rule=values.region,
            api="azureAuth.arc.location",
        ),
    ] = None
    tags: Annotated[
        dict[str, str],
        Setting(
            "Tags of the Arc machine.",
            CONTRIBUTOR,
            NAMES,
            rule=values.plain,
            name_rules=(values.plain,),
            api="azureAuth.arc.tags",
        ),
    ] = field(default_factory=dict)
    auto_role_assignment: Annotated[
        bool,
        Setting(
            "Assign the required roles on the cluster to the machine's identity.",
            CONTRIBUTOR,
            CREDENTIALS,
            api="azureAuth.arc.autoRoleAssignment",
        ),
    ] = False
    roles: Annotated[
        tuple[str, ...] | None,
        Setting(
            "Roles on the cluster for autoRoleAssignment, by name or by the ID of the role definition. "
            "Default: Azure Kubernetes Service Cluster User Role, and Azure Kubernetes Service RBAC Cluster Admin "
            "for a kubelet that authenticates with this identity without a provider. For a flex node pool: Azure "
            "Kubernetes Service Flex Node Agent Role.",
            MACHINE,
            CREDENTIALS,
            rule=_role,
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
        Meta(gt=0, le=1800),
        Setting(
            "Timeout for Azure to show the machine and for its role assignments to take effect.", MACHINE, NOTHING
        ),
    ] = 1800.0


class Vpn(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Setting(
            "Connect to the cluster's network through a point-to-site VPN.",
            CONTRIBUTOR,
            NETWORK,
            api="nodeConfig.vpn.enabled",
            flag="--vpn",
        ),
    ] = False
    auto_provision: Annotated[
        bool,
        Setting(
            "Create the VPN gateway if it does not exist.", CONTRIBUTOR, NETWORK, api="nodeConfig.vpn.autoProvision"
        ),
    ] = False
    p2s_gateway_cidr: Annotated[
        str,
        Setting(
            "Address pool of VPN clients.",
            CONTRIBUTOR,
            NETWORK,
            rule=values.vpn_network,
            api="nodeConfig.vpn.p2sGatewayCIDR",
        ),
    ] = "192.168.100.0/24"
    gateway_sku: Annotated[
        str,
        Setting(
            "SKU of a gateway that the agent creates.",
            CONTRIBUTOR,
            NETWORK,
            rule=values.gateway_sku,
            api="nodeConfig.vpn.gatewaySKU",
        ),
    ] = DefaultText("VpnGw2AZ")
    gateway_name: Annotated[
        str,
        Setting(
            "Name of the gateway to use or create.",
            CONTRIBUTOR,
            NETWORK,
            rule=values.gateway,
            api="nodeConfig.vpn.gatewayName",
        ),
    ] = "aks-flex-node"
    virtual_network_id: Annotated[
        str | None,
        Setting(
            "ARM ID of the virtual network to connect to. Default: the cluster's network.",
            CONTRIBUTOR,
            NETWORK,
            api_rule=values.virtual_network,
            api="nodeConfig.vpn.virtualNetworkId",
        ),
    ] = None
    gateway_subnet_cidr: Annotated[
        str | None,
        Setting(
            "Address range of the gateway's subnet. Default: a free range of the network.",
            CONTRIBUTOR,
            NETWORK,
            rule=values.vpn_network,
            api="nodeConfig.vpn.gatewaySubnetCIDR",
        ),
    ] = None
    adopt: Annotated[
        bool,
        Setting(
            "Allow changes to an existing gateway that has other settings. Otherwise the "
            "command fails and changes nothing.",
            CONTRIBUTOR,
            NETWORK,
            api="nodeConfig.vpn.adopt",
        ),
    ] = False
    dns_servers: Annotated[
        tuple[str, ...],
        Meta(max_length=8),
        Setting(
            "DNS servers behind the VPN. Default: those of the virtual network.",
            CONTRIBUTOR,
            NETWORK,
            rule=values.vpn_address,
            api="nodeConfig.vpn.dnsServers",
        ),
    ] = ()
    dns_domains: Annotated[
        tuple[str, ...],
        Meta(max_length=32),
        Setting(
            "Domains to resolve with these DNS servers. Default: the domain of the API server.",
            CONTRIBUTOR,
            NETWORK,
            rule=kubernetes.domain,
            api="nodeConfig.vpn.dnsDomains",
        ),
    ] = ()
    renew_days: Annotated[
        int,
        Meta(ge=1, le=365),
        Setting(
            "Days before the expiry of the client certificate at which it is renewed.",
            CONTRIBUTOR,
            NETWORK,
            api="nodeConfig.vpn.renewDays",
        ),
    ] = 30

    @property
    def has_own_sku(self) -> bool:
        """Returns whether the operator set a SKU, even if it is the default one."""
        return not isinstance(self.gateway_sku, DefaultText)


class TargetCluster(ConfigModel, frozen=True, kw_only=True):
    resource_id: Annotated[
        str | None, Setting("ARM ID of the AKS cluster.", PROVIDER, CLUSTER, disturbs=JOIN, rule=values.cluster_id)
    ] = None
    name: Annotated[
        str | None,
        Setting(
            "Name of the cluster, if resourceId is not set.",
            PROVIDER,
            CLUSTER,
            disturbs=JOIN,
            rule=values.azure_name,
        ),
    ] = None
    resource_group: Annotated[
        str | None,
        Setting(
            "Resource group of the cluster, if resourceId is not set.",
            PROVIDER,
            CLUSTER,
            disturbs=JOIN,
            rule=values.azure_name,
        ),
    ] = None
    location: Annotated[str | None, Setting("Region of the cluster.", PROVIDER, NAMES, rule=values.region)] = None


class Azure(ConfigModel, frozen=True, kw_only=True):
    subscription_id: Annotated[
        str | None,
        Setting("Subscription of the cluster.", PROVIDER, NAMES, disturbs=JOIN, rule=values.azure_name),
    ] = None
    tenant_id: Annotated[str | None, Setting("Entra tenant.", PROVIDER, CREDENTIALS, rule=values.azure_name)] = None
    cloud: Annotated[
        str,
        Setting(
            "Azure cloud: AzurePublicCloud, AzureChinaCloud or AzureUSGovernment.", PROVIDER, CREDENTIALS, peer=True
        ),
    ] = "AzurePublicCloud"
    resource_manager: Annotated[
        HttpsURL | None,
        Setting(
            "Endpoint of Azure Resource Manager in a private cloud. Default: depends on `cloud`.",
            PROVIDER,
            CREDENTIALS,
            rule=values.url,
            aks="azure.resourceManagerEndpoint",
            peer=True,
        ),
    ] = None
    authority_host: Annotated[
        HttpsURL | None,
        Setting(
            "Endpoint of the token authority in a private cloud. Default: depends on `cloud`.",
            PROVIDER,
            CREDENTIALS,
            rule=values.url,
            peer=True,
        ),
    ] = None
    ca_cert_data: Annotated[
        str | None,
        Setting(
            "CA certificates of a private cloud: PEM in base64. Default: the public CAs.",
            PROVIDER,
            CREDENTIALS,
            rule=values.certificate,
        ),
    ] = None
    location: Annotated[
        str | None, Setting("Region of resources that the agent creates in Azure.", PROVIDER, NAMES)
    ] = None
    resource_group: Annotated[
        str | None,
        Setting(
            "Resource group of resources that the agent creates in Azure.", PROVIDER, NAMES, rule=values.azure_name
        ),
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
        Setting(
            "Flex node pool of the cluster to join. The node's settings then come from the pool and from "
            "the node's Machine in it.",
            PROVIDER,
            CLUSTER,
            rule=values.azure_name,
        ),
    ] = None
