"""Which DNS names and IP addresses a kubelet serving certificate may contain.

A kubelet writes its Node's addresses itself, so they prove nothing. A name must derive from the node's own name; an
address must be listed on the Node and belong to nobody else.
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

NAMING = {"Hostname", "InternalDNS"}  # kinds of addresses
SHORT = {"kubernetes", "kubernetes.default"}  # by which pods know the API server
PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # no wildcards, no last dot
SPECIAL_ADDRESSES = ("is_loopback", "is_link_local", "is_unspecified", "is_multicast")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClusterNames:
    """What in a cluster is not a node's own, whatever the node says of itself."""

    servers: frozenset[str]  # names of the API server
    domain: str
    addresses: Mapping[Address, str]  # and whose they are


async def read_cluster_names(
    client: KubeClient, facts: ClusterFacts, node: str, further: Iterable[str] = ()
) -> ClusterNames:
    """`further` are URLs by which some nodes know the API server."""
    direct = await client.direct()
    known = {_host(url) for url in (direct.server, facts.server_url, *further)}
    servers = {*known, direct.server_name.lower(), *SHORT}
    # Of flex nodes many have the same address: every site has a network of its own, and most look alike.
    nodes = [one for one in (await client.list(NODES))[0] if not is_flex_node(one)]
    spec = (await client.get(KUBERNETES))["spec"]
    whose = {
        **{at: f"node {_name(one)}" for one in nodes if _name(one) != node for at in _addresses(one)},
        **dict.fromkeys(_parsed(facts.dns_service_ip), "the cluster's DNS service"),
        **dict.fromkeys(_parsed(*servers, spec["clusterIP"], *spec.get("clusterIPs", ())), "the API server"),
    }
    return ClusterNames(frozenset(servers), facts.cluster_domain.lower(), whose)


@dataclass(frozen=True)
class ServingExpectation:
    """A node asks for the certificate by which its kubelet answers."""

    node: str
    names: frozenset[str]
    addresses: frozenset[Address]
    cluster_names: ClusterNames
    identity: str = ""  # as whom its kubelet asks, where that is not the node itself

    @classmethod
    def of(cls, document: Mapping[str, Any], cluster_names: ClusterNames, identity: str = "") -> ServingExpectation:
        """By what the Node says of itself, as far as that can be believed."""
        name = _name(document)
        names = {value.lower() for kind, value in _listed(document) if kind in NAMING}
        own = {one for one in names if one.startswith(f"{name}.")}
        return cls(name, frozenset({name, *own}), frozenset(_addresses(document)), cluster_names, identity)

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        itself = request.user == NODE_USER_PREFIX + self.node and GROUP in request.groups
        if not itself and not (self.identity and request.user == self.identity):
            yield f"it comes from user {request.user!r} and not from node {self.node}"
        yield from common_objections(request, csr, self.node, SERVING_SIGNER, "server auth")
        if csr.other_names:
            yield f"it asks for a {csr.other_names[0]}, and a kubelet needs names and addresses alone"
        if not csr.dns_names and not csr.addresses:
            yield "it asks for no name and no address at all"
        for name in csr.dns_names:
            if why := self._wrong_name(name.lower()):
                yield f"{name!r} {why}"
        for address in csr.addresses:
            if why := self._wrong_address(address):
                yield f"address {address} {why}"

    def _wrong_name(self, name: str) -> str:
        if not PLAIN.fullmatch(name):
            return "is not the plain name of one host"
        if name in self.cluster_names.servers:
            return "is a name of the API server"
        for domain in ("svc", self.cluster_names.domain):
            if f".{name}".endswith(f".{domain}"):
                return f"is under .{domain}, where the cluster's services have their names"
        if name not in self.names:
            return f"is not a name of node {self.node}, or not one that its Node lists"
        return ""

    def _wrong_address(self, text: str) -> str:
        address = next(_parsed(text), None)
        if address is None:
            return "is not the address of one host"
        for kind in SPECIAL_ADDRESSES:
            if getattr(address, kind):
                return f"is {kind[3:].replace('_', '-')}, which is no node's own"
        if whose := self.cluster_names.addresses.get(address):
            return f"belongs to {whose}"
        return "" if address in self.addresses else f"is not one of node {self.node}"


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _listed(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["type"], one["address"]) for one in (node.get("status") or {}).get("addresses") or []]


def _addresses(node: Mapping[str, Any]) -> Iterator[Address]:
    return _parsed(*(value for _, value in _listed(node)))


def _parsed(*texts: str) -> Iterator[Address]:
    """Those that are addresses. One of IPv4 that is written as IPv6 is the same to whoever verifies a certificate."""
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        yield getattr(address, "ipv4_mapped", None) or address


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()
