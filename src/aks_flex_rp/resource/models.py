"""Pydantic models of the request body, as defined in api/properties.tsp.

Read-only properties are accepted and ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

ACRONYMS = {"base_url": "baseURL", "image_gc_high_threshold": "imageGCHighThreshold"}
ACRONYMS["image_gc_low_threshold"] = "imageGCLowThreshold"
ACRONYMS |= {"server_url": "serverURL", "gateway_sku": "gatewaySKU"}
ACRONYMS |= {"p2s_gateway_cidr": "p2sGatewayCIDR", "gateway_subnet_cidr": "gatewaySubnetCIDR"}


def wire_name(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return ACRONYMS.get(attribute) or first + "".join(word.capitalize() for word in rest)


class WireModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=wire_name,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        hide_input_in_errors=True,
    )


EntraId = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
VersionText = Annotated[str, Field(pattern=r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([-+.][0-9A-Za-z.-]+)?$")]
Percent = Annotated[int, Field(ge=0, le=100)]
Quantities = dict[str, str]


class ServicePrincipal(WireModel):
    client_id: EntraId
    client_secret: SecretStr | None = None
    certificate_on_machine: bool | None = None
    client_tenant: Annotated[str, Field(min_length=1, max_length=90, pattern=r"^[0-9A-Za-z.-]+$")] | None = None


class ManagedIdentity(WireModel):
    client_id: EntraId | None = None
    principal_id: EntraId | None = None


class Arc(WireModel):
    machine_name: Annotated[str, Field(min_length=1, max_length=54)] | None = None
    resource_group: Annotated[str, Field(min_length=1, max_length=90)] | None = None
    location: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    principal_id: EntraId | None = None
    tags: dict[str, str] | None = None
    auto_role_assignment: bool | None = None


class AzureAuth(WireModel):
    method: Literal["servicePrincipal", "managedIdentity", "arc", "none"] = "none"
    service_principal: ServicePrincipal | None = None
    managed_identity: ManagedIdentity | None = None
    arc: Arc | None = None


IdentityMethod = Literal["exec", "certificate"]


class KubernetesAuth(WireModel):
    use_azure_auth: bool | None = None
    method: Literal["bootstrapToken", "exec", "certificate"] | None = None

    @property
    def by_identity(self) -> IdentityMethod | None:
        """Returns how the Azure identity is used to join, or None if the node joins with a token."""
        if self.method is None:
            return "certificate" if self.use_azure_auth else None
        return None if self.method == "bootstrapToken" else self.method


class Versions(WireModel):
    kubernetes: VersionText | None = None
    containerd: VersionText | None = None
    runc: VersionText | None = None
    cni: VersionText | None = None
    npd: VersionText | None = None
    agent: VersionText | None = None


class Taint(WireModel):
    key: Annotated[str, Field(min_length=1, max_length=317)]
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Kubelet(WireModel):
    server_url: Annotated[str, Field(max_length=2048)] | None = None
    kube_reserved: Quantities | None = None
    system_reserved: Quantities | None = None
    eviction_hard: Quantities | None = None
    image_gc_high_threshold: Percent | None = None
    image_gc_low_threshold: Percent | None = None
    verbosity: Annotated[int, Field(ge=0, le=10)] | None = None
    pod_pids_limit: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    cluster_domain: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    extra_config: dict[str, Any] | None = None


Cidr = Annotated[str, Field(max_length=64)]


class Vpn(WireModel):
    """VPN settings, as in the agent's configuration."""

    enabled: bool | None = None
    auto_provision: bool | None = None
    adopt: bool | None = None
    gateway_name: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    gateway_sku: Annotated[str, Field(pattern=r"^[0-9A-Za-z_]{1,32}$")] | None = None
    p2s_gateway_cidr: Cidr | None = None
    gateway_subnet_cidr: Cidr | None = None
    virtual_network_id: Annotated[str, Field(max_length=512)] | None = None
    dns_servers: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=8)] | None = None
    dns_domains: Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=32)] | None = None
    renew_days: Annotated[int, Field(ge=1, le=365)] | None = None


Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


class MaintenanceWindow(WireModel):
    days: Annotated[list[Weekday], Field(max_length=7)] | None = None
    start: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    duration_minutes: Annotated[int, Field(ge=15, le=1440)] | None = None
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class UpdatePolicy(WireModel):
    paused: bool | None = None
    drain: bool | None = None
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86400)] | None = None
    health_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    maintenance_window: MaintenanceWindow | None = None


class Artifacts(WireModel):
    base_url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=2048)] | None = None


class NodeConfigProperties(WireModel):
    labels: dict[str, str] | None = None
    taints: list[Taint] | None = None
    max_pods: Annotated[int, Field(ge=1, le=1024)] | None = None
    kubelet: Kubelet | None = None
    vpn: Vpn | None = None
    drift_policy: Literal["log", "repair"] | None = None
    update_policy: UpdatePolicy | None = None
    unbootstrap_on_delete: bool | None = None
    artifacts: Artifacts | None = None
    registry_mirrors: dict[str, list[str]] | None = None


PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,11}$")]  # as AKS names its pools


class TemplateProperties(WireModel):
    """What the nodes of a pool have in common."""

    continuous_monitoring: bool | None = None
    azure_auth: AzureAuth = Field(default_factory=AzureAuth)
    kubernetes_auth: KubernetesAuth = Field(default_factory=KubernetesAuth)
    versions: Versions = Field(default_factory=Versions)
    node_config: NodeConfigProperties = Field(default_factory=NodeConfigProperties)


class Properties(TemplateProperties):
    pool_name: PoolName | None = None


class PoolProperties(WireModel):
    description: Annotated[str, Field(max_length=256)] | None = None
    template: TemplateProperties = Field(default_factory=TemplateProperties)


READ_ONLY = (
    *("configVersion", "configUrl", "configUrlExpires", "config", "status", "lastSeen"),
    *("poolRevision", "effective", "origins", "nextConfig"),
)
POOL_READ_ONLY = (
    *("revision", "nodeCount", "pendingNodeCount"),
    *("stableRevision", "barredRevisions", "activeRollout"),
)
ENVELOPE = ("id", "name", "type", "systemData", "etag")
