"""Texts of node conditions, reasons and states for the dashboard, from the catalogue. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.error_catalog import load_catalog, load_conditions, load_status_names
from aks_flex_node.timestamps import parse_timestamp
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Document = dict[str, Any]
ConditionMood = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Explanation:
    """Text and remedy of a reason or state."""

    text: str
    remedy: str = ""
    see: str = ""  # the entry of the error catalogue that says more


PASSING = frozenset(
    {"InProgress", "Pending", "Paused", "MaintenanceWindowClosed"}
)  # not a failure: it will be applied
# Their reasons are error names.
BY_OUTCOME = frozenset({"ConfigApplied", "UpgradeFailed", "StagingFailed", "VpnRenewalFailed"})
NAMES = load_status_names()
ERRORS = load_catalog("aks_flex_node")
HEALTHY = {name: entry.healthy for name, entry in load_conditions().items()}
JOURNAL = "On the machine, run `journalctl -u kubelet -u containerd`."


def explain_reason(reason: str) -> Explanation:
    """Returns the catalogue's text of a reason; an empty one for a reason that is not in it."""
    found = NAMES.get(reason)
    if found is None:
        return Explanation("")
    return Explanation(found.meaning, found.remedy, found.see or (reason if found.remedy else ""))


STATE_EXPLANATIONS: dict[FleetState, Explanation] = {
    FleetState.READY: Explanation("The node is Ready and can run pods."),
    FleetState.NOT_READY: Explanation("The node is in the cluster and is not Ready.", JOURNAL),
    FleetState.NOT_REPORTING: explain_reason("NodeNotReporting"),
    FleetState.UNKNOWN: Explanation("The node is in the cluster, and its state is unknown."),
    FleetState.FAILED: Explanation("The machine could not join."),
    FleetState.JOINING: Explanation("The machine is joining. The node is not in the cluster yet."),
    FleetState.CREATED: Explanation("The node is created. Its join command was not run on a machine yet."),
    FleetState.LEFT: Explanation("The node has left the cluster. It can join again with a new join command."),
}


NOT_JOINED_STATES = {JoinPhase.FAILED.value: FleetState.FAILED, JoinPhase.CREATED.value: FleetState.CREATED}


@dataclass(frozen=True)
class ConditionRow:
    """A row of the conditions table, as `kubectl describe` shows conditions, with a remedy."""

    type: str
    status: str
    mood: ConditionMood
    reason: str
    message: str
    last_transition: float
    remedy: str  # empty while the condition is healthy
    help: str  # the name of the catalogue entry that says more; empty when there is none


def explain_condition(condition: Mapping[str, str]) -> ConditionRow:
    """Adds the catalogue's text and remedy to a reported condition."""
    kind, status, reason = condition["type"], condition["status"], condition.get("reason", "")
    known = explain_reason(reason)
    passing = kind == "ConfigApplied" and reason in PASSING
    healthy = status == HEALTHY.get(kind, "False")
    mood: ConditionMood = "unknown" if status == "Unknown" or passing else "good" if healthy else "bad"
    return ConditionRow(
        kind,
        status,
        mood,
        reason,
        condition.get("message", "") or known.text,
        parse_time(condition.get("lastTransitionTime", "")),
        "" if mood == "good" else known.remedy,
        "" if mood == "good" else _help_name(kind, reason, known),
    )


def state_of(status: Document) -> FleetState:
    """Returns the fleet state of a node from its status document."""
    ready, joined = _ready(status), status.get("joinState") == JoinPhase.JOINED
    if status.get("joinState") == JoinPhase.LEFT:
        return FleetState.LEFT
    if ready.get("reason") == "NodeNotReporting" and joined:
        return FleetState.NOT_REPORTING
    if ready["status"] == "True":
        return FleetState.READY
    if joined:
        return FleetState.NOT_READY if ready["status"] == "False" else FleetState.UNKNOWN
    return NOT_JOINED_STATES.get(str(status.get("joinState")), FleetState.JOINING)


@dataclass(frozen=True)
class NodeSummary:
    """The summary at the top of a node page."""

    state: FleetState
    text: str
    cause: str
    remedy: str
    help: str


def summarize(status: Document, remedy: str = "") -> NodeSummary:
    """Summarizes a status document. `remedy` is shown for a node that could not join."""
    state = state_of(status)
    about = explain_condition(_ready(status))
    if state is FleetState.FAILED:
        return NodeSummary(state, STATE_EXPLANATIONS[state].text, str(status.get("joinFailure", "")), remedy, "")
    if state in {FleetState.READY, FleetState.JOINING, FleetState.CREATED, FleetState.LEFT}:
        return NodeSummary(state, STATE_EXPLANATIONS[state].text, "", "", "")
    return NodeSummary(
        state,
        STATE_EXPLANATIONS[state].text,
        about.message,
        about.remedy or STATE_EXPLANATIONS[state].remedy,
        about.help,
    )


def problems_shown(conditions: Iterable[ConditionRow]) -> list[ConditionRow]:
    """Returns the unhealthy conditions besides Ready, and an update that waits; of several with one message, one."""
    waits = ("ConfigApplied", "MaintenanceWindowClosed")
    unhealthy = [
        each
        for each in conditions
        if each.type != "Ready" and (each.mood == "bad" or (each.type, each.reason) == waits)
    ]
    return [*{each.message: each for each in unhealthy}.values()]


def parse_time(text: str) -> float:
    """Returns 0 for text that is not a timestamp: a machine can report anything."""
    try:
        return parse_timestamp(text.replace("z", "Z")).timestamp()
    except ValueError:
        return 0.0


def _ready(status: Document) -> dict[str, str]:
    found: dict[str, str] = next(each for each in status["conditions"] if each["type"] == "Ready")
    return found


def _help_name(kind: str, reason: str, known: Explanation) -> str:
    """Returns the catalogue entry of a reason. The agent turns error names into reasons: disk-full into DiskFull."""
    if known.text or kind not in BY_OUTCOME or not re.fullmatch(r"([A-Z][a-z]+){2,}", reason):
        return known.see
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", reason).lower()
    return name if name in ERRORS else ""
