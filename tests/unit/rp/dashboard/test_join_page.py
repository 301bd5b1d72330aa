"""Tests of the steps of a join on its page."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.dashboard.join_page import ORDER, join_steps
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.model import AuditAction, AuditEvent, Node


def node(**join: Any) -> Node:
    return Node("c", "n", "n", 1, '"1"', {}, {}, join=JoinState.from_document({"since": 10.0, **join}), created=1.0)


def progress(join: dict[str, Any], state: str, ready: str = "Unknown", *events: AuditEvent, **more: Any) -> list[str]:
    told = {"joinState": state, "conditions": [{"type": "Ready", "status": ready}], **more}
    return [each.progress for each in join_steps(node(**join), told, events)]


@pytest.mark.parametrize("state", ORDER[:4])
def test_current_join_step_is_marked(state: str) -> None:
    place = ORDER.index(state)
    assert progress({}, state) == [*["done"] * place, "now", *["next"] * (4 - place)]


def test_ready_node_has_all_join_steps_done() -> None:
    assert progress({}, "Joined", "True") == ["done"] * 5


@pytest.mark.parametrize(
    ("join", "more", "failing"),
    [
        ({"state": "Created"}, {}, "ConfigFetched"),
        ({"state": "ConfigFetched"}, {}, "BootstrapAttempted"),
        ({"state": "Failed"}, {"agentVersion": "1.0.0"}, "BootstrapAttempted"),
        ({"state": "Failed", "failure": "preflight", "urlExpires": 99.0}, {}, "BootstrapAttempted"),
        ({"state": "Failed", "csr": "x"}, {}, "Joined"),
    ],
)
def test_failed_join_step_is_the_one_after_last_completed_step(
    join: dict[str, Any], more: dict[str, Any], failing: str
) -> None:
    found = progress(join, "Failed", **more)
    assert ORDER[found.index("failed")] == failing
    assert "now" not in found


def test_failed_join_step_considers_config_url_fetches_in_audit() -> None:
    earlier, later = (AuditEvent(at, "u", AuditAction.CONFIG_URL_FETCHED, "/n") for at in (5.0, 15.0))
    assert progress({"state": "Failed"}, "Failed", "Unknown", earlier).index("failed") == 1
    assert progress({"state": "Failed"}, "Failed", "Unknown", later).index("failed") == 2


def test_failure_cause_is_shown_at_failed_join_step() -> None:
    told = {"joinState": "Failed", "joinFailure": "no route", "conditions": []}
    [failed] = [each for each in join_steps(node(), told) if each.progress == "failed"]
    assert failed.note == "no route"
