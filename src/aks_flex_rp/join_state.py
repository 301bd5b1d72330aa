"""The join state of a node, stored with it: its phase, what the current attempt uses, and what it was granted.

Created -> ConfigFetched -> BootstrapAttempted -> Joined
                 `---------------------+-> Failed, with the cause

Every transition returns the next state, and the same one where it does not apply. Replicas of two releases share the
store during a rolling upgrade, so keys and phases of another release are carried through.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.text_enum import StoredEnum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    TaintKey = tuple[str, str]  # key and effect: a Node has at most one taint of both


class JoinPhase(StoredEnum):
    CREATED = "Created"
    CONFIG_FETCHED = "ConfigFetched"
    BOOTSTRAP_ATTEMPTED = "BootstrapAttempted"
    JOINED = "Joined"
    FAILED = "Failed"


class AccessMethod(StoredEnum):
    """How a node joins with its Azure identity."""

    EXEC = "exec"  # the kubelet always authenticates as that identity
    CERTIFICATE = "certificate"  # the identity may only request the node's certificate


ACCESS_ROLES: Mapping[AccessMethod, str] = {
    AccessMethod.EXEC: "system:node",
    AccessMethod.CERTIFICATE: "system:node-bootstrapper",
}


@dataclass(frozen=True)
class ClusterAccess:
    """The access to the cluster that the Azure identity of a node has, and how it joins with it."""

    identity: str  # its object id, which is the user's name in a cluster that accepts Entra ID
    method: AccessMethod

    @property
    def role(self) -> str | None:
        """The ClusterRole that goes with the method; None for a method of another release."""
        return ACCESS_ROLES.get(self.method)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ClusterAccess:
        return cls(document["identity"], AccessMethod(document["way"]))

    def to_document(self) -> dict[str, str]:
        return {"identity": self.identity, "way": self.method.value}


@dataclass(frozen=True)
class JoinState:
    """How far a node has come in joining its cluster; immutable, with one method for each transition.

    `from_document` keeps the stored keys that this release does not know in `unknown`, and `to_document` writes them
    back unchanged. Every transition carries them along, a new attempt included: only the release that wrote a key
    knows when it ends.
    """

    stored_phase: JoinPhase | None = None  # None where nothing is stored, which counts as Created
    since: float | None = None  # when the current attempt began
    token: str | None = None  # id of the valid bootstrap token
    url_expires: float | None = None  # of the valid config URL
    csr: str | None = None  # the certificate signing request that is accepted
    issued: str | None = None  # the one that got its certificate
    failure: str | None = None
    former_taints: tuple[TaintKey, ...] = ()  # that the node once should have had, the oldest first
    access: ClusterAccess | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)  # keys of another release

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> JoinState:
        state, access = document.get("state"), document.get("access")
        return cls(
            JoinPhase(state) if state is not None else None,
            document.get("since"),
            document.get("token"),
            document.get("urlExpires"),
            document.get("csr"),
            document.get("issued"),
            document.get("failure"),
            tuple((key, effect) for key, effect in document.get("formerTaints", ())),
            ClusterAccess.from_document(access) if access is not None else None,
            {key: value for key, value in document.items() if key not in _KEYS},
        )

    def to_document(self) -> dict[str, Any]:
        """As it is stored: what there is not has no key."""
        document = {
            "state": self.stored_phase.value if self.stored_phase else None,
            "since": self.since,
            "token": self.token,
            "urlExpires": self.url_expires,
            "csr": self.csr,
            "issued": self.issued,
            "failure": self.failure,
            "formerTaints": [list(each) for each in self.former_taints] or None,
            "access": self.access.to_document() if self.access else None,
            **self.unknown,
        }
        return {key: value for key, value in document.items() if value is not None or key in self.unknown}

    @property
    def phase(self) -> JoinPhase:
        return self.stored_phase or JoinPhase.CREATED

    @property
    def is_joined(self) -> bool:
        return self.stored_phase is JoinPhase.JOINED

    # by whoever writes the node

    def begin_attempt(self, now: float, *, url_expires: float, token: str | None = None) -> JoinState:
        """With a new config URL, and with a token unless the node joins by its identity. A joined node stays so."""
        phase = JoinPhase.JOINED if self.is_joined else JoinPhase.CREATED
        return JoinState(phase, now, token, url_expires, unknown=self.unknown)

    def end_attempt(self, now: float) -> JoinState:
        """Without a config URL: that of the last attempt and its token are gone, and so is what was granted."""
        if self.is_joined:
            return replace(self, token=None, url_expires=None, access=None)
        return JoinState(JoinPhase.CREATED, now, unknown=self.unknown)

    def with_former_taints(self, taints: Sequence[TaintKey]) -> JoinState:
        return replace(self, former_taints=tuple(taints))

    def with_access(self, access: ClusterAccess) -> JoinState:
        return replace(self, access=access)

    def without_access(self) -> JoinState:
        return replace(self, access=None)

    # by the machine and its agent

    def config_fetched(self) -> JoinState:
        return replace(self, stored_phase=JoinPhase.CONFIG_FETCHED) if self.phase is JoinPhase.CREATED else self

    def introduced(self, access: ClusterAccess) -> JoinState:
        """The node has said who it is, and was granted this."""
        granted = self.with_access(access)
        if self.is_joined:
            return granted
        if access.method is AccessMethod.CERTIFICATE:  # it still has to ask for that, and then the cluster tells
            return granted.config_fetched()
        return replace(granted, stored_phase=JoinPhase.BOOTSTRAP_ATTEMPTED, failure=None, url_expires=None)

    def failed(self, why: str) -> JoinState:
        return replace(self, stored_phase=JoinPhase.FAILED, failure=why)

    # by the cluster

    def token_used(self, token: str, csr: str) -> JoinState:
        if self.token != token or self.csr == csr:
            return self
        return self._attempted(csr)

    def token_issued(self, token: str, csr: str) -> JoinState:
        """The certificate that was requested with the token is there: the token is of no use any more."""
        return replace(self, token=None, issued=csr) if self.token == token else self

    def token_failed(self, token: str, why: str) -> JoinState:
        """The token ended without a certificate, and the URL with it. A node that is in the cluster stays there."""
        if self.token != token:
            return self
        ended = replace(self, token=None, url_expires=None)
        return ended if self.is_joined else ended.failed(why)

    def identity_used(self, identity: str, csr: str) -> JoinState:
        """The node requests a certificate as its identity: its first, or another because it has lost that."""
        if self.access is None or self.access.identity != identity or self.csr == csr:
            return self
        return replace(self._attempted(csr), issued=None)

    def identity_issued(self, csr: str) -> JoinState:
        return replace(self, issued=csr) if self.csr == csr else self

    def joined(self) -> JoinState:
        return replace(self, stored_phase=JoinPhase.JOINED, failure=None, url_expires=None)

    def left(self) -> JoinState:
        return replace(self, stored_phase=JoinPhase.CREATED) if self.is_joined else self

    def _attempted(self, csr: str) -> JoinState:
        return replace(self, stored_phase=JoinPhase.BOOTSTRAP_ATTEMPTED, csr=csr, failure=None, url_expires=None)


_KEYS = frozenset({"state", "since", "token", "urlExpires", "csr", "issued", "failure", "formerTaints", "access"})
