"""Decides whether a CertificateSigningRequest may be approved.

Pure functions: they parse the request and check it against the expectations for the node. Anything unexpected is
denied, because a certificate cannot be revoked.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
class CsrVerdict:
    allowed: bool
    why: str = ""


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
        return self.user[len(BOOTSTRAP_USER_PREFIX) :] if self.user.startswith(BOOTSTRAP_USER_PREFIX) else ""

    @property
    def requested_node(self) -> str:
        """Returns the node that the request's subject names, or an empty string."""
        inside = parse_csr(self.pem)
        named = inside.common_names[0] if inside and inside.common_names else ""
        return named[len(NODE_USER_PREFIX) :] if named.startswith(NODE_USER_PREFIX) else ""

    @property
    def node(self) -> str:
        """Returns the node that sent the request, or an empty string."""
        return self.user[len(NODE_USER_PREFIX) :] if self.user.startswith(NODE_USER_PREFIX) else ""


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


def check_csr(csr: dict[str, Any], expectation: CsrExpectation) -> CsrVerdict:
    request = CertificateRequest.read(csr)
    parsed = parse_csr(request.pem)
    if parsed is None:
        return CsrVerdict(False, "It is not a valid request that is signed with its own key.")
    why = next(expectation.objections(request, parsed), "")
    return CsrVerdict(not why, why and f"{why[0].upper()}{why[1:]}.")


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
