"""Tests of conditions on the node page, with the catalog's texts and remedies."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.dashboard import condition_text
from aks_flex_rp.dashboard.condition_text import ERRORS, NAMES


def told(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-15T10:00:00Z",
    }


def status(ready: dict[str, str], join: str = "Joined", **more: Any) -> dict[str, Any]:
    return {"conditions": [ready], "joinState": join, **more}


def test_every_see_reference_is_in_the_catalogue() -> None:
    assert {each.see for each in NAMES.values() if each.see} <= {*ERRORS, *NAMES}


@pytest.mark.parametrize(
    ("kind", "holds", "mood"),
    [
        ("Ready", "True", "good"),
        ("Ready", "False", "bad"),
        ("Ready", "Unknown", "unknown"),
        ("Drifted", "True", "bad"),
        ("Drifted", "False", "good"),
        ("SomethingNew", "True", "bad"),
    ],
)
def test_condition_state_depends_on_type_and_status(kind: str, holds: str, mood: str) -> None:
    assert condition_text.explain_condition(told(kind, holds)).mood == mood


def test_condition_reason_is_explained_when_message_is_missing() -> None:
    bare = condition_text.explain_condition(told("Ready", "False", "ServiceFailed"))
    assert bare.message == NAMES["ServiceFailed"].meaning
    said = condition_text.explain_condition(told("Ready", "False", "ServiceFailed", "containerd does not run"))
    assert said.message == "containerd does not run"
    assert said.remedy
    assert said.help == "service-failed"


def test_condition_without_problem_has_no_remedy() -> None:
    fine = condition_text.explain_condition(told("Drifted", "False", "NoDrift"))
    assert (fine.remedy, fine.help) == ("", "")


def test_condition_in_progress_is_not_a_problem() -> None:
    found = condition_text.explain_condition(told("ConfigApplied", "False", "InProgress"))
    assert (found.status, found.mood) == ("False", "unknown")


def test_error_reason_links_to_its_troubleshooting_section() -> None:
    found = condition_text.explain_condition(told("ConfigApplied", "False", "ArtifactUnreachable", "no route"))
    assert found.help == "artifact-unreachable"
    assert condition_text.explain_condition(told("Ready", "False", "ArtifactUnreachable")).help == ""
    assert condition_text.explain_condition(told("ConfigApplied", "False", "<script>")).help == ""


@pytest.mark.parametrize(
    ("ready", "join", "expected"),
    [
        (told("Ready", "True"), "Joined", "Ready"),
        (told("Ready", "True"), "Created", "Ready"),
        (told("Ready", "False"), "Joined", "NotReady"),
        (told("Ready", "Unknown"), "Joined", "Unknown"),
        (told("Ready", "Unknown", "NodeNotReporting"), "Joined", "NotReporting"),
        (told("Ready", "Unknown"), "Created", "Created"),
        (told("Ready", "Unknown"), "ConfigFetched", "Joining"),
        (told("Ready", "True"), "Left", "Left"),
        (told("Ready", "Unknown"), "Failed", "Failed"),
    ],
)
def test_node_state_is_derived_from_readiness_and_join_state(ready: dict[str, str], join: str, expected: str) -> None:
    assert condition_text.state_of(status(ready, join)) == expected


def test_summary_of_failed_join_shows_cause_and_remedy() -> None:
    found = condition_text.summarize(status(told("Ready", "Unknown"), "Failed", joinFailure="no route"), "try again")
    assert (found.cause, found.remedy) == ("no route", "try again")


def test_problems_with_same_cause_are_shown_once() -> None:
    rows = [told("ConfigApplied", "False", "RolledBack", "why"), told("UpgradeFailed", "True", "RolledBack", "why")]
    assert len(condition_text.problems_shown(map(condition_text.explain_condition, rows))) == 1


def test_invalid_time_is_parsed_as_zero() -> None:
    assert condition_text.parse_time("2026-11-15T10:00:00Z") == 1794736800.0
    assert condition_text.parse_time("yesterday") == condition_text.parse_time("") == 0.0


def test_update_that_waits_for_its_window_is_shown_with_its_cause() -> None:
    message = "The maintenance window opens at 22:00."
    waits = {"type": "ConfigApplied", "status": "False", "reason": "MaintenanceWindowClosed", "message": message}
    assert [each.message for each in condition_text.problems_shown([condition_text.explain_condition(waits)])] == [
        message
    ]
