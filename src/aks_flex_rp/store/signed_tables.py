"""Tables whose rows have an authentication code as their last column: their columns, what identifies and signs a row,
and how a record becomes a row. Rows of nodes, sessions and owners of identities are in `record_authenticator`.

A column has the field of the record with its name. The column `content` has the fields that have no column.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from aks_flex_node.settings.base import camel
from aks_flex_rp.store import rows
from aks_flex_rp.store.model import Cluster
from aks_flex_rp.store.pool_model import (
    EnrolledMachine,
    Enrolment,
    Pool,
    PoolRevision,
    PoolVersions,
    StoredRollout,
    StoredRolloutNode,
)
from aks_flex_rp.store.record_authenticator import SignedRow, pool_identity
from aks_flex_rp.store.sql import casts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.store.rows import Row, Values

T = TypeVar("T")
FIELDS = {"system_data": "system"}  # of columns with another name
CONTENT = "content"


@dataclass(frozen=True)
class SignedTable(Generic[T]):
    record: type[T]
    name: str
    kind: str  # of a row, in messages and in what is signed
    columns: str  # with their types, as in SQL, or JSON for a document; those that select a row come first
    keys: int  # number of columns that select a row
    identity: Callable[..., tuple[str, ...]]  # of a row, from its columns as text

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The types of the columns by name."""
        return dict(each.split(" ", 1) for each in self.columns.split(", "))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple("TEXT" if kind == "JSON" else kind for kind in self.kinds.values())

    @cached_property
    def content(self) -> dict[str, str]:
        """The fields of a record without a column, by their names in `content`."""
        columns = {FIELDS.get(name, name) for name in self.names}
        return {camel(each.name): each.name for each in fields(self.record) if each.name not in columns}  # type: ignore[arg-type]

    def values(self, record: T) -> Values:
        """Returns the row of a record."""
        content = {name: getattr(record, field) for name, field in self.content.items()}
        found = {**vars(record), CONTENT: content}
        return tuple([_column(found[FIELDS.get(name, name)], kind) for name, kind in self.kinds.items()])

    def parse(self, row: Row) -> T:
        """Returns the record of a row. Raises one of `rows.PARSE_ERRORS`."""
        found = {
            FIELDS.get(name, name): rows.from_json(value) if kind == "JSON" else rows.restored(value, kind)
            for (name, kind), value in zip(self.kinds.items(), row)  # noqa: B905 - the code is the last column
        }
        content = found.pop(CONTENT, {})
        found |= {field: content[name] for name, field in self.content.items() if name in content}
        return msgspec.convert(found, self.record, strict=False)  # SQLite stores true and false as numbers

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
        content = tuple(rows.restored(value, kind) for value, kind in zip(columns, self.types, strict=True))
        revision = 0 if self.revision is None else content[self.revision]
        return SignedRow(
            self.kind, self.identity(*map(str, content)), content, revision, code, keys=content[: self.keys]
        )

    def read(self, row: Row) -> SignedRow:
        return self.sign(row[: len(self.names)], row[len(self.names)])


def _column(value: Any, kind: str) -> Any:
    if kind == "JSON":
        return rows.to_json(msgspec.to_builtins(value))
    return int(value) if isinstance(value, bool) else value


CLUSTERS = SignedTable(
    Cluster,
    "clusters",
    "cluster",
    "key TEXT, id TEXT, facts JSON, connection BLOB, version BIGINT",
    1,
    lambda key, *_: (key,),
)
POOLS = SignedTable(
    Pool,
    "pools",
    "pool",
    "cluster TEXT, key TEXT, description TEXT, number BIGINT, template JSON, system_data JSON,"
    " created DOUBLE PRECISION, version BIGINT",
    2,
    lambda cluster, key, *_: pool_identity(cluster, key),
)
POOL_REVISIONS = SignedTable(
    PoolRevision,
    "pool_revisions",
    "pool revision",
    "cluster TEXT, pool TEXT, number BIGINT, created DOUBLE PRECISION, template JSON, changes JSON, author TEXT,"
    " author_id TEXT, at DOUBLE PRECISION",
    3,
    lambda cluster, pool, number, *_: (*pool_identity(cluster, pool), number),
)
ENROLMENTS = SignedTable(
    Enrolment,
    "enrolments",
    "enrolment",
    "cluster TEXT, key TEXT, pool TEXT, secret TEXT, uses BIGINT, content JSON, created DOUBLE PRECISION,"
    " version BIGINT",
    2,
    lambda cluster, key, pool, *_: (*pool_identity(cluster, pool), "enrolments", key),
)
MACHINES = SignedTable(
    EnrolledMachine,
    "enrolled_machines",
    "enrolled machine",
    "cluster TEXT, enrolment TEXT, thumbprint TEXT, pool TEXT, state TEXT, node TEXT, system_uuid TEXT, content JSON,"
    " version BIGINT",
    3,
    lambda cluster, enrolment, thumbprint, pool, *_: (
        *pool_identity(cluster, pool),
        "enrolments",
        enrolment,
        thumbprint,
    ),
)
ROLLOUTS = SignedTable(
    StoredRollout,
    "rollouts",
    "roll-out",
    "cluster TEXT, pool TEXT, key TEXT, number BIGINT, phase TEXT, active INTEGER, open INTEGER, content JSON,"
    " created DOUBLE PRECISION, version BIGINT",
    3,
    lambda cluster, pool, key, *_: (*pool_identity(cluster, pool), "rollouts", key),
)
ROLLOUT_NODES = SignedTable(
    StoredRolloutNode,
    "rollout_nodes",
    "roll-out node",
    "cluster TEXT, pool TEXT, rollout BIGINT, node TEXT, wave BIGINT, source BIGINT, state TEXT,"
    " since DOUBLE PRECISION, cause TEXT, domain TEXT",
    4,
    lambda cluster, pool, rollout, node, *_: (*pool_identity(cluster, pool), "rollouts", rollout, node),
)
POOL_VERSIONS = SignedTable(
    PoolVersions,
    "pool_versions",
    "versions of a pool",
    "cluster TEXT, pool TEXT, content JSON, created DOUBLE PRECISION, version BIGINT",
    2,
    lambda cluster, pool, *_: (*pool_identity(cluster, pool), "versions"),
)
SIGNED_TABLES = (CLUSTERS, POOLS, POOL_REVISIONS, ENROLMENTS, MACHINES, ROLLOUTS, ROLLOUT_NODES, POOL_VERSIONS)
