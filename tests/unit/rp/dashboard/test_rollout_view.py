"""Tests of what pages show of a roll-out: waves, buttons, gates, and the place of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_rp.dashboard import rollout_view
from aks_flex_rp.dashboard.fleet_page import QueryLinks
from aks_flex_rp.dashboard.rollout_view import buttons, gate_kinds, node_place, wave_rows
from aks_flex_rp.rollouts.spec import RolloutProperties
from aks_flex_rp.rollouts.states import state_of
from aks_flex_rp.rollouts.waits import awaited_approval
from aks_flex_rp.store.pool_model import StateCount, StoredRollout, StoredRolloutNode

LINK = QueryLinks("/ui/r", {"wave": "1", "after": "n7"}, "after", "#nodes")


def rollout(phase: str = "Running", state: dict[str, Any] | None = None, **changes: Any) -> StoredRollout:
    gates = [{"name": "person", "approval": {}}]
    spec = {**RolloutProperties(revision=2).document(), "gates": gates}
    is_active = phase not in {"Succeeded", "Halted", "Reversed", "Aborted"}
    made = StoredRollout("c", "p", "r1", 1, phase, is_active, is_active, spec, {"wave": 0, **(state or {})})
    return replace(made, **changes)


def member(state: str = "Pending", wave: int = 0) -> StoredRolloutNode:
    return StoredRolloutNode("c", "p", 1, "n1", wave, 1, state, 0.0)


def test_waves_count_nodes_and_link_to_them() -> None:
    counts = [StateCount(0, "Updated", 1, 0), StateCount(1, "Pending", 5, 2), StateCount(1, "Failed", 1, 0)]
    first, second = wave_rows(rollout(), counts, LINK)
    assert (first.label, first.is_current, first.offline) == ("Wave 1 of 2: 1 node", True, 0)
    assert (second.label, second.is_current, second.offline) == ("Wave 2 of 2: 6 nodes", False, 2)
    assert [(each.label, each.nodes) for each in second.segments] == [("Failed", 1), ("Pending", 5)]
    assert second.link(state="Failed") == "/ui/r?wave=2&state=Failed#nodes"
    ended = wave_rows(rollout("Reversed"), counts, LINK)
    assert [each.label for each in ended[1].segments] == ["Failed", "Not updated"]


@pytest.mark.parametrize(
    ("phase", "newest", "expected"),
    [
        ("Running", True, ["pause", "reverse", "abort"]),
        ("Reversing", True, ["pause", "abort"]),
        ("Halted", True, ["reverse", "delete"]),
        ("Halted", False, ["delete"]),
        ("Succeeded", True, ["reverse", "delete"]),
        ("Succeeded", False, ["delete"]),
        ("Aborted", True, ["delete"]),
    ],
)
def test_buttons_fit_the_state(phase: str, newest: bool, expected: list[str]) -> None:
    found = buttons(rollout(phase), is_newest=newest)
    assert [each.action for each in found] == expected
    assert all(each.confirm for each in found if each.action in {"abort", "reverse", "delete"})


def test_paused_roll_out_can_be_resumed() -> None:
    assert buttons(rollout(state={"paused": True}), is_newest=True)[0].action == "resume"


def test_gate_without_answer_waits_for_an_approval() -> None:
    gate = {"wave": 0, "gate": "person", "started": 5.0, "answered": 0.0, "passed": False, "message": ""}
    waiting = rollout("Gates", {"gates": [gate]})
    assert awaited_approval(waiting) == "person"
    assert gate_kinds(waiting) == {"person": "approval"}
    assert state_of(waiting.state).gates[0].outcome == "Running"
    answered = rollout("Gates", {"gates": [{**gate, "answered": 9.0, "passed": True}]})
    assert awaited_approval(answered) == ""
    assert state_of(answered.state).gates[0].outcome == "Passed"
    assert awaited_approval(rollout("Halted", {"gates": [gate]})) == ""


@pytest.mark.parametrize(
    ("found", "node", "waits"),
    [
        (rollout(), member(wave=2), "wave 1 to complete"),
        (rollout(waits=("n1: its downloads",)), member(), "its downloads"),
        (rollout(waits=("n1: it is updating",)), member("Updating"), ""),
        (rollout(waits=("n10: its downloads",)), member(), ""),
        (rollout(state={"paused": True}), member(), "a person: the roll-out is paused"),
        (rollout(), member("Updated"), ""),
    ],
)
def test_node_says_what_it_waits_for(found: StoredRollout, node: StoredRolloutNode, waits: str) -> None:
    assert node_place(found, node).waits == waits


def test_plan_omits_what_is_not_set() -> None:
    rows = dict(rollout_view.plan_rows(rollout()))
    assert rows["Waves"] == "1, 10%, 50%, 100%"
    assert rows["Soak time"] == "10m"
    assert rows["Gates"] == "person"
    assert {"Labels of the first wave", "Failure domain", "Allow downgrade"}.isdisjoint(rows)
