"""Tests of the conditions in a status report (real causes and no secrets), and of the metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node import __version__
from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.config_sources.provider_source import REPORT_FIELDS
from aks_flex_node.agent.daemon.conditions import (
    MAX_TEXT_LENGTH,
    ReportInput,
    build_conditions,
    build_report,
    render_metrics,
)
from aks_flex_node.agent.daemon.daemon_state import DaemonState
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.provider.poll_result import ProviderState
from tests.unit.agent.config.builders import TOKEN
from tests.unit.agent.daemon.fakes import READY, WELL

QUIET = ReportInput(DaemonState(), WELL, current_version="7")


def conditions_of(situation: ReportInput) -> dict[str, tuple[str, str, str]]:
    """Returns status, reason and message of each condition."""
    return {
        one["type"]: (one["status"], one["reason"], one.get("message", "")) for one in build_conditions(situation)
    }


def test_healthy_node_reports_ready_and_applied_conditions() -> None:
    assert conditions_of(QUIET) == {
        "Ready": ("True", "KubeletReady", "well"),
        "ConfigApplied": ("True", "Applied", "Configuration 7 is in effect."),
        "Drifted": ("False", "NoDrift", "The machine matches its configuration."),
        "CertificateExpiring": ("False", "Valid", "The kubelet's certificate expires in 116 days."),
        "UpgradeFailed": ("False", "NoFailure", ""),
    }


def test_status_report_contains_versions_and_drift_counters() -> None:
    notes = DaemonState(last_applied="2026-01-02T03:04:05Z", drift_count=3, last_drift="2026-01-02T03:00:00Z")
    found = build_report(replace(QUIET, state=notes, staged_revision=5, failed_version="8"))
    assert set(found) == REPORT_FIELDS, "a field of a later version is not known to all providers"
    found.pop("conditions")
    assert found == {
        "agentVersion": __version__,
        "appliedConfigVersion": "7",
        "lastConfigApplied": "2026-01-02T03:04:05Z",
        "kubeletVersion": "v1.34.4",
        "driftCount": 3,
        "lastDriftDetected": "2026-01-02T03:00:00Z",
        "stagedPoolRevision": 5,
        "failedConfigVersion": "8",
    }


def test_status_report_omits_unknown_fields() -> None:
    found = build_report(ReportInput(DaemonState(), NodeHealth(certificate_seconds=1.0)))
    assert set(found) == {"conditions", "agentVersion", "driftCount"}


FALLEN = (("kubelet.service", "no space left"), ("containerd.service", "exit 1"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"node": replace(READY, ready=False, reason="KubeletNotReady", message="no network")}, "KubeletNotReady"),
        ({"node": None, "api_error": "The API server cannot be reached."}, "ApiServerUnreachable"),
        ({"node": None}, "ApiServerUnreachable"),
        ({"failed_services": FALLEN}, "ServiceFailed"),
        ({"has_certificate": False, "failed_services": FALLEN}, "CredentialsLost"),
        ({"certificate_seconds": -1.0}, "CredentialsLost"),
        ({"has_kubeconfig": False}, "CredentialsLost"),
        ({"node": None, "node_missing": True}, "CredentialsLost"),
        ({"node": None, "credentials_rejected": True}, "CredentialsLost"),
    ],
    ids=str,
)
def test_ready_condition_gives_the_reason_why_a_node_is_not_ready(changes: dict[str, Any], expected: str) -> None:
    status, reason, message = conditions_of(replace(QUIET, health=replace(WELL, **changes)))["Ready"]
    assert reason == expected
    assert status == ("Unknown" if expected == "ApiServerUnreachable" else "False")
    assert message


def update(result: JobStatus, reason: str = "", message: str = "", hint: str = "", version: str = "8") -> JobResult:
    return JobResult(JobKind.UPDATE, result, reason, message, hint, version)


FULL_DISK = update(JobStatus.FAILED, "disk-full", "It is full.", "Tidy.")


ROLLED_BACK = update(JobStatus.ROLLED_BACK, "service-failed", "panic:")


CLOSED = update(JobStatus.DEFERRED, "MaintenanceWindowClosed", "Sunday.")


PENDING = ("False", "Pending", "Configuration 8 is pending.")


IN_EFFECT = ("True", "Applied", "Configuration 7 is in effect.")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"next_version": "8", "running_job": JobKind.UPDATE}, ("False", "InProgress", "Applying configuration 8.")),
        ({"running_job": JobKind.UPDATE}, ("False", "InProgress", "Applying the new configuration.")),
        ({"running_job": "repair"}, IN_EFFECT),
        ({"current_version": ""}, ("True", "Applied", "Configuration of the join is in effect.")),
        ({"next_version": "8"}, PENDING),
        ({"next_version": "8", "last_update": CLOSED}, ("False", "MaintenanceWindowClosed", "Sunday.")),
        ({"next_version": "8", "last_update": FULL_DISK}, ("False", "DiskFull", "It is full. Tidy.")),
        ({"next_version": "8", "last_update": replace(FULL_DISK, version="6")}, PENDING),
        ({"next_version": "8", "last_update": update(JobStatus.DONE)}, PENDING),
        ({"next_version": "8", "failed_update": ROLLED_BACK}, ("False", "ServiceFailed", "panic:")),
        ({"state": DaemonState(not_accepted="It is full.")}, ("False", "NotAccepted", "It is full.")),
        ({"state": DaemonState(not_accepted="It is full."), "next_version": "8"}, PENDING),
        ({"state": DaemonState().with_provider_state(ProviderState.AGENT_FAILING, "It is full.")}, IN_EFFECT),
    ],
    ids=str,
)
def test_config_applied_condition_reflects_the_last_update(
    changes: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    assert conditions_of(replace(QUIET, **changes))["ConfigApplied"] == expected


def test_failure_conditions_are_reported_with_their_cause() -> None:
    tunnel = JobResult(
        JobKind.RENEW_VPN, JobStatus.FAILED, "arm-request-rejected", "Azure refused.", "Give it a role."
    )
    found = conditions_of(
        replace(
            QUIET,
            state=DaemonState(credentials_problem="The new credentials do not work yet."),
            next_version="8",
            failed_update=ROLLED_BACK,
            agent_failure="Version 9 did not run.",
            vpn_failure=tunnel,
            health=replace(WELL, failed_services=FALLEN),
        )
    )
    assert found["UpgradeFailed"] == ("True", "ServiceFailed", "panic:")
    assert found["CredentialsRejected"] == ("True", "VerificationFailed", "The new credentials do not work yet.")
    assert found["AgentUpdateFailed"] == ("True", "VerificationFailed", "Version 9 did not run.")
    assert found["VpnRenewalFailed"] == ("True", "ArmRequestRejected", "Azure refused. Give it a role.")
    fallen = "kubelet is not running: no space left; containerd is not running: exit 1"
    assert found["Ready"] == ("False", "ServiceFailed", fallen)


def test_drifted_condition_lists_drift_and_reports_conflicts_first() -> None:
    drifted = replace(QUIET, state=DaemonState(drift=("a is missing", "b has different content")))
    assert conditions_of(drifted)["Drifted"] == ("True", "DriftFound", "a is missing; b has different content")
    status, reason, message = conditions_of(replace(drifted, conflicts=("/etc/a",)))["Drifted"]
    assert (status, reason) == ("True", "ConflictingChanges")
    assert "/etc/a" in message


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (replace(WELL, certificate_seconds=0.07 * WELL.certificate_lifetime), ("True", "RenewalFailed")),
        (replace(WELL, certificate_seconds=0.09 * WELL.certificate_lifetime), ("False", "Valid")),
        (replace(WELL, certificate_seconds=-5.0), ("True", "Expired")),
        (replace(WELL, has_certificate=False), ("True", "Expired")),
    ],
    ids=str,
)
def test_certificate_expiring_condition_reflects_the_certificate(
    sight: NodeHealth, expected: tuple[str, str]
) -> None:
    assert conditions_of(replace(QUIET, health=sight))["CertificateExpiring"][:2] == expected


def test_condition_messages_are_redacted_and_bounded_in_length() -> None:
    words = f"Bearer canary {TOKEN} password=canary " + "x" * 5000
    outcome = update(JobStatus.FAILED, "it-broke", words, words)
    everything = ReportInput(
        DaemonState(credentials_problem=words, drift=(words,)),
        replace(WELL, failed_services=(("kubelet.service", words),)),
        next_version="8",
        last_update=outcome,
        failed_update=outcome,
        agent_failure=words,
    )
    for _, _, message in conditions_of(everything).values():
        assert "canary" not in message
        assert TOKEN not in message
        assert len(message) <= MAX_TEXT_LENGTH


def test_status_report_is_equal_for_an_unchanged_node() -> None:
    assert build_report(QUIET) == build_report(
        replace(QUIET, health=replace(WELL, certificate_seconds=WELL.certificate_seconds - 30))
    )


NOTES = DaemonState(provider_state=ProviderState.THROTTLED, drift_count=1234567, drift=("a", "b"))


def values(notes: DaemonState = NOTES, current: str = "1770000123") -> dict[str, str]:
    sight = replace(WELL, certificate_seconds=31535999.4)
    lines = render_metrics(notes, sight, build_report(ReportInput(notes, sight, current))).decode().splitlines()
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"\})? -?\d+', one) for one in lines if not one.startswith("#"))
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_write_large_numbers_in_full() -> None:
    found = values()
    assert found["aks_flex_node_applied_config_version"] == "1770000123"
    assert found["aks_flex_node_certificate_expiry_seconds"] == "31535999"
    assert found["aks_flex_node_drift_total"] == "1234567"
    assert found["aks_flex_node_drift"] == "2"


def test_metrics_report_exactly_one_provider_state() -> None:
    found = {name: value for name, value in values().items() if name.startswith("aks_flex_node_provider_state")}
    assert len(found) == len(ProviderState)
    assert [name for name, value in found.items() if value == "1"] == [
        'aks_flex_node_provider_state{state="Throttled"}'
    ]


def test_metrics_contain_conditions_by_type() -> None:
    found = values()
    assert found['aks_flex_node_condition{type="Ready"}'] == "1"
    assert found['aks_flex_node_condition{type="UpgradeFailed"}'] == "0"


def test_every_metric_has_help_and_type_once() -> None:
    lines = render_metrics(NOTES, WELL, build_report(ReportInput(NOTES, WELL))).decode().splitlines()
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert helped == typed
    assert len(set(helped)) == len(helped)


@pytest.mark.parametrize("version", ["", "from-a-file"])
def test_non_numeric_config_version_is_omitted_from_metrics(version: str) -> None:
    assert "aks_flex_node_applied_config_version" not in values(current=version)
