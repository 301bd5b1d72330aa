"""What the provider is told: conditions with the real cause, and no secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node import __version__
from aks_flex_node.agent.following.notes import Notes
from aks_flex_node.agent.following.reports import LONGEST, Situation, conditions, report, scrubbed
from aks_flex_node.agent.following.sights import Sight
from aks_flex_node.agent.works import Outcome
from tests.unit.agent.config.samples import TOKEN
from tests.unit.agent.following.around import READY, WELL

QUIET = Situation(Notes(), WELL, current="7")


def told(situation: Situation) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition."""
    return {one["type"]: (one["status"], one["reason"], one.get("message", "")) for one in conditions(situation)}


def test_a_node_that_is_well_says_so() -> None:
    assert told(QUIET) == {
        "Ready": ("True", "KubeletReady", "well"),
        "ConfigApplied": ("True", "Applied", "Configuration 7 is in effect."),
        "Drifted": ("False", "NoDrift", "The machine is as its configuration wants it."),
        "CertificateExpiring": ("False", "Valid", "The kubelet's certificate is valid for 116 more days."),
        "UpgradeFailed": ("False", "NoFailure", ""),
    }


def test_what_is_not_a_condition_is_told_beside_them() -> None:
    notes = Notes(applied="2026-01-02T03:04:05Z", drifts=3, drifted="2026-01-02T03:00:00Z")
    found = report(replace(QUIET, notes=notes))
    found.pop("conditions")
    assert found == {
        "agentVersion": __version__,
        "appliedConfigVersion": "7",
        "lastConfigApplied": "2026-01-02T03:04:05Z",
        "kubeletVersion": "v1.34.4",
        "driftCount": 3,
        "lastDriftDetected": "2026-01-02T03:00:00Z",
    }


def test_what_is_not_known_is_left_out() -> None:
    found = report(Situation(Notes(), Sight(seconds=1.0)))
    assert set(found) == {"conditions", "agentVersion", "driftCount"}


FALLEN = (("kubelet.service", "no space left"), ("containerd.service", "exit 1"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"node": replace(READY, ready=False, reason="KubeletNotReady", message="no network")}, "KubeletNotReady"),
        ({"node": None, "unknown": "The API server cannot be reached."}, "ApiServerUnreachable"),
        ({"node": None}, "ApiServerUnreachable"),
        ({"fallen": FALLEN}, "ServiceFailed"),
        ({"certificate": False, "fallen": FALLEN}, "CredentialsLost"),
        ({"seconds": -1.0}, "CredentialsLost"),
        ({"kubeconfig": False}, "CredentialsLost"),
        ({"node": None, "missing": True}, "CredentialsLost"),
        ({"node": None, "refused": True}, "CredentialsLost"),
    ],
    ids=str,
)
def test_why_a_node_is_not_ready_is_told(changes: dict[str, Any], expected: str) -> None:
    status, reason, message = told(replace(QUIET, sight=replace(WELL, **changes)))["Ready"]
    assert reason == expected
    assert status == ("Unknown" if expected == "ApiServerUnreachable" else "False")
    assert message


def test_services_that_do_not_run_are_named_with_their_last_words() -> None:
    _, _, message = told(replace(QUIET, sight=replace(WELL, fallen=FALLEN)))["Ready"]
    assert message == "kubelet does not run: no space left; containerd does not run: exit 1"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"waiting": "8", "working": "update"}, ("False", "InProgress", "Configuration 8 is being applied.")),
        ({"working": "update"}, ("False", "InProgress", "The new configuration is being applied.")),
        ({"working": "repair"}, ("True", "Applied", "Configuration 7 is in effect.")),
        ({"current": ""}, ("True", "Applied", "Configuration of the join is in effect.")),
        ({"waiting": "8"}, ("False", "Pending", "Configuration 8 is about to be applied.")),
        (
            {
                "waiting": "8",
                "outcome": Outcome("update", "waits", "MaintenanceWindowClosed", "Sunday.", version="8"),
            },
            ("False", "MaintenanceWindowClosed", "Sunday."),
        ),
        (
            {"waiting": "8", "outcome": Outcome("update", "failed", "disk-full", "It is full.", "Tidy.", "8")},
            ("False", "DiskFull", "It is full. Tidy."),
        ),
        (
            {"waiting": "8", "outcome": Outcome("update", "failed", "disk-full", "It is full.", version="6")},
            ("False", "Pending", "Configuration 8 is about to be applied."),
        ),
        (
            {"waiting": "8", "outcome": Outcome("update", "done", version="8")},
            ("False", "Pending", "Configuration 8 is about to be applied."),
        ),
        (
            {"waiting": "8", "failed": Outcome("update", "rolled-back", "service-failed", "panic:", version="8")},
            ("False", "ServiceFailed", "panic:"),
        ),
    ],
    ids=str,
)
def test_what_became_of_the_configuration_is_told(changes: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert told(replace(QUIET, **changes))["ConfigApplied"] == expected


def test_a_version_that_did_not_work_is_told_with_its_cause() -> None:
    failed = Outcome("update", "rolled-back", "service-failed", "kubelet does not stay up: boom", version="8")
    found = told(replace(QUIET, waiting="8", failed=failed))
    assert found["UpgradeFailed"] == ("True", "ServiceFailed", "kubelet does not stay up: boom")


def test_drift_is_told_and_what_is_fought_over_first() -> None:
    drifted = replace(QUIET, notes=Notes(drift=("a is missing", "b has other content")))
    assert told(drifted)["Drifted"] == ("True", "DriftFound", "a is missing; b has other content")
    status, reason, message = told(replace(drifted, fought=("/etc/a",)))["Drifted"]
    assert (status, reason) == ("True", "Fighting")
    assert "/etc/a" in message


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (replace(WELL, seconds=0.07 * WELL.life), ("True", "NotRenewed")),
        (replace(WELL, seconds=0.09 * WELL.life), ("False", "Valid")),
        (replace(WELL, seconds=-5.0), ("True", "Expired")),
        (replace(WELL, certificate=False), ("True", "Expired")),
    ],
    ids=str,
)
def test_a_certificate_that_should_have_been_renewed_is_told(sight: Sight, expected: tuple[str, str]) -> None:
    assert told(replace(QUIET, sight=sight))["CertificateExpiring"][:2] == expected


def test_credentials_and_an_agent_that_did_not_work_are_told_only_then() -> None:
    notes = Notes(credentials="The new credentials do not work yet.")
    tunnel = Outcome("connect", "failed", "arm-refused", "Azure refused.", "Give it a role.")
    found = told(replace(QUIET, notes=notes, agent="Version 9 did not run.", tunnel=tunnel))
    assert found["CredentialsRefused"] == ("True", "NotProven", "The new credentials do not work yet.")
    assert found["AgentUpdateFailed"] == ("True", "NotProven", "Version 9 did not run.")
    assert found["TunnelNotRenewed"] == ("True", "ArmRefused", "Azure refused. Give it a role.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"token {TOKEN} seen", "token *** seen"),
        ("Authorization: Bearer abc.def~+/==", "Authorization: Bearer ***"),
        ("authorization: bearer abc", "authorization: bearer ***"),
        ("eyJhbGciOi.eyJzdWIi.c2ln-_ after", "*** after"),
        ("pull http://me:se@cret@proxy:3128/x", "pull http://***@proxy:3128/x"),
        ("get https://h/c?sv=1&sig=a%2Fb%3D&se=2 failed", "get https://h/c?*** failed"),
        ('"clientSecret": "abc", "x": 1', '"***", "x": 1'),
        ("client_secret=abc&x=1", "***&x=1"),
        ("password=abc", "***"),
        ("client-key-data: LS0tLS1CRUdJTg==", "***"),
        ("there is no secret here, and no password", "there is no secret here, and no password"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, expected: str) -> None:
    assert scrubbed(text) == expected


def test_every_message_is_without_secrets_and_of_bounded_length() -> None:
    words = f"Bearer canary {TOKEN} password=canary " + "x" * 5000
    outcome = Outcome("update", "failed", "it-broke", words, words, "8")
    everything = Situation(
        Notes(credentials=words, drift=(words,)),
        replace(WELL, fallen=(("kubelet.service", words),)),
        waiting="8",
        outcome=outcome,
        failed=outcome,
        agent=words,
    )
    for one in conditions(everything):
        assert "canary" not in one.get("message", "")
        assert TOKEN not in one.get("message", "")
        assert len(one.get("message", "")) <= LONGEST


def test_the_same_situation_makes_the_same_report() -> None:
    assert report(QUIET) == report(replace(QUIET, sight=replace(WELL, seconds=WELL.seconds - 30)))
