"""What the daemon reports of this node: conditions with reason and message for the provider, metrics for
Prometheus. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node import __version__
from aks_flex_node.agent.config.secret import MASK, redact
from aks_flex_node.agent.jobs.job_result import JobKind, JobResult
from aks_flex_node.agent.provider.poll_result import ProviderState

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.daemon.daemon_state import DaemonState


TOKEN_PATTERN = re.compile(  # besides what is secret in any text: tokens for Azure, and values that are called so
    r"(?i)(?<=bearer )\S+|\beyJ[\w-]+\.[\w-]+\.[\w-]*|(?<=://)[^/\s\"']+(?=@)"
    r"|\b(?:client[-_]?secret|secret|password|client-key-data|accountkey)[\"']?\s*[:=]\s*[\"']?[^\s\"',;&]+"
)
MAX_TEXT_LENGTH = 2000


@dataclass(frozen=True)
class ReportInput:
    state: DaemonState
    health: NodeHealth
    current_version: str = ""  # the configVersion in effect
    next_version: str = ""  # the one that is wanted and is not
    last_update: JobResult | None = None  # of the last update
    failed_update: JobResult | None = None  # the version that was tried and did not work, as long as it is wanted
    running_job: JobKind | None = None  # the work that is under way
    conflicts: tuple[str, ...] = ()  # subjects that somebody else changes again and again
    agent_failure: str = ""  # why a new version of the agent did not run
    vpn_failure: JobResult | None = None  # of the last look after the tunnel, if that failed


def build_report(situation: ReportInput) -> dict[str, Any]:
    notes = situation.state
    told: dict[str, Any] = {"conditions": build_conditions(situation), "agentVersion": __version__}
    if situation.current_version:
        told["appliedConfigVersion"] = situation.current_version
    if notes.applied:
        told["lastConfigApplied"] = notes.applied
    if situation.health.node and situation.health.node.version:
        told["kubeletVersion"] = situation.health.node.version
    told["driftCount"] = notes.drifts
    if notes.drifted:
        told["lastDriftDetected"] = notes.drifted
    return told


def build_conditions(situation: ReportInput) -> list[dict[str, str]]:
    notes, sight = situation.state, situation.health
    found = [
        _ready(sight),
        _config_applied(situation),
        _drifted(situation),
        *([] if sight.uses_tokens else [_certificate_expiring(sight)]),
        _condition(
            "UpgradeFailed", situation.failed_update is not None, *_cause(situation.failed_update, "NoFailure")
        ),
    ]
    if notes.credentials:
        found.append(_condition("CredentialsRefused", True, "NotProven", notes.credentials))
    if situation.vpn_failure:
        found.append(_condition("TunnelNotRenewed", True, *_cause(situation.vpn_failure, "")))
    if situation.agent_failure:
        found.append(_condition("AgentUpdateFailed", True, "NotProven", situation.agent_failure))
    return found


def _ready(sight: NodeHealth) -> dict[str, str]:
    if sight.lost_reason:
        return _condition("Ready", False, "CredentialsLost", f"This node is being recovered: {sight.lost_reason}.")
    if sight.failed_services:
        words = "; ".join(
            f"{name.removesuffix('.service')} does not run: {why}" for name, why in sight.failed_services
        )
        return _condition("Ready", False, "ServiceFailed", words)
    if sight.node is None:
        why = sight.api_error or "the cluster was not asked yet"
        return _condition("Ready", None, "ApiServerUnreachable", f"The services run, but {why}")
    node = sight.node
    return _condition("Ready", node.ready, node.reason or "KubeletReady", node.message)


def _config_applied(situation: ReportInput) -> dict[str, str]:
    name, wanted = "ConfigApplied", situation.next_version
    if situation.running_job is JobKind.UPDATE:
        what = f"Configuration {wanted}" if wanted else "The new configuration"
        return _condition(name, False, "InProgress", f"{what} is being applied.")
    if not wanted:
        return _condition(
            name, True, "Applied", f"Configuration {situation.current_version or 'of the join'} is in effect."
        )
    outcome = situation.failed_update or situation.last_update
    if outcome is None or outcome.version not in {"", wanted} or outcome.is_done:
        return _condition(name, False, "Pending", f"Configuration {wanted} is about to be applied.")
    return _condition(name, False, outcome.reason or "Failed", _result_text(outcome))


def _drifted(situation: ReportInput) -> dict[str, str]:
    if situation.conflicts:
        words = (
            f"Something else changes these again and again, so they are left alone: {', '.join(situation.conflicts)}."
        )
        return _condition("Drifted", True, "Fighting", words)
    if situation.state.drift:
        return _condition("Drifted", True, "DriftFound", "; ".join(situation.state.drift))
    return _condition("Drifted", False, "NoDrift", "The machine is as its configuration wants it.")


def _certificate_expiring(sight: NodeHealth) -> dict[str, str]:
    days = sight.certificate_seconds / 86400
    if not sight.has_certificate or sight.certificate_seconds <= 0:
        return _condition("CertificateExpiring", True, "Expired", "The kubelet has no valid certificate.")
    words = f"The kubelet's certificate is valid for {days:.0f} more days."
    return _condition("CertificateExpiring", sight.expiring, "NotRenewed" if sight.expiring else "Valid", words)


def _cause(outcome: JobResult | None, otherwise: str) -> tuple[str, str]:
    return (outcome.reason or "Failed", _result_text(outcome)) if outcome else (otherwise, "")


def _result_text(outcome: JobResult) -> str:
    return f"{outcome.message} {outcome.hint}".strip()


def _condition(kind: str, status: bool | None, reason: str, message: str) -> dict[str, str]:
    words = {True: "True", False: "False", None: "Unknown"}
    said = {"type": kind, "status": words[status], "reason": _reason_word(reason)}
    return {**said, "message": redact_tokens(message)} if message else said


def _reason_word(reason: str) -> str:
    """A reason is one word, as Kubernetes writes it; error names have hyphens."""
    return "".join(part[:1].upper() + part[1:] for part in reason.split("-"))


def redact_tokens(text: str) -> str:
    """Words of other programs, without anything in them that looks like a token."""
    return (redact(TOKEN_PATTERN.sub(MASK, text)) or "")[:MAX_TEXT_LENGTH]


METRIC_PREFIX = "aks_flex_node"


def render_metrics(notes: DaemonState, sight: NodeHealth, report: dict[str, Any]) -> bytes:
    lines: list[str] = []

    def say(name: str, what: str, values: dict[str, float], kind: str = "gauge") -> None:
        lines.extend((f"# HELP {METRIC_PREFIX}_{name} {what}", f"# TYPE {METRIC_PREFIX}_{name} {kind}"))
        lines.extend(f"{METRIC_PREFIX}_{name}{labels} {value:.0f}" for labels, value in values.items())

    version = report.get("agentVersion", "")
    say("info", "The agent.", {f'{{version="{version}"}}': 1})
    standings = {f'{{standing="{each.value}"}}': float(each is notes.standing) for each in ProviderState}
    say("standing", "How it stands with the resource provider: 1 for the one that holds.", standings)
    conditions = {f'{{type="{each["type"]}"}}': float(each["status"] == "True") for each in report["conditions"]}
    say("condition", "Conditions of the node: 1 when one holds.", conditions)
    if not sight.uses_tokens:
        say("certificate_seconds", "Until the kubelet's certificate ends.", {"": round(sight.certificate_seconds)})
    say("drift_total", "Changes by hand that were found.", {"": notes.drifts}, "counter")
    say("drift", "Things that differ from the configuration now.", {"": len(notes.drift)})
    if (applied := report.get("appliedConfigVersion", "")).isdecimal():
        say("applied_config_version", "The configuration in effect.", {"": int(applied)})
    return ("\n".join(lines) + "\n").encode()
