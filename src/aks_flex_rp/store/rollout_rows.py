"""Maps the records of roll-outs to table rows and back, and names the signed part of each row."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aks_flex_rp.store.record_authenticator import SignedRow, pool_identity
from aks_flex_rp.store.rollout_model import BarredRevision, PoolVersions, StoredRollout, StoredRolloutNode
from aks_flex_rp.store.rows import from_json, storable, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.rows import Row, Values

ROLLOUT_COLUMNS = "cluster, pool, key, number, phase, active, open, content, created, version, code"
ROLLOUT_TYPES = (
    *("TEXT", "TEXT", "TEXT", "BIGINT", "TEXT", "INTEGER", "INTEGER", "TEXT", "DOUBLE PRECISION", "BIGINT", "TEXT"),
)
NODE_COLUMNS = "cluster, pool, rollout, node, wave, source, state, since, cause, domain, code"
NODE_TYPES = (
    "TEXT",
    "TEXT",
    "BIGINT",
    "TEXT",
    "BIGINT",
    "BIGINT",
    "TEXT",
    "DOUBLE PRECISION",
    "TEXT",
    "TEXT",
    "TEXT",
)
VERSIONS_COLUMNS = "cluster, pool, content, created, version, code"
VERSIONS_TYPES = ("TEXT", "TEXT", "TEXT", "DOUBLE PRECISION", "BIGINT", "TEXT")


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


def signed_rollout(values: Sequence[Any], code: str = "") -> SignedRow:
    content = storable(values)
    cluster, pool, key = map(str, content[:3])
    identity = (*pool_identity(cluster, pool), "rollouts", key)
    keys = (cluster, pool, key)
    return SignedRow("roll-out", identity, content, content[-1], code, keys=keys)


def rollout_row(row: Row) -> SignedRow:
    return signed_rollout((*row[:8], _float(row[8]), row[9]), row[10])


def node_values(node: StoredRolloutNode) -> Values:
    names = (node.cluster, node.pool, node.rollout, node.node, node.wave, node.source, node.state)
    return storable((*names, float(node.since), node.cause, node.domain))


def node_of(row: Row) -> StoredRolloutNode:
    return StoredRolloutNode(*row[:10])


def signed_node(values: Sequence[Any], code: str = "") -> SignedRow:
    content = storable(values)
    identity = (*pool_identity(str(content[0]), str(content[1])), "rollouts", str(content[2]), str(content[3]))
    return SignedRow("roll-out node", identity, content, 0, code, keys=tuple(content[:4]))


def node_row(row: Row) -> SignedRow:
    return signed_node((*row[:7], _float(row[7]), *row[8:10]), row[10])


def versions_values(versions: PoolVersions) -> Values:
    content = {"stable": versions.stable, "barred": [asdict(each) for each in versions.barred]}
    return (versions.cluster, versions.pool, to_json(content), float(versions.created), versions.version)


def versions_of(row: Row) -> PoolVersions:
    cluster, pool, text, created, version, _code = row
    content = from_json(text)
    barred = tuple(BarredRevision(**each) for each in content["barred"])
    return PoolVersions(cluster, pool, created, int(content["stable"]), barred, version)


def signed_versions(values: Sequence[Any], code: str = "") -> SignedRow:
    content = storable(values)
    cluster, pool = str(content[0]), str(content[1])
    identity = (*pool_identity(cluster, pool), "versions")
    keys = (cluster, pool)
    return SignedRow("versions of a pool", identity, content, content[-1], code, keys=keys)


def versions_row(row: Row) -> SignedRow:
    return signed_versions((*row[:3], _float(row[3]), row[4]), row[5])


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) else value
