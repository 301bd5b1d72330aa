"""Conditions become questions with answers, causes and remedies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aks_flex_rp.dashboard import condition_text
from aks_flex_rp.dashboard.condition_text import REASONS

DOCUMENT = Path(__file__).parents[4] / "docs" / "troubleshooting.md"


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


def test_every_section_that_is_named_is_there() -> None:
    headings = {each.lower() for each in re.findall(r"^### (\S+)$", DOCUMENT.read_text(), re.MULTILINE)}
    assert {each.section.lower() for each in REASONS.values() if each.section} <= headings


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
def test_some_conditions_are_good_when_they_hold_and_others_when_not(kind: str, holds: str, mood: str) -> None:
    assert condition_text.explain_condition(told(kind, holds)).state == mood


def test_a_reason_is_explained_where_the_machine_says_nothing() -> None:
    bare = condition_text.explain_condition(told("Ready", "False", "ServiceFailed"))
    assert bare.cause == REASONS["ServiceFailed"].text
    said = condition_text.explain_condition(told("Ready", "False", "ServiceFailed", "containerd does not run"))
    assert said.cause == "containerd does not run"
    assert said.remedy
    assert said.section == "docs/how-to/troubleshoot.md#service-failed"


def test_all_is_well_needs_no_remedy() -> None:
    fine = condition_text.explain_condition(told("Drifted", "False", "NoDrift"))
    assert (fine.remedy, fine.section) == ("", "")


def test_what_is_under_way_is_not_wrong() -> None:
    found = condition_text.explain_condition(told("ConfigApplied", "False", "InProgress"))
    assert (found.answer, found.state) == ("Not yet", "unknown")


def test_the_name_of_an_error_leads_to_its_section() -> None:
    found = condition_text.explain_condition(told("ConfigApplied", "False", "ArtifactUnreachable", "no route"))
    assert found.section == "docs/how-to/troubleshoot.md#artifact-unreachable"
    assert condition_text.explain_condition(told("Ready", "False", "ArtifactUnreachable")).section == ""
    assert condition_text.explain_condition(told("ConfigApplied", "False", "<script>")).section == ""


@pytest.mark.parametrize(
    ("ready", "join", "expected"),
    [
        (told("Ready", "True"), "Joined", "Ready"),
        (told("Ready", "True"), "Created", "Ready"),
        (told("Ready", "False"), "Joined", "NotReady"),
        (told("Ready", "Unknown"), "Joined", "Unknown"),
        (told("Ready", "Unknown", "NodeSilent"), "Joined", "Silent"),
        (told("Ready", "Unknown"), "Created", "Joining"),
        (told("Ready", "Unknown"), "Failed", "Failed"),
    ],
)
def test_a_node_stands_as_the_fleet_counts_it(ready: dict[str, str], join: str, expected: str) -> None:
    assert condition_text.state_of(status(ready, join)) == expected


def test_a_failed_join_tells_its_cause_on_top() -> None:
    found = condition_text.summarize(status(told("Ready", "Unknown"), "Failed", joinFailure="no route"), "try again")
    assert (found.cause, found.remedy) == ("no route", "try again")


def test_the_same_cause_is_told_once() -> None:
    rows = [told("ConfigApplied", "False", "RolledBack", "why"), told("UpgradeFailed", "True", "RolledBack", "why")]
    assert len(condition_text.problems_shown(map(condition_text.explain_condition, rows))) == 1


def test_what_is_no_time_is_none() -> None:
    assert condition_text.parse_time("2026-11-15T10:00:00Z") == 1794736800.0
    assert condition_text.parse_time("yesterday") == condition_text.parse_time("") == 0.0
