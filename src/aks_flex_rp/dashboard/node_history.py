"""Events of a node for its page: audit events and the last status report of its daemon, newest first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.dashboard import document_diff
from aks_flex_rp.dashboard.condition_text import parse_time
from aks_flex_rp.store.model import AuditAction, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aks_flex_rp.store.model import AuditEvent

Document = dict[str, Any]
MACHINE = "the node"
MAX_ENTRIES = 20
MAX_EVENTS = 5 * MAX_ENTRIES  # read from the audit log, which also contains routine events
MAX_CHANGES = 12  # listed per event


@dataclass(frozen=True)
class HistoryEntry:
    """One event on the node page."""

    at: float
    what: str
    who: str
    source: str = ""
    message: str = ""  # the cause, if known
    changes: tuple[str, ...] = ()
    bad: bool = False


EVENT_LABELS: dict[AuditAction, str] = {
    AuditAction.CREATE: "Created",
    AuditAction.DELETE: "Deleted",
    AuditAction.REGENERATE_TOKEN: "Join command created",
    AuditAction.CONFIG_URL_FETCHED: "Configuration fetched",
    AuditAction.TOKEN_USED: "Join requested with bootstrap token",
    AuditAction.IDENTITY_USED: "Join requested with Azure identity",
    AuditAction.CERTIFICATE_ISSUED: "Certificate issued",
    AuditAction.CERTIFICATE_DENIED: "Certificate denied",
    AuditAction.JOIN_FAILED: "Join failed",
    AuditAction.NODE_JOINED: "Joined the cluster",
    AuditAction.NODE_LEFT: "Left the cluster",
    AuditAction.NODE_REMOVED: "Removed from the cluster",
    AuditAction.MACHINE_REFUSED: "Second machine refused",
    AuditAction.MACHINE_CHANGED: "Moved to another machine",
    AuditAction.MACHINE_CONFLICT: "Two machines run as this node",
    AuditAction.AZURE_CLEANUP: "Azure resources cleaned up",
    AuditAction.ACCESS_GRANTED: "Cluster access granted to its identity",
    AuditAction.ACCESS_WITHDRAWN: "Cluster access of its identity revoked",
}
ROUTINE = frozenset({AuditAction.LIST_CREDENTIALS})  # a daemon does this at every start: only in the audit log
DENIED = {
    AuditAction.MACHINE_REFUSED: "Second machine refused",
    AuditAction.READ: "Read denied",
    AuditAction.WRITE: "Change denied",
    AuditAction.DELETE: "Delete denied",
    AuditAction.REGENERATE_TOKEN: "New join command denied",
    AuditAction.REPORT_STATUS: "Status report denied",
    AuditAction.LIST_CREDENTIALS: "Read of credentials denied",
}
BAD = frozenset(
    {
        AuditAction.CERTIFICATE_DENIED,
        AuditAction.JOIN_FAILED,
        AuditAction.NODE_LEFT,
        AuditAction.MACHINE_REFUSED,
        AuditAction.MACHINE_CONFLICT,
    }
)


def node_history(events: Iterable[AuditEvent], status: Document | None = None) -> list[HistoryEntry]:
    """Returns the newest entries from audit events and the reported status."""
    notable = (each for each in events if each.what not in ROUTINE or each.outcome is AuditOutcome.DENIED)
    entries = [*map(_audit_entry, notable), *(_reported_entries(status) if status else ())]
    return sorted(entries, key=lambda each: each.at, reverse=True)[:MAX_ENTRIES]


def _audit_entry(event: AuditEvent) -> HistoryEntry:
    denied = event.outcome is AuditOutcome.DENIED
    what = DENIED.get(event.what) if denied else None
    return HistoryEntry(
        event.at,
        what or _update(event) or EVENT_LABELS.get(event.what, event.what),
        event.who,
        event.source,
        str(event.detail.get("why", "")),
        tuple(_changes(event)) if event.what is AuditAction.UPDATE else (),
        denied or event.what in BAD,
    )


def _update(event: AuditEvent) -> str:
    if event.what is not AuditAction.UPDATE:
        return ""
    if "changed" not in event.detail:
        return "Updated for changed cluster"
    versions = [name for name in event.detail["changed"] if name.startswith("versions")]
    return "Versions changed" if versions else "Changed"


def _changes(event: AuditEvent) -> Iterator[str]:
    found = document_diff.diff_lines(event.detail.get("changed", {}))
    for each in found[:MAX_CHANGES]:
        yield _CHANGE_TEXT[each.kind](each)
    if len(found) > MAX_CHANGES:
        yield f"and {len(found) - MAX_CHANGES} more"
    if event.detail.get("secretWritten"):
        yield "new secret"


_CHANGE_TEXT: dict[str, Callable[[document_diff.DiffLine], str]] = {
    "added": lambda line: f"{line.name}: {line.after}",
    "removed": lambda line: f"{line.name}: {line.before} removed",
    "changed": lambda line: f"{line.name}: {line.before} → {line.after}",
}


def _reported_entries(status: Document) -> Iterator[HistoryEntry]:
    """Yields entries for the last change of each reported condition."""
    if at := parse_time(status.get("lastConfigApplied", "")):
        yield HistoryEntry(
            at, f"Configuration {status.get('appliedConfigVersion', '')} applied".replace("  ", " "), MACHINE
        )
    if at := parse_time(status.get("lastDriftDetected", "")):
        yield HistoryEntry(at, "Drift detected", MACHINE, message=_message(status, "Drifted"), bad=True)
    for condition in status.get("conditions", ()):
        at = parse_time(condition.get("lastTransitionTime", ""))
        label = _TRANSITIONS.get((condition["type"], condition["status"]))
        if at and label:
            message = (
                condition.get("message", "") if condition["status"] != "True" or condition["type"] != "Ready" else ""
            )
            yield HistoryEntry(
                at, label, MACHINE, message=message, bad=(condition["type"], condition["status"]) != ("Ready", "True")
            )


_TRANSITIONS = {
    ("Ready", "True"): "Ready",
    ("Ready", "False"): "Not ready",
    ("UpgradeFailed", "True"): "Update failed and was rolled back",
    ("CertificateExpiring", "True"): "Certificate not renewed",
    ("AgentUpdateFailed", "True"): "Self-update failed and was rolled back",
    ("CredentialsRejected", "True"): "New secret rejected",
    ("StagingFailed", "True"): "Next revision not downloaded",
    ("VpnRenewalFailed", "True"): "VPN certificate not renewed",
}


def _message(status: Document, kind: str) -> str:
    found = [each for each in status.get("conditions", ()) if each["type"] == kind and each["status"] == "True"]
    return str(found[0].get("message", "")) if found else ""
