"""Generates a node's configuration from its properties and its cluster, with the endpoints of provider and Azure.

`generate_config` returns what every reader of the node sees, without secrets. `build_bundle` adds the secrets and
returns what a machine fetches once from its config URL.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.contract import CLIENT_CERTIFICATE_FILE
from aks_flex_rp.resource import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.resource.models import Properties


DEFAULT_POLL_SECONDS = 30.0  # the agent's default
GENERATOR = 1  # raised with a release that generates other configurations for existing nodes


@dataclass(frozen=True)
class AgentEndpoints:
    url: str = ""  # URL of the service for agents; empty if not configured
    ca_cert_data: str = ""  # base64 of PEM; CA of the service if the system does not trust it
    audiences: dict[str, str] = field(default_factory=dict)  # audience of tokens by tenant
    azure: dict[str, str] = field(default_factory=dict)  # settings that differ from the public cloud
    poll_seconds: float = DEFAULT_POLL_SECONDS  # poll interval of agents
    generator: int = GENERATOR  # stored with the endpoints, so that nodes also get what a new release generates

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> AgentEndpoints:
        """Parses stored endpoints. Ignores keys that a newer release wrote."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})

    def provider_config(self, properties: Properties, tenant: str) -> dict[str, Any]:
        """Returns the provider section for managed nodes and nodes that join with their identity, else an empty
        dict.
        """
        calls = properties.continuous_monitoring or properties.kubernetes_auth.by_identity
        if not calls or not self.url:
            return {}
        principal = properties.azure_auth.service_principal
        home = ((principal.client_tenant if principal else None) or tenant).lower()
        # A tenant may also be given as a domain. Then the only configured tenant is meant.
        audience = self.audiences.get(home) or next(iter(self.audiences.values()), "")
        fields = {"url": self.url, "audience": audience, "caCertData": self.ca_cert_data}
        pace = {"pollSeconds": self.poll_seconds} if self.poll_seconds != DEFAULT_POLL_SECONDS else {}
        return {**{name: value for name, value in fields.items() if value}, **pace}


def cluster_tenant(facts: ClusterFacts, endpoints: AgentEndpoints) -> str:
    """Returns the tenant of a cluster, or the only tenant that the service accepts if the cluster has none."""
    accepted = tuple(endpoints.audiences)
    return facts.tenant_id or (accepted[0] if len(accepted) == 1 else "")


COMPONENTS = ("containerd", "runc", "cni", "npd")
VERSIONED = ("kubernetes", *COMPONENTS, "agent")  # sections of the configuration
SECRETS_STRATEGY = "configMapAndSecretChangeDetectionStrategy"
NO_ENDPOINTS = AgentEndpoints()


@dataclass(frozen=True)
class NodeSecrets:
    """Secrets that only the machine may see."""

    bootstrap_token: str = ""
    client_secret: str = ""

    def __repr__(self) -> str:
        return "Secrets(***)"


def effective_versions(
    properties: Properties, kubernetes: str, earlier: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the requested versions and the tested versions of all other components.

    `kubernetes` is used if no version is requested. A component that is not mentioned is never downgraded.
    """
    requested = {
        name: text.removeprefix("v") for name, text in properties.versions.model_dump(exclude_none=True).items()
    }
    chosen = requested.get("kubernetes") or kubernetes
    tested = {
        name: _newer(text, (earlier or {}).get(name)) for name, text in versions.tested_components(chosen).items()
    }
    return {"kubernetes": chosen, **tested, **requested}


def _newer(tested: str, earlier: str | None) -> str:
    one, other = versions.parse_version(tested), versions.parse_version(earlier or "")
    return earlier if earlier and one and other and other > one else tested


def generate_config(
    properties: Properties,
    cluster: ClusterId,
    facts: ClusterFacts,
    node: str,
    chosen: Mapping[str, str],
    *,
    endpoints: AgentEndpoints = NO_ENDPOINTS,
    downgrade: bool = False,
) -> dict[str, Any]:
    """Generates the configuration. With `downgrade`, the node may install older versions."""
    settings, tenant = properties.node_config, cluster_tenant(facts, endpoints)
    policy = settings.update_policy.model_dump(exclude_none=True) if settings.update_policy else {}
    agent = {"version": chosen.get("agent"), "unbootstrapOnDelete": settings.unbootstrap_on_delete}
    optional = {
        "provider": endpoints.provider_config(properties, tenant),
        "agent": {name: value for name, value in agent.items() if value is not None},
        "artifacts": settings.artifacts.model_dump(exclude_none=True) if settings.artifacts else None,
        "registryMirrors": settings.registry_mirrors,
        "driftPolicy": settings.drift_policy,
        "updatePolicy": {**policy, "allowDowngrade": True} if downgrade else policy,
    }
    # Only nodes that use Azure, with an identity or a VPN gateway, need the settings of a private cloud.
    uses_azure = properties.azure_auth.method != "none" or (settings.vpn and settings.vpn.enabled)
    return {
        "continuousMonitoring": bool(properties.continuous_monitoring),
        "azure": _azure(properties, cluster, facts.location, tenant, node) | (endpoints.azure if uses_azure else {}),
        "kubernetes": {"version": chosen["kubernetes"]},
        **{name: {"version": chosen[name]} for name in COMPONENTS},
        "node": _node(properties, facts, node),
        **{name: value for name, value in optional.items() if value},
    }


def for_other_node(config: Mapping[str, Any], properties: Properties, node: str) -> dict[str, Any]:
    """Returns the configuration of another node with the same properties, cluster and versions."""
    renamed = {**config, "node": {**config["node"], "name": node}}
    arc = properties.azure_auth.arc
    if "arc" in config["azure"] and not (arc and arc.machine_name):
        renamed["azure"] = {**config["azure"], "arc": {**config["azure"]["arc"], "machineName": node}}
    return renamed


def allows_downgrade(config: Mapping[str, Any]) -> bool:
    """Returns whether the configuration allows a downgrade. It is kept until the node has applied it."""
    return bool(config.get("updatePolicy", {}).get("allowDowngrade"))


def config_versions(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: config[name]["version"] for name in VERSIONED if "version" in config.get(name, ())}


def build_bundle(config: Mapping[str, Any], version: int, secrets: NodeSecrets) -> dict[str, Any]:
    azure = dict(config["azure"])
    if secrets.client_secret:
        azure["servicePrincipal"] = {**azure["servicePrincipal"], "clientSecret": secrets.client_secret}
    if secrets.bootstrap_token:
        azure["bootstrapToken"] = {"token": secrets.bootstrap_token}
    return {"configVersion": str(version), "config": {**config, "azure": azure}}


def _azure(properties: Properties, cluster: ClusterId, location: str, tenant: str, node: str) -> dict[str, Any]:
    auth = properties.azure_auth
    azure: dict[str, Any] = {
        "subscriptionId": cluster.subscription,
        "resourceGroup": cluster.group,
        "targetCluster": {"resourceId": str(cluster)},
    }
    if location:
        azure["location"] = location
        azure["targetCluster"]["location"] = location
    if tenant:
        azure["tenantId"] = tenant
    if auth.service_principal:
        azure["servicePrincipal"] = {"clientId": auth.service_principal.client_id}
        if home := auth.service_principal.client_tenant or tenant:
            azure["servicePrincipal"]["clientTenant"] = home
        if auth.service_principal.certificate_on_machine:
            azure["servicePrincipal"]["clientCertificateFile"] = CLIENT_CERTIFICATE_FILE
    if auth.method == "managedIdentity":
        client = auth.managed_identity.client_id if auth.managed_identity else None
        azure["managedIdentity"] = {"clientId": client} if client else {}
    if auth.method == "arc":
        arc = auth.arc.model_dump(exclude_none=True, exclude={"principal_id"}) if auth.arc else {}
        azure["arc"] = {"enabled": True, "machineName": node, **arc}  # the machine's own host name may differ
    vpn = properties.node_config.vpn
    if vpn and (vpn_fields := vpn.model_dump(exclude_none=True)):
        azure["vpn"] = vpn_fields
    return azure


def _node(properties: Properties, facts: ClusterFacts, node: str) -> dict[str, Any]:
    settings = properties.node_config
    kubelet = {
        "serverURL": facts.server_url,
        "caCertData": facts.ca_cert_data,
        "clusterDomain": facts.cluster_domain,
        "serverTLSBootstrap": True,  # the service approves the serving certificates of its nodes
        **(settings.kubelet.model_dump(exclude_none=True) if settings.kubelet else {}),
    }
    if facts.dns_service_ip:
        kubelet["dnsServiceIP"] = facts.dns_service_ip
    if method := properties.kubernetes_auth.by_identity or properties.kubernetes_auth.method:
        kubelet["auth"] = method
    if method == "exec":  # its role cannot list and watch them
        kubelet["extraConfig"] = {**kubelet.get("extraConfig", {}), SECRETS_STRATEGY: "Cache"}
    return {
        "name": node,
        "maxPods": settings.max_pods or 110,
        "labels": settings.labels or {},
        "taints": [taint.model_dump(exclude_none=True) for taint in settings.taints or ()],
        "kubelet": kubelet,
    }
