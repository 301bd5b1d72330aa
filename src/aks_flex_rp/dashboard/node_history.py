"""History of a node for its page: audit events and what its agent last reported, newest first. Pure."""

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
MACHINE = "the machine"
MAX_ENTRIES = 20
MOST_CHANGES = 12  # that one line tells


@dataclass(frozen=True)
class HistoryEntry:
    at: float
    what: str
    who: str
    source: str = ""
    message: str = ""  # the why, where there is one
    changes: tuple[str, ...] = ()
    bad: bool = False


EVENT_LABELS: dict[AuditAction, str] = {
    AuditAction.CREATE: "Created",
    AuditAction.DELETE: "Deleted",
    AuditAction.REGENERATE_TOKEN: "New join command made",
    AuditAction.CONFIG_URL_FETCHED: "Configuration fetched",
    AuditAction.TOKEN_USED: "Asked to join, with its token",
    AuditAction.IDENTITY_USED: "Asked to join, with its Azure identity",
    AuditAction.CERTIFICATE_ISSUED: "Got its certificate",
    AuditAction.CERTIFICATE_DENIED: "Was refused a certificate",
    AuditAction.JOIN_FAILED: "Could not join",
    AuditAction.NODE_JOINED: "Joined the cluster",
    AuditAction.NODE_LEFT: "Left the cluster",
    AuditAction.NODE_REMOVED: "Removed from the cluster",
    AuditAction.ACCESS_GRANTED: "Its identity was let into the cluster",
    AuditAction.ACCESS_WITHDRAWN: "Its identity was shut out of the cluster",
    AuditAction.LIST_CREDENTIALS: "Credentials read",
}
DENIED = {
    AuditAction.READ: "Reading it was refused",
    AuditAction.WRITE: "Changing it was refused",
    AuditAction.DELETE: "Deleting it was refused",
    AuditAction.REGENERATE_TOKEN: "A new join command was refused",
    AuditAction.REPORT_STATUS: "A report of its status was refused",
    AuditAction.LIST_CREDENTIALS: "Reading its credentials was refused",
}
BAD = frozenset({AuditAction.CERTIFICATE_DENIED, AuditAction.JOIN_FAILED, AuditAction.NODE_LEFT})


def node_history(events: Iterable[AuditEvent], status: Document | None = None) -> list[HistoryEntry]:
    moments = [*map(_audit_entry, events), *(_of_machine(status) if status else ())]
    return sorted(moments, key=lambda each: each.at, reverse=True)[:MAX_ENTRIES]


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
        return "Brought in line with its cluster"
    versions = [name for name in event.detail["changed"] if name.startswith("versions")]
    return "New versions wanted" if versions else "Changed"


def _changes(event: AuditEvent) -> Iterator[str]:
    found = document_diff.diff_lines(event.detail.get("changed", {}))
    for each in found[:MOST_CHANGES]:
        yield _SAYING[each.kind](each)
    if len(found) > MOST_CHANGES:
        yield f"and {len(found) - MOST_CHANGES} more"
    if event.detail.get("secretWritten"):
        yield "a new secret"


_SAYING: dict[str, Callable[[document_diff.DiffLine], str]] = {
    "added": lambda line: f"{line.name}: {line.after}",
    "removed": lambda line: f"{line.name}: {line.before} was taken out",
    "changed": lambda line: f"{line.name}: {line.before} → {line.after}",
}


def _of_machine(status: Document) -> Iterator[HistoryEntry]:
    """Of what it says of itself only the last is known, and since when."""
    if at := parse_time(status.get("lastConfigApplied", "")):
        yield HistoryEntry(
            at, f"Configuration {status.get('appliedConfigVersion', '')} applied".replace("  ", " "), MACHINE
        )
    if at := parse_time(status.get("lastDriftDetected", "")):
        yield HistoryEntry(at, "Found changed by hand", MACHINE, message=_message(status, "Drifted"), bad=True)
    for condition in status.get("conditions", ()):
        at = parse_time(condition.get("lastTransitionTime", ""))
        turn = _TURNS.get((condition["type"], condition["status"]))
        if at and turn:
            why = (
                condition.get("message", "") if condition["status"] != "True" or condition["type"] != "Ready" else ""
            )
            yield HistoryEntry(
                at, turn, MACHINE, message=why, bad=(condition["type"], condition["status"]) != ("Ready", "True")
            )


_TURNS = {
    ("Ready", "True"): "Ready",
    ("Ready", "False"): "Not ready",
    ("UpgradeFailed", "True"): "A change did not work and was undone",
    ("CertificateExpiring", "True"): "Its certificate was not renewed",
    ("AgentUpdateFailed", "True"): "A new agent did not run, and the one before does",
    ("CredentialsRejected", "True"): "A new secret was refused",
    ("VpnRenewalFailed", "True"): "Its VPN was not renewed",
}


def _message(status: Document, kind: str) -> str:
    found = [each for each in status.get("conditions", ()) if each["type"] == kind and each["status"] == "True"]
    return str(found[0].get("message", "")) if found else ""
