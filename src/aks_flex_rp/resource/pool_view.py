"""Pools and their revisions as the API returns them, in the ARM envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc_microseconds
from aks_flex_rp.arm.ids import POOL_TYPE

if TYPE_CHECKING:
    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.store.pool_model import Pool, PoolCounts, PoolRevision
    from aks_flex_rp.store.rollout_model import BarredRevision, PoolVersions


def pool_resource(
    pool: Pool, cluster: ClusterId, counts: PoolCounts, versions: PoolVersions | None = None, active: str = ""
) -> dict[str, Any]:
    """Returns a pool. Lists omit what roll-outs decide: `versions` and the name of the active one."""
    properties: dict[str, Any] = {"provisioningState": "Succeeded"}
    if pool.description:
        properties["description"] = pool.description
    properties |= {
        "template": pool.template,
        "revision": pool.number,
        "nodeCount": counts.nodes,
        "pendingNodeCount": counts.pending,
    }
    if versions:
        properties["stableRevision"] = versions.stable or pool.number
        properties["barredRevisions"] = [barred_document(each) for each in versions.barred]
    if active:
        properties["activeRollout"] = active
    return {
        "id": cluster.pool(pool.key),
        "name": pool.key,
        "type": POOL_TYPE,
        "etag": pool.etag,
        "systemData": pool.system,
        "properties": properties,
    }


def barred_document(barred: BarredRevision) -> dict[str, Any]:
    return {
        "revision": barred.revision,
        "rollout": barred.rollout,
        "reason": barred.reason,
        "barredAt": format_utc_microseconds(barred.at),
    }


def revision_resource(revision: PoolRevision, cluster: ClusterId) -> dict[str, Any]:
    changes = [
        {
            "path": path,
            **{name: value for name, value in zip(("before", "after"), pair, strict=True) if value is not None},
        }
        for path, pair in revision.changes.items()
    ]
    return {
        "id": f"{cluster.pool(revision.pool)}/revisions/{revision.number}",
        "name": str(revision.number),
        "type": f"{POOL_TYPE}/revisions",
        "properties": {
            "revision": revision.number,
            "template": revision.template,
            "changes": changes,
            "author": revision.author,
            "authorId": revision.author_id,
            "createdAt": format_utc_microseconds(revision.at),
        },
    }
