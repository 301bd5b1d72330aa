"""Maps the store's records to table rows and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.model import (
    AuditAction,
    AuditEvent,
    AuditOutcome,
    Cluster,
    Delivery,
    Document,
    NextRevision,
    Node,
    PoolMembership,
    UserSession,
)
from aks_flex_rp.store.pool_model import ApprovalMode, EnrolledMachine, Enrolment, MachineState, Pool, PoolRevision
from aks_flex_rp.store.rollout_model import BarredRevision, PoolVersions, StoredRollout, StoredRolloutNode

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


def cluster_values(cluster: Cluster) -> Values:
    return cluster.key, cluster.id, to_json(cluster.facts), cluster.connection, cluster.version


def cluster_of(row: Row) -> Cluster:
    return Cluster(row[0], row[1], from_json(row[2]), bytes(row[3]), row[4])


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


def pool_values(pool: Pool) -> Values:
    documents = (to_json(pool.template), to_json(pool.system))
    return (pool.cluster, pool.key, pool.description, pool.number, *documents, pool.created, pool.version)


def pool_of(row: Row) -> Pool:
    return Pool(row[0], row[1], from_json(row[4]), row[3], row[2], from_json(row[5]), row[6], row[7])


def pool_revision_values(revision: PoolRevision) -> Values:
    names = (revision.cluster, revision.pool, revision.number, revision.created)
    return (
        *names,
        to_json(revision.template),
        to_json(revision.changes),
        revision.author,
        revision.author_id,
        revision.at,
    )


def pool_revision_of(row: Row) -> PoolRevision:
    cluster, pool, number, created, template, changes, author, author_id, at, _code = row
    return PoolRevision(
        cluster, pool, number, created, from_json(template), from_json(changes), author, author_id, at
    )


def enrolment_values(enrolment: Enrolment) -> Values:
    content = {
        "maxUses": enrolment.max_uses,
        "expires": enrolment.expires,
        "nodeName": enrolment.node_name,
        "approval": enrolment.approval.value,
        "allow": list(enrolment.allow),
        "number": enrolment.number,
        "revoked": enrolment.revoked,
        "system": enrolment.system,
    }
    names = (enrolment.cluster, enrolment.key, enrolment.pool, enrolment.secret, enrolment.uses)
    return (*names, to_json(content), enrolment.created, enrolment.version)


def enrolment_of(row: Row) -> Enrolment:
    cluster, key, pool, secret, uses, text, created, version, _code = row
    content = from_json(text)
    return Enrolment(
        cluster,
        pool,
        key,
        secret,
        int(content["maxUses"]),
        float(content["expires"]),
        str(content["nodeName"]),
        ApprovalMode(content["approval"]),
        tuple(content["allow"]),
        uses,
        int(content["number"]),
        float(content["revoked"]),
        content["system"],
        created,
        version,
    )


def machine_values(machine: EnrolledMachine) -> Values:
    content = {
        "facts": machine.facts,
        "machineId": machine.machine_id,
        "address": machine.address,
        "first": machine.first,
        "changed": machine.changed,
        "by": machine.by,
        "releasedKey": machine.released_key,
    }
    names = (machine.cluster, machine.enrolment, machine.thumbprint, machine.pool, machine.state.value)
    return (*names, machine.node, machine.system_uuid, to_json(content), machine.version)


def machine_of(row: Row) -> EnrolledMachine:
    cluster, enrolment, thumbprint, pool, state, node, system_uuid, text, version, _code = row
    content = from_json(text)
    times = float(content["first"]), float(content["changed"])
    texts = str(content["machineId"]), str(content["address"])
    names = (cluster, pool, enrolment, thumbprint, MachineState(state), node, system_uuid, content["facts"])
    released = str(content.get("releasedKey", ""))
    return EnrolledMachine(*names, *texts, *times, str(content["by"]), version, released)


def rollout_values(rollout: StoredRollout) -> Values:
    content = {
        "spec": rollout.spec,
        "state": rollout.state,
        "waits": list(rollout.waits),
        "system": rollout.system,
        "ended": rollout.ended,
    }
    names = (rollout.cluster, rollout.pool, rollout.key, rollout.number, rollout.phase)
    return (
        *names,
        int(rollout.active),
        int(rollout.open),
        to_json(content),
        float(rollout.created),
        rollout.version,
    )


def rollout_of(row: Row) -> StoredRollout:
    cluster, pool, key, number, phase, active, is_open, text, created, version, _code = row
    content = from_json(text)
    return StoredRollout(
        cluster,
        pool,
        key,
        number,
        phase,
        bool(active),
        bool(is_open),
        content["spec"],
        content["state"],
        tuple(content["waits"]),
        content["system"],
        created,
        float(content["ended"]),
        version,
    )


def rollout_node_values(node: StoredRolloutNode) -> Values:
    names = (node.cluster, node.pool, node.rollout, node.node, node.wave, node.source, node.state)
    return storable((*names, float(node.since), node.cause, node.domain))


def rollout_node_of(row: Row) -> StoredRolloutNode:
    return StoredRolloutNode(*row[:10])


def pool_versions_values(versions: PoolVersions) -> Values:
    content = {"stable": versions.stable, "barred": [asdict(each) for each in versions.barred]}
    return (versions.cluster, versions.pool, to_json(content), float(versions.created), versions.version)


def pool_versions_of(row: Row) -> PoolVersions:
    cluster, pool, text, created, version, _code = row
    content = from_json(text)
    barred = tuple(BarredRevision(**each) for each in content["barred"])
    return PoolVersions(cluster, pool, created, int(content["stable"]), barred, version)


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
