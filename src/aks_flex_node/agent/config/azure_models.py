"""Settings of Azure as pydantic models: identities, Azure Arc, the VPN and the target cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from aks_flex_node.agent.config.base_model import ConfigModel, HttpsURL, Path
from aks_flex_node.agent.config.secret import Secret  # noqa: TC001


class ServicePrincipal(ConfigModel):
    tenant_id: str | None = Field(
        default=None,
        validation_alias=AliasChoices("tenantId", "clientTenant", "tenant_id"),
        description="Tenant of the service principal; azure.tenantId when left out.",
    )
    client_id: str = Field(description="Application (client) id.")
    client_secret: Secret | None = Field(default=None, description="Its secret. Better: clientSecretFile.")
    client_secret_file: Path | None = Field(default=None, description="A file, mode 0600, that holds the secret.")
    client_certificate: Secret | None = Field(
        default=None, description="Its certificate and private key (PEM), instead of a secret."
    )
    client_certificate_file: Path | None = Field(
        default=None, description="A file, mode 0600, that holds certificate and key."
    )


class ManagedIdentity(ConfigModel):
    client_id: str | None = Field(
        default=None, description="Which user-assigned identity; the system's own when left out."
    )


class WorkloadIdentity(ConfigModel):
    tenant_id: str | None = Field(default=None, description="Tenant of the identity; azure.tenantId when left out.")
    client_id: str = Field(description="Client id of the identity that trusts the token's issuer.")
    token_file: Path = Field(description="The file that holds the federated token; it is read each time.")


class BootstrapToken(ConfigModel):
    token: Secret | None = Field(default=None, description="Kubernetes bootstrap token, `abcdef.0123456789abcdef`.")
    token_file: Path | None = Field(default=None, description="A file, mode 0600, that holds the token.")


class ArcTargetCluster(ConfigModel):
    name: str = Field(description="Name of the AKS cluster.")
    resource_group: str | None = Field(
        default=None, description="Its resource group; azure.resourceGroup when left out."
    )


# Those of Microsoft's keys for Linux packages, as published for releases before and since 2025.
MICROSOFT_KEYS = ("BC528686B50D79E339D3721CEB3E94ADBE1229CF", "AA86F75E427A19DD33346403EE4D7792F748182B")


class ArcPackage(ConfigModel):
    install: bool = Field(default=True, description="Install azcmagent when the machine does not have it.")
    repository: str | None = Field(
        default=None, description="APT repository of azcmagent; Microsoft's for this release when left out."
    )
    suite: str | None = Field(default=None, description="Its suite; the release's code name when left out.")
    key_url: str | None = Field(
        default=None, description="The key that signs it; Microsoft's for this release when left out."
    )
    key_fingerprints: tuple[str, ...] = Field(
        default=MICROSOFT_KEYS, description="What the key must be: one of these fingerprints."
    )


class Arc(ConfigModel):
    enabled: bool = Field(default=False, description="Register this machine with Azure Arc.")
    auto_register: bool | None = Field(default=None, description="The older name of `enabled`.")
    machine_name: str | None = Field(
        default=None, description="Name of the Arc machine; the host name when left out."
    )
    resource_group: str | None = Field(
        default=None, description="Its resource group; azure.resourceGroup when left out."
    )
    location: str | None = Field(default=None, description="Its region; azure.location when left out.")
    tags: dict[str, str] = Field(default={}, description="Tags of the Arc machine.")
    auto_role_assignment: bool = Field(
        default=False, description="Give the machine's identity its roles on the cluster."
    )
    target_cluster: ArcTargetCluster | None = Field(
        default=None, description="The cluster, named as in the first release."
    )
    package: ArcPackage = Field(default_factory=ArcPackage, description="Where azcmagent comes from.")
    wait_seconds: Annotated[float, Field(gt=0, le=1800)] = Field(
        default=1800.0, description="How long Azure may take to know the machine and to give it its roles."
    )


class Vpn(ConfigModel):
    enabled: bool = Field(default=False, description="Reach the cluster's network through a point-to-site VPN.")
    auto_provision: bool = Field(default=False, description="Make the VPN gateway when there is none.")
    p2s_gateway_cidr: str = Field(default="192.168.100.0/24", description="Addresses that VPN clients get.")
    gateway_sku: str = Field(default="VpnGw2AZ", description="Size of a gateway that is made.")
    gateway_name: str = Field(default="aks-flex-node", description="Name of the gateway that is used or made.")
    virtual_network_id: str | None = Field(
        default=None, description="ARM id of the network to reach; the cluster's own when left out."
    )
    gateway_subnet_cidr: str | None = Field(
        default=None, description="Addresses of the gateway's subnet; a free part of the network when left out."
    )
    adopt: bool = Field(
        default=False, description="Change a gateway that exists with other settings; without it nothing is touched."
    )
    dns_servers: tuple[str, ...] = Field(
        default=(), description="Name servers behind the VPN; those of the network when left out."
    )
    dns_domains: tuple[str, ...] = Field(
        default=(), description="Domains to ask them for; that of the API server when left out."
    )
    renew_days: Annotated[int, Field(ge=1, le=365)] = Field(
        default=30, description="Days before the end of the client's certificate at which it is renewed."
    )


class TargetCluster(ConfigModel):
    resource_id: str | None = Field(default=None, description="ARM id of the AKS cluster.")
    name: str | None = Field(default=None, description="Its name, when there is no resourceId.")
    resource_group: str | None = Field(default=None, description="Its resource group, when there is no resourceId.")
    location: str | None = Field(default=None, description="Its region.")


class Azure(ConfigModel):
    subscription_id: str | None = Field(default=None, description="Subscription of the cluster.")
    tenant_id: str | None = Field(default=None, description="Entra tenant.")
    cloud: str = Field(default="AzurePublicCloud", description="Which Azure: AzurePublicCloud, AzureChinaCloud, …")
    resource_manager: HttpsURL | None = Field(
        default=None, description="Azure's resource manager, in a private cloud; by `cloud` when left out."
    )
    authority_host: HttpsURL | None = Field(
        default=None, description="Where tokens come from, in a private cloud; by `cloud` when left out."
    )
    ca_cert_data: str | None = Field(
        default=None, description="CA certificates of a private cloud: PEM in base64; the public ones when left out."
    )
    location: str | None = Field(default=None, description="Region for what is made in Azure.")
    resource_group: str | None = Field(default=None, description="Resource group for what is made in Azure.")
    service_principal: ServicePrincipal | None = Field(default=None, description="Sign in as a service principal.")
    managed_identity: ManagedIdentity | None = Field(default=None, description="Sign in as this Azure VM's identity.")
    workload_identity: WorkloadIdentity | None = Field(
        default=None, description="Sign in with a federated token, where something on this machine provides one."
    )
    bootstrap_token: BootstrapToken | None = Field(default=None, description="Join by a Kubernetes bootstrap token.")
    arc: Arc = Field(default_factory=Arc, description="Azure Arc.")
    vpn: Vpn = Field(default_factory=Vpn, description="VPN to the cluster's network.")
    target_cluster: TargetCluster | None = Field(default=None, description="The cluster to join.")
