"""Conditions of a node that the service sets, and the cause that lists show: why it did not join, is not Ready, or
lacks its configuration. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Mapping

IN_PROGRESS = frozenset({"InProgress", "Pending"})  # reasons of a configuration that is about to be applied
NOT_JOINED = frozenset({"Created", "ConfigFetched", "BootstrapAttempted", "Left"})


def condition(kind: str, reason: str, message: str, since: float, status: str = "True") -> dict[str, Any]:
    times = {"lastTransitionTime": format_utc(since)}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def with_condition(status: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns a status with this condition. If it has one of its type already, the time of that remains."""
    conditions = status.get("conditions", ())
    known = next((each for each in conditions if each["type"] == new["type"]), None)
    shown = {**new, "lastTransitionTime": known["lastTransitionTime"]} if known else new
    return {**status, "conditions": [*(each for each in conditions if each is not known), shown]}


def is_problem(kind: str, status: str) -> bool:
    """Returns whether a condition reports a problem: all except Ready and ConfigApplied, if they are true."""
    return kind not in {"Ready", "ConfigApplied"} and status == "True"


def condition_cause(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the message of the most important condition, or an empty string if all is well.

    Ready comes first, then the problems, then a configuration that waits: paused, outside its window, or refused.
    """
    ready, applied = conditions.get("Ready", {}), conditions.get("ConfigApplied", {})
    explaining = [ready] if ready.get("status") != "True" else []
    explaining += [each for kind, each in conditions.items() if is_problem(kind, str(each["status"]))]
    if applied.get("status") == "False" and applied.get("reason") not in IN_PROGRESS:
        explaining.append(applied)
    return next(filter(None, (str(each.get("message") or each.get("reason") or "") for each in explaining)), "")


def node_cause(status: Mapping[str, Any]) -> str:
    """Returns the cause of a status as the API shows it."""
    if failure := status.get("joinFailure"):
        return str(failure)
    if status.get("joinState") in NOT_JOINED:
        return ""  # the join state says it all: such a node is not expected to be Ready
    return condition_cause({str(each["type"]): each for each in status.get("conditions", ())})
