"""What is known of a node of a roll-out, from its record and its last heartbeat. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.maintenance_window import next_opening
from aks_flex_node.errors import MachineError
from aks_flex_rp.rollouts.states import NodeReport

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Heartbeat

MAX_CAUSE = 1000  # characters


@dataclass(frozen=True)
class WindowProperties:
    """A maintenance window, as the properties of a node have it."""

    start: str | None
    days: Collection[str]
    duration_minutes: int
    time_zone: str


def node_labels(node: Node) -> dict[str, str]:
    return dict(node.effective.get("nodeConfig", {}).get("labels") or {})


def node_report(node: Node | None, pool: str, heartbeat: Heartbeat, now: float) -> NodeReport:
    if node is None:
        return NodeReport(gone="It was deleted.")
    if node.pool is None or node.pool.name != pool:
        where = f"in the pool {node.pool.name}" if node.pool else "in no pool"
        return NodeReport(gone=f"It is {where} now.")
    status = node.status
    conditions = _conditions(status.get("conditions", ()))
    ready = str(conditions.get("Ready", {}).get("status", "Unknown"))
    policy: Mapping[str, Any] = node.effective.get("nodeConfig", {}).get("updatePolicy") or {}
    applied = str(status.get("appliedConfigVersion", "")) == str(node.version)
    return NodeReport(
        ready=ready == "True",
        unready=ready == "False",
        desired=node.pool.revision,
        applied=applied,
        failure="" if applied else _failure(node, conditions),
        offline=heartbeat.silent,
        paused=bool(policy.get("paused")),
        opens=_opens(policy.get("maintenanceWindow"), now),
        seen=max(heartbeat.last_seen, node.last_seen),
        staged=staged if type(staged := status.get("stagedPoolRevision")) is int else 0,
        not_staged=_staging_failure(conditions),
        passive=not (node.join.is_joined and node.is_monitored),
    )


def _conditions(reported: Any) -> dict[str, Mapping[str, Any]]:
    """Returns conditions by type, or none if they are damaged: the status in the database is not authenticated."""
    try:
        return {str(each["type"]): each for each in reported}
    except (KeyError, TypeError):
        return {}


def _failure(node: Node, conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns why the machine did not apply its configuration, or nothing if it has not failed."""
    if str(node.status.get("failedConfigVersion")) != str(node.version):
        return ""
    upgrade, applied = conditions.get("UpgradeFailed", {}), conditions.get("ConfigApplied", {})
    for each in (upgrade if upgrade.get("status") == "True" else {}, applied):
        if text := each.get("message") or each.get("reason"):
            return str(text)[:MAX_CAUSE]
    return "The agent reported that the update failed."


def _staging_failure(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    found = conditions.get("StagingFailed", {})
    return str(found.get("message") or found.get("reason") or "")[:MAX_CAUSE] if found.get("status") == "True" else ""


def _opens(window: Mapping[str, Any] | None, now: float) -> float:
    if not window or not window.get("start"):
        return 0.0
    found = WindowProperties(
        str(window["start"]),
        window.get("days") or (),
        int(window.get("durationMinutes") or 60),
        str(window.get("timeZone") or "UTC"),
    )
    try:
        opening = next_opening(found, datetime.fromtimestamp(now, timezone.utc))
    except (MachineError, ValueError):  # this host does not know the time zone: the agent decides
        return 0.0
    return opening.timestamp() if opening else 0.0
