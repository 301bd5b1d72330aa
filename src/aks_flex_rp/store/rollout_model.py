"""Records of roll-outs: what they are to do and where they are, their nodes, and the versions of a pool."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read when a row is parsed
from dataclasses import dataclass, field, replace
from typing import Any

from aks_flex_rp.store.model import Document  # noqa: TC001 - likewise


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
