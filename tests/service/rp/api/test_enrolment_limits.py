"""What someone with the URL of an enrolment cannot do to the audit log, and to nodes that are not theirs any more."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.api import machine_routes
from aks_flex_rp.counted_events import WINDOW_SECONDS
from tests.service.rp.api.enrolling_machine import PoolEnrolment
from tests.service.rp.api.test_arm import assert_refused
from tests.service.rp.api.test_enrolment_takeovers import act
from tests.service.rp.api.test_node_keys import TWO, Machine

if TYPE_CHECKING:
    from typing import Any

    from tests.service.rp.api.service_harness import Running

numbers = count(1)


@pytest.fixture
def made(service: Running) -> PoolEnrolment:
    return PoolEnrolment.of(service.admin, f"lim{next(numbers)}", maxUses=5)


def test_refused_machines_do_not_fill_the_audit_log(service: Running, made: PoolEnrolment) -> None:
    """A machine with a revoked URL asks again and again, with another key each time."""
    taken = made.machine("a")
    made.enrol(taken)
    clone = replace(made.machine("b"), system_uuid=taken.system_uuid)
    assert_refused(made.enrol(clone), 409, "MachineCloned")
    made.act("revoke")
    assert {made.enrol(made.machine(f"c{each}")).status for each in range(20)} == {409}
    assert [each["detail"]["reason"] for each in made.events("enrolment.refused")] == [
        "EnrolmentRevoked",
        "MachineCloned",
    ]

    later = time.time() + WINDOW_SECONDS
    service.call(service.service.enroller.refusals.flush(service.service.store, later))

    counted = made.events("enrolment.refused")[0]
    assert (counted["detail"]["failures"], counted["detail"]["reason"]) == (19, "EnrolmentRevoked")
    assert (counted["outcome"], counted["source"]) == ("denied", "127.0.0.1")


def status_of(service: Running, node: str) -> dict[str, Any]:
    found: dict[str, Any] = service.admin.get(node).properties["status"]
    return found


def test_revoked_key_reports_no_failure_of_the_node(service: Running, made: PoolEnrolment) -> None:
    """The machine was cut off. Another one fetched the configuration of the node since."""
    machine = made.machine("a")
    assert made.enrol(machine).status == 200
    assert act(service, machine.hostname, "revokeKey").status == 200
    url = act(service, machine.hostname, "regenerateToken", replaceMachine=True).json["configUrl"]
    assert Machine(service.admin, machine.hostname, TWO).fetch(url).status == 200

    assert_refused(made.enrol(machine, joinFailure="Run this."), 404, "MachineNotFound")

    assert status_of(service, machine.hostname)["joinState"] == "ConfigFetched"


def test_text_of_a_failed_join_has_no_control_characters(service: Running, made: PoolEnrolment) -> None:
    machine = made.machine("a")
    made.enrol(machine)
    told = "Preflight:\n\x1b[31mdisk\u202e\x00\ud800 full"
    assert made.enrol(machine, joinFailure=told).status == 200
    found = status_of(service, machine.hostname)
    assert (found["joinState"], found["joinFailure"]) == ("Failed", "Preflight:\n[31mdisk full")


def test_failed_joins_of_a_node_are_recorded_once_a_minute(
    service: Running, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, other = made.machine("a"), made.machine("b")
    made.enrol(machine)
    made.enrol(other)
    answers = [made.enrol(machine, joinFailure=f"failure {each}") for each in range(10)]
    assert [each.status for each in answers] == [200] + [429] * 9
    assert 0 < int(answers[-1].headers["retry-after"]) <= machine_routes.FAILURE_SECONDS
    query = {"resource": service.admin.path(machine.hostname), "what": "join.failed"}
    assert len(service.admin.ask("GET", "/audit", query=query).json["value"]) == 1
    assert made.enrol(other, joinFailure="of another node").status == 200

    monkeypatch.setattr(machine_routes, "FAILURE_SECONDS", 0.0)
    assert made.enrol(machine, joinFailure="a minute later").status == 200
    assert status_of(service, machine.hostname)["joinFailure"] == "a minute later"


def test_revoked_key_names_the_enrolment_that_is_still_open(service: Running, made: PoolEnrolment) -> None:
    """A machine without a system UUID becomes another node with the URL and another key."""
    first, second = made.machine("a", system_uuid=""), made.machine("b")
    made.enrol(first)
    made.enrol(second)
    revoked = act(service, first.hostname, "revokeKey").json
    assert (revoked["poolName"], revoked["enrolmentName"]) == (made.pool, made.id)
    back = replace(first.wiped(), hostname=f"{made.pool}-back")
    assert made.enrol(back).status == 200

    made.act("revoke")
    assert "enrolmentName" not in act(service, second.hostname, "revokeKey").json
    assert_refused(made.enrol(back.wiped()), 409, "EnrolmentRevoked")
