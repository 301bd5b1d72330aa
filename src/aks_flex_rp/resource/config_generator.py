"""Generates a node's configuration from its properties and its cluster, with the endpoints of provider and Azure.

`generate_config` returns what every reader of the node sees, without secrets. `build_bundle` adds the secrets and
returns what a machine fetches once from its config URL.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_node.api.contract import CLIENT_CERTIFICATE_FILE
from aks_flex_node.settings.table import by_path
from aks_flex_rp.resource import versions
from aks_flex_rp.resource.properties import NO_IDENTITY, config_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.resource.properties import Properties


DEFAULT_POLL_SECONDS: float = by_path()["provider.pollSeconds"].default  # type: ignore[assignment] # a float
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
        return msgspec.convert(document, cls)

    def provider_config(self, properties: Properties, tenant: str) -> dict[str, Any]:
        """Returns the provider section for managed nodes and nodes that join with their identity, else an empty
        dict.
        """
        if not (properties.is_managed or properties.by_identity) or not self.url:
            return {}
        home = (properties.identity.get("clientTenant") or tenant).lower()
        # A tenant may also be given as a domain. Then the only configured tenant is meant.
        audience = self.audiences.get(home) or next(iter(self.audiences.values()), "")
        fields = {"url": self.url, "audience": audience, "caCertData": self.ca_cert_data}
        interval = {"pollSeconds": self.poll_seconds} if self.poll_seconds != DEFAULT_POLL_SECONDS else {}
        return {**{name: value for name, value in fields.items() if value}, **interval}


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
    requested = {name: text.removeprefix("v") for name, text in properties.versions.items()}
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
    tenant, agent = cluster_tenant(facts, endpoints), chosen.get("agent")
    # Only nodes that use Azure, with an identity or a VPN gateway, need the settings of a private cloud.
    uses_azure = properties.auth_method != NO_IDENTITY or properties.at("nodeConfig.vpn.enabled")
    provider = endpoints.provider_config(properties, tenant)
    config: dict[str, Any] = {
        "continuousMonitoring": False,
        "azure": _azure(properties, cluster, facts.location, tenant, node) | (endpoints.azure if uses_azure else {}),
        "node": {
            "name": node,
            "maxPods": by_path()["node.maxPods"].default,
            "labels": {},
            "taints": [],
            "kubelet": _kubelet(facts),
        },
        **({"provider": provider} if provider else {}),
    }
    for path, value in config_values(properties):
        if value != {} and not path.endswith(".version"):
            _set(config, path, value)
    for name in ("kubernetes", *COMPONENTS, *(["agent"] if agent else ())):
        config[name] = {**config.get(name, {}), "version": chosen[name]}
    if downgrade:
        _set(config, "updatePolicy.allowDowngrade", True)
    if method := properties.by_identity or properties.join_method:
        _set(config, "node.kubelet.auth", method)
    if method == "exec":  # its role cannot list and watch them
        _set(config, f"node.kubelet.extraConfig.{SECRETS_STRATEGY}", "Cache")
    return config


def _set(config: dict[str, Any], path: str, value: object) -> None:
    """Sets a value. Sections on the way are copied, because those of the properties are not to change."""
    *sections, name = path.split(".")
    for section in sections:
        inner = dict(config.get(section, {}))
        config[section] = inner
        config = inner
    config[name] = value


def for_other_node(config: Mapping[str, Any], properties: Properties, node: str) -> dict[str, Any]:
    """Returns the configuration of another node with the same properties, cluster and versions."""
    renamed = {**config, "node": {**config["node"], "name": node}}
    if "arc" in config["azure"] and not properties.at("azureAuth.arc.machineName"):
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
    method = properties.auth_method
    if method == "servicePrincipal":
        principal = azure["servicePrincipal"] = {"clientTenant": tenant} if tenant else {}
        if properties.identity.get("certificateOnMachine"):
            principal["clientCertificateFile"] = CLIENT_CERTIFICATE_FILE
    elif method == "managedIdentity":
        azure["managedIdentity"] = {}
    elif method == "arc":
        azure["arc"] = {"enabled": True, "machineName": node}  # the machine's own host name may differ
    return azure


def _kubelet(facts: ClusterFacts) -> dict[str, Any]:
    kubelet: dict[str, Any] = {
        "serverURL": facts.server_url,
        "caCertData": facts.ca_cert_data,
        "clusterDomain": facts.cluster_domain,
        "serverTLSBootstrap": True,  # the service approves the serving certificates of its nodes
    }
    return kubelet | ({"dnsServiceIP": facts.dns_service_ip} if facts.dns_service_ip else {})
