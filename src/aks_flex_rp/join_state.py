"""Join state of a node, stored with it: its phase, the credentials of the current attempt, and its granted access.

Created -> ConfigFetched -> BootstrapAttempted -> Joined -> Left
                 `---------------------+-> Failed, with the cause

Every transition returns the next state, or the same state if it does not apply. Replicas of two releases share the
store during a rolling upgrade, so keys and phases of another release are preserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from aks_flex_rp.machine_ownership import MachineOwnership
from aks_flex_rp.node_keys import NodeKeys
from aks_flex_rp.text_enum import StoredEnum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TaintKey = tuple[str, str]  # key and effect: a Node has at most one taint with the same key and effect
NEW_URL_REMEDY = (
    "Create a new join command with `aks-flex-rp node join-command --name NODE` or the regenerateToken action, and "
    "run it on the machine."
)
URL_EXPIRED = f"The config URL expired before it was used. {NEW_URL_REMEDY}"


class JoinPhase(StoredEnum):
    CREATED = "Created"
    CONFIG_FETCHED = "ConfigFetched"
    BOOTSTRAP_ATTEMPTED = "BootstrapAttempted"
    JOINED = "Joined"
    FAILED = "Failed"
    LEFT = "Left"  # the node was joined, and its Node was removed from the cluster


class AccessMethod(StoredEnum):
    """How a node joins with its Azure identity."""

    EXEC = "exec"  # the kubelet always authenticates with the identity
    CERTIFICATE = "certificate"  # the identity may only request the node's certificate


KUBELET_ROLE = "aks-flex-node:kubelet"
ACCESS_ROLES: Mapping[AccessMethod, str] = {
    AccessMethod.EXEC: KUBELET_ROLE,
    AccessMethod.CERTIFICATE: "system:node-bootstrapper",
}


class ClusterAccess(Struct, frozen=True):
    """Access of a node's Azure identity to its cluster, and the join method that uses it."""

    identity: str  # object ID, which is the user name in a cluster with Entra ID authentication
    method: AccessMethod

    @property
    def role(self) -> str | None:
        """Returns the ClusterRole for the method, or None for a method of another release."""
        return ACCESS_ROLES.get(self.method)


class JoinState(Struct, frozen=True, rename="camel"):
    """Progress of a node in joining its cluster. Immutable, with one method per transition.

    `from_document` keeps stored keys that this release does not know in `unknown`, and `to_document` writes them back
    unchanged. A new attempt and its end drop them, so that nothing that an earlier attempt was granted survives.
    """

    state: JoinPhase | None = None  # None if not stored, which means Created
    since: float | None = None  # when the current attempt began
    token: str | None = None  # ID of the valid bootstrap token
    url_expires: float | None = None  # expiry of the valid config URL
    csr: str | None = None  # the accepted certificate signing request
    issued: str | None = None  # the CSR whose certificate was issued
    failure: str | None = None
    former_taints: tuple[TaintKey, ...] = ()  # taints of earlier configurations, oldest first
    access: ClusterAccess | None = None
    machines: MachineOwnership = MachineOwnership()
    delivered: int | None = None  # configVersion that the machine last fetched; None if unknown
    keys: NodeKeys = NodeKeys()
    unknown: dict[str, Any] = {}  # keys of another release

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> JoinState:
        known = {key: value for key, value in document.items() if key in _KEYS and value is not None}
        unknown = {key: value for key, value in document.items() if key not in _KEYS}
        return msgspec.convert({**known, "unknown": unknown}, cls)

    def to_document(self) -> dict[str, Any]:
        """Returns the stored form. Absent and empty values have no key."""
        document = msgspec.to_builtins(self)
        unknown = document.pop("unknown")
        return {**_without_empty(document), **unknown}

    @property
    def phase(self) -> JoinPhase:
        return self.state or JoinPhase.CREATED

    @property
    def is_joined(self) -> bool:
        return self.state is JoinPhase.JOINED

    def has_valid_url(self, now: float) -> bool:
        """Returns whether a config URL of the current attempt is valid."""
        return self.url_expires is not None and now < self.url_expires

    # Transitions by commands on the resource

    def begin_attempt(
        self, now: float, *, url_expires: float, token: str | None = None, replacing: bool = False
    ) -> JoinState:
        """Starts an attempt with a new config URL, and with a token unless the node joins with its identity.

        A joined node stays joined. With `replacing`, another machine may become the node.
        """
        phase = JoinPhase.JOINED if self.is_joined else JoinPhase.CREATED
        machines = self.machines.begin_attempt(replacing_until=url_expires if replacing else 0.0)
        return JoinState(phase, now, token, url_expires, machines=machines, delivered=self.delivered, keys=self.keys)

    def end_attempt(self, now: float) -> JoinState:
        """Ends the attempt: drops the config URL, its token and the granted access."""
        if self.is_joined:
            machines = self.machines.end_attempt()
            return replace(self, token=None, url_expires=None, access=None, machines=machines)
        phase = JoinPhase.LEFT if self.phase is JoinPhase.LEFT else JoinPhase.CREATED
        return JoinState(phase, now, machines=self.machines.end_attempt(), keys=self.keys)

    def key_revoked(self, now: float, identity: str) -> JoinState:
        """Revokes the key of the node, and ends the config URL and its token, which the key may have requested."""
        machines = self.machines.end_attempt()
        return replace(self, token=None, url_expires=None, machines=machines, keys=self.keys.revoke(now, identity))

    def with_delivered(self, version: int) -> JoinState:
        """Records the configuration that the machine has."""
        return replace(self, delivered=version)

    def with_former_taints(self, taints: Sequence[TaintKey]) -> JoinState:
        return replace(self, former_taints=tuple(taints))

    def with_access(self, access: ClusterAccess) -> JoinState:
        return replace(self, access=access)

    def without_access(self) -> JoinState:
        return replace(self, access=None)

    # Transitions by the machine and its agent

    def config_fetched(self) -> JoinState:
        """Records a fetch. After a failure on the machine, the URL is still valid, and a fetch begins another try."""
        again = self.phase is JoinPhase.FAILED and self.url_expires is not None
        if again or self.phase in {JoinPhase.CREATED, JoinPhase.LEFT}:
            return replace(self, state=JoinPhase.CONFIG_FETCHED, failure=None)
        return self

    def with_machines(self, machines: MachineOwnership) -> JoinState:
        return replace(self, machines=machines)

    def with_keys(self, keys: NodeKeys) -> JoinState:
        return replace(self, keys=keys)

    def joining(self, access: ClusterAccess) -> JoinState:
        """Records that the node has authenticated with its identity and was granted this access."""
        granted = self.with_access(access)
        if self.is_joined:
            return granted
        if (
            access.method is AccessMethod.CERTIFICATE
        ):  # the node still has to request its certificate, which the cluster then reports
            return granted.config_fetched()
        return replace(granted, state=JoinPhase.BOOTSTRAP_ATTEMPTED, failure=None, url_expires=None)

    def machine_failed(self, why: str) -> JoinState:
        """Records a failure that the bearer of the URL reports, unless the cluster has seen the node since."""
        waiting = self.phase in {JoinPhase.CREATED, JoinPhase.CONFIG_FETCHED, JoinPhase.FAILED}
        return self.failed(why) if waiting and self.url_expires is not None else self

    def failed(self, why: str) -> JoinState:
        return replace(self, state=JoinPhase.FAILED, failure=why)

    # Transitions by the cluster

    def token_used(self, token: str, csr: str) -> JoinState:
        if self.token != token or self.csr == csr:
            return self
        return self._attempted(csr)

    def token_issued(self, token: str, csr: str) -> JoinState:
        """Records that the certificate requested with the token was issued. The token is no longer needed."""
        return replace(self, token=None, issued=csr) if self.token == token else self

    def token_failed(self, token: str, why: str) -> JoinState:
        """Records that the token expired without a certificate, which also ends the URL.

        A joined node stays joined.
        """
        if self.token != token:
            return self
        ended = replace(self, token=None, url_expires=None)
        return ended if self.is_joined else ended.failed(why)

    def identity_used(self, identity: str, csr: str) -> JoinState:
        """Records that the node requests a certificate with its identity:

        the first, or a replacement for a lost one.
        """
        if self.access is None or self.access.identity != identity or self.csr == csr:
            return self
        return replace(self._attempted(csr), issued=None)

    def identity_issued(self, csr: str) -> JoinState:
        return replace(self, issued=csr) if self.csr == csr else self

    def joined(self) -> JoinState:
        return replace(self, state=JoinPhase.JOINED, failure=None, url_expires=None)

    def left(self) -> JoinState:
        if not self.is_joined:
            return self
        return replace(self, state=JoinPhase.LEFT, machines=self.machines.left(), delivered=None)

    def _attempted(self, csr: str) -> JoinState:
        return replace(self, state=JoinPhase.BOOTSTRAP_ATTEMPTED, csr=csr, failure=None, url_expires=None)


_KEYS = frozenset(JoinState.__struct_encode_fields__) - {"unknown"}


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    found = {key: _without_empty(each) if isinstance(each, dict) else each for key, each in document.items()}
    return {key: each for key, each in found.items() if each}
