"""What is done next, and what is not done again."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.following.deciding import AGAIN, REFUSED_AGAIN, Memory, Wants, choose
from aks_flex_node.agent.works import Outcome, Result


def after(*outcomes: Outcome, now: float = 0.0) -> Memory:
    memory = Memory.empty()
    for outcome in outcomes:
        memory.note(outcome, now)
    return memory


def update(result: Result, version: str = "2", *, again: bool = False) -> Outcome:
    return Outcome("update", result.value, version=version, again=again)


def test_nothing_is_done_when_all_is_well() -> None:
    assert choose(Wants(), Memory.empty(), 0.0) == ""


def test_what_is_being_taken_apart_is_not_repaired_while_its_leave_is_put_off() -> None:
    wants = Wants(leaving=True, next="2", lost=True, drifted=True)
    memory = after(Outcome("leave", "failed", again=True))
    assert choose(wants, memory, AGAIN[0] - 1) == ""
    assert choose(wants, memory, AGAIN[0]) == "leave"


def test_a_new_configuration_is_taken() -> None:
    assert choose(Wants(next="2"), Memory.empty(), 0.0) == "update"


def test_an_update_that_was_stopped_half_way_goes_on_whatever_is_known_of_it() -> None:
    assert choose(Wants(unfinished=True), after(update(Result.ROLLED_BACK)), 1e9) == "update"


@pytest.mark.parametrize("result", [Result.ROLLED_BACK, Result.FAILED, Result.REFUSED])
def test_a_version_that_did_not_work_is_not_tried_again(result: Result) -> None:
    assert choose(Wants(next="2"), after(update(result)), 1e9) == ""


@pytest.mark.parametrize("result", [Result.ROLLED_BACK, Result.FAILED, Result.REFUSED, Result.WAITS])
def test_the_next_version_is(result: Result) -> None:
    memory = after(update(result))
    memory.forget("update")
    assert choose(Wants(next="3", window=False), memory, 0.0) == "update"


def test_what_may_work_later_is_tried_later() -> None:
    memory = after(update(Result.FAILED, again=True))
    assert choose(Wants(next="2"), memory, AGAIN[0] - 1) == ""
    assert choose(Wants(next="2"), memory, AGAIN[0]) == "update"


def test_and_less_and_less_often() -> None:
    memory = after(*[update(Result.FAILED, again=True)] * 9)
    assert choose(Wants(next="2"), memory, AGAIN[-1] - 1) == ""
    assert choose(Wants(next="2"), memory, AGAIN[-1]) == "update"


def test_a_skew_that_the_cluster_may_mend_is_looked_at_every_hour() -> None:
    memory = after(update(Result.REFUSED, again=True))
    assert choose(Wants(next="2"), memory, REFUSED_AGAIN - 1) == ""
    assert choose(Wants(next="2"), memory, REFUSED_AGAIN) == "update"


def test_what_waits_for_a_window_goes_on_when_it_opens() -> None:
    memory = after(update(Result.WAITS))
    assert choose(Wants(next="2", window=False), memory, 1e9) == ""
    assert choose(Wants(next="2"), memory, 1e9) == "update"


def test_what_is_paused_waits() -> None:
    assert choose(Wants(next="2", paused=True), after(update(Result.WAITS)), 1e9) == ""


def test_drift_is_repaired() -> None:
    assert choose(Wants(drifted=True), Memory.empty(), 0.0) == "repair"


@pytest.mark.parametrize("wants", [Wants(drifted=True, repairs=False), Wants(drifted=True, paused=True)])
def test_unless_it_is_only_to_be_reported(wants: Wants) -> None:
    assert choose(wants, Memory.empty(), 0.0) == ""


def test_a_repair_that_failed_is_not_repeated_at_once() -> None:
    memory = after(Outcome("repair", Result.FAILED.value, again=True))
    assert choose(Wants(drifted=True), memory, AGAIN[0] - 1) == ""
    assert choose(Wants(drifted=True), memory, AGAIN[0]) == "repair"


def test_a_node_that_has_lost_its_way_back_is_recovered_before_anything_is_repaired() -> None:
    assert choose(Wants(lost=True, drifted=True), Memory.empty(), 0.0) == "recover"


def test_a_deleted_resource_ends_everything_else() -> None:
    assert choose(Wants(deleted=True, next="2", lost=True, drifted=True), Memory.empty(), 0.0) == "leave"


def test_unless_somebody_holds_it_off() -> None:
    assert choose(Wants(deleted=True, may_leave=False, next="2", drifted=True), Memory.empty(), 0.0) == ""


def test_a_leave_that_was_stopped_half_way_goes_on_without_asking_anybody() -> None:
    assert choose(Wants(leaving=True, may_leave=False), Memory.empty(), 0.0) == "leave"


def test_a_tunnel_whose_certificate_ends_is_renewed_also_while_paused_but_not_before_a_repair() -> None:
    assert choose(Wants(worn=True, paused=True), Memory.empty(), 0.0) == "connect"
    assert choose(Wants(worn=True, drifted=True), Memory.empty(), 0.0) == "repair"
    assert choose(Wants(worn=True), after(Outcome("connect", "failed")), AGAIN[0] - 1) == ""
    assert choose(Wants(worn=True, deleted=True, may_leave=False), Memory.empty(), 0.0) == ""
