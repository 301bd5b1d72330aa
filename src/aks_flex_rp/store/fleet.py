"""Fleet index: one narrow row per node for searching, filtering, sorting and counting all nodes.

It is written in the same transaction as the node, its reports and its deletion, and it contains `last_seen`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_rp.join_state import URL_EXPIRED
from aks_flex_rp.node_conditions import condition_cause, is_problem
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement, WriteStatement, casts
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import Document, Node
    from aks_flex_rp.store.rows import Row, Values

LONGEST = 500  # characters of a cause


class FleetState(TextEnum):
    """State of a node, as computed by STATE_EXPRESSION."""

    READY = "Ready"
    NOT_READY = "NotReady"
    NOT_REPORTING = "NotReporting"
    UNKNOWN = "Unknown"
    FAILED = "Failed"
    JOINING = "Joining"
    CREATED = "Created"  # no machine has fetched the configuration
    LEFT = "Left"  # the Node was removed from the cluster


STATE_EXPRESSION = (
    "CASE WHEN join_state = 'Left' THEN 'Left'"
    " WHEN ready = 'True' AND silent = 0 THEN 'Ready'"
    " WHEN join_state = 'Joined' AND silent = 1 THEN 'NotReporting'"
    " WHEN join_state = 'Joined' AND ready = 'False' THEN 'NotReady'"
    " WHEN join_state = 'Joined' THEN 'Unknown'"
    " WHEN join_state = 'Failed' OR (url_expires > 0 AND url_expires < CAST($1 AS DOUBLE PRECISION)) THEN 'Failed'"
    " WHEN join_state = 'Created' THEN 'Created'"
    " ELSE 'Joining' END"
)
NOT_JOINED = frozenset({FleetState.FAILED, FleetState.JOINING, FleetState.CREATED, FleetState.LEFT})
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
    """A node as shown in a list."""

    cluster_number: int
    key: str
    name: str
    state: FleetState
    cause: str
    trouble: tuple[str, ...]  # condition types that report a problem, even if the node is Ready
    desired_version: str  # of Kubernetes
    kubelet: str
    version: int  # configVersion
    applied: int
    monitored: bool
    last_seen: float
    created: float
    pool: str = ""


@dataclass(frozen=True)
class FleetQuery:
    """Filter, order and page of a fleet query."""

    cluster_numbers: tuple[int, ...]
    search: str = ""
    state: FleetState | None = None
    version: str = ""  # of the kubelet
    trouble: bool = False
    behind: bool = False
    pool: str = ""
    sort: FleetSort = "name"
    descending: bool = False
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True)
class FleetCount:
    """The number of nodes with the same values."""

    cluster_number: int
    state: FleetState
    kubelet: str
    behind: bool
    trouble: bool
    nodes: int


# Columns derived from a node -------------------------------------------------------------------------------------


def status_columns(status: Document) -> Values:
    """Returns the columns ready, cause, problems, kubelet, applied."""
    conditions = {str(each["type"]): each for each in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    unwell = [kind for kind, each in conditions.items() if is_problem(kind, str(each["status"]))]
    cause = condition_cause(conditions)
    applied = str(status.get("appliedConfigVersion", ""))
    return (
        str(ready.get("status", "")),
        cause[:LONGEST],
        " ".join(unwell),
        str(status.get("kubeletVersion", "")).removeprefix("v"),
        int(applied) if applied.isascii() and applied.isdigit() and len(applied) < 19 else 0,
    )


def node_columns(node: Node) -> Values:
    """Returns the columns name, version, created, labels (searchable), join_state, failure, url_expires, monitored,
    desired_version, pool, pool_revision.
    """
    labels: dict[str, Any] = node.effective.get("nodeConfig", {}).get("labels") or {}
    return (
        node.name,
        node.version,
        node.created,
        " ".join(f"{key}={value}" for key, value in sorted(labels.items())).lower(),
        node.join.phase.value,
        (node.join.failure or "")[:LONGEST],
        float(node.join.url_expires or 0.0),
        int(node.is_monitored),
        str(node.config.get("kubernetes", {}).get("version", "")),
        node.pool.name if node.pool else "",
        node.pool.revision if node.pool else 0,
    )


# Statements --------------------------------------------------------------------------------------------------------

SELECT_CLUSTER_NUMBER = "SELECT number FROM cluster_numbers WHERE cluster = $1"
SELECT_CLUSTER_NUMBERS = "SELECT number, cluster FROM cluster_numbers"
INSERT_CLUSTER_NUMBER = WriteStatement(
    "INSERT INTO cluster_numbers (number, cluster) SELECT COALESCE(MAX(number), 0) + 1, CAST($1 AS TEXT)"
    " FROM cluster_numbers WHERE TRUE ON CONFLICT DO NOTHING RETURNING number"
)

_NODE_COLUMNS = (
    "name, version, created, labels, join_state, failure, url_expires, monitored, desired_version, pool,"
    " pool_revision"
)
_STATUS_COLUMNS = "ready, cause, problems, kubelet, applied"
_UPSERT_ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in _NODE_COLUMNS.split(", "))
_TYPES = (
    *("BIGINT", "TEXT", "TEXT", "BIGINT", "DOUBLE PRECISION", "TEXT", "TEXT", "TEXT", "DOUBLE PRECISION", "INTEGER"),
    *("TEXT", "TEXT", "BIGINT", "TEXT", "TEXT", "TEXT", "TEXT", "BIGINT"),
)
_STATUS_TYPES = _TYPES[-5:]
DERIVED_COLUMNS = (*_NODE_COLUMNS.split(", "), *_STATUS_COLUMNS.split(", "))  # derived from a node
COLUMNS = f"cluster_number, key, {', '.join(DERIVED_COLUMNS)}, silent, last_seen"


def new_row(first: int) -> str:
    """Returns the values of a new row: parameters from this number on, for the key and the derived columns."""
    return f"{casts(first, _TYPES)}, 0, 0"


def assignments(first: int) -> str:
    return ", ".join(f"{name} = ${number}" for number, name in enumerate(DERIVED_COLUMNS, first))


def row_of(node: Node) -> Values:
    return *node_columns(node), *status_columns(node.status)


@cache
def _upsert(first: int) -> str:
    return (
        f"INSERT INTO fleet ({COLUMNS}) SELECT {new_row(first)} WHERE {IF_DECIDED}"
        f" ON CONFLICT (cluster_number, key) DO UPDATE SET {_UPSERT_ASSIGNMENTS}"
    )


def upsert_row(cluster_number: int, node: Node) -> FollowStatement:
    """Returns the statement that follows a write of a node. Status columns of an existing row are kept."""
    return FollowStatement(_upsert, (cluster_number, node.key, *row_of(node)))


@cache
def _update(first: int) -> str:
    moment, cluster_number, key, *values = (f"${first + number}" for number in range(3 + len(_STATUS_TYPES)))
    settings = ", ".join(f"{name} = {value}" for name, value in zip(_STATUS_COLUMNS.split(", "), values, strict=True))
    latest = f"CASE WHEN last_seen < {moment} THEN {moment} ELSE last_seen END"
    return (
        f"UPDATE fleet SET {settings}, last_seen = {latest}"  # noqa: S608 - names of parameters
        f" WHERE cluster_number = {cluster_number} AND key = {key} AND {IF_DECIDED}"
    )


def update_row(cluster_number: int, key: str, status: Document, timestamp: float) -> FollowStatement:
    """Returns the statement that follows a status report."""
    return FollowStatement(_update, (timestamp, cluster_number, key, *status_columns(status)))


@cache
def _delete(first: int) -> str:
    return f"DELETE FROM fleet WHERE cluster_number = ${first} AND key = ${first + 1} AND {IF_DECIDED}"  # noqa: S608


def delete_row(cluster_number: int, key: str) -> FollowStatement:
    """Returns the statement that follows the deletion of a node."""
    return FollowStatement(_delete, (cluster_number, key))


SEEN = "UPDATE fleet SET last_seen = $3 WHERE cluster_number = $1 AND key = $2 AND last_seen < $3"

COUNTS = (
    f"SELECT cluster_number, {STATE_EXPRESSION} AS state, kubelet,"  # noqa: S608 - constants alone
    " CASE WHEN applied > 0 AND applied <> version THEN 1 ELSE 0 END,"
    " CASE WHEN problems <> '' THEN 1 ELSE 0 END, count(*) FROM fleet GROUP BY 1, 2, 3, 4, 5"
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
    if state == FleetState.FAILED and not failure:
        cause = URL_EXPIRED  # computed, because no process records the expiry
    about = (desired_version, kubelet, version, applied, bool(monitored), *rest)
    return FleetEntry(cluster_number, key, name, FleetState(state), cause, tuple(trouble.split()), *about)


def page(query: FleetQuery, now: float) -> tuple[str, Values]:
    """Builds the query of one page."""
    where, values = _where(query, now)
    direction = " DESC" if query.descending else ""
    order = ORDERS[query.sort]
    ties = "" if order == "key" else f", key{direction}"
    return (
        f"SELECT cluster_number, key, name, {STATE_EXPRESSION} AS state, cause, failure, problems,"  # noqa: S608 - constants alone
        " desired_version, kubelet, version, applied, monitored, last_seen, created, pool"
        f" FROM fleet WHERE {where}"
        f" ORDER BY {order}{direction}{ties} LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}"
    ), (*values, query.limit, query.offset)


def count(query: FleetQuery, now: float) -> tuple[str, Values]:
    where, values = _where(query, now)
    return f"SELECT count(*) FROM fleet WHERE {where}", values  # noqa: S608 - built from constants


def _where(query: FleetQuery, now: float) -> tuple[str, Values]:
    """Builds the WHERE clause. `$1` is always the current time; each filter adds a parameter."""
    values: list[object] = [now]
    # The unary plus keeps the database from using the index on `cluster_number` where another index has the
    # requested order.
    ordered = query.sort == "version" or (query.sort == "name" and len(query.cluster_numbers) > 1) or query.pool
    column = "+cluster_number" if ordered else "cluster_number"
    conditions = ["CAST($1 AS DOUBLE PRECISION) > 0", f"{column} IN ({_each(query.cluster_numbers)})"]
    for term in query.search.lower().split()[:8]:
        values.append(term)  # both columns are in lower case; LIKE would take several times longer
        conditions.append(f"(instr(key, ${len(values)}) > 0 OR instr(labels, ${len(values)}) > 0)")
    if query.state:
        values.append(query.state)
        conditions.append(f"{STATE_EXPRESSION} = ${len(values)}")
    if query.version:
        values.append(query.version)
        conditions.append(f"kubelet = ${len(values)}")
    if query.pool:
        values.append(query.pool)
        conditions.append(f"pool = ${len(values)}")
    if query.trouble:
        conditions.append("problems <> ''")
    if query.behind:
        conditions.append("applied > 0 AND applied <> version")
    return " AND ".join(conditions), tuple(values)


def _each(numbers: Sequence[int]) -> str:
    """Returns the numbers as SQL text. They are internal, and keep the statement the same for the same callers."""
    return ", ".join(str(int(number)) for number in numbers) or "-1"
