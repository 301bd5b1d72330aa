"""Decides whether a CertificateSigningRequest may be approved. Pure: parses the request and checks it against what is
expected of the node. Anything unexpected is denied, because a certificate cannot be revoked.
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
    fields: int  # how many the subject has in all
    weakness: str  # of its key; empty when there is none
    extensions: tuple[str, ...]  # beside names
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()  # their kinds


def parse_csr(encoded: str) -> CsrContents | None:
    """From base64 of PEM; None when it cannot be read, or whoever made it does not hold its key."""
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
        return "" if key.curve.name in CURVES else f"its key is on the curve {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return "" if key.key_size in RSA_BITS else f"its RSA key has {key.key_size} bits"
    return "its key is of a kind that nodes do not use"


REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
BOOTSTRAP_USER_PREFIX = "system:bootstrap:"
NODE_USER_PREFIX = "system:node:"
NODES_GROUP = "system:nodes"
ALWAYS, SOMETIMES = "digital signature", "key encipherment"  # the latter with RSA keys
APPROVED_BY_US, DENIED_BY_US = "FlexNodeApproved", "FlexNodeDenied"  # reasons of conditions
# An annotation, where somebody else was faster to approve. Its value is the request's uid, which whoever sends a
# request cannot know: so nobody can send one that is marked already.
ACCEPTED = "flex.aks.azure.com/accepted"


@dataclass(frozen=True)
class CsrVerdict:
    allowed: bool
    why: str = ""


@dataclass(frozen=True)
class CertificateRequest:
    """A CertificateSigningRequest, as far as we look at it."""

    name: str
    uid: str
    created: str
    user: str
    groups: frozenset[str]
    signer: str
    usages: tuple[str, ...]
    pem: str = field(repr=False)
    approval: str  # the reason in the Approved condition
    approved: bool
    denial: str  # why it was denied; empty when it was not
    failed: str
    issued: bool
    accepted: bool  # by us
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
            _message(conditions, "Denied", "Somebody else denied it."),
            _message(conditions, "Failed", "it gave up"),
            bool(status.get("certificate")),
            reason == APPROVED_BY_US or (metadata.get("annotations") or {}).get(ACCEPTED) == metadata["uid"],
            document,
        )

    @property
    def token_id(self) -> str:
        """Empty when it was not sent with a bootstrap token."""
        return self.user[len(BOOTSTRAP_USER_PREFIX) :] if self.user.startswith(BOOTSTRAP_USER_PREFIX) else ""

    @property
    def requested_node(self) -> str:
        """The node that it wants to be, by its own words; empty when it wants to be none."""
        inside = parse_csr(self.pem)
        named = inside.common_names[0] if inside and inside.common_names else ""
        return named[len(NODE_USER_PREFIX) :] if named.startswith(NODE_USER_PREFIX) else ""

    @property
    def node(self) -> str:
        """Empty when it was not sent by a node."""
        return self.user[len(NODE_USER_PREFIX) :] if self.user.startswith(NODE_USER_PREFIX) else ""


@dataclass(frozen=True)
class BootstrapExpectation:
    """A node asks for its first certificate, with the token that was made for it."""

    node: str
    token_id: str
    group: str

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        if request.user != BOOTSTRAP_USER_PREFIX + self.token_id:
            yield f"it comes from user {request.user!r} and not from the token that was made for node {self.node}"
        if self.group not in request.groups:
            yield f"the user who sent it is not in group {self.group}"
        yield from client_objections(request, csr, self.node)


@dataclass(frozen=True)
class IdentityExpectation:
    """A node asks for a certificate as the Azure identity that it joins by: its first, or because it has lost it."""

    node: str
    identity: str

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]:
        if request.user != self.identity:
            yield f"it comes from user {request.user!r} and not from the identity of node {self.node}"
        yield from client_objections(request, csr, self.node)


class CsrExpectation(Protocol):
    """What a request must be like to be granted."""

    def objections(self, request: CertificateRequest, csr: CsrContents) -> Iterator[str]: ...


def check_csr(csr: dict[str, Any], expectation: CsrExpectation) -> CsrVerdict:
    request = CertificateRequest.read(csr)
    parsed = parse_csr(request.pem)
    if parsed is None:
        return CsrVerdict(False, "It cannot be read as a request that is signed with its own key.")
    why = next(expectation.objections(request, parsed), "")
    return CsrVerdict(not why, why and f"{why[0].upper()}{why[1:]}.")


def client_objections(request: CertificateRequest, csr: CsrContents, node: str) -> Iterator[str]:
    """What holds for the one by which a node logs in."""
    yield from common_objections(request, csr, node, CLIENT_SIGNER, "client auth")
    if csr.dns_names or csr.addresses or csr.other_names:
        yield "it asks for names and addresses, and the certificate by which a node logs in has none"


def common_objections(
    request: CertificateRequest, csr: CsrContents, node: str, signer: str, purpose: str
) -> Iterator[str]:
    """What holds for every certificate of a node."""
    if request.signer != signer:
        yield f"it is meant for signer {request.signer!r} and not for {signer}"
    if csr.common_names != (NODE_USER_PREFIX + node,):
        yield f"it asks to be {_listed(csr.common_names)}, and may only be {NODE_USER_PREFIX + node}"
    if csr.organizations != (NODES_GROUP,):
        yield f"it asks for group {_listed(csr.organizations)}, and may only have {NODES_GROUP}"
    if csr.fields != 2:
        yield "its subject says more than a name and a group"
    if csr.extensions:
        yield f"it asks for an extension ({csr.extensions[0]}), and a node needs none"
    if csr.weakness:
        yield csr.weakness
    usages = sorted(set(request.usages) - {SOMETIMES})
    if usages != sorted((ALWAYS, purpose)):
        yield f"its usages are {_listed(request.usages)}, and should be {ALWAYS} and {purpose}"


def _message(conditions: dict[str, dict[str, Any]], kind: str, default: str) -> str:
    return (conditions[kind].get("message") or default) if kind in conditions else ""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values) or "nothing"
