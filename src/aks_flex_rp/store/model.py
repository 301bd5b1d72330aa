"""Records of the store, and its errors. The rows, the statements and the store build on them.

StoreError              the store cannot execute the request
|-- StoreUnavailable    temporary: the same request may succeed later
|-- SchemaTooNew        the data was written by a newer version of this program
|-- RecordRefused       a row was changed without this program
|   `-- RecordOutdated  a row has an earlier content than the one that this process has read
`-- RecordUnverifiable  the key that authenticates a row is not present
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from aks_flex_node.errors import FlexError
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.node_keys import NodeKeys
from aks_flex_rp.text_enum import StoredEnum

Document = dict[str, Any]
REFUSED_CONDITION = "RecordRefused"  # of a node in lists


@dataclass(frozen=True)
class Cluster:
    """A cluster to which flex nodes can be added."""

    key: str  # ARM ID in lower case
    id: str  # ARM ID as written
    facts: Document  # facts read from the cluster: version, server, CA, DNS address, location, tenant
    connection: bytes  # kubeconfig or ARM reference, encrypted
    version: int = 1  # incremented by every change, for optimistic concurrency


@dataclass(frozen=True)
class NextRevision:
    """The revision that a roll-out is about to give a node, with the configuration that it will get."""

    revision: int
    config: Document


@dataclass(frozen=True)
class PoolMembership:
    """The pool of a node, and the properties that the node has by it."""

    name: str
    revision: int  # of the pool's template
    effective: Document  # the template, overridden by the node's own properties
    next: NextRevision | None = None  # what its machine downloads ahead


@dataclass(frozen=True)
class Node:
    """A flexNodeConfig resource."""

    cluster: str  # key of the cluster
    key: str  # name in lower case
    name: str  # name as last written
    version: (
        int  # configVersion: seconds since 1970, strictly increasing for a node, also after deletion and re-creation
    )
    etag: str
    properties: Document  # the node's own, as accepted, without secrets
    config: Document  # generated configuration, without secrets
    secrets: bytes = b""  # encrypted
    system: Document = field(default_factory=dict)  # systemData
    join: JoinState = field(default_factory=JoinState)
    status: Document = field(default_factory=dict)  # last report of the agent
    identity: str = ""  # identity that may act as this node (object or client ID), if any
    last_seen: float = 0.0
    created: float = 0.0
    revision: int = field(default=0, compare=False)  # incremented by every write; 0 if not read from the store
    pool: PoolMembership | None = None

    @property
    def effective(self) -> Document:
        """The properties from which the configuration is generated."""
        return self.pool.effective if self.pool else self.properties

    @property
    def is_monitored(self) -> bool:
        return bool(self.effective.get("continuousMonitoring"))


@dataclass(frozen=True)
class Delivery:
    """A bundle that can be fetched with its config URL."""

    id: str  # hash of the secret in the URL; the secret is not stored
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
    CONFIG_URL_REUSED = "configUrl.reused"
    TOKEN_USED = "token.used"  # noqa: S105
    IDENTITY_USED = "identity.used"
    CERTIFICATE_ISSUED = "certificate.issued"
    CERTIFICATE_DENIED = "certificate.denied"
    JOIN_FAILED = "join.failed"
    NODE_JOINED = "node.joined"
    NODE_LEFT = "node.left"
    NODE_REMOVED = "node.removed"
    MACHINE_REFUSED = "machine.refused"
    MACHINE_CHANGED = "machine.changed"
    MACHINE_CONFLICT = "machine.conflict"
    KEY_BOUND = "key.bound"
    KEY_ROTATED = "rotateKey"
    KEY_REVOKED = "revokeKey"
    AZURE_CLEANUP = "azure.cleanup"
    ACCESS_GRANTED = "access.granted"
    ACCESS_WITHDRAWN = "access.withdrawn"
    CLUSTER_ADDED = "cluster.added"
    CLUSTER_RENEWED = "cluster.renewed"
    CLUSTER_CHANGED = "cluster.changed"
    CLUSTER_REMOVED = "cluster.removed"
    SIGN_IN = "signIn"
    RECORD_REFUSED = "record.refused"
    RECORD_ACCEPTED = "record.accepted"
    POOL_CREATED = "pool.created"
    POOL_UPDATED = "pool.updated"
    POOL_DELETED = "pool.deleted"
    POOL_APPLIED = "pool.applied"
    ENROLMENT_CREATED = "enrolment.created"
    ENROLMENT_REVOKED = "enrolment.revoked"
    ENROLMENT_REFUSED = "enrolment.refused"
    MACHINE_ENROLLED = "machine.enrolled"
    MACHINE_NOT_ENROLLED = "machine.notEnrolled"
    MACHINE_WAITING = "machine.waiting"
    MACHINE_APPROVED = "machine.approved"
    MACHINE_REJECTED = "machine.rejected"
    NODE_RELEASED = "node.released"
    ROLLOUT_CREATED = "rollout.created"
    ROLLOUT_PAUSED = "rollout.paused"
    ROLLOUT_RESUMED = "rollout.resumed"
    ROLLOUT_ABORTED = "rollout.aborted"
    ROLLOUT_REVERSED = "rollout.reversed"
    ROLLOUT_APPROVED = "rollout.approved"
    ROLLOUT_DELETED = "rollout.deleted"
    ROLLOUT_STATE = "rollout.state"
    ROLLOUT_OVERRIDDEN = "rollout.overridden"
    REVISION_BARRED = "revision.barred"
    REVISION_ALLOWED = "revision.allowed"
    # Denied operations, besides those above
    READ = "read"
    LIST = "list"
    WRITE = "write"
    REPORT_STATUS = "reportStatus"
    AUDIT = "audit"
    READ_POOL = "readPool"
    WRITE_POOL = "writePool"
    DELETE_POOL = "deletePool"
    APPLY_POOL = "applyPool"
    READ_ENROLMENT = "readEnrolment"
    WRITE_ENROLMENT = "writeEnrolment"
    RELEASE = "release"
    READ_ROLLOUT = "readRollout"
    WRITE_ROLLOUT = "writeRollout"


class AuditOutcome(StoredEnum):
    OK = "ok"
    DENIED = "denied"


@dataclass(frozen=True)
class AuditEvent:
    """An event in the audit log."""

    at: float
    who: str
    what: AuditAction
    resource: str
    source: str = ""  # address of the caller
    request: str = ""
    outcome: AuditOutcome = AuditOutcome.OK
    detail: Document = field(default_factory=dict)
    sequence: int = 0  # assigned by the store
    who_id: str = ""  # object ID of the caller; empty for the service itself

    def denied(self) -> AuditEvent:
        return replace(self, outcome=AuditOutcome.DENIED)


@dataclass(frozen=True)
class LastKnownNode:
    version: int = 0  # the highest configVersion of a node with this name; 0 if there never was one
    identity: str = ""  # its last identity
    deleted: bool = False  # whether the service has deleted it, as its authenticated row says
    keys: NodeKeys = field(default_factory=NodeKeys)  # those of a deleted node: only its last key


@dataclass(frozen=True)
class RefusedNode:
    """A node whose record is not used. Only its key is known, which is not authentic either."""

    key: str
    name: str  # printable
    error: RecordRefused | RecordUnverifiable


@dataclass(frozen=True)
class NodePage:
    nodes: tuple[Node, ...]
    after: str | None  # start of the next page; None on the last
    refused: tuple[RefusedNode, ...] = ()


@dataclass(frozen=True)
class UserSession:
    """A signed-in user of the dashboard. Stored, so that all replicas know the session and it can be revoked."""

    id: str  # hash of the secret in the cookie
    caller: Document  # the authenticated user
    proof: str  # credential that the session depends on: fingerprint of the admin key, or the Entra application
    expires: float
    used: float  # time of the last request, accurate to a minute
    checked: float = 0.0  # when Entra ID last confirmed the user
    refresh: str = ""  # sealed refresh token for the next check; empty if there is none


class Conflict(Exception):  # noqa: N818 - a result, and often an expected one
    """Raised when a record was changed by another writer since it was read."""


class StoreError(FlexError):
    pass


class StoreUnavailable(StoreError):  # noqa: N818 - names a state
    """The database is unreachable, full or busy. `executed` tells whether the write may have been executed."""

    def __init__(self, message: str, hint: str = "", *, executed: bool = False) -> None:
        super().__init__("database-unavailable", message, hint, retryable=True)
        self.executed = executed


class DatabaseCorrupt(StoreError):  # noqa: N818 - names a state
    def __init__(self, cause: object) -> None:
        super().__init__(
            "database-corrupt",
            f"The database is corrupt: {cause}.",
            "Check the disk, then restore a backup with `aks-flex-rp restore FILE`.",
        )


class RecordRefused(StoreError):  # noqa: N818 - names a state
    """A row that was not written by the service."""

    reason = "RecordChanged"  # of the condition RecordRefused

    def __init__(self, record: str, why: str, name: str = "") -> None:
        """`name` is that of `aks-flex-rp records`; empty for a record that cannot be accepted."""
        review = (
            f"Review it with `aks-flex-rp records show {name}`. If it is right, run "
            f"`aks-flex-rp records accept {name} --digest DIGEST` with the printed digest; if not, restore a backup."
        )
        super().__init__(
            "record-refused",
            f"The stored {record} is refused: {why}. It was changed in the database without the service.",
            f"Find out who changed it. {review if name else 'Restore a backup if you need it.'}",
        )
        self.record, self.why = record, why


class RecordOutdated(RecordRefused):
    """A row whose content is authentic, but of an earlier time."""

    reason = "RecordOutdated"

    def __init__(self, record: str) -> None:
        self.record, self.why = record, "it is older than the content that this service has read"
        super(RecordRefused, self).__init__(  # its own name and advice
            "record-outdated",
            f"The stored {record} is refused: {self.why}. Someone put an earlier content back, or the database was "
            "failed over or restored while the service ran.",
            "If the database was failed over or restored, restart all replicas of the service. Otherwise find out "
            "who changed it.",
        )


class RecordUnverifiable(StoreError):  # noqa: N818 - names a state
    reason = "RecordKeyMissing"

    def __init__(self, record: str) -> None:
        super().__init__(
            "record-key-missing",
            f"The stored {record} cannot be verified with the keys present: another key authenticated it.",
            "Restore the missing key as an additional line of the key file, and restart the service.",
        )
        self.record, self.why = record, "it cannot be verified with the keys present"


class SchemaTooNew(StoreError):  # noqa: N818
    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            "database-schema-newer",
            f"The store has schema version {found}, but this program supports versions up to {known}.",
            "Run the newer version of the program, or restore a backup from before the upgrade.",
        )
