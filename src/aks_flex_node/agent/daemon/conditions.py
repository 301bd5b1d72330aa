"""Builds the daemon's reports: conditions with reason and message for the provider, metrics for Prometheus. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aks_flex_node import __version__
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import redact_output

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.daemon.daemon_state import DaemonState


MAX_TEXT_LENGTH = 2000
MAX_MASKED_LENGTH = 8192  # characters: masking takes time that grows with the square of the length


@frozen
class ReportInput:
    state: DaemonState
    health: NodeHealth
    current_version: str = ""  # the configVersion in effect
    next_version: str = ""  # the configVersion that is not yet in effect
    last_update: JobResult | None = None
    failed_update: JobResult | None = None  # the result of the pending version, if it was rolled back
    running_job: JobKind | None = None
    conflicts: tuple[str, ...] = ()  # subjects that another program keeps changing
    agent_failure: str = ""  # why the configured agent version does not run
    vpn_failure: JobResult | None = None  # the last VPN renewal, if it failed
    staged_revision: int = 0  # of the pool, whose artifacts are downloaded and verified; 0 if there is none
    staging_failure: JobResult | None = None  # the last staging, if it failed
    failed_version: str = ""  # the configVersion whose update failed, was rolled back or was refused


def build_report(report_input: ReportInput) -> dict[str, Any]:
    state, node = report_input.state, report_input.health.node
    report = {
        "conditions": build_conditions(report_input),
        "agentVersion": __version__,
        "driftCount": state.drift_count,
    }
    known = {
        "appliedConfigVersion": report_input.current_version,
        "failedConfigVersion": report_input.failed_version,
        "stagedPoolRevision": report_input.staged_revision,
        "lastConfigApplied": state.last_applied,
        "kubeletVersion": node.version if node else "",
        "lastDriftDetected": state.last_drift,
    }
    return {**report, **{name: value for name, value in known.items() if value}}


def build_conditions(report_input: ReportInput) -> list[dict[str, str]]:
    state, health = report_input.state, report_input.health
    found = [
        _ready(health),
        _config_applied(report_input),
        _drifted(report_input),
        *([] if health.uses_tokens else [_certificate_expiring(health)]),
        _condition(
            "UpgradeFailed", report_input.failed_update is not None, *_cause(report_input.failed_update, "NoFailure")
        ),
    ]
    problems = {"CredentialsRejected": state.credentials_problem, "AgentUpdateFailed": report_input.agent_failure}
    failures = {"VpnRenewalFailed": report_input.vpn_failure, "StagingFailed": report_input.staging_failure}
    return [
        *found,
        *(_condition(kind, True, "VerificationFailed", why) for kind, why in problems.items() if why),
        *(_condition(kind, True, *_cause(result, "")) for kind, result in failures.items() if result),
    ]


def _ready(health: NodeHealth) -> dict[str, str]:
    if health.lost_reason:
        return _condition("Ready", False, "CredentialsLost", f"Recovering the node: {health.lost_reason}.")
    if health.failed_services:
        message = "; ".join(
            f"{name.removesuffix('.service')} is not running: {why}" for name, why in health.failed_services
        )
        return _condition("Ready", False, "ServiceFailed", message)
    if health.node is None:
        why = health.api_error or "the API server was not queried yet"
        return _condition("Ready", None, "ApiServerUnreachable", f"The services are running, but {why}")
    node = health.node
    return _condition("Ready", node.ready, node.reason or "KubeletReady", node.message)


def _config_applied(report_input: ReportInput) -> dict[str, str]:
    name, pending = "ConfigApplied", report_input.next_version
    if report_input.running_job is JobKind.UPDATE:
        what = f"configuration {pending}" if pending else "the new configuration"
        return _condition(name, False, "InProgress", f"Applying {what}.")
    if not pending and report_input.state.not_accepted:
        return _condition(name, False, "NotAccepted", report_input.state.not_accepted)
    if not pending:
        return _condition(
            name, True, "Applied", f"Configuration {report_input.current_version or 'of the join'} is in effect."
        )
    outcome = report_input.failed_update or report_input.last_update
    if outcome is None or outcome.version not in {"", pending} or outcome.is_done:
        return _condition(name, False, "Pending", f"Configuration {pending} is pending.")
    return _condition(name, False, outcome.reason or "Failed", _result_text(outcome))


def _drifted(report_input: ReportInput) -> dict[str, str]:
    if report_input.conflicts:
        subjects = ", ".join(report_input.conflicts)
        message = f"Not repaired, because another program keeps changing: {subjects}."
        return _condition("Drifted", True, "ConflictingChanges", message)
    if report_input.state.drift:
        return _condition("Drifted", True, "DriftFound", "; ".join(report_input.state.drift))
    return _condition("Drifted", False, "NoDrift", "The machine matches its configuration.")


def _certificate_expiring(health: NodeHealth) -> dict[str, str]:
    days = health.certificate_seconds / 86400
    if not health.has_certificate or health.certificate_seconds <= 0:
        return _condition("CertificateExpiring", True, "Expired", "The kubelet has no valid certificate.")
    message = f"The kubelet's certificate expires in {days:.0f} days."
    return _condition(
        "CertificateExpiring", health.expiring, "RenewalFailed" if health.expiring else "Valid", message
    )


def _cause(result: JobResult | None, otherwise: str) -> tuple[str, str]:
    return (result.reason or "Failed", _result_text(result)) if result else (otherwise, "")


def _result_text(result: JobResult) -> str:
    return f"{result.message} {result.hint}".strip()


def _condition(kind: str, status: bool | None, reason: str, message: str) -> dict[str, str]:
    condition = {
        "type": kind,
        "status": "Unknown" if status is None else str(status),
        "reason": "".join(part[:1].upper() + part[1:] for part in reason.split("-")),
    }
    return {**condition, "message": redact_tokens(message)} if message else condition


def redact_tokens(text: str) -> str:
    """Masks secrets and URL queries in text for a report, and limits its length."""
    return _redact(text[:MAX_MASKED_LENGTH])


@lru_cache(maxsize=32)  # most texts are those of the last report
def _redact(text: str) -> str:
    return redact_output(text, queries=True)[:MAX_TEXT_LENGTH]


METRIC_PREFIX = "aks_flex_node"


def render_metrics(state: DaemonState, health: NodeHealth, report: dict[str, Any]) -> bytes:
    """Renders the daemon's state as Prometheus metrics for the node exporter's textfile collector."""
    lines: list[str] = []

    def add(name: str, what: str, values: dict[str, float], kind: str = "gauge") -> None:
        lines.extend((f"# HELP {METRIC_PREFIX}_{name} {what}", f"# TYPE {METRIC_PREFIX}_{name} {kind}"))
        lines.extend(f"{METRIC_PREFIX}_{name}{labels} {value:.0f}" for labels, value in values.items())

    version = report.get("agentVersion", "")
    add("info", "Version of the agent.", {f'{{version="{version}"}}': 1})
    states = {f'{{state="{each.value}"}}': float(each is state.provider_state) for each in ProviderState}
    add("provider_state", "State of the connection to the resource provider: 1 for the current state.", states)
    conditions = {f'{{type="{each["type"]}"}}': float(each["status"] == "True") for each in report["conditions"]}
    add("condition", "Conditions of the node: 1 when the status is True.", conditions)
    if not health.uses_tokens:
        remaining = {"": float(round(health.certificate_seconds))}
        add("certificate_expiry_seconds", "Seconds until the kubelet's client certificate expires.", remaining)
    add("drift_total", "Differences from the configuration that were detected.", {"": state.drift_count}, "counter")
    add("drift", "Current differences from the configuration.", {"": len(state.drift)})
    if (applied := report.get("appliedConfigVersion", "")).isdecimal():
        add("applied_config_version", "Version of the configuration in effect.", {"": int(applied)})
    return ("\n".join(lines) + "\n").encode()
