"""Table rows of nodes, pools, enrolments and roll-outs for `-o table`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from azext_aks_flex_node.vendored.node_summary import attention, printable, unhealthy_conditions
from azext_aks_flex_node.vendored.rollout_summary import state_text, total_of, waits_for_text

Document = dict[str, Any]
MAX_WIDTH = 100  # characters of a cause; `show` prints all of it


def table_rows(found: Document | list[Document]) -> Document | list[Document]:
    """Returns the row of one node, or the rows of several."""
    return [_row(each) for each in found] if isinstance(found, list) else _row(found)


def _row(node: Document) -> Document:
    properties = node["properties"]
    status = properties.get("status", {})
    return {
        "Name": node["name"],
        "Ready": _ready(status).get("status", "Unknown"),
        "JoinState": status.get("joinState", "-"),
        "Desired": _desired_version(properties),
        "Applied": status.get("kubeletVersion") or "-",
        "ConfigApplied": _applied(properties),
        "LastSeen": time_ago(properties.get("lastSeen"), time.time()),
        "Cause": _table_cause(properties)[:MAX_WIDTH],
        **({"ConfigUrl": properties["configUrl"]} if "configUrl" in properties else {}),  # shown only once
    }


def _ready(status: Document) -> Document:
    return next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})


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
    ready = _ready(status)
    if ready.get("status") == "True":
        return ""
    text = str(status.get("joinFailure") or ready.get("message") or ready.get("reason") or "")
    return printable(text)


def time_ago(moment: str | None, now: float) -> str:
    """Formats a timestamp as a relative time."""
    if not moment:
        return "never"
    seconds = max(0, int(now - datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def pool_rows(found: Document | list[Document]) -> Document | list[Document]:
    """Returns the row of one pool, or the rows of several."""
    return [_pool_row(each) for each in found] if isinstance(found, list) else _pool_row(found)


def _pool_row(pool: Document) -> Document:
    properties = pool["properties"]
    return {
        "Name": pool["name"],
        "Revision": properties["revision"],
        **(_versions(properties) if "stableRevision" in properties else {}),  # not in lists
        "Nodes": properties["nodeCount"],
        "Pending": properties["pendingNodeCount"],
        "Description": printable(properties.get("description")),
    }


def _versions(properties: Document) -> Document:
    return {
        "Stable": properties["stableRevision"],
        "Barred": ", ".join(str(each["revision"]) for each in properties.get("barredRevisions", ())),
        "Rollout": properties.get("activeRollout", ""),
    }


def revision_rows(found: list[Document]) -> list[Document]:
    return [
        {
            "Revision": each["name"],
            "Time": each["properties"]["createdAt"],
            "Author": printable(each["properties"]["author"]),
            "Changed": ", ".join(change["path"] for change in each["properties"]["changes"])[:MAX_WIDTH],
        }
        for each in found
    ]


def enrolment_rows(found: Document | list[Document]) -> Document | list[Document]:
    """Returns the row of one enrolment, or the rows of several."""
    return [_enrolment_row(each) for each in found] if isinstance(found, list) else _enrolment_row(found)


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


def machine_rows(found: list[Document]) -> list[Document]:
    return [
        {
            "Fingerprint": each["fingerprint"],
            "State": each["state"],
            "Node": each.get("nodeName", ""),
            "HostName": printable(each.get("facts", {}).get("hostname", "")),
            "SerialNumber": printable(each.get("facts", {}).get("serialNumber", "")),
            "Address": printable(each.get("address", "")),
        }
        for each in found
    ]


def rollout_rows(found: Document | list[Document]) -> Document | list[Document]:
    """Returns the row of one roll-out, or the rows of several."""
    return [_rollout_row(each) for each in found] if isinstance(found, list) else _rollout_row(found)


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


def rollout_node_rows(found: list[Document]) -> list[Document]:
    return [
        {
            "Name": each["name"],
            "Wave": each["wave"],
            "State": each["state"],
            "Since": each.get("since", ""),
            "Offline": each.get("offline", False),
            "Cause": printable(each.get("cause"))[:MAX_WIDTH],
        }
        for each in found
    ]
