"""Records of pools: their templates and revisions, their enrolments and the machines that enrolled, their roll-outs
with the nodes of these, and which versions new nodes start on.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read when a row is parsed
from dataclasses import dataclass, field, replace
from typing import Any

from aks_flex_rp.store.model import Document  # noqa: TC001 - likewise
from aks_flex_rp.text_enum import StoredEnum


@dataclass(frozen=True)
class Pool:
    """A flexNodePools resource: what many nodes have in common."""

    cluster: str  # key of the cluster
    key: str
    template: Document  # of the newest revision
    number: int = 1  # of the newest revision
    description: str = ""
    system: Document = field(default_factory=dict)  # systemData
    created: float = 0.0  # identifies the pool among earlier ones of its name
    version: int = 0  # increased by every write, also after deletion and re-creation; 0 if not read from the store

    @property
    def etag(self) -> str:
        return f'"{self.version}"'


@dataclass(frozen=True)
class PoolRevision:
    """A template of a pool, as it was at a time. It never changes."""

    cluster: str
    pool: str
    number: int
    created: float  # of the pool
    template: Document
    changes: dict[str, list[object]] = field(default_factory=dict)  # by path: the value before, and in this revision
    author: str = ""
    author_id: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class PoolCounts:
    """The number of nodes of a pool, and of those that are not on its newest revision."""

    nodes: int = 0
    pending: int = 0


class ApprovalMode(StoredEnum):
    """Which machines may enrol: all with the URL, those that a person approves, or those on a list."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    ALLOW_LIST = "allowList"


@dataclass(frozen=True)
class Enrolment:
    """A URL with which a number of machines become nodes of a pool."""

    cluster: str
    pool: str
    key: str
    secret: str  # hash of the secret in the URL; the secret is not stored
    max_uses: int
    expires: float
    node_name: str  # rule for the names of the nodes
    approval: ApprovalMode = ApprovalMode.AUTOMATIC
    allow: tuple[Document, ...] = ()  # of machines, with one fact each
    uses: int = 0
    number: int = 0  # the highest that was given to a node
    revoked: float = 0.0  # when; 0 if it is not
    system: Document = field(default_factory=dict)  # systemData
    created: float = 0.0
    version: int = 0  # increased by every write of the enrolment or of one of its machines


class MachineState(StoredEnum):
    WAITING = "Waiting"  # for an approval
    APPROVED = "Approved"  # may take a use
    REJECTED = "Rejected"
    CLAIMED = "Enrolled"  # has taken a use and the name of its node
    REPLACING = "Replacing"  # takes over the node of a released machine
    RELEASED = "Released"  # another key of the same machine may take over the node

    @property
    def has_node(self) -> bool:
        return self in {MachineState.CLAIMED, MachineState.REPLACING, MachineState.RELEASED}


@dataclass(frozen=True)
class EnrolledMachine:
    """A machine that has used the URL of an enrolment."""

    cluster: str
    pool: str
    enrolment: str
    thumbprint: str  # of its key
    state: MachineState
    node: str = ""  # key of the node; empty until the machine has taken a use
    system_uuid: str = ""  # empty if it does not identify the machine
    facts: Document = field(default_factory=dict)
    machine_id: str = ""
    address: str = ""
    first: float = 0.0  # request
    changed: float = 0.0
    by: str = ""  # who approved or rejected it
    version: int = 0
    released_key: str = ""  # the generation of the node's keys when it was released, which the takeover replaces


@dataclass(frozen=True)
class MachinePage:
    machines: tuple[EnrolledMachine, ...]
    after: str | None  # the key of the last machine if more follow


@dataclass(frozen=True)
class StoredRollout:
    """A rollouts resource of a pool."""

    cluster: str  # key of the cluster
    pool: str
    key: str
    number: int  # identifies it among earlier ones of its name, and orders the roll-outs of a pool
    phase: str
    active: bool  # of a pool, at most one is
    open: bool  # something can still happen, if only when nodes return
    spec: Document  # the properties as accepted
    state: Document = field(default_factory=dict)
    waits: tuple[str, ...] = ()
    system: Document = field(default_factory=dict)  # systemData
    created: float = 0.0
    ended: float = 0.0
    version: int = 0  # increased by every write; 0 if not read from the store

    @property
    def etag(self) -> str:
        return f'"{self.version}"'


@dataclass(frozen=True)
class StoredRolloutNode:
    """A node of a roll-out."""

    cluster: str
    pool: str
    rollout: int  # number
    node: str  # key
    wave: int
    source: int  # the revision to which a reversal brings it back
    state: str
    since: float
    cause: str = ""
    domain: str = ""


@dataclass(frozen=True)
class RolloutSignal:
    """A node of an open roll-out of which something changed."""

    sequence: int
    cluster: str
    pool: str
    rollout: int
    node: str
    override: str = ""  # who took the node out of the roll-out


@dataclass(frozen=True)
class Heartbeat:
    last_seen: float = 0.0
    silent: bool = False


@dataclass(frozen=True)
class StateCount:
    """The number of nodes of a wave that have the same state."""

    wave: int
    state: str
    nodes: int
    offline: int


@dataclass(frozen=True)
class ActiveNodes:
    """The nodes of an active roll-out that have the same state."""

    cluster: str
    pool: str
    state: str
    nodes: int
    since: float  # when the last of them changed its state


@dataclass(frozen=True)
class BarredRevision:
    """A revision that failed. No node gets its values until a person allows it."""

    revision: int
    values: Mapping[str, Any]  # by path, as the revision changed them; None if it removed one
    rollout: str
    reason: str
    at: float


@dataclass(frozen=True)
class PoolVersions:
    """Which revision new nodes of a pool start on, and which ones failed."""

    cluster: str
    pool: str
    created: float  # of the pool
    stable: int  # 0: the newest
    barred: tuple[BarredRevision, ...] = ()
    version: int = 0

    def with_barred(self, barred: BarredRevision) -> PoolVersions:
        others = tuple(each for each in self.barred if each.revision != barred.revision)
        return replace(self, barred=(*others, barred))

    def without_barred(self, revision: int) -> PoolVersions:
        return replace(self, barred=tuple(each for each in self.barred if each.revision != revision))
