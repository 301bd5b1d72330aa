"""Short texts about a node's state: conditions that need attention, and what follows from an update or a deletion.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy. It imports only the standard
library, so that the wheel needs no dependency.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

Document = dict[str, Any]

HEALTHY_IF_TRUE = frozenset({"Ready", "ConfigApplied", "VersionsTested"})  # all other conditions are healthy if False
PENDING = "ConfigurationPending"
EXEC_WARNING = (
    "This node joins by exec. The cluster's restrictions for nodes do not apply to it: it can read the Secrets that "
    "any pod uses, and act as the service account of any pod. Use certificate if you can."
)


@dataclass(frozen=True)
class NodeCondition:
    """A condition of a node. All texts are printable: a machine reports them, and can report anything."""

    type: str
    status: str
    reason: str
    message: str

    @property
    def short(self) -> str:
        """The condition in a few words, for example `ConfigApplied=False (Paused)`."""
        return f"{self.type}={self.status}" + (f" ({self.reason})" if self.reason else "")

    @property
    def cause(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


def effective_properties(properties: Document) -> Document:
    """Returns the properties of a node with those of its pool. Lists have only the node's own ones."""
    found: Document = properties.get("effective") or properties
    return found


def joins_by_exec(properties: Document) -> bool:
    return (effective_properties(properties).get("kubernetesAuth") or {}).get("method") == "exec"


def printable(text: object) -> str:
    """Returns text on one line and without control characters."""
    return "".join(each for each in " ".join(str(text or "").split()) if each.isprintable())


def ready_condition(status: Document) -> Document:
    """Returns the Ready condition of a status document; empty if it has none."""
    return next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})


def time_ago(moment: str | None, now: float) -> str:
    """Formats a timestamp of the API as a relative time."""
    if not moment:
        return "never"
    seconds = max(0, int(now - datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def conditions_of(status: Document) -> list[NodeCondition]:
    """Returns the conditions of a status document."""
    return [
        NodeCondition(*(printable(each.get(name)) for name in ("type", "status", "reason", "message")))
        for each in status.get("conditions", ())
    ]


def unhealthy_conditions(status: Document) -> list[NodeCondition]:
    """Returns the conditions besides Ready that need attention or wait for something."""
    return [
        each
        for each in conditions_of(status)
        if each.type != "Ready" and each.status != ("True" if each.type in HEALTHY_IF_TRUE else "False")
    ]


def is_paused(properties: Document) -> bool:
    return bool(effective_properties(properties).get("nodeConfig", {}).get("updatePolicy", {}).get("paused"))


def attention(properties: Document) -> str:
    """Returns what a list shows about a node besides Ready: its unhealthy conditions, or that it is paused."""
    found = unhealthy_conditions(properties.get("status", {}))
    texts = [each.short for each in found]
    if is_paused(properties) and not any(each.reason == "Paused" for each in found):
        texts.append("Paused")
    return ", ".join(texts)


def not_applied_text(name: str, written: Document) -> str:
    """Returns why an update is not applied automatically, or an empty string if the daemon applies it."""
    properties = written.get("properties", {})
    status = properties.get("status", {})
    pending = any((each.type, each.status) == (PENDING, "True") for each in conditions_of(status))
    managed = effective_properties(properties).get("continuousMonitoring")
    unmanaged = status.get("joinState") == "Joined" and not managed
    if not pending and not unmanaged:
        return ""
    return f"{name} is not managed, so the change is not applied on its machine automatically."


def deletion_text(name: str, deleted: Document) -> str:
    """Returns what happens to the machine of a deleted node, or an empty string if no machine has used the node."""
    properties = deleted.get("properties", {})
    if properties.get("status", {}).get("joinState") == "Created" and not properties.get("lastSeen"):
        return ""
    effective = effective_properties(properties)
    leaves = effective.get("nodeConfig", {}).get("unbootstrapOnDelete", True) is not False
    if effective.get("continuousMonitoring") and leaves:
        return (
            f"The daemon of {name} unbootstraps its machine within two minutes, unless the machine's policy "
            "(/etc/aks-flex-node/policy.yaml) forbids it. In that case, run `aks-flex-node unbootstrap` there."
        )
    return f"The machine of {name} is not changed. Run `aks-flex-node unbootstrap` on it."


def format_machine(machine: Document) -> str:
    """Formats the machine of a node: host name, address and OS."""
    name = printable(machine.get("hostName") or machine.get("id", ""))
    more = ", ".join(printable(text) for text in (machine.get("address"), machine.get("os")) if text)
    return f"{name} ({more})" if more else name


def join_command(url: str) -> str:
    """Returns the command line that joins a machine with a config URL.

    The URL is a secret, so the agent reads it from standard input: arguments are visible to all users of a machine,
    and sudo logs them.
    """
    return f"echo '{url}' | aks-flex-node agent --config-url-file -"


def machine_note(name: str, made: Document, *, replace: bool) -> str:
    """Returns that a new URL works only on the machine of the node, or that it moves the node; empty for neither."""
    if machine := made.get("machine"):
        return (
            f"Node {name} lives on the machine {format_machine(machine)}. The URL works only there. "
            "To move the node to another machine, use --replace. To add a machine, create another node."
        )
    if replace:
        return (
            f"The machine that uses the URL becomes node {name}. If the node is managed, the agent on its earlier "
            "machine then removes the node from that machine. Otherwise run `aks-flex-node unbootstrap` there."
        )
    return ""


def enrolment_note(revoked: Document) -> str:
    """Returns how a machine whose key was revoked could come back; empty if it could not."""
    if not revoked.get("enrolmentName"):
        return ""
    return (
        f"Revoke the enrolment as well: the URL of {revoked['enrolmentName']} of pool {revoked['poolName']} still "
        "lets the machine enrol with another key."
    )
