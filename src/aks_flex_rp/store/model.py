"""Records that the store keeps, and its errors. The rows, the statements and the Store protocol build on them.

StoreError              the store cannot execute the request
|-- StoreUnavailable    temporary: the same request may succeed later
`-- SchemaTooNew        the data was written by a newer version of this program
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aks_flex_node.errors import FlexError
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.text_enum import StoredEnum

Document = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A cluster that nodes can be made for."""

    key: str  # its ARM id in lower case
    id: str  # as it was written
    facts: Document  # what the service read from it: version, server, CA, DNS address, location, tenant
    connection: bytes  # how to reach it (a kubeconfig, or an ARM reference), encrypted
    version: int = 1  # raised by every change, for optimistic writes


@dataclass(frozen=True)
class Node:
    """One flexNodeConfig."""

    cluster: str  # the cluster's key
    key: str  # its name in lower case
    name: str  # as it was last written
    version: (
        int  # configVersion: seconds since 1970, strictly increasing for a node, also over deletion and re-creation
    )
    etag: str
    properties: Document  # as accepted, without secrets
    config: Document  # what the node gets, without secrets
    secrets: bytes = b""  # encrypted
    system: Document = field(default_factory=dict)  # systemData
    join: JoinState = field(default_factory=JoinState)
    status: Document = field(default_factory=dict)  # what the agent last reported
    identity: str = ""  # whose token speaks for this node (an object or client id), if it has one
    last_seen: float = 0.0
    created: float = 0.0
    revision: int = field(default=0, compare=False)  # raised by every write; 0 when it was not read from the store


@dataclass(frozen=True)
class Delivery:
    """A bundle that waits to be fetched by whoever has its URL."""

    id: str  # hash of the secret in the URL; the secret itself is nowhere
    cluster: str
    node: str
    expires: float
    bundle: bytes  # encrypted
    fetched: int = 0


class AuditAction(StoredEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    REGENERATE_TOKEN = "regenerateToken"  # noqa: S105
    LIST_CREDENTIALS = "listCredentials"
    CONFIG_URL_FETCHED = "configUrl.fetched"
    TOKEN_USED = "token.used"  # noqa: S105
    IDENTITY_USED = "identity.used"
    CERTIFICATE_ISSUED = "certificate.issued"
    CERTIFICATE_DENIED = "certificate.denied"
    JOIN_FAILED = "join.failed"
    NODE_JOINED = "node.joined"
    NODE_LEFT = "node.left"
    NODE_REMOVED = "node.removed"
    ACCESS_GRANTED = "access.granted"
    ACCESS_WITHDRAWN = "access.withdrawn"
    CLUSTER_ADDED = "cluster.added"
    CLUSTER_RENEWED = "cluster.renewed"
    CLUSTER_CHANGED = "cluster.changed"
    CLUSTER_REMOVED = "cluster.removed"
    SIGN_IN = "signIn"
    # what was denied, besides those above
    READ = "read"
    LIST = "list"
    WRITE = "write"
    REPORT_STATUS = "reportStatus"
    AUDIT = "audit"


class AuditOutcome(StoredEnum):
    OK = "ok"
    DENIED = "denied"


@dataclass(frozen=True)
class AuditEvent:
    """A line of the audit."""

    at: float
    who: str
    what: AuditAction
    resource: str
    source: str = ""  # the caller's address
    request: str = ""
    outcome: AuditOutcome = AuditOutcome.OK
    detail: Document = field(default_factory=dict)
    sequence: int = 0  # given by the store


@dataclass(frozen=True)
class LastKnownNode:
    version: int = 0  # the highest configVersion that a node of this name ever had; 0 when there never was one
    identity: str = ""  # whose token spoke for it last


@dataclass(frozen=True)
class NodePage:
    nodes: tuple[Node, ...]
    after: str | None  # where the next page begins; None on the last


@dataclass(frozen=True)
class UserSession:
    """A signed-in user of the dashboard: a row, so that all replicas know it and it can be revoked."""

    id: str  # hash of what the cookie has
    caller: Document  # who it is, as they proved it when they signed in
    proof: str  # what it was proved by, which can lose its worth: the admin key's fingerprint, Entra's application
    expires: float
    used: float  # when a page was last asked for, to within a minute


class Conflict(Exception):  # noqa: N818 - an answer, and often an expected one
    """Somebody else was faster: what was to be changed is not as it was read."""


class StoreError(FlexError):
    pass


class StoreUnavailable(StoreError):  # noqa: N818 - it says what is the case, as Conflict does
    """The database is away, or full, or busy. `executed` says whether a write may have been done nevertheless."""

    def __init__(self, message: str, hint: str = "", *, executed: bool = False) -> None:
        super().__init__("database-unavailable", message, hint, retryable=True)
        self.executed = executed


class SchemaTooNew(StoreError):  # noqa: N818
    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            "database-schema-newer",
            f"The store has schema version {found}, and this program knows versions up to {known}.",
            "Run the newer program, or restore a backup that was made before the upgrade.",
        )
