"""Enrolments of a service that is killed: no machine is enrolled twice, and no use is lost."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.enroller import Enroller
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_crashes import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.processes import ServiceProcess
    from tests.service.rp.api.service_harness import Running

numbers = count(1)
WRITES = ("put_machine", "delete_machine", "put_enrolment", "put_node", "record", "put_delivery")
_ = process  # a fixture


class PowerLossError(Exception):
    pass


class StoppingStore:
    """A store whose process ends before or after its n-th write."""

    def __init__(self, store: Any, at: int, *, after: bool) -> None:
        self._store, self._at, self._after, self.writes = store, at, after, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._stopping(found) if name in WRITES else found

    def _stopping(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def stop(*values: Any, **named: Any) -> Any:
            self.writes += 1
            if self.writes == self._at and not self._after:
                raise PowerLossError
            written = await write(*values, **named)
            if self.writes == self._at:
                raise PowerLossError
            return written

        return stop


def enrol_and_stop(service: Running, made: PoolEnrolment, machine: EnrollingMachine, at: int, *, after: bool) -> bool:
    """Enrols a machine until the n-th write. Returns whether there was one."""
    context = service.service.context
    store: Any = StoppingStore(context.store, at, after=after)
    enroller = Enroller(NodeCommands(replace(context, store=store)))
    found = service.call(context.store.enrolment(PLANT.key, made.id))
    assert found
    try:
        service.call(enroller.enrol(found, machine.request))
    except PowerLossError:
        return True
    return False


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rule", ["{hostname}", "stop{pool}-{number}"])
def test_enrolment_is_continued_after_a_stop_at_each_write(service: Running, rule: str, after: bool) -> None:
    pool = f"cr{next(numbers)}"
    for at in count(1):
        made = PoolEnrolment.of(service.admin, pool, maxUses=1, nodeName=rule.replace("{pool}", f"{pool}-{at}"))
        machine = EnrollingMachine(f"{pool}-{at}")
        if not enrol_and_stop(service, made, machine, at, after=after):
            assert at > 2  # the claim and the node
            return
        name = made.node_of(machine)
        assert (made.uses, [each["nodeName"] for each in made.machines]) == (1, [name]), f"after write {at}"
        assert service.admin.status(name)["nodeKey"]["thumbprint"] == machine.key.thumbprint
        made.refuses(EnrollingMachine("other"), "EnrolmentExhausted")


@pytest.mark.parametrize("after", [False, True])
def test_takeover_is_continued_after_a_stop_at_each_write(service: Running, after: bool) -> None:
    pool = f"tk{next(numbers)}"
    for at in count(1):
        made = PoolEnrolment.of(service.admin, pool, maxUses=1)
        machine = EnrollingMachine(f"{pool}-{at}")
        made.enrol(machine)
        service.admin.act(machine.hostname, "release")
        wiped = machine.wiped()
        if not enrol_and_stop(service, made, wiped, at, after=after):
            assert at > 2
            return
        assert made.node_of(wiped) == machine.hostname
        assert (made.uses, [each["state"] for each in made.machines]) == (1, ["Enrolled"]), f"after write {at}"


def test_no_use_is_lost_or_taken_twice_by_sigkill(process: ServiceProcess) -> None:
    """Machines retry until they have an answer, while the service is killed again and again."""
    uses, machines = 6, [EnrollingMachine(f"kill-{each}") for each in range(9)]
    made = PoolEnrolment.of(process.api, "kill", maxUses=uses, nodeName="kill-{number:03}")
    answers: dict[str, Any] = {}
    running = threading.Event()
    running.set()

    def enrol(machine: EnrollingMachine) -> None:
        while machine.hostname not in answers:
            running.wait(60)
            try:
                answer = machine.enrol(process.api.connection, made.url)
            except (OSError, urllib3.exceptions.HTTPError):
                continue
            if answer.status in {200, 409}:
                answers[machine.hostname] = answer

    with ThreadPoolExecutor(len(machines)) as threads:
        for machine in machines:
            threads.submit(enrol, machine)
        for goal in (1, 3):
            while len(answers) < goal:
                threading.Event().wait(0.005)
            running.clear()
            process.kill(signal.SIGKILL)
            process.start()
            running.set()
    made = replace(made, admin=process.api)
    names = [each.json["config"]["node"]["name"] for each in answers.values() if each.status == 200]
    assert len(names) == len(set(names)) == uses == made.uses
    assert {each["nodeName"] for each in made.machines} == set(names)
    refused = [each.json["error"]["code"] for each in answers.values() if each.status == 409]
    assert refused == ["EnrolmentExhausted"] * 3
