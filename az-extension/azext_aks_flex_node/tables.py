"""Table rows of nodes for `-o table`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

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
        "Cause": cause(status)[:MAX_WIDTH],
        **({"ConfigUrl": properties["configUrl"]} if "configUrl" in properties else {}),  # shown only once
    }


def _ready(status: Document) -> Document:
    return next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})


def _desired_version(properties: Document) -> str:
    generated = properties.get("config", {}).get("kubernetes", {}).get("version")
    return str(properties.get("versions", {}).get("kubernetes") or generated or "cluster")


def _applied(properties: Document) -> str:
    applied = properties.get("status", {}).get("appliedConfigVersion")
    return "yes" if applied == properties["configVersion"] else "no"


def cause(status: Document) -> str:
    """Returns why a node is not Ready, in one line and without control characters: the text is untrusted."""
    ready = _ready(status)
    if ready.get("status") == "True":
        return ""
    text = str(status.get("joinFailure") or ready.get("message") or ready.get("reason") or "")
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def time_ago(moment: str | None, now: float) -> str:
    """Formats a timestamp as a relative time."""
    if not moment:
        return "never"
    seconds = max(0, int(now - datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"
