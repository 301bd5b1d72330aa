"""Tables whose rows have an authentication code as their last column: their columns, what identifies and signs a row,
and how a record becomes a row. Rows of nodes, sessions and owners of identities are in `record_authenticator`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aks_flex_rp.store import rows
from aks_flex_rp.store.record_authenticator import SignedRow, pool_identity
from aks_flex_rp.store.sql import casts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.store.rows import Row, Values

T = TypeVar("T")


@dataclass(frozen=True)
class SignedTable(Generic[T]):
    name: str
    kind: str  # of a row, in messages and in what is signed
    columns: str  # with their types, as in SQL; those that select a row come first
    keys: int  # number of columns that select a row
    identity: Callable[..., tuple[str, ...]]  # of a row, from its columns as text
    values: Callable[[T], Values]
    parse: Callable[[Row], T]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(each.partition(" ")[0] for each in self.columns.split(", "))

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple(each.partition(" ")[2] for each in self.columns.split(", "))

    @property
    def revision(self) -> int | None:
        """The index of the column with the revision; None if a row never changes."""
        return len(self.names) - 1 if self.names[-1] == "version" else None

    @property
    def all_columns(self) -> str:
        return ", ".join((*self.names, "code"))

    @property
    def select(self) -> str:
        return f"SELECT {self.all_columns} FROM {self.name}"  # noqa: S608 - constants

    @property
    def where(self) -> str:
        return " AND ".join(f"{name} = ${number}" for number, name in enumerate(self.names[: self.keys], 1))

    @cached_property
    def select_one(self) -> str:
        return f"{self.select} WHERE {self.where}"

    @cached_property
    def select_page(self) -> str:
        """Reads all rows, page by page."""
        keys = ", ".join(self.names[: self.keys])
        after = ", ".join(f"${number}" for number in range(1, self.keys + 1))
        return f"{self.select} WHERE ({keys}) > ({after}) ORDER BY {keys} LIMIT ${self.keys + 1}"

    def casts(self, first: int) -> str:
        """Returns the values of a row as parameters from this number on."""
        return casts(first, (*self.types, "TEXT"))

    def sign(self, values: Sequence[Any], code: str = "") -> SignedRow:
        """Returns the signed part of a row with these columns."""
        columns = rows.storable(values)
        content = tuple(_restored(value, kind) for value, kind in zip(columns, self.types, strict=True))
        revision = 0 if self.revision is None else content[self.revision]
        return SignedRow(
            self.kind, self.identity(*map(str, content)), content, revision, code, keys=content[: self.keys]
        )

    def read(self, row: Row) -> SignedRow:
        return self.sign(row[: len(self.names)], row[len(self.names)])


def _restored(value: Any, kind: str) -> Any:
    """Returns a value as it was written. SQLite returns whole numbers as integers, and may return any other type."""
    if kind == "BLOB" and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return float(value) if kind == "DOUBLE PRECISION" and isinstance(value, (int, float)) else value


CLUSTERS = SignedTable(
    "clusters",
    "cluster",
    "key TEXT, id TEXT, facts TEXT, connection BLOB, version BIGINT",
    1,
    lambda key, *_: (key,),
    rows.cluster_values,
    rows.cluster_of,
)
POOLS = SignedTable(
    "pools",
    "pool",
    "cluster TEXT, key TEXT, description TEXT, number BIGINT, template TEXT, system_data TEXT,"
    " created DOUBLE PRECISION, version BIGINT",
    2,
    lambda cluster, key, *_: pool_identity(cluster, key),
    rows.pool_values,
    rows.pool_of,
)
POOL_REVISIONS = SignedTable(
    "pool_revisions",
    "pool revision",
    "cluster TEXT, pool TEXT, number BIGINT, created DOUBLE PRECISION, template TEXT, changes TEXT, author TEXT,"
    " author_id TEXT, at DOUBLE PRECISION",
    3,
    lambda cluster, pool, number, *_: (*pool_identity(cluster, pool), number),
    rows.pool_revision_values,
    rows.pool_revision_of,
)
ENROLMENTS = SignedTable(
    "enrolments",
    "enrolment",
    "cluster TEXT, key TEXT, pool TEXT, secret TEXT, uses BIGINT, content TEXT, created DOUBLE PRECISION,"
    " version BIGINT",
    2,
    lambda cluster, key, pool, *_: (*pool_identity(cluster, pool), "enrolments", key),
    rows.enrolment_values,
    rows.enrolment_of,
)
MACHINES = SignedTable(
    "enrolled_machines",
    "enrolled machine",
    "cluster TEXT, enrolment TEXT, thumbprint TEXT, pool TEXT, state TEXT, node TEXT, system_uuid TEXT, content TEXT,"
    " version BIGINT",
    3,
    lambda cluster, enrolment, thumbprint, pool, *_: (
        *pool_identity(cluster, pool),
        "enrolments",
        enrolment,
        thumbprint,
    ),
    rows.machine_values,
    rows.machine_of,
)
ROLLOUTS = SignedTable(
    "rollouts",
    "roll-out",
    "cluster TEXT, pool TEXT, key TEXT, number BIGINT, phase TEXT, active INTEGER, open INTEGER, content TEXT,"
    " created DOUBLE PRECISION, version BIGINT",
    3,
    lambda cluster, pool, key, *_: (*pool_identity(cluster, pool), "rollouts", key),
    rows.rollout_values,
    rows.rollout_of,
)
ROLLOUT_NODES = SignedTable(
    "rollout_nodes",
    "roll-out node",
    "cluster TEXT, pool TEXT, rollout BIGINT, node TEXT, wave BIGINT, source BIGINT, state TEXT,"
    " since DOUBLE PRECISION, cause TEXT, domain TEXT",
    4,
    lambda cluster, pool, rollout, node, *_: (*pool_identity(cluster, pool), "rollouts", rollout, node),
    rows.rollout_node_values,
    rows.rollout_node_of,
)
POOL_VERSIONS = SignedTable(
    "pool_versions",
    "versions of a pool",
    "cluster TEXT, pool TEXT, content TEXT, created DOUBLE PRECISION, version BIGINT",
    2,
    lambda cluster, pool, *_: (*pool_identity(cluster, pool), "versions"),
    rows.pool_versions_values,
    rows.pool_versions_of,
)
SIGNED_TABLES = (CLUSTERS, POOLS, POOL_REVISIONS, ENROLMENTS, MACHINES, ROLLOUTS, ROLLOUT_NODES, POOL_VERSIONS)
