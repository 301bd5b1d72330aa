"""Table rows of nodes, pools, enrolments and roll-outs for `-o table`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from azext_aks_flex_node.vendored.node_summary import (
    attention,
    printable,
    ready_condition,
    time_ago,
    unhealthy_conditions,
)
from azext_aks_flex_node.vendored.table_rows import (
    enrolment_row,
    machine_row,
    pool_row,
    revision_row,
    rollout_node_row,
    rollout_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
MAX_WIDTH = 100  # characters of a cause; `show` prints all of it
CUT = {"Cause", "Changed", "Reason"}  # columns


def _rows(make: Callable[[Document], Document]) -> Callable[[Any], Any]:
    """Returns what makes the row of one resource, or the rows of several."""

    def row(resource: Document) -> Document:
        return {name: value[:MAX_WIDTH] if name in CUT else value for name, value in make(resource).items()}

    return lambda found: [row(each) for each in found] if isinstance(found, list) else row(found)


def _row(node: Document) -> Document:
    properties = node["properties"]
    status = properties.get("status", {})
    return {
        "Name": node["name"],
        "Ready": ready_condition(status).get("status", "Unknown"),
        "JoinState": status.get("joinState", "-"),
        "Desired": _desired_version(properties),
        "Applied": status.get("kubeletVersion") or "-",
        "ConfigApplied": _applied(properties),
        "LastSeen": time_ago(properties.get("lastSeen"), time.time()),
        "Cause": _table_cause(properties),
        **({"ConfigUrl": properties["configUrl"]} if "configUrl" in properties else {}),  # shown only once
    }


def _desired_version(properties: Document) -> str:
    if "configVersion" not in properties:  # the record of the node is refused, and nothing of it is shown
        return "-"
    generated = properties.get("config", {}).get("kubernetes", {}).get("version")
    own = properties.get("versions", {}).get("kubernetes")
    effective = properties.get("effective", {}).get("versions", {}).get("kubernetes")
    default = "pool" if "poolName" in properties else "cluster"  # lists have only the node's own values
    return str(own or effective or generated or default)


def _applied(properties: Document) -> str:
    applied = properties.get("status", {}).get("appliedConfigVersion")
    if applied is None:  # the node has not reported, or is not managed
        return "Unknown"
    return "True" if applied == properties["configVersion"] else "False"


def _table_cause(properties: Document) -> str:
    """Returns why a node is not Ready, or which other condition needs attention."""
    status = properties.get("status", {})
    problems = [f"{each.type}: {each.cause or each.status}" for each in unhealthy_conditions(status)]
    return cause(status) or "; ".join(problems) or attention(properties)


def cause(status: Document) -> str:
    """Returns why a node is not Ready, in one line and without control characters: the text is untrusted."""
    ready = ready_condition(status)
    if ready.get("status") == "True":
        return ""
    text = str(status.get("joinFailure") or ready.get("message") or ready.get("reason") or "")
    return printable(text)


table_rows, pool_rows, revision_rows = _rows(_row), _rows(pool_row), _rows(revision_row)
enrolment_rows, machine_rows = _rows(enrolment_row), _rows(machine_row)
rollout_rows, rollout_node_rows = _rows(rollout_row), _rows(rollout_node_row)
