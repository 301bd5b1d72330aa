"""The cause that lists show for a node: why it did not join, is not Ready, or lacks its configuration. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

IN_PROGRESS = frozenset({"InProgress", "Pending"})  # reasons of a configuration that is about to be applied
NOT_JOINED = frozenset({"Created", "ConfigFetched", "BootstrapAttempted", "Left"})


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
