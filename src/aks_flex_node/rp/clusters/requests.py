"""Whether a request for a certificate may be granted. Pure: it is given what the cluster says, and asks nobody.

What is not expected is refused: a certificate cannot be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.rp.clusters.pkcs10 import contents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_node.rp.clusters.pkcs10 import Contents

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
USER = "system:bootstrap:"
NODE = "system:node:"
NODES = "system:nodes"
ALWAYS, SOMETIMES = "digital signature", "key encipherment"  # the latter with RSA keys
APPROVED_BY_US, DENIED_BY_US = "FlexNodeAccepted", "FlexNodeRefused"  # reasons of conditions
# An annotation, where somebody else was faster to approve. Its value is the request's uid, which whoever sends a
# request cannot know: so nobody can send one that is marked already.
ACCEPTED = "flex.aks.azure.com/accepted"


@dataclass(frozen=True)
class Verdict:
    allowed: bool
    why: str = ""


@dataclass(frozen=True)
class Request:
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
    def read(cls, document: dict[str, Any]) -> Request:
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
        return self.user[len(USER) :] if self.user.startswith(USER) else ""

    @property
    def asked_for(self) -> str:
        """The node that it wants to be, by its own words; empty when it wants to be none."""
        inside = contents(self.pem)
        named = inside.common_names[0] if inside and inside.common_names else ""
        return named[len(NODE) :] if named.startswith(NODE) else ""

    @property
    def node(self) -> str:
        """Empty when it was not sent by a node."""
        return self.user[len(NODE) :] if self.user.startswith(NODE) else ""


@dataclass(frozen=True)
class Joining:
    """A node asks for its first certificate, with the token that was made for it."""

    node: str
    token_id: str
    group: str

    def objections(self, request: Request, asked: Contents) -> Iterator[str]:
        if request.user != USER + self.token_id:
            yield f"it comes from user {request.user!r} and not from the token that was made for node {self.node}"
        if self.group not in request.groups:
            yield f"the user who sent it is not in group {self.group}"
        yield from client_certificate(request, asked, self.node)


@dataclass(frozen=True)
class ByIdentity:
    """A node asks for a certificate as the Azure identity that it joins by: its first, or because it has lost it."""

    node: str
    identity: str

    def objections(self, request: Request, asked: Contents) -> Iterator[str]:
        if request.user != self.identity:
            yield f"it comes from user {request.user!r} and not from the identity of node {self.node}"
        yield from client_certificate(request, asked, self.node)


class Expectation(Protocol):
    """What a request must be like to be granted."""

    def objections(self, request: Request, asked: Contents) -> Iterator[str]: ...


def judge(csr: dict[str, Any], expectation: Expectation) -> Verdict:
    request = Request.read(csr)
    asked = contents(request.pem)
    if asked is None:
        return Verdict(False, "It cannot be read as a request that is signed with its own key.")
    why = next(expectation.objections(request, asked), "")
    return Verdict(not why, why and f"{why[0].upper()}{why[1:]}.")


def client_certificate(request: Request, asked: Contents, node: str) -> Iterator[str]:
    """What holds for the one by which a node logs in."""
    yield from form(request, asked, node, CLIENT_SIGNER, "client auth")
    if asked.dns_names or asked.addresses or asked.other_names:
        yield "it asks for names and addresses, and the certificate by which a node logs in has none"


def form(request: Request, asked: Contents, node: str, signer: str, purpose: str) -> Iterator[str]:
    """What holds for every certificate of a node."""
    if request.signer != signer:
        yield f"it is meant for signer {request.signer!r} and not for {signer}"
    if asked.common_names != (NODE + node,):
        yield f"it asks to be {_listed(asked.common_names)}, and may only be {NODE + node}"
    if asked.organizations != (NODES,):
        yield f"it asks for group {_listed(asked.organizations)}, and may only have {NODES}"
    if asked.fields != 2:
        yield "its subject says more than a name and a group"
    if asked.extensions:
        yield f"it asks for an extension ({asked.extensions[0]}), and a node needs none"
    if asked.weakness:
        yield asked.weakness
    usages = sorted(set(request.usages) - {SOMETIMES})
    if usages != sorted((ALWAYS, purpose)):
        yield f"its usages are {_listed(request.usages)}, and should be {ALWAYS} and {purpose}"


def _message(conditions: dict[str, dict[str, Any]], kind: str, default: str) -> str:
    return (conditions[kind].get("message") or default) if kind in conditions else ""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values) or "nothing"
