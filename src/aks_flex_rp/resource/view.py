"""Resources as the API returns them, in the ARM envelope: nodes with their generated configuration and status, pools
and their revisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.timestamps import format_utc, format_utc_microseconds
from aks_flex_rp.arm.ids import NODE_TYPE, POOL_TYPE
from aks_flex_rp.join_state import URL_EXPIRED, JoinPhase
from aks_flex_rp.machine_ownership import CONFLICT_CONDITION
from aks_flex_rp.node_conditions import condition, node_cause
from aks_flex_rp.resource import versions
from aks_flex_rp.resource.effective import explain
from aks_flex_rp.store.model import REFUSED_CONDITION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.machine_ownership import KnownMachine
    from aks_flex_rp.node_keys import NodeKeys
    from aks_flex_rp.store.model import Node, RefusedNode
    from aks_flex_rp.store.pool_model import BarredRevision, Pool, PoolCounts, PoolRevision, PoolVersions

WAITING_FOR_MACHINE = frozenset({JoinPhase.CREATED, JoinPhase.CONFIG_FETCHED})
SILENT_AFTER = 3 * 40  # seconds: three polls at the longest default interval


def node_resource(node: Node, cluster: ClusterId, now: float, *, whole: bool = True) -> dict[str, Any]:
    """Returns the node as an ARM resource. Lists omit the generated configuration (`whole=False`)."""
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded",
        "configVersion": str(node.version),
        **node.properties,
    }
    if node.pool:
        properties["poolRevision"] = node.pool.revision
    if whole:
        effective, origins = explain(node.properties, node.effective, node.config)
        properties |= {"effective": effective, "origins": origins, "config": node.config}
        if node.pool and (following := node.pool.next):
            properties["nextConfig"] = {"poolRevision": following.revision, "config": following.config}
    properties["status"] = node_status(node, now)
    if node.last_seen:
        properties["lastSeen"] = format_utc(node.last_seen)
    return {
        "id": cluster.node(node.name),
        "name": node.name,
        "type": NODE_TYPE,
        "etag": node.etag,
        "systemData": node.system,
        "properties": properties,
    }


def refused_node_resource(refused: RefusedNode, cluster: ClusterId) -> dict[str, Any]:
    """Returns what a list shows of a node whose record is refused: its name and why, and nothing of the record."""
    name, error = refused.name, refused.error
    cause, message = f"{REFUSED_CONDITION}: {error.why}.", f"{error.message} {error.hint}"
    conditions = [
        {"type": "Ready", "status": "Unknown", "reason": REFUSED_CONDITION, "message": cause},
        {"type": REFUSED_CONDITION, "status": "True", "reason": error.reason, "message": message},
    ]
    properties = {"status": {"conditions": conditions, "cause": cause}}
    return {"id": cluster.node(name), "name": name, "type": NODE_TYPE, "properties": properties}


def node_status(node: Node, now: float) -> dict[str, Any]:
    """Returns the status: the agent's report, or the cluster's data for unmanaged nodes, and the join state."""
    status = dict(node.status)
    ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), None)
    if ready is None:
        ready = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NotReported" if "conditions" in status else "NeverReported",
            "lastTransitionTime": format_utc(node.created),
        }
        status["conditions"] = [ready, *status.get("conditions", ())]
    silent = now - node.last_seen
    if node.is_monitored and node.last_seen and silent > SILENT_AFTER:
        status["conditions"] = [_silent(each, node.last_seen) for each in status["conditions"]]
    status["conditions"] = [*status["conditions"], *_untested(node), *_reused_url(node), *_revoked_key(node)]
    join = node.join
    if join.phase is JoinPhase.LEFT:
        status["conditions"] = [_left(each) for each in status["conditions"]]
    if join.machines.conflict is None:  # over, but the stored condition may not be updated yet
        status["conditions"] = [each for each in status["conditions"] if each["type"] != CONFLICT_CONDITION]
    status["conditions"] += _pending(node)
    shown = {
        "machine": join.machines.shown and machine_document(join.machines.shown),
        "nodeKey": key_document(join.keys),
    }
    status |= {name: document for name, document in shown.items() if document}
    status["joinState"] = join.phase.value
    if join.failure:
        status["joinFailure"] = join.failure
    elif join.phase in WAITING_FOR_MACHINE and join.url_expires is not None and join.url_expires < now:
        # computed here, because no process records the expiry
        status |= {"joinState": JoinPhase.FAILED.value, "joinFailure": URL_EXPIRED}
    if cause := node_cause(status):
        status["cause"] = cause
    return status


def _untested(node: Node) -> list[dict[str, Any]]:
    """Returns a condition for a node with versions that are not in the table of tested versions."""
    untested = versions.untested_versions(node.config)
    if not untested:
        return []
    since = node.version  # the configVersion is the time of the change
    message = versions.untested_message(untested)
    return [condition("VersionsTested", "VersionNotTested", message, since, status="False")]


def _reused_url(node: Node) -> list[dict[str, Any]]:
    """Returns a condition for a node whose config URL a second client tried to use."""
    second = node.join.machines.second_fetch
    if second is None:
        return []
    message = (
        f"The config URL was also used by {second.client}. It was refused. If you do not know this client, create a "
        "new join command, which revokes the URL and its token."
    )
    return [condition("ConfigUrlReused", "SecondClient", message, second.at)]


def _revoked_key(node: Node) -> list[dict[str, Any]]:
    """Returns a condition for a node whose key was revoked, and that so is not heard from any more."""
    if not node.join.keys.is_revoked:
        return []
    message = (
        f"The key of {node.name} was revoked, so its polls and reports are refused, also those by its Azure "
        f"identity. To let the machine be {node.name} again, create a join command with `aks-flex-rp node "
        f"join-command --name {node.name}` and run it on the machine."
    )
    return [condition("NodeKeyRevoked", "RevokedByOperator", message, node.join.keys.revoked_at)]


def key_document(keys: NodeKeys) -> dict[str, str]:
    """Returns the key of a node as the API shows it; empty if the node has none."""
    key, state, since = keys.current, "Bound", keys.since
    if keys.is_revoked and keys.revoked:
        key, state, since = keys.revoked[-1], "Revoked", keys.revoked_at
    if not key:
        return {}
    return {"thumbprint": key, "fingerprint": fingerprint(key), "state": state, "since": format_utc(since)}


def _pending(node: Node) -> list[dict[str, Any]]:
    """Returns a condition for a joined node whose machine does not fetch the changed configuration by itself."""
    join, version = node.join, str(node.version)
    if node.is_monitored or not join.is_joined or join.delivered in {None, node.version}:
        return []
    if node.status.get("appliedConfigVersion") == version:
        return []
    message = (
        f"Configuration {version} is not applied, because {node.name} is not managed. To apply it, create a join "
        f"command with `aks-flex-rp node join-command --name {node.name}` and run it on the machine."
    )
    return [condition("ConfigurationPending", "NotMonitored", message, node.version)]


def machine_document(machine: KnownMachine) -> dict[str, str]:
    """Returns a machine as the API shows it."""
    return machine.identity.to_document() | ({"since": format_utc(machine.since)} if machine.since else {})


def _left(reported: dict[str, Any]) -> dict[str, Any]:
    """Returns the Ready condition of a node whose Node was removed, which its last report cannot know."""
    if reported["type"] != "Ready" or reported["status"] != "True":
        return reported
    message = "The node has left the cluster: its Node was removed."
    return {**reported, "status": "Unknown", "reason": "NodeNotInCluster", "message": message}


def _silent(reported: dict[str, Any], last_seen: float) -> dict[str, Any]:
    if reported["type"] != "Ready":
        return reported
    message = f"The node has not reported since {format_utc(last_seen)}."
    return condition("Ready", "NodeNotReporting", message, last_seen + SILENT_AFTER, status="Unknown")


def format_taint(taint: Mapping[str, str]) -> str:
    """Formats a taint as kubectl does: KEY=VALUE:EFFECT, or KEY:EFFECT without a value."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


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
