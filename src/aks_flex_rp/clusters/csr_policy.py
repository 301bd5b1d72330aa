"""Decides whether a CertificateSigningRequest may be approved.

The request is parsed and checked against the expectations for the node. Anything unexpected is denied, because a
certificate cannot be revoked.

A kubelet writes its Node's addresses itself, so they prove nothing. A name in its serving certificate must derive
from the node's own name. An address must be listed on the Node and must not belong to anything else.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from aks_flex_rp.clusters.facts import KUBERNETES
from aks_flex_rp.clusters.node_controller import NODES, is_flex_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.facts import ClusterFacts


CURVES = {"secp256r1", "secp384r1", "secp521r1"}
RSA_BITS = range(2048, 8193)


@dataclass(frozen=True)
class CsrContents:
    common_names: tuple[str, ...]
    organizations: tuple[str, ...]
    fields: int  # number of all subject fields
    weakness: str  # why its key is too weak; empty if it is not
    extensions: tuple[str, ...]  # except alternative names
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()  # types of other alternative names


def parse_csr(encoded: str) -> CsrContents | None:
    """Parses a base64-encoded PEM request. Returns None if it is invalid or not signed with its own key."""
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(encoded, validate=True))
        return _contents(request) if request.is_signature_valid else None
    except (ValueError, TypeError, binascii.Error, UnsupportedAlgorithm, x509.DuplicateExtension):
        return None


def _contents(request: x509.CertificateSigningRequest) -> CsrContents:
    subject = list(request.subject)
    names: list[x509.GeneralName] = []
    extensions = []
    for extension in request.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = list(extension.value)
        else:
            extensions.append(extension.oid.dotted_string)
    return CsrContents(
        tuple(str(one.value) for one in subject if one.oid == NameOID.COMMON_NAME),
        tuple(str(one.value) for one in subject if one.oid == NameOID.ORGANIZATION_NAME),
        len(subject),
        _weakness(request),
        tuple(extensions),
        tuple(one.value for one in names if isinstance(one, x509.DNSName)),
        tuple(str(one.value) for one in names if isinstance(one, x509.IPAddress)),
        tuple(type(one).__name__ for one in names if not isinstance(one, (x509.DNSName, x509.IPAddress))),
    )


def _weakness(request: x509.CertificateSigningRequest) -> str:
    key = request.public_key()
    if isinstance(key, ed25519.Ed25519PublicKey):
        return ""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "" if key.curve.name in CURVES else f"its key uses the curve {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return "" if key.key_size in RSA_BITS else f"its RSA key has {key.key_size} bits"
    return "its key type is not allowed for nodes"


REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
BOOTSTRAP_USER_PREFIX = "system:bootstrap:"
NODE_USER_PREFIX = "system:node:"
NODES_GROUP = "system:nodes"
ALWAYS, SOMETIMES = "digital signature", "key encipherment"  # the latter only with RSA keys
APPROVED_BY_US, DENIED_BY_US = "FlexNodeApproved", "FlexNodeDenied"  # condition reasons
# Annotation on a request that another approver has approved. The value is the request's UID, which is unknown before
# the request exists, so a request cannot be created with a valid mark.
ACCEPTED = "flex.aks.azure.com/accepted"


@dataclass(frozen=True)
class CertificateRequest:
    """The fields of a CertificateSigningRequest that the approver uses."""

    name: str
    uid: str
    created: str
    user: str
    groups: frozenset[str]
    signer: str
    usages: tuple[str, ...]
    pem: str = field(repr=False)
    approval: str  # reason of the Approved condition
    approved: bool
    denial: str  # message of the Denied condition; empty if it was not denied
    failed: str
    issued: bool
    accepted: bool  # approved or marked by this service
    document: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls, document: dict[str, Any]) -> CertificateRequest:
        metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
        conditions = {one["type"]: one for one in status.get("conditions") or []}
        reason = conditions.get("Approved", {}).get("reason", "")
        return cls(
            metadata["name"],
            metadata["uid"],
            metadata["creationTimestamp"],
            spec.get("username", ""),
            frozenset(spec.get("groups") or ()),
            spec.get("signerName", ""),
            tuple(spec.get("usages") or ()),
            spec.get("request", ""),
            reason,
            "Approved" in conditions,
            _message(conditions, "Denied", "Another approver denied it."),
            _message(conditions, "Failed", "no reason given"),
            bool(status.get("certificate")),
            reason == APPROVED_BY_US or (metadata.get("annotations") or {}).get(ACCEPTED) == metadata["uid"],
            document,
        )

    @property
    def token_id(self) -> str:
        """Returns the bootstrap token ID of the requester, or an empty string."""
        return _after(BOOTSTRAP_USER_PREFIX, self.user)

    @property
    def requested_node(self) -> str:
        """Returns the node that the request's subject names, or an empty string."""
        inside = parse_csr(self.pem)
        return _after(NODE_USER_PREFIX, inside.common_names[0]) if inside and inside.common_names else ""

    @property
    def node(self) -> str:
        """Returns the node that sent the request, or an empty string."""
        return _after(NODE_USER_PREFIX, self.user)


def _after(prefix: str, name: str) -> str:
    return name.removeprefix(prefix) if name.startswith(prefix) else ""


@dataclass(frozen=True)
class BootstrapExpectation:
    """Requirements for the first certificate of a node, requested with its bootstrap token."""

    node: str
    token_id: str
    group: str

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        if request.user != BOOTSTRAP_USER_PREFIX + self.token_id:
            yield f"the requester is user {request.user!r}, not the bootstrap token of node {self.node}"
        if self.group not in request.groups:
            yield f"the requester is not in group {self.group}"
        yield from client_objections(request, csr, self.node)


@dataclass(frozen=True)
class IdentityExpectation:
    """Requirements for a certificate that a node requests with its Azure identity: the first, or a replacement."""

    node: str
    identity: str

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        if request.user != self.identity:
            yield f"the requester is user {request.user!r}, not the identity of node {self.node}"
        yield from client_objections(request, csr, self.node)


class CsrExpectation(Protocol):
    """Requirements that a request must meet to be approved."""

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]: ...


def check_csr(request: CertificateRequest, expectation: CsrExpectation) -> str:
    """Returns why the request must be denied, or an empty string if it may be approved."""
    parsed = parse_csr(request.pem)
    if parsed is None:
        return "It is not a valid request that is signed with its own key."
    why = next(expectation.objections(request, parsed), "")
    return why and f"{why[0].upper()}{why[1:]}."


def client_objections(request: CertificateRequest, csr: CsrContents, node: str) -> Iterator[str]:
    """Yields objections to a kubelet client certificate."""
    yield from common_objections(request, csr, node, CLIENT_SIGNER, "client auth")
    if csr.dns_names or csr.addresses or csr.other_names:
        yield "it requests alternative names, which a client certificate must not have"


def common_objections(
    request: CertificateRequest, csr: CsrContents, node: str, signer: str, purpose: str
) -> Iterator[str]:
    """Yields objections that apply to every certificate of a node."""
    if request.signer != signer:
        yield f"it requests signer {request.signer!r}, not {signer}"
    if csr.common_names != (NODE_USER_PREFIX + node,):
        yield f"it requests the name {_listed(csr.common_names)}; only {NODE_USER_PREFIX + node} is allowed"
    if csr.organizations != (NODES_GROUP,):
        yield f"it requests the group {_listed(csr.organizations)}; only {NODES_GROUP} is allowed"
    if csr.fields != 2:
        yield "its subject contains more than a name and a group"
    if csr.extensions:
        yield f"it requests the extension {csr.extensions[0]}; extensions are not allowed"
    if csr.weakness:
        yield csr.weakness
    usages = sorted(set(request.usages) - {SOMETIMES})
    if usages != sorted((ALWAYS, purpose)):
        yield f"its usages are {_listed(request.usages)}, but must be {ALWAYS} and {purpose}"


def _message(conditions: dict[str, dict[str, Any]], kind: str, default: str) -> str:
    return (conditions[kind].get("message") or default) if kind in conditions else ""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values) or "nothing"


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
        names = {value.lower() for kind, value in _node_addresses(document) if kind in NAMING}
        own = {one for one in names if one.startswith(f"{name}.")}
        return cls(name, frozenset({name, *own}), frozenset(_addresses(document)), cluster_names, identity)

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        itself = request.user == NODE_USER_PREFIX + self.node and NODES_GROUP in request.groups
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


def _node_addresses(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["type"], one["address"]) for one in (node.get("status") or {}).get("addresses") or []]


def _addresses(node: Mapping[str, Any]) -> Iterator[Address]:
    return _parsed(*(value for _, value in _node_addresses(node)))


def _parsed(*texts: str) -> Iterator[Address]:
    """Yields the valid addresses. An IPv4-mapped IPv6 address counts as IPv4, as in certificate verification."""
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        yield getattr(address, "ipv4_mapped", None) or address
