"""Attacks on the takeover of a released node: by keys, machines and enrolments that an operator did not mean."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.enrolments import parse_facts
from aks_flex_node.api.machine_identity import MACHINE_HEADER
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_rp.nodes.enroller import Enroller
from aks_flex_rp.nodes.machine_provisioner import MachineRequest
from tests.node_key_client import HeldKey
from tests.service.rp.api.enrolling_machine import PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_arm import assert_refused
from tests.service.rp.api.test_enrolments import claim, join
from tests.service.rp.api.test_node_keys import TWO, Machine, rotate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.enrolling_machine import EnrollingMachine
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

numbers = count(1)


@pytest.fixture
def made(service: Running) -> PoolEnrolment:
    return PoolEnrolment.of(service.admin, f"to{next(numbers)}", maxUses=5)


def act(service: Running, node: str, action: str, **body: Any) -> Answer:
    return service.admin.ask("POST", service.admin.path(node, action), body)


def joined(service: Running, made: PoolEnrolment) -> EnrollingMachine:
    machine = made.machine("a")
    assert made.enrol(machine).status == 200
    join(service, machine, machine.hostname)
    return machine


def get(service: Running, machine: EnrollingMachine, node: str) -> Answer:
    assertion = machine.key.assertion(PLANT.node(node), "aks-flex-rp:of-plant")
    return service.admin.as_somebody(f"Bearer {assertion}").get(
        node, **{MACHINE_HEADER: machine.identity.to_header()}
    )


def move(service: Running, node: str) -> Machine:
    """Gives the node to another machine, which is alive."""
    url = act(service, node, "regenerateToken", replaceMachine=True).json["configUrl"]
    other = Machine(service.admin, node, TWO)
    assert (other.fetch(url).status, other.get().status) == (200, 200)
    return other


def key_of(service: Running, node: str) -> str:
    return str(service.admin.get(node).properties["status"]["nodeKey"].get("thumbprint", ""))


def test_node_that_moved_is_not_released_to_its_first_machine(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)
    other = move(service, first.hostname)
    refused = act(service, first.hostname, "release")
    assert_refused(refused, 409, "NodeNotEnrolled")
    assert "given to another machine" in refused.error["message"]
    assert_refused(made.enrol(first.wiped()), 409, "MachineCloned")
    assert_refused(made.enrol(first), 409, "MachineCloned")
    assert other.get().status == 200


@pytest.mark.parametrize("wiped", [True, False])
def test_release_ends_when_the_node_gets_another_key(service: Running, made: PoolEnrolment, wiped: bool) -> None:
    """The node was released and then given to another machine, which lives. The release is not for that one."""
    first = joined(service, made)
    assert act(service, first.hostname, "release").status == 200
    other = move(service, first.hostname)

    thief = first.wiped() if wiped else first
    refused = made.enrol(thief)

    assert_refused(refused, 409, "MachineCloned" if wiped else "NodeKeyRevoked")
    assert key_of(service, first.hostname) == other.key.thumbprint
    assert (other.get().status, get(service, thief, first.hostname).status == 200) == (200, False)


def test_revocation_ends_an_earlier_release(service: Running, made: PoolEnrolment) -> None:
    """The machine was to be re-imaged, and is stolen before. Its node must not come back with another key."""
    machine = joined(service, made)
    assert act(service, machine.hostname, "release").status == 200
    assert act(service, machine.hostname, "revokeKey").status == 200
    wiped = machine.wiped()
    assert_refused(made.enrol(wiped), 409, "MachineCloned")
    assert service.admin.get(machine.hostname).properties["status"]["nodeKey"]["state"] == "Revoked"
    assert act(service, machine.hostname, "release").status == 200, "an operator decides again"
    assert made.enrol(wiped).status == 200
    assert get(service, wiped, machine.hostname).status == 200


@pytest.mark.parametrize("state", ["takeover", "claim"])
def test_key_revoked_during_an_enrolment_is_not_bound(service: Running, made: PoolEnrolment, state: str) -> None:
    """The revocation comes between the decision of the enrolment and the write of the node."""
    machine = joined(service, made)
    machine_request = machine
    if state == "takeover":
        act(service, machine.hostname, "release")
        machine_request = machine.wiped()
        claim(service, made, machine_request)  # the provider stops before it writes the node
    else:
        service.clusters.machines.pop(machine.hostname)
    commands = service.service.enroller.commands
    regenerate: Callable[..., Any] = commands.regenerate

    class Revoking:
        """Revokes the key just before the node is written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(commands, name)

        async def regenerate(self, *values: Any, **named: Any) -> Any:
            cluster = await commands.context.clusters.find(PLANT.key)
            node = await commands.context.store.node(PLANT.key, machine.hostname)
            assert cluster
            assert node
            await commands.context.store.put_node(
                replace(node, join=node.join.key_revoked(commands.context.now(), "")), node.etag
            )
            return await regenerate(*values, **named)

    found = service.call(commands.context.store.enrolment(PLANT.key, made.id))
    assert found
    request = MachineRequest(
        machine_request.key.thumbprint, parse_facts(machine_request.facts), machine_request.identity, "127.0.0.1", "r"
    )
    with pytest.raises(Exception, match=r"revoked|not released"):
        service.call(Enroller(Revoking()).enrol(found, request))  # type: ignore[arg-type]
    assert service.admin.get(machine.hostname).properties["status"]["nodeKey"]["state"] == "Revoked"


def test_url_of_another_pool_takes_no_released_node(service: Running, made: PoolEnrolment) -> None:
    """The system UUID is no secret, and the other pool admits machines without an approval."""
    guarded = PoolEnrolment.of(service.admin, made.pool, approval="manual")
    machine = guarded.machine("a")
    guarded.act("approve", {"fingerprint": guarded.enrol(machine).json["fingerprint"]})
    assert guarded.enrol(machine).status == 200
    join(service, machine, machine.hostname)
    act(service, machine.hostname, "release")
    other = PoolEnrolment.of(service.admin, f"tx{next(numbers)}")

    thief = machine.wiped()

    assert_refused(other.enrol(thief), 409, "NodeNameTaken")
    elsewhere = other.enrol(replace(thief, hostname=f"{other.pool}-b"))
    assert elsewhere.json["config"]["node"]["name"] == f"{other.pool}-b"
    assert key_of(service, machine.hostname) == machine.key.thumbprint


def test_revoked_enrolment_takes_no_released_node(service: Running, made: PoolEnrolment) -> None:
    machine = joined(service, made)
    act(service, machine.hostname, "release")
    wiped = machine.wiped()
    claim(service, made, wiped)
    made.act("revoke")
    for each in (machine, wiped):
        assert made.enrol(each).status == 409
    assert key_of(service, machine.hostname) == machine.key.thumbprint


def test_copy_of_a_released_disk_on_another_system_is_refused(service: Running, made: PoolEnrolment) -> None:
    machine = joined(service, made)
    act(service, machine.hostname, "release")
    copy = replace(machine, system_uuid=made.machine("b").system_uuid)
    assert_refused(made.enrol(copy), 409, "MachineCloned")
    assert made.enrol(machine).status == 200


def racing(service: Running, rule: str) -> tuple[PoolEnrolment, Answer]:
    """Two replicas give the same name through two enrolments: the other one is first, after this one looked."""
    one, other = (PoolEnrolment.of(service.admin, f"ra{next(numbers)}", nodeName=rule) for _ in range(2))
    winner, loser = one.machine("same"), one.machine("same")
    enroller = service.service.enroller
    look = enroller._name
    taken: list[str] = []

    async def late(found: Any, machine_request: Any) -> tuple[str, int]:
        result = await look(found, machine_request)
        if found.key == other.id and not taken:
            first = await enroller.commands.context.store.enrolment(PLANT.key, one.id)
            facts = parse_facts(winner.facts)
            request = MachineRequest(winner.key.thumbprint, facts, winner.identity, "127.0.0.1", "r")
            assert first
            taken.append((await enroller._claim(first, request)).node)
        return result

    object.__setattr__(enroller, "_name", late)
    try:
        answer = other.enrol(loser)
    finally:
        object.__delattr__(enroller, "_name")
    return other, answer


def test_name_given_by_two_enrolments_at_once_is_refused_in_words(service: Running) -> None:
    other, answer = racing(service, "{hostname}")
    assert_refused(answer, 409, "NodeNameTaken")
    assert (other.properties["uses"], other.machines) == (0, [])


def test_number_given_by_two_enrolments_at_once_is_skipped(service: Running) -> None:
    rule = f"race{next(numbers)}-{{number}}"
    other, answer = racing(service, rule)
    assert answer.json["config"]["node"]["name"] == rule.replace("{number}", "2")
    assert other.properties["uses"] == 1


def rotated(service: Running, machine: EnrollingMachine) -> EnrollingMachine:
    """Replaces the key of a joined machine, and uses the new one."""
    node, new = machine.hostname, replace(machine, key=HeldKey())
    assertion = machine.key.assertion(PLANT.node(node), "aks-flex-rp:of-plant")
    assert rotate(service.admin.as_somebody(f"Bearer {assertion}"), node, new.key, machine.key).status == 200
    assert get(service, new, node).status == 200
    return new


@pytest.mark.parametrize("rule", ["{hostname}", "turn-{number:03}"])
def test_replaced_key_gets_no_second_node_from_its_use(service: Running, rule: str) -> None:
    made = PoolEnrolment.of(service.admin, f"to{next(numbers)}", maxUses=1, nodeName=rule)
    first = made.machine("a")
    name = made.enrol(first).json["config"]["node"]["name"]
    first = replace(first, hostname=name)
    join(service, first, name)
    other = replace(made.machine("b"), key=first.key, id=first.id, system_uuid=first.system_uuid)

    rotated(service, first)

    assert_refused(made.enrol(first), 409, "MachineCloned")
    assert_refused(made.enrol(replace(other, system_uuid="")), 409, "EnrolmentExhausted")
    assert made.properties["uses"] == 1
    move(service, name)
    assert_refused(made.enrol(first), 409, "MachineCloned")
    assert made.properties["uses"] == 1


def test_use_of_an_enrolment_follows_the_key(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)

    second = rotated(service, rotated(service, first))

    assert [each["fingerprint"] for each in made.machines] == [fingerprint(second.key.thumbprint)]
    assert (made.enrol(second).status, made.properties["uses"]) == (409, 1)  # it is alive
    assert act(service, first.hostname, "release").status == 200
    assert made.enrol(first.wiped()).json["config"]["node"]["name"] == first.hostname
    assert made.properties["uses"] == 1


def test_machine_without_a_system_uuid_cannot_be_released(service: Running, made: PoolEnrolment) -> None:
    machine = made.machine("no-uuid", system_uuid="")
    assert made.enrol(machine).status == 200

    refused = act(service, machine.hostname, "release")

    assert_refused(refused, 409, "NodeNotEnrolled")
    assert "--replace" in refused.error["message"]


@pytest.mark.parametrize("ended", ["revoked", "expired"])
def test_no_machine_is_approved_after_the_end(service: Running, ended: str) -> None:
    made = PoolEnrolment.of(service.admin, f"to{next(numbers)}", approval="manual")
    waits = made.enrol(made.machine("late"))
    assert waits.status == 202
    if ended == "revoked":
        assert made.act("revoke").status == 200
    else:
        found = service.call(service.service.context.store.enrolment(PLANT.key, made.id))
        assert found
        service.call(service.service.context.store.put_enrolment(replace(found, expires=1.0)))
    assert_refused(made.act("approve", {"fingerprint": waits.json["fingerprint"]}), 409, "EnrolmentEnded")
    assert made.act("reject", {"fingerprint": waits.json["fingerprint"]}).status == 200
