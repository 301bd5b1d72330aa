"""Settings of Azure as typed models: identities, Azure Arc, the VPN and the target cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from aks_flex_node.agent.config.base_model import ConfigModel, DefaultText, HttpsURL, Path
from aks_flex_node.agent.config.secret import Secret  # noqa: TC001


class ServicePrincipal(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[
        str | None, Meta(description="Tenant of the service principal; azure.tenantId when left out.")
    ] = None
    client_id: Annotated[str, Meta(description="Application (client) id.")]
    client_secret: Annotated[Secret | None, Meta(description="Its secret. Better: clientSecretFile.")] = None
    client_secret_file: Annotated[Path | None, Meta(description="A file, mode 0600, that holds the secret.")] = None
    client_certificate: Annotated[
        Secret | None, Meta(description="Its certificate and private key (PEM), instead of a secret.")
    ] = None
    client_certificate_file: Annotated[
        Path | None, Meta(description="A file, mode 0600, that holds certificate and key.")
    ] = None


class ManagedIdentity(ConfigModel, frozen=True, kw_only=True):
    client_id: Annotated[
        str | None, Meta(description="Which user-assigned identity; the system's own when left out.")
    ] = None


class WorkloadIdentity(ConfigModel, frozen=True, kw_only=True):
    tenant_id: Annotated[str | None, Meta(description="Tenant of the identity; azure.tenantId when left out.")] = None
    client_id: Annotated[str, Meta(description="Client id of the identity that trusts the token's issuer.")]
    token_file: Annotated[Path, Meta(description="The file that holds the federated token; it is read each time.")]


class BootstrapToken(ConfigModel, frozen=True, kw_only=True):
    token: Annotated[Secret | None, Meta(description="Kubernetes bootstrap token, `abcdef.0123456789abcdef`.")] = None
    token_file: Annotated[Path | None, Meta(description="A file, mode 0600, that holds the token.")] = None


class ArcTargetCluster(ConfigModel, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the AKS cluster.")]
    resource_group: Annotated[
        str | None, Meta(description="Its resource group; azure.resourceGroup when left out.")
    ] = None


# Those of Microsoft's keys for Linux packages, as published for releases before and since 2025.
MICROSOFT_KEYS = ("BC528686B50D79E339D3721CEB3E94ADBE1229CF", "AA86F75E427A19DD33346403EE4D7792F748182B")


class ArcPackage(ConfigModel, frozen=True, kw_only=True):
    install: Annotated[bool, Meta(description="Install azcmagent when the machine does not have it.")] = True
    repository: Annotated[
        str | None, Meta(description="APT repository of azcmagent; Microsoft's for this release when left out.")
    ] = None
    suite: Annotated[str | None, Meta(description="Its suite; the release's code name when left out.")] = None
    key_url: Annotated[
        str | None, Meta(description="The key that signs it; Microsoft's for this release when left out.")
    ] = None
    key_fingerprints: Annotated[
        tuple[str, ...], Meta(description="What the key must be: one of these fingerprints.")
    ] = MICROSOFT_KEYS


class Arc(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Register this machine with Azure Arc.")] = False
    auto_register: Annotated[bool | None, Meta(description="The older name of `enabled`.")] = None
    machine_name: Annotated[str | None, Meta(description="Name of the Arc machine; the host name when left out.")] = (
        None
    )
    resource_group: Annotated[
        str | None, Meta(description="Its resource group; azure.resourceGroup when left out.")
    ] = None
    location: Annotated[str | None, Meta(description="Its region; azure.location when left out.")] = None
    tags: Annotated[dict[str, str], Meta(description="Tags of the Arc machine.")] = field(default_factory=dict)
    auto_role_assignment: Annotated[
        bool, Meta(description="Give the machine's identity its roles on the cluster.")
    ] = False
    target_cluster: Annotated[
        ArcTargetCluster | None, Meta(description="The cluster, named as in the first release.")
    ] = None
    package: Annotated[ArcPackage, Meta(description="Where azcmagent comes from.")] = field(
        default_factory=ArcPackage
    )
    wait_seconds: Annotated[
        float,
        Meta(gt=0, le=1800, description="How long Azure may take to know the machine and to give it its roles."),
    ] = 1800.0


class Vpn(ConfigModel, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Reach the cluster's network through a point-to-site VPN.")] = False
    auto_provision: Annotated[bool, Meta(description="Make the VPN gateway when there is none.")] = False
    p2s_gateway_cidr: Annotated[str, Meta(description="Addresses that VPN clients get.")] = "192.168.100.0/24"
    gateway_sku: Annotated[str, Meta(description="Size of a gateway that is made.")] = DefaultText("VpnGw2AZ")
    gateway_name: Annotated[str, Meta(description="Name of the gateway that is used or made.")] = "aks-flex-node"
    virtual_network_id: Annotated[
        str | None, Meta(description="ARM id of the network to reach; the cluster's own when left out.")
    ] = None
    gateway_subnet_cidr: Annotated[
        str | None, Meta(description="Addresses of the gateway's subnet; a free part of the network when left out.")
    ] = None
    adopt: Annotated[
        bool, Meta(description="Change a gateway that exists with other settings; without it nothing is touched.")
    ] = False
    dns_servers: Annotated[
        tuple[str, ...], Meta(description="Name servers behind the VPN; those of the network when left out.")
    ] = ()
    dns_domains: Annotated[
        tuple[str, ...], Meta(description="Domains to ask them for; that of the API server when left out.")
    ] = ()
    renew_days: Annotated[
        int, Meta(ge=1, le=365, description="Days before the end of the client's certificate at which it is renewed.")
    ] = 30

    @property
    def has_own_sku(self) -> bool:
        """Whether somebody asked for a size, be it the default one."""
        return not isinstance(self.gateway_sku, DefaultText)


class TargetCluster(ConfigModel, frozen=True, kw_only=True):
    resource_id: Annotated[str | None, Meta(description="ARM id of the AKS cluster.")] = None
    name: Annotated[str | None, Meta(description="Its name, when there is no resourceId.")] = None
    resource_group: Annotated[str | None, Meta(description="Its resource group, when there is no resourceId.")] = None
    location: Annotated[str | None, Meta(description="Its region.")] = None


class Azure(ConfigModel, frozen=True, kw_only=True):
    subscription_id: Annotated[str | None, Meta(description="Subscription of the cluster.")] = None
    tenant_id: Annotated[str | None, Meta(description="Entra tenant.")] = None
    cloud: Annotated[str, Meta(description="Which Azure: AzurePublicCloud, AzureChinaCloud, …")] = "AzurePublicCloud"
    resource_manager: Annotated[
        HttpsURL | None, Meta(description="Azure's resource manager, in a private cloud; by `cloud` when left out.")
    ] = None
    authority_host: Annotated[
        HttpsURL | None, Meta(description="Where tokens come from, in a private cloud; by `cloud` when left out.")
    ] = None
    ca_cert_data: Annotated[
        str | None,
        Meta(description="CA certificates of a private cloud: PEM in base64; the public ones when left out."),
    ] = None
    location: Annotated[str | None, Meta(description="Region for what is made in Azure.")] = None
    resource_group: Annotated[str | None, Meta(description="Resource group for what is made in Azure.")] = None
    service_principal: Annotated[ServicePrincipal | None, Meta(description="Sign in as a service principal.")] = None
    managed_identity: Annotated[ManagedIdentity | None, Meta(description="Sign in as this Azure VM's identity.")] = (
        None
    )
    workload_identity: Annotated[
        WorkloadIdentity | None,
        Meta(description="Sign in with a federated token, where something on this machine provides one."),
    ] = None
    bootstrap_token: Annotated[BootstrapToken | None, Meta(description="Join by a Kubernetes bootstrap token.")] = (
        None
    )
    arc: Annotated[Arc, Meta(description="Azure Arc.")] = field(default_factory=Arc)
    vpn: Annotated[Vpn, Meta(description="VPN to the cluster's network.")] = field(default_factory=Vpn)
    target_cluster: Annotated[TargetCluster | None, Meta(description="The cluster to join.")] = None
