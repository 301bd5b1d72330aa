"""Explanations of node conditions and their reasons, with remedies. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_node.errors import DOCS
from aks_flex_node.timestamps import parse_timestamp
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Document = dict[str, Any]
ConditionMood = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Explanation:
    text: str
    remedy: str = ""
    section: str = ""  # of the troubleshooting page


# By what they ask. Ready and ConfigApplied are good when they hold, all others when they do not.
QUESTIONS = {
    "Ready": "Can it run pods?",
    "ConfigApplied": "Has it what is wanted?",
    "Drifted": "Was it changed by hand?",
    "CertificateExpiring": "Is its certificate about to end?",
    "UpgradeFailed": "Was a change undone?",
    "CredentialsRefused": "Is a new secret refused?",
    "TunnelNotRenewed": "Is its VPN about to end?",
    "AgentUpdateFailed": "Did a new agent not run?",
}
GOOD = frozenset({"Ready", "ConfigApplied"})
PASSING = frozenset({"InProgress", "Pending", "Paused", "MaintenanceWindowClosed"})  # nothing is wrong: it comes
BY_OUTCOME = frozenset({"ConfigApplied", "UpgradeFailed", "TunnelNotRenewed"})  # their reasons are names of errors

JOURNAL = "On the machine, journalctl -u kubelet and journalctl -u containerd say more."
REASONS = {
    "KubeletReady": Explanation("The kubelet runs and answers."),
    "KubeletNotReady": Explanation("The kubelet runs, and says that it is not ready.", JOURNAL, "node-not-ready"),
    "NodeStatusUnknown": Explanation(
        "The cluster has not heard of the kubelet for a while.",
        "Check that the machine is on, and that it reaches the API server.",
        "node-not-ready",
    ),
    "NeverReported": Explanation("The machine has said nothing yet.", "Run its join command on the machine."),
    "NotReported": Explanation("The machine has not said whether it is ready."),
    "NodeNotInCluster": Explanation(
        "The cluster has no such node any more.", "To bring it back, make a new join command and run it there."
    ),
    "NodeSilent": Explanation(
        "The agent on the machine has stopped calling.",
        "Check that the machine is on and has its network; there, systemctl status aks-flex-node says more.",
        "ProviderUnreachable",
    ),
    "ServiceFailed": Explanation(
        "A service that every node needs does not run.",
        "The agent starts it again by itself. If that does not help, look at its journal on the machine.",
        "service-failed",
    ),
    "ApiServerUnreachable": Explanation(
        "The machine does not reach the API server.",
        "Check its network, a firewall between, and the VPN if it has one.",
        "api-server-unreachable",
    ),
    "CredentialsLost": Explanation(
        "The machine has lost what it shows the cluster, and is getting it anew.",
        "Wait a few minutes. If it stays so, make a new join command and run it on the machine.",
        "CredentialsLost",
    ),
    "Applied": Explanation("The wanted configuration is in effect."),
    "InProgress": Explanation("The machine is applying it now."),
    "Pending": Explanation("The machine is about to apply it."),
    "RolledBack": Explanation(
        "It was tried, did not work, and the configuration before is in effect again.",
        "Put right what the message says, then change the node: any change makes the agent try again.",
        "UpgradeFailed",
    ),
    "UpgradeFailed": Explanation(
        "It was tried, did not work, and the configuration before is in effect again.",
        "Put right what the message says, then change the node: any change makes the agent try again.",
        "UpgradeFailed",
    ),
    "RollbackFailed": Explanation(
        "It did not work, and neither did the way back. The node takes no new pods; the way back is tried again.",
        JOURNAL,
        "RollbackFailed",
    ),
    "Paused": Explanation("Changes are paused: what is new waits.", "Edit the node to let changes go on.", "Paused"),
    "MaintenanceWindowClosed": Explanation(
        "It waits for its maintenance window, because it disturbs pods.",
        "Wait, or edit the window.",
        "MaintenanceWindowClosed",
    ),
    "DowngradeRefused": Explanation(
        "It would go back to older versions, which nobody said is meant.",
        "Edit the node, and tick that older versions are meant.",
        "DowngradeRefused",
    ),
    "SkewViolation": Explanation(
        "This version of Kubernetes does not go with the cluster's.",
        "Upgrade the cluster first, or choose another version.",
        "SkewViolation",
    ),
    "NoDrift": Explanation("The machine is as its configuration wants it."),
    "DriftFound": Explanation(
        "Something on the machine differs from its configuration.",
        "With the drift policy “repair” the agent puts it right; with “log”, somebody has to.",
        "DriftRemains",
    ),
    "Fighting": Explanation(
        "Something else on the machine changes the same things again and again, so they are left alone.",
        "Find out what it is, and let only one of the two have them.",
        "Fighting",
    ),
    "Valid": Explanation("It is valid, and renewed in time."),
    "NotRenewed": Explanation(
        "It ends soon and was not renewed.", "See whether the machine reaches the API server.", "CredentialsLost"
    ),
    "Expired": Explanation("It has ended.", "Make a new join command and run it on the machine.", "CredentialsLost"),
    "NoFailure": Explanation("No change had to be undone."),
}
STATE_EXPLANATIONS: dict[FleetState, Explanation] = {
    FleetState.READY: Explanation("It runs pods."),
    FleetState.NOT_READY: Explanation("It is in the cluster and cannot run pods now.", JOURNAL),
    FleetState.SILENT: REASONS["NodeSilent"],
    FleetState.UNKNOWN: Explanation("It is in the cluster, and nobody knows how it is."),
    FleetState.FAILED: Explanation("It could not join."),
    FleetState.JOINING: Explanation("It is not in the cluster yet."),
}


@dataclass(frozen=True)
class ConditionRow:
    """A row of the table."""

    kind: str
    question: str
    answer: str
    state: ConditionMood
    cause: str
    reason: str
    remedy: str  # empty while all is well
    section: str
    since: float


def explain_condition(condition: Mapping[str, str]) -> ConditionRow:
    kind, status, reason = condition["type"], condition["status"], condition.get("reason", "")
    known = REASONS.get(reason, Explanation(""))
    good, passing = (status == "True") is (kind in GOOD), kind == "ConfigApplied" and reason in PASSING
    state: ConditionMood = "unknown" if status == "Unknown" or passing else "good" if good else "bad"
    return ConditionRow(
        kind,
        QUESTIONS.get(kind, kind),
        "Not yet" if passing else {"True": "Yes", "False": "No"}.get(status, "Unknown"),
        state,
        condition.get("message", "") or known.text,
        reason,
        "" if state == "good" else known.remedy,
        "" if state == "good" else _section(kind, reason, known),
        parse_time(condition.get("lastTransitionTime", "")),
    )


def state_of(status: Document) -> FleetState:
    """As the fleet counts it."""
    ready, joined = _ready(status), status.get("joinState") == JoinPhase.JOINED
    if ready.get("reason") == "NodeSilent" and joined:
        return FleetState.SILENT
    if ready["status"] == "True":
        return FleetState.READY
    if joined:
        return FleetState.NOT_READY if ready["status"] == "False" else FleetState.UNKNOWN
    return FleetState.FAILED if status.get("joinState") == JoinPhase.FAILED else FleetState.JOINING


@dataclass(frozen=True)
class NodeSummary:
    """How a node is, on top of its page."""

    state: FleetState
    text: str
    cause: str
    remedy: str
    section: str


def summarize(status: Document, remedy: str = "") -> NodeSummary:
    """`remedy` is what helps one that could not join."""
    state = state_of(status)
    about = explain_condition(_ready(status))
    if state is FleetState.FAILED:
        return NodeSummary(state, STATE_EXPLANATIONS[state].text, str(status.get("joinFailure", "")), remedy, "")
    if state in {FleetState.READY, FleetState.JOINING}:
        return NodeSummary(state, STATE_EXPLANATIONS[state].text, "", "", "")
    return NodeSummary(
        state,
        STATE_EXPLANATIONS[state].text,
        about.cause,
        about.remedy or STATE_EXPLANATIONS[state].remedy,
        about.section,
    )


def problems_shown(conditions: Iterable[ConditionRow]) -> list[ConditionRow]:
    """What is to be looked at though the node may run pods; what is told twice, once."""
    unwell = [each for each in conditions if each.kind != "Ready" and each.state == "bad"]
    return [*{each.cause: each for each in unwell}.values()]


def parse_time(text: str) -> float:
    """0 for what is no time: a machine may have said anything."""
    try:
        return parse_timestamp(text.replace("z", "Z")).timestamp()
    except ValueError:
        return 0.0


def _ready(status: Document) -> dict[str, str]:
    found: dict[str, str] = next(each for each in status["conditions"] if each["type"] == "Ready")
    return found


def _section(kind: str, reason: str, known: Explanation) -> str:
    """Where the troubleshooting page tells more; the agent turns names of errors into such words."""
    name = known.section
    if not known.text and kind in BY_OUTCOME and re.fullmatch(r"([A-Z][a-z]+){2,}", reason):
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", reason)
    return f"{DOCS}#{name.lower()}" if name else ""
