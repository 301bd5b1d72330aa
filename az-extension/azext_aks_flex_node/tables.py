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
from azext_aks_flex_node.vendored.rollout_summary import state_text, total_of, waits_for_text

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
MAX_WIDTH = 100  # characters of a cause; `show` prints all of it


def _rows(row: Callable[[Document], Document]) -> Callable[[Any], Any]:
    """Returns what makes the row of one resource, or the rows of several."""
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
        "Cause": _table_cause(properties)[:MAX_WIDTH],
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


def _pool_row(pool: Document) -> Document:
    properties, versions = pool["properties"], {}
    if "stableRevision" in properties:  # not in lists
        versions = {
            "Stable": properties["stableRevision"],
            "Barred": ", ".join(str(each["revision"]) for each in properties.get("barredRevisions", ())),
            "Rollout": properties.get("activeRollout", ""),
        }
    return {
        "Name": pool["name"],
        "Revision": properties["revision"],
        **versions,
        "Nodes": properties["nodeCount"],
        "Pending": properties["pendingNodeCount"],
        "Description": printable(properties.get("description")),
    }


def _revision_row(revision: Document) -> Document:
    return {
        "Revision": revision["name"],
        "Time": revision["properties"]["createdAt"],
        "Author": printable(revision["properties"]["author"]),
        "Changed": ", ".join(change["path"] for change in revision["properties"]["changes"])[:MAX_WIDTH],
    }


def _enrolment_row(enrolment: Document) -> Document:
    properties = enrolment["properties"]
    return {
        "Id": enrolment["name"],
        "State": properties["state"],
        "Uses": f"{properties['uses']}/{properties['maxUses']}",
        "Waiting": properties["waiting"],
        "Approval": properties["approval"],
        "NodeName": properties["nodeName"],
        "Expires": properties["expires"],
    }


def _machine_row(machine: Document) -> Document:
    return {
        "Fingerprint": machine["fingerprint"],
        "State": machine["state"],
        "Node": machine.get("nodeName", ""),
        "HostName": printable(machine.get("facts", {}).get("hostname", "")),
        "SerialNumber": printable(machine.get("facts", {}).get("serialNumber", "")),
        "Address": printable(machine.get("address", "")),
    }


def _rollout_row(rollout: Document) -> Document:
    properties = rollout["properties"]
    waves = properties.get("waveProgress", ())
    total = total_of(waves)
    return {
        "Name": rollout["name"],
        "State": state_text(properties),
        "Revision": properties["revision"],
        "Wave": f"{properties.get('wave', 1)}/{len(waves)}" if waves else "-",
        "Nodes": total["nodes"],
        "Updated": total["updated"],
        "Failed": properties.get("failures", 0),  # also of nodes that were brought back
        "Started": properties.get("startedAt", ""),
        "Reason": (printable(properties.get("reason")) or waits_for_text(properties))[:MAX_WIDTH],
    }


def _rollout_node_row(node: Document) -> Document:
    return {
        "Name": node["name"],
        "Wave": node["wave"],
        "State": node["state"],
        "Since": node.get("since", ""),
        "Offline": node.get("offline", False),
        "Cause": printable(node.get("cause"))[:MAX_WIDTH],
    }


table_rows, pool_rows, revision_rows = _rows(_row), _rows(_pool_row), _rows(_revision_row)
enrolment_rows, machine_rows = _rows(_enrolment_row), _rows(_machine_row)
rollout_rows, rollout_node_rows = _rows(_rollout_row), _rows(_rollout_node_row)
