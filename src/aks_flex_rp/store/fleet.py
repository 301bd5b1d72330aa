"""Fleet index: one narrow row per node for searching, filtering, sorting and counting all nodes.

It is written in the same transaction as the node, its reports and its deletion, and it holds `last_seen`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement, WriteStatement, casts
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import Document, Node
    from aks_flex_rp.store.rows import Row, Values

ROW_VERSION = 1  # of what is taken from a node's documents; raised when that changes, and then all rows are made anew
LONGEST = 500  # characters of a cause


class FleetState(TextEnum):
    """As STATE_EXPRESSION computes it."""

    READY = "Ready"
    NOT_READY = "NotReady"
    NOT_REPORTING = "NotReporting"
    UNKNOWN = "Unknown"
    FAILED = "Failed"
    JOINING = "Joining"


STATE_EXPRESSION = (
    "CASE WHEN ready = 'True' AND silent = 0 THEN 'Ready'"
    " WHEN join_state = 'Joined' AND silent = 1 THEN 'NotReporting'"
    " WHEN join_state = 'Joined' AND ready = 'False' THEN 'NotReady'"
    " WHEN join_state = 'Joined' THEN 'Unknown'"
    " WHEN join_state = 'Failed' OR (url_expires > 0 AND url_expires < CAST($1 AS DOUBLE PRECISION)) THEN 'Failed'"
    " ELSE 'Joining' END"
)
NOT_JOINED = frozenset({FleetState.FAILED, FleetState.JOINING})
FleetSort = Literal["name", "state", "version", "seen", "created"]
ORDERS: dict[FleetSort, str] = {
    "name": "key",
    "state": "state",
    "version": "kubelet",
    "seen": "last_seen",
    "created": "created",
}


@dataclass(frozen=True)
class FleetEntry:
    """A node as a list shows it."""

    cluster_number: int
    key: str
    name: str
    state: FleetState
    cause: str
    trouble: tuple[str, ...]  # types of conditions that want to be looked at, though the node may be Ready
    desired_version: str  # of Kubernetes
    kubelet: str
    version: int  # configVersion
    applied: int
    monitored: bool
    last_seen: float
    created: float


@dataclass(frozen=True)
class FleetQuery:
    """Which nodes, in which order, and which part of them."""

    cluster_numbers: tuple[int, ...]
    search: str = ""
    state: FleetState | None = None
    version: str = ""  # of the kubelet
    trouble: bool = False
    behind: bool = False
    sort: FleetSort = "name"
    descending: bool = False
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True)
class FleetCount:
    """So many nodes are alike in this."""

    cluster_number: int
    state: FleetState
    kubelet: str
    behind: bool
    trouble: bool
    nodes: int


# What is taken from a node -----------------------------------------------------------------------------------------


def status_columns(status: Document) -> Values:
    """ready, cause, trouble, kubelet, applied"""
    conditions = {str(each["type"]): each for each in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    unwell = [kind for kind, each in conditions.items() if _wants_attention(kind, str(each["status"]))]
    explaining = [ready] if ready.get("status") != "True" else [conditions[kind] for kind in unwell]
    cause = next((str(each.get("message") or each.get("reason") or "") for each in explaining), "")
    applied = str(status.get("appliedConfigVersion", ""))
    return (
        str(ready.get("status", "")),
        cause[:LONGEST],
        " ".join(unwell),
        str(status.get("kubeletVersion", "")).removeprefix("v"),
        int(applied) if applied.isascii() and applied.isdigit() and len(applied) < 19 else 0,
    )


def _wants_attention(kind: str, status: str) -> bool:
    """Ready and ConfigApplied are good when they are true; all others say that something is wrong."""
    return kind not in {"Ready", "ConfigApplied"} and status == "True"


def node_columns(node: Node) -> Values:
    """name, version, created, labels (to be searched), join_state, failure, url_expires, monitored, wanted"""
    labels: dict[str, Any] = node.properties.get("nodeConfig", {}).get("labels") or {}
    return (
        node.name,
        node.version,
        node.created,
        " ".join(f"{key}={value}" for key, value in sorted(labels.items())).lower(),
        node.join.phase.value,
        (node.join.failure or "")[:LONGEST],
        float(node.join.url_expires or 0.0),
        int(bool(node.properties.get("continuousMonitoring"))),
        str(node.config.get("kubernetes", {}).get("version", "")),
    )


# Statements --------------------------------------------------------------------------------------------------------

SELECT_CLUSTER_NUMBER = "SELECT number FROM places WHERE cluster = $1"
SELECT_CLUSTER_NUMBERS = "SELECT number, cluster FROM places"
INSERT_CLUSTER_NUMBER = WriteStatement(
    "INSERT INTO places (number, cluster) SELECT COALESCE(MAX(number), 0) + 1, CAST($1 AS TEXT) FROM places"
    " WHERE TRUE ON CONFLICT DO NOTHING RETURNING number"
)

_NODE_COLUMNS = "name, version, created, labels, join_state, failure, url_expires, monitored, wanted"
_STATUS_COLUMNS = "ready, cause, trouble, kubelet, applied"
_UPSERT_ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in (*_NODE_COLUMNS.split(", "), "shape"))
_TYPES = (
    *("BIGINT", "TEXT", "TEXT", "BIGINT", "DOUBLE PRECISION", "TEXT", "TEXT", "TEXT", "DOUBLE PRECISION", "INTEGER"),
    *("TEXT", "TEXT", "TEXT", "TEXT", "TEXT", "BIGINT"),
)
_STATUS_TYPES = _TYPES[-5:]
DERIVED_COLUMNS = (*_NODE_COLUMNS.split(", "), *_STATUS_COLUMNS.split(", "))  # that is taken from a node
COLUMNS = f"place, key, {', '.join(DERIVED_COLUMNS)}, silent, last_seen, shape"


def new_row(first: int) -> str:
    """The values of a row, from parameters that begin at that place: its key and all that is taken from its node."""
    return f"{casts(first, _TYPES)}, 0, 0, {ROW_VERSION}"


def assignments(first: int) -> str:
    return ", ".join(f"{name} = ${number}" for number, name in enumerate(DERIVED_COLUMNS, first))


def row_of(node: Node) -> Values:
    return *node_columns(node), *status_columns(node.status)


@cache
def _enlist(first: int) -> str:
    return (
        f"INSERT INTO fleet ({COLUMNS}) SELECT {new_row(first)} WHERE {IF_DECIDED}"
        f" ON CONFLICT (place, key) DO UPDATE SET {_UPSERT_ASSIGNMENTS}"
    )


def upsert_row(cluster_number: int, node: Node) -> FollowStatement:
    """With a node that is written. What its agent said last stays as it is."""
    return FollowStatement(_enlist, (cluster_number, node.key, *row_of(node)))


@cache
def _hear(first: int) -> str:
    moment, place, key, *values = (f"${first + number}" for number in range(3 + len(_STATUS_TYPES)))
    settings = ", ".join(f"{name} = {value}" for name, value in zip(_STATUS_COLUMNS.split(", "), values, strict=True))
    latest = f"CASE WHEN last_seen < {moment} THEN {moment} ELSE last_seen END"
    return (
        f"UPDATE fleet SET {settings}, last_seen = {latest}"  # noqa: S608 - names of parameters
        f" WHERE place = {place} AND key = {key} AND {IF_DECIDED}"
    )


def update_row(cluster_number: int, key: str, status: Document, timestamp: float) -> FollowStatement:
    """With what an agent says of its node."""
    return FollowStatement(_hear, (timestamp, cluster_number, key, *status_columns(status)))


@cache
def _strike(first: int) -> str:
    return f"DELETE FROM fleet WHERE place = ${first} AND key = ${first + 1} AND {IF_DECIDED}"  # noqa: S608


def delete_row(cluster_number: int, key: str) -> FollowStatement:
    """With a node that is deleted."""
    return FollowStatement(_strike, (cluster_number, key))


SEEN = "UPDATE fleet SET last_seen = $3 WHERE place = $1 AND key = $2 AND last_seen < $3"

COUNTS = (
    f"SELECT place, {STATE_EXPRESSION} AS state, kubelet, CASE WHEN applied > 0 AND applied <> version THEN 1 "  # noqa: S608 - constants alone
    "ELSE 0 END,"
    " CASE WHEN trouble <> '' THEN 1 ELSE 0 END, count(*) FROM fleet GROUP BY 1, 2, 3, 4, 5"
)


def count_of(row: Row) -> FleetCount:
    return FleetCount(row[0], FleetState(row[1]), row[2], bool(row[3]), bool(row[4]), row[5])


def entry_of(row: Row) -> FleetEntry:
    (
        cluster_number,
        key,
        name,
        state,
        ready_cause,
        failure,
        trouble,
        desired_version,
        kubelet,
        version,
        applied,
        monitored,
        *rest,
    ) = row
    cause = failure if state in NOT_JOINED else ready_cause
    about = (desired_version, kubelet, version, applied, bool(monitored), *rest)
    return FleetEntry(cluster_number, key, name, FleetState(state), cause, tuple(trouble.split()), *about)


def page(query: FleetQuery, now: float) -> tuple[str, Values]:
    """One part of the list."""
    where, values = _where(query, now)
    direction = " DESC" if query.descending else ""
    order = ORDERS[query.sort]
    ties = "" if order == "key" else f", key{direction}"
    return (
        f"SELECT place, key, name, {STATE_EXPRESSION} AS state, cause, failure, trouble, wanted, kubelet, version, "  # noqa: S608 - constants alone
        "applied,"
        f" monitored, last_seen, created FROM fleet WHERE {where}"
        f" ORDER BY {order}{direction}{ties} LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}"
    ), (*values, query.limit, query.offset)


def count(query: FleetQuery, now: float) -> tuple[str, Values]:
    where, values = _where(query, now)
    return f"SELECT count(*) FROM fleet WHERE {where}", values  # noqa: S608 - put together from texts of this module


def _where(query: FleetQuery, now: float) -> tuple[str, Values]:
    """`$1` is the moment, in every statement; each wish brings its own parameter."""
    values: list[object] = [now]
    # With the sign, a database does not go through the rows place by place, where another index has their order.
    ordered = query.sort == "version" or (query.sort == "name" and len(query.cluster_numbers) > 1)
    column = "+place" if ordered else "place"
    wishes = ["CAST($1 AS DOUBLE PRECISION) > 0", f"{column} IN ({_each(query.cluster_numbers)})"]
    for word in query.search.lower().split()[:8]:
        values.append(f"%{_literally(word)}%")
        wishes.append(f"(key LIKE ${len(values)} ESCAPE '!' OR labels LIKE ${len(values)} ESCAPE '!')")
    if query.state:
        values.append(query.state)
        wishes.append(f"{STATE_EXPRESSION} = ${len(values)}")
    if query.version:
        values.append(query.version)
        wishes.append(f"kubelet = ${len(values)}")
    if query.trouble:
        wishes.append("trouble <> ''")
    if query.behind:
        wishes.append("applied > 0 AND applied <> version")
    return " AND ".join(wishes), tuple(values)


def _each(numbers: Sequence[int]) -> str:
    """As numbers in the text: they are our own, and with them the text stays the same for the same callers."""
    return ", ".join(str(int(number)) for number in numbers) or "-1"


def _literally(word: str) -> str:
    return word.replace("!", "!!").replace("%", "!%").replace("_", "!_")
