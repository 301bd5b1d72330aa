"""SQL statements, shared by both databases.

`$1` is a positional parameter in PostgreSQL and a named one in SQLite. A write is a statement that decides, by
returning a row or none, and others that follow only if it returned one. SQLite runs them one after another in a
transaction; PostgreSQL gets all of them as one statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# `single_statement` replaces this with the condition that the deciding statement returned a row.
IF_DECIDED = "/* decided */ TRUE"


@dataclass(frozen=True)
class WriteStatement:
    decide: str
    follow: tuple[str, ...] = ()  # with the parameters of the deciding statement, followed by their own


@cache
def single_statement(write: WriteStatement, parameters: int) -> str:
    """Combines a write into one statement, for PostgreSQL only.

    It takes one more parameter, which every returned row begins with, to separate the rows of many writes.
    """
    parts = [f"decided AS ({write.decide})"]
    for number, text in enumerate(write.follow):
        conditional = text.replace(IF_DECIDED, "EXISTS (SELECT 1 FROM decided)")
        parts.append(f"follow_{number} AS ({conditional})")
    index = f"CAST(${parameters + 1} AS BIGINT)"
    return f"WITH {', '.join(parts)} SELECT {index}, decided.* FROM decided"  # noqa: S608 - built from constants


def casts(first: int, types: tuple[str, ...]) -> str:
    """Returns parameters from this number on with type casts, which PostgreSQL needs in a SELECT."""
    return ", ".join(f"CAST(${first + index} AS {kind})" for index, kind in enumerate(types))


@dataclass(frozen=True)
class FollowStatement:
    """A statement that follows the deciding one, with additional parameters."""

    text: Callable[[int], str]  # called with the number of the first parameter
    values: tuple[object, ...] = ()


def compose_write(
    decide: str, values: tuple[object, ...], *follows: FollowStatement
) -> tuple[WriteStatement, tuple[object, ...]]:
    """Combines a deciding statement and the statements that follow it, with all parameters."""
    texts = []
    for follow in follows:
        texts.append(follow.text(len(values) + 1))
        values = (*values, *follow.values)
    return WriteStatement(decide, tuple(texts)), values


def deletion(table: str, *columns: str) -> FollowStatement:
    """Returns the statement that deletes rows by these columns, the first parameters of the deciding statement."""
    where = " AND ".join(f"{name} = ${number}" for number, name in enumerate(columns, 1))
    text = f"DELETE FROM {table} WHERE {where} AND {IF_DECIDED}"  # noqa: S608 - constants
    return FollowStatement(lambda _: text)


# Clusters ---------------------------------------------------------------------------------------------------------

TABLES_OF_POOLS = (
    *("pool_revisions", "enrolments", "enrolled_machines"),
    *("rollouts", "rollout_nodes", "rollout_signals", "pool_versions"),
)
CREATE_CLUSTER = WriteStatement(
    "INSERT INTO clusters (key, id, facts, connection, version, code) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (key) DO NOTHING RETURNING key"
)

REPLACE_CLUSTER = WriteStatement(
    "UPDATE clusters SET id = $2, facts = $3, connection = $4, version = $5, code = $6"
    " WHERE key = $1 AND version = $7 RETURNING key"
)

DELETE_CLUSTER = WriteStatement(
    "DELETE FROM clusters WHERE key = $1"
    " AND NOT EXISTS (SELECT 1 FROM nodes WHERE cluster = $1 AND gone = 0) RETURNING key",
    tuple(deletion(table, "cluster").text(0) for table in ("pools", *TABLES_OF_POOLS)),
)

# Nodes ------------------------------------------------------------------------------------------------------------
# A deleted node remains as an empty row with its last version, so that a new node of the same name continues from it,
# and one statement decides whether it may be created. It also keeps its identity, whose polls must receive 404.

NODE_COLUMNS = (
    "n.cluster, n.key, n.name, n.version, n.etag, n.properties, n.config, n.secrets, n.system_data,"
    " n.join_state, n.node_identity, n.created, n.status, COALESCE(f.last_seen, 0), n.revision,"
    " n.code, n.gone"
)
NODES_IN_FLEET = (
    "nodes n LEFT JOIN cluster_numbers p ON p.cluster = n.cluster"
    " LEFT JOIN fleet f ON f.cluster_number = p.number AND f.key = n.key"
)
# A row whose `gone` is neither 0 nor 1 must be read, so that it is refused: it is not the row of a deleted node.
NOT_DELETED = "(n.gone IS NULL OR n.gone <> 1)"
SELECT_NODE = f"SELECT {NODE_COLUMNS} FROM {NODES_IN_FLEET} WHERE n.cluster = $1"  # noqa: S608 - constants

NODE = f"{SELECT_NODE} AND n.key = $2 AND {NOT_DELETED}"

NODES = f"{SELECT_NODE} AND n.key > $2 AND n.gone = 0 ORDER BY n.key LIMIT $3"

COUNT_NODES = "SELECT count(*) FROM nodes WHERE gone = 0"

NODE_REVISION = "SELECT revision FROM nodes WHERE cluster = $1 AND key = $2"

CREATE_NODE = (
    "INSERT INTO nodes (cluster, key, name, version, etag, properties, config, secrets, system_data, join_state,"
    " node_identity, created, status, code, gone, revision)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 0, $15)"
    " ON CONFLICT (cluster, key) DO UPDATE SET name = $3, version = $4, etag = $5, properties = $6, config = $7,"
    " secrets = $8, system_data = $9, join_state = $10, node_identity = $11, created = $12, status = $13, code = $14,"
    " gone = 0, revision = $15"
    " WHERE nodes.gone = 1 AND nodes.version < $4 AND nodes.revision = CAST($15 AS BIGINT) - 1 RETURNING key"
)

REPLACE_NODE = (
    "UPDATE nodes SET name = $3, version = $4, etag = $5, properties = $6, config = $7, secrets = $8,"
    " system_data = $9, join_state = $10, node_identity = $11, created = $12, code = $14, revision = $15"
    " WHERE cluster = $1 AND key = $2 AND gone = 0 AND etag = $13 AND version <= $4"
    " AND revision = CAST($15 AS BIGINT) - 1 RETURNING key"
)

# A roll-out gives a node a revision only while the node is in the state for which it was decided.
REPLACE_NODE_IN_ROLLOUT = REPLACE_NODE.replace(
    " RETURNING",
    " AND EXISTS (SELECT 1 FROM rollout_nodes r JOIN rollouts o ON o.cluster = r.cluster AND o.pool = r.pool"
    " AND o.number = r.rollout WHERE r.cluster = $1 AND r.node = $2 AND r.rollout = $16 AND r.state = $17"
    # A node without a machine is done when it is given the revision, with which the roll-out may end.
    " AND (o.open = 1 OR r.state IN ('Updated', 'Reversed'))) RETURNING",
)

DELETE_NODE = (
    "UPDATE nodes SET gone = 1, revision = $4, code = $5, version = $7, node_identity = $8, etag = '',"
    " properties = '', config = '', secrets = '', system_data = '', join_state = '', status = ''"
    " WHERE cluster = $1 AND key = $2 AND (gone IS NULL OR gone <> 1) AND ($3 = '' OR etag = $3) AND revision = $6"
    " RETURNING key"
)

# The owner of an identity is replaced only if it is still the expected one.
_OWNER = "SELECT identity, cluster, node, node_identity, code FROM identity_owners"

IDENTITY_OWNER = f"{_OWNER} WHERE identity = $1"

IDENTITY_OWNERS = f"{_OWNER} WHERE identity > $1 ORDER BY identity LIMIT $2"

OWNED_IDENTITIES = f"{_OWNER} WHERE cluster = $1 AND node = $2 AND node_identity = $3"

CREATE_IDENTITY_OWNER = WriteStatement(
    "INSERT INTO identity_owners (identity, cluster, node, node_identity, code) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (identity) DO NOTHING RETURNING identity"
)

REPLACE_IDENTITY_OWNER = WriteStatement(
    "UPDATE identity_owners SET cluster = $2, node = $3, node_identity = $4, code = $5"
    " WHERE identity = $1 AND cluster = $6 AND node = $7 RETURNING identity"
)

REMOVE_IDENTITY_OWNER = WriteStatement(
    "DELETE FROM identity_owners WHERE identity = $1 AND code = $2 RETURNING identity"
)

SIGN_IDENTITY_OWNER = "UPDATE identity_owners SET code = $3 WHERE identity = $1 AND code = $2"

NODES_WITH_IDENTITY = (
    "SELECT cluster, name, node_identity FROM nodes WHERE gone = 0 AND node_identity IN ($1, $2)"
    " ORDER BY cluster, key LIMIT 100"
)

FORGET_DELIVERY = deletion("deliveries", "cluster", "node")

FORGET_MACHINE = deletion("enrolled_machines", "cluster", "node")

REPORT = "UPDATE nodes SET status = $3 WHERE cluster = $1 AND key = $2 AND gone = 0 RETURNING key"

REPORT_AFTER = (
    "UPDATE nodes SET status = $3 WHERE cluster = $1 AND key = $2 AND gone = 0 AND status = $4 RETURNING key"
)

# Deliveries -------------------------------------------------------------------------------------------------------
# The primary key allows one delivery per node, so a new one replaces the earlier one.

PUT_DELIVERY = WriteStatement(
    "INSERT INTO deliveries (cluster, node, id, expires, bundle, fetched) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (cluster, node) DO UPDATE SET id = $3, expires = $4, bundle = $5, fetched = $6 RETURNING id"
)

FETCH_DELIVERY = WriteStatement(
    "UPDATE deliveries SET fetched = fetched + 1 WHERE id = $1 AND expires > $2"
    " RETURNING id, cluster, node, expires, bundle, fetched"
)

REVOKE_DELIVERIES = WriteStatement("DELETE FROM deliveries WHERE cluster = $1 AND node = $2 RETURNING id")

SWEEP = WriteStatement("DELETE FROM deliveries WHERE expires <= $1 RETURNING id")

# Audit ------------------------------------------------------------------------------------------------------------

EVENT_TYPES = ("DOUBLE PRECISION", *["TEXT"] * 9)
EVENT_COLUMNS = "at, who, what, resource, resource_key, source, request, outcome, detail, who_id"

INSERT_EVENT = f"INSERT INTO audit ({EVENT_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"  # noqa: S608 - a constant


@cache
def insert_events(first: int, events: int) -> str:
    """Returns the statement that inserts this number of events, with parameters from `first` on."""
    starts = range(first, first + events * len(EVENT_TYPES), len(EVENT_TYPES))
    rows = [f"({casts(start, EVENT_TYPES)})" for start in starts]
    values = f"SELECT * FROM (VALUES {', '.join(rows)}) AS events WHERE {IF_DECIDED}"  # noqa: S608 - numbers and types
    return f"INSERT INTO audit ({EVENT_COLUMNS}) {values}"


def recorded(events: Sequence[tuple[object, ...]]) -> FollowStatement:
    """Returns the statement that inserts the audit events of a write, as rows, in the same transaction."""
    values = tuple(chain.from_iterable(events))
    return FollowStatement(lambda first: insert_events(first, len(events)), values)


FORGET_AUDIT = WriteStatement("DELETE FROM audit WHERE at < $1 RETURNING sequence")

AUDIT_FILTERS = {
    "resource": "(resource_key = ${0} OR (resource_key > ${0} || '/' AND resource_key < ${0} || '0'))",
    "who": "(who = ${0} OR who_id = ${0})",
    "what": "what = ${0}",
    "before": "sequence < ${0}",
}


@cache
def audit(filters: tuple[str, ...]) -> str:
    """Returns the query for the newest events, with one parameter per filter in their order, and the limit."""
    conditions = [AUDIT_FILTERS[name].format(number) for number, name in enumerate(filters, start=1)]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = "at, who, what, resource, source, request, outcome, detail, sequence, who_id"
    return f"SELECT {columns} FROM audit{where} ORDER BY sequence DESC LIMIT ${len(filters) + 1}"  # noqa: S608 - constants


_SESSION_COLUMNS = "id, caller, proof, expires, used, checked, refresh, code"

PUT_SESSION = WriteStatement(
    f"INSERT INTO sessions ({_SESSION_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id"  # noqa: S608 - a constant
)
SELECT_SESSION = f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE id = $1 AND expires > $2"  # noqa: S608 - a constant
CONFIRM_SESSION = WriteStatement(
    "UPDATE sessions SET caller = $2, checked = $3, refresh = $4, code = $5 WHERE id = $1 RETURNING id"
)
USE_SESSION = WriteStatement("UPDATE sessions SET used = $2 WHERE id = $1 RETURNING id")
END_SESSION = WriteStatement("DELETE FROM sessions WHERE id = $1 RETURNING id")
SWEEP_SESSIONS = WriteStatement("DELETE FROM sessions WHERE expires <= $1 OR used < $2 RETURNING id")

# Authentication codes ----------------------------------------------------------------------------------------------

SIGNED_NODE_COLUMNS = (
    "cluster, key, name, version, etag, properties, config, secrets, system_data, join_state, node_identity, created,"
    " revision, gone, code"
)
SELECT_SIGNED_NODES = (
    f"SELECT {SIGNED_NODE_COLUMNS} FROM nodes WHERE (cluster, key) > ($1, $2) ORDER BY cluster, key LIMIT $3"  # noqa: S608 - constants
)
SELECT_SIGNED_NODE = f"SELECT {SIGNED_NODE_COLUMNS} FROM nodes WHERE cluster = $1 AND key = $2"  # noqa: S608 - constants
