"""Decides which DNS names and IP addresses a kubelet serving certificate may contain.

A kubelet writes its Node's addresses itself, so they prove nothing. A name must derive from the node's own name. An
address must be listed on the Node and must not belong to anything else.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_rp.clusters.csr_policy import NODE_USER_PREFIX, SERVING_SIGNER, common_objections
from aks_flex_rp.clusters.csr_policy import NODES_GROUP as GROUP
from aks_flex_rp.clusters.facts import KUBERNETES
from aks_flex_rp.clusters.node_controller import NODES, is_flex_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.csr_policy import CertificateRequest, CsrContents
    from aks_flex_rp.clusters.facts import ClusterFacts

NAMING = {"Hostname", "InternalDNS"}  # address types that contain a name
SHORT = {"kubernetes", "kubernetes.default"}  # names of the API server inside pods
PLAIN = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)  # no wildcards, no trailing dot
SPECIAL_ADDRESSES = ("is_loopback", "is_link_local", "is_unspecified", "is_multicast")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClusterNames:
    """Names and addresses in a cluster that no node may claim."""

    servers: frozenset[str]  # names of the API server
    domain: str
    addresses: Mapping[Address, str]  # address and its owner


async def read_cluster_names(
    client: KubeClient, facts: ClusterFacts, node: str, further: Iterable[str] = (), *, shared: bool = False
) -> ClusterNames:
    """Reads the reserved names and addresses. `further` are additional URLs of the API server that nodes use.

    With `shared`, flex nodes may have the same address, because their sites have separate private networks.
    """
    direct = await client.direct()
    known = {(urlsplit(url).hostname or "").lower() for url in (direct.server, facts.server_url, *further)}
    servers = {*known, direct.server_name.lower(), *SHORT}
    nodes = [one for one in (await client.list(NODES))[0] if not (shared and is_flex_node(one))]
    spec = (await client.get(KUBERNETES))["spec"]
    owners = {
        **{at: f"node {_name(one)}" for one in nodes if _name(one) != node for at in _addresses(one)},
        **dict.fromkeys(_parsed(facts.dns_service_ip), "the cluster's DNS service"),
        **dict.fromkeys(_parsed(*servers, spec["clusterIP"], *spec.get("clusterIPs", ())), "the API server"),
    }
    return ClusterNames(frozenset(servers), facts.cluster_domain.lower(), owners)


@dataclass(frozen=True)
class ServingExpectation:
    """Requirements for the serving certificate of a node's kubelet."""

    node: str
    names: frozenset[str]
    addresses: frozenset[Address]
    cluster_names: ClusterNames
    identity: str = ""  # user that the kubelet authenticates as, if not the node's own

    @classmethod
    def of(cls, document: Mapping[str, Any], cluster_names: ClusterNames, identity: str = "") -> ServingExpectation:
        """Derives the allowed names and addresses from the Node, as far as its own data can be trusted."""
        name = _name(document)
        names = {value.lower() for kind, value in _listed(document) if kind in NAMING}
        own = {one for one in names if one.startswith(f"{name}.")}
        return cls(name, frozenset({name, *own}), frozenset(_addresses(document)), cluster_names, identity)

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        itself = request.user == NODE_USER_PREFIX + self.node and GROUP in request.groups
        if not itself and not (self.identity and request.user == self.identity):
            yield f"the requester is user {request.user!r}, not node {self.node}"
        yield from common_objections(request, csr, self.node, SERVING_SIGNER, "server auth")
        if csr.other_names:
            yield f"it requests a {csr.other_names[0]}; only DNS names and IP addresses are allowed"
        if not csr.dns_names and not csr.addresses:
            yield "it requests no DNS name and no IP address"
        for name in csr.dns_names:
            if why := self._wrong_name(name.lower()):
                yield f"{name!r} {why}"
        for address in csr.addresses:
            if why := self._wrong_address(address):
                yield f"address {address} {why}"

    def _wrong_name(self, name: str) -> str:
        if not PLAIN.fullmatch(name):
            return "is not a plain host name"
        if name in self.cluster_names.servers:
            return "is a name of the API server"
        for domain in ("svc", self.cluster_names.domain):
            if f".{name}".endswith(f".{domain}"):
                return f"is in the cluster's service domain .{domain}"
        if name not in self.names:
            return f"is not a name of node {self.node}, or is not listed on its Node"
        return ""

    def _wrong_address(self, text: str) -> str:
        address = next(_parsed(text), None)
        if address is None:
            return "is not the address of one host"
        for kind in SPECIAL_ADDRESSES:
            if getattr(address, kind):
                return f"is {kind[3:].replace('_', '-')} and cannot belong to a node"
        if owner := self.cluster_names.addresses.get(address):
            return f"belongs to {owner}"
        return "" if address in self.addresses else f"is not an address of node {self.node}"


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _listed(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["type"], one["address"]) for one in (node.get("status") or {}).get("addresses") or []]


def _addresses(node: Mapping[str, Any]) -> Iterator[Address]:
    return _parsed(*(value for _, value in _listed(node)))


def _parsed(*texts: str) -> Iterator[Address]:
    """Yields the valid addresses. An IPv4-mapped IPv6 address counts as IPv4, as in certificate verification."""
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        yield getattr(address, "ipv4_mapped", None) or address
