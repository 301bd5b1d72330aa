"""Maps the store's records to table rows and back, besides those of `signed_tables`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.model import (
    AuditAction,
    AuditEvent,
    AuditOutcome,
    Delivery,
    Document,
    NextRevision,
    Node,
    PoolMembership,
    UserSession,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.node_keys import NodeKeys

Row = Any  # a tuple of sqlite3 or a record of asyncpg, read by index
Values = tuple[Any, ...]

# What parsing a row can raise whose columns have other types or documents than the service writes.
PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RecursionError)

POOL_REVISION, EFFECTIVE, NEXT = "poolRevision", "effective", "nextRevision"  # in the document of properties

_fast_encode = msgspec.json.Encoder().encode
_fast_decode = msgspec.json.Decoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


def to_json(document: Document) -> str:
    """Returns ASCII only, so that both databases accept any text."""
    try:
        encoded = _fast_encode(document)  # ten times faster than json
    except UnicodeEncodeError:  # a lone surrogate
        return _encode(document)
    return encoded.decode() if encoded.isascii() else _encode(document)


def from_json(text: str) -> Document:
    found: Document
    try:
        found = _fast_decode(text)
    except msgspec.DecodeError:  # also for a lone surrogate, which json accepts
        found = json.loads(text)
    return found


def storable(values: Sequence[Any]) -> Values:
    """Replaces characters that the databases reject: NUL in PostgreSQL, and lone surrogates in both."""
    return tuple(
        [
            _storable_text(value) if isinstance(value, str) and (not value.isascii() or "\0" in value) else value
            for value in values
        ]
    )


def _storable_text(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def restored(value: Any, kind: str) -> Any:
    """Returns a value as it was written. SQLite returns whole numbers as integers, and may return any other type."""
    if kind == "BLOB" and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return float(value) if kind == "DOUBLE PRECISION" and isinstance(value, (int, float)) else value


def node_values(node: Node) -> Values:
    """Returns the columns that a write of a node sets. The agent's report is written separately."""
    names = (node.cluster, node.key, node.name, node.version, node.etag)
    documents = (
        to_json(_stored_properties(node)),
        to_json(node.config),
        node.secrets,
        to_json(node.system),
        to_json(node.join.to_document()),
    )
    return (*names, *documents, node.identity, node.created)


def _stored_properties(node: Node) -> Document:
    """Returns the document of a node's own properties, with what it has by its pool."""
    if node.pool is None:
        return node.properties
    following = node.pool.next
    ahead = {NEXT: {"revision": following.revision, "config": following.config}} if following else {}
    return {**node.properties, POOL_REVISION: node.pool.revision, EFFECTIVE: node.pool.effective, **ahead}


def _membership(properties: Document) -> PoolMembership | None:
    """Removes what a node has by its pool from its stored properties, and returns it."""
    revision, effective = properties.pop(POOL_REVISION, 0), properties.pop(EFFECTIVE, None)
    ahead = properties.pop(NEXT, None)
    following = NextRevision(int(ahead["revision"]), ahead["config"]) if ahead else None
    if effective is None:
        return None
    return PoolMembership(str(properties["poolName"]), int(revision), effective, following)


def node_of(row: Row) -> Node:
    properties = from_json(row[5])
    pool = _membership(properties)
    return Node(
        cluster=row[0],
        key=row[1],
        name=row[2],
        version=row[3],
        etag=row[4],
        properties=properties,
        config=from_json(row[6]),
        secrets=bytes(row[7]),
        system=from_json(row[8]),
        join=JoinState.from_document(from_json(row[9])),
        identity=row[10],
        created=row[11],
        status=_reported(row[12]),
        last_seen=_moment(row[13]),
        revision=row[14],
        pool=pool,
    )


def keys_of(join_state: str) -> NodeKeys:
    """Returns the keys of a node from the column of its join state."""
    return JoinState.from_document(from_json(join_state)).keys


def _reported(text: Any) -> Document:
    """Returns what the agent reported. That is not authenticated, and must not make the node unreadable."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _moment(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def delivery_values(delivery: Delivery) -> Values:
    return delivery.cluster, delivery.node, delivery.id, delivery.expires, delivery.bundle, delivery.fetched


def delivery_of(row: Row) -> Delivery:
    return Delivery(row[0], row[1], row[2], row[3], bytes(row[4]), row[5])


def event_values(event: AuditEvent) -> Values:
    resource = (event.resource, event.resource.lower())
    return (
        event.at,
        event.who,
        event.what,
        *resource,
        event.source,
        event.request,
        event.outcome,
        to_json(event.detail),
        event.who_id,
    )


def event_of(row: Row) -> AuditEvent:
    at, who, what, resource, source, request, outcome, detail, sequence, who_id = row
    return AuditEvent(
        at,
        who,
        AuditAction(what),
        resource,
        source,
        request,
        AuditOutcome(outcome),
        from_json(detail),
        sequence,
        who_id,
    )


def session_values(session: UserSession) -> Values:
    first = (session.id, to_json(session.caller), session.proof, session.expires)
    return (*first, session.used, session.checked, session.refresh)


def session_of(row: Row) -> UserSession:
    return UserSession(row[0], from_json(row[1]), row[2], row[3], _moment(row[4]), row[5], row[6])
