"""Under which names and addresses a node may answer. Who holds a certificate for a name is believed to be it.

A kubelet writes the addresses of its Node by itself, so what stands there proves nothing. A name must therefore be
made of the node's own name, which the certificate by which it logs in does prove; an address must be one that the
whole cluster can see the node claim, and nobody else's.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.rp.clusters.facts import KUBERNETES
from aks_flex_node.rp.clusters.nodes import NODES, is_ours
from aks_flex_node.rp.clusters.requests import NODE, SERVING_SIGNER, form
from aks_flex_node.rp.clusters.requests import NODES as GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aks_flex_node.rp.clusters.clients import Client
    from aks_flex_node.rp.clusters.facts import ClusterFacts
    from aks_flex_node.rp.clusters.pkcs10 import Contents
    from aks_flex_node.rp.clusters.requests import Request

NAMING = {"Hostname", "InternalDNS"}  # kinds of addresses
SHORT = {"kubernetes", "kubernetes.default"}  # by which pods know the API server
PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # no wildcards, no last dot
NOBODYS = ("is_loopback", "is_link_local", "is_unspecified", "is_multicast")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Surroundings:
    """What in a cluster is not a node's own, whatever the node says of itself."""

    servers: frozenset[str]  # names of the API server
    domain: str
    addresses: Mapping[Address, str]  # and whose they are


async def read_surroundings(
    client: Client, facts: ClusterFacts, node: str, further: Iterable[str] = ()
) -> Surroundings:
    """`further` are URLs by which some nodes know the API server."""
    direct = await client.direct()
    known = {_host(url) for url in (direct.server, facts.server_url, *further)}
    servers = {*known, direct.server_name.lower(), *SHORT}
    # Of flex nodes many have the same address: every site has a network of its own, and most look alike.
    nodes = [one for one in (await client.list(NODES))[0] if not is_ours(one)]
    spec = (await client.get(KUBERNETES))["spec"]
    whose = {
        **{at: f"node {_name(one)}" for one in nodes if _name(one) != node for at in _addresses(one)},
        **dict.fromkeys(_parsed(facts.dns_service_ip), "the cluster's DNS service"),
        **dict.fromkeys(_parsed(*servers, spec["clusterIP"], *spec.get("clusterIPs", ())), "the API server"),
    }
    return Surroundings(frozenset(servers), facts.cluster_domain.lower(), whose)


@dataclass(frozen=True)
class Serving:
    """A node asks for the certificate by which its kubelet answers."""

    node: str
    names: frozenset[str]
    addresses: frozenset[Address]
    around: Surroundings
    identity: str = ""  # as whom its kubelet asks, where that is not the node itself

    @classmethod
    def of(cls, document: Mapping[str, Any], around: Surroundings, identity: str = "") -> Serving:
        """By what the Node says of itself, as far as that can be believed."""
        name = _name(document)
        said = {value.lower() for kind, value in _listed(document) if kind in NAMING}
        own = {one for one in said if one.startswith(f"{name}.")}
        return cls(name, frozenset({name, *own}), frozenset(_addresses(document)), around, identity)

    def objections(self, request: Request, asked: Contents) -> Iterator[str]:
        itself = request.user == NODE + self.node and GROUP in request.groups
        if not itself and not (self.identity and request.user == self.identity):
            yield f"it comes from user {request.user!r} and not from node {self.node}"
        yield from form(request, asked, self.node, SERVING_SIGNER, "server auth")
        if asked.other_names:
            yield f"it asks for a {asked.other_names[0]}, and a kubelet needs names and addresses alone"
        if not asked.dns_names and not asked.addresses:
            yield "it asks for no name and no address at all"
        for name in asked.dns_names:
            if why := self._wrong_name(name.lower()):
                yield f"{name!r} {why}"
        for address in asked.addresses:
            if why := self._wrong_address(address):
                yield f"address {address} {why}"

    def _wrong_name(self, name: str) -> str:
        if not PLAIN.fullmatch(name):
            return "is not the plain name of one host"
        if name in self.around.servers:
            return "is a name of the API server"
        for domain in ("svc", self.around.domain):
            if f".{name}".endswith(f".{domain}"):
                return f"is under .{domain}, where the cluster's services have their names"
        if name not in self.names:
            return f"is not a name of node {self.node}, or not one that its Node lists"
        return ""

    def _wrong_address(self, text: str) -> str:
        address = next(_parsed(text), None)
        if address is None:
            return "is not the address of one host"
        for kind in NOBODYS:
            if getattr(address, kind):
                return f"is {kind[3:].replace('_', '-')}, which is no node's own"
        if whose := self.around.addresses.get(address):
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
