"""Facts of a cluster that its nodes need, read from its API server and from its ARM resource if it has one."""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_node.errors import ClusterError
from aks_flex_rp.clusters.client import ApiRefused

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject

DNS = "/api/v1/namespaces/kube-system/services/kube-dns"
KUBERNETES = "/api/v1/namespaces/default/services/kubernetes"
ROOTS = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class ClusterFacts:
    version: str  # such as 1.36.3
    server_url: str
    ca_cert_data: str  # base64 of PEM
    dns_service_ip: str
    cluster_domain: str = "cluster.local"
    location: str = ""
    tenant_id: str = ""
    aad: bool | None = (
        None  # whether Entra ID authentication is enabled; None if unknown, because only Azure can tell
    )
    ranges: dict[str, str] = field(
        default_factory=dict
    )  # address ranges of pods and services, if Azure provides them

    @property
    def taken(self) -> dict[str, str]:
        """Returns the known addresses of the cluster and what uses them."""
        known = {network: f"the cluster's {what}" for network, what in self.ranges.items()}
        if "services" in self.ranges.values() or not self.dns_service_ip:
            return known
        return {**known, self.dns_service_ip: "the cluster's DNS service"}

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ClusterFacts:
        """Parses stored facts. Ignores keys that a newer release wrote."""
        return msgspec.convert(document, cls)


@dataclass(frozen=True)
class FactOverrides:
    """Facts that the administrator set: another API server address for nodes, or the location of the cluster."""

    server_url: str = ""
    dns_service_ip: str = ""
    cluster_domain: str = ""
    location: str = ""
    tenant_id: str = ""


async def read_facts(client: KubeClient, overrides: FactOverrides | None = None) -> ClusterFacts:
    overrides = overrides or FactOverrides()
    direct = await client.direct()
    version = (await client.get("/version")).get("gitVersion", "")
    managed = await client.managed_cluster() or {}
    azure = _azure(managed)
    found = {
        "version": plain_version(version or azure.get("version", "")),
        "server_url": direct.server,
        "ca_cert_data": base64.b64encode((await _authorities(client, direct.authority)).encode()).decode(),
        **{name: value for name, value in azure.items() if name != "version" and value not in (None, "")},
        **{name: value for name, value in asdict(overrides).items() if value},
    }
    if not found.get("dns_service_ip"):
        found["dns_service_ip"] = await _dns(client)
    return ClusterFacts(**found)


def plain_version(text: str) -> str:
    """Returns the plain version, such as 1.36.3 of `v1.36.3-vendor.1`."""
    found = re.match(r"v?(\d+\.\d+\.\d+)", text)
    if not found:
        raise ClusterError(
            "kubernetes-version-unknown",
            f"The API server reports an invalid version: {text!r}.",
            "Check that the address is that of a Kubernetes API server.",
        )
    return found[1]


def _azure(managed: KubeObject) -> dict[str, Any]:
    properties = managed.get("properties") or {}
    return {
        "version": properties.get("currentKubernetesVersion") or properties.get("kubernetesVersion") or "",
        "dns_service_ip": (properties.get("networkProfile") or {}).get("dnsServiceIP"),
        "ranges": _ranges(properties.get("networkProfile") or {}),
        "location": managed.get("location"),
        "tenant_id": (managed.get("identity") or {}).get("tenantId"),
        "aad": bool(properties.get("aadProfile")) if managed else None,
    }


def _ranges(profile: KubeObject) -> dict[str, str]:
    named = {"pods": ("podCidr", "podCidrs"), "services": ("serviceCidr", "serviceCidrs")}
    found = [(what, [profile.get(one), *(profile.get(many) or ())]) for what, (one, many) in named.items()]
    return {network: what for what, networks in found for network in networks if network}


async def _authorities(client: KubeClient, ours: str) -> str:
    """Returns the CA that the service trusts and those that the cluster publishes:

    during a CA rotation, nodes need both.
    """
    try:
        published = (await client.find(ROOTS) or {}).get("data", {}).get("ca.crt", "")
    except ApiRefused:
        published = ""  # the service may lack the permission
    known = [one.strip() for one in PEM.findall(ours)]
    return "\n".join(dict.fromkeys([*known, *PEM.findall(published)])) + "\n"


async def _dns(client: KubeClient) -> str:
    service = await client.find(DNS)
    address = ((service or {}).get("spec") or {}).get("clusterIP", "")
    if address and address != "None":
        return str(address)
    # By convention the API server has the first address of the service range, and DNS the tenth.
    first = (await client.get(KUBERNETES))["spec"]["clusterIP"]
    return str(ipaddress.ip_address(first) + 9)
