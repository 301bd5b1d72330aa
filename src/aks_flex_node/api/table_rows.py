"""Rows of tables of pools, enrolments and roll-outs: the texts and numbers of a resource by column.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it, of `node_summary` and of
`rollout_summary`. It imports only those, by their place, and the standard library.
"""

from __future__ import annotations

from typing import Any

from .node_summary import printable
from .rollout_summary import state_text, total_of, waits_for_text

Document = dict[str, Any]


def pool_row(pool: Document) -> Document:
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


def revision_row(revision: Document) -> Document:
    return {
        "Revision": revision["name"],
        "Time": revision["properties"]["createdAt"],
        "Author": printable(revision["properties"]["author"]),
        "Changed": ", ".join(change["path"] for change in revision["properties"]["changes"]),
    }


def enrolment_row(enrolment: Document) -> Document:
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


def machine_row(machine: Document) -> Document:
    return {
        "Fingerprint": machine["fingerprint"],
        "State": machine["state"],
        "Node": machine.get("nodeName", ""),
        "HostName": printable(machine.get("facts", {}).get("hostname", "")),
        "SerialNumber": printable(machine.get("facts", {}).get("serialNumber", "")),
        "Address": printable(machine.get("address", "")),
        "FirstSeen": machine["firstSeen"],
    }


def rollout_row(rollout: Document) -> Document:
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
        "Reason": printable(properties.get("reason")) or waits_for_text(properties),
    }


def rollout_node_row(node: Document) -> Document:
    return {
        "Name": node["name"],
        "Wave": node["wave"],
        "State": node["state"],
        "Since": node.get("since", ""),
        "Offline": node.get("offline", False),
        "Cause": printable(node.get("cause")),
    }


def gate_row(result: Document) -> Document:
    return {
        "Wave": result["wave"],
        "Gate": result["gate"],
        "State": result["state"],
        "Started": result.get("startedAt", ""),
        "Answered": result.get("answeredAt", ""),
        "Message": printable(result.get("message")),
    }
