"""Attacks on enrolments: keys that were released or approved for another machine, names that are not free, floods."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_node.errors import ClusterError
from aks_flex_rp.clusters.node_controller import NodeMachine
from aks_flex_rp.nodes import enroller
from tests.node_key_client import HeldKey
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_arm import assert_refused
from tests.service.rp.api.test_enrolment_takeovers import act, get, joined, key_of
from tests.service.rp.api.test_enrolments import join
from tests.service.rp.api.test_node_keys import TWO, Machine, rotate

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

numbers = count(1)


@pytest.fixture
def made(service: Running) -> PoolEnrolment:
    return PoolEnrolment.of(service.admin, f"ea{next(numbers)}", maxUses=5)


def rotate_by(service: Running, key: HeldKey, node: str, new: HeldKey) -> Answer:
    assertion = key.assertion(PLANT.node(node), "aks-flex-rp:of-plant")
    return rotate(service.admin.as_somebody(f"Bearer {assertion}"), node, new, key)


def test_release_does_not_come_back_after_a_revocation(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)
    name = first.hostname
    assert act(service, name, "revokeKey").status == 200
    assert act(service, name, "release").status == 200
    url = act(service, name, "regenerateToken", replaceMachine=True).json["configUrl"]
    other = Machine(service.admin, name, TWO)
    assert (other.fetch(url).status, other.get().status) == (200, 200)
    assert act(service, name, "revokeKey").status == 200

    thief = first.wiped()
    assert_refused(made.enrol(thief), 409, "MachineCloned")
    assert key_of(service, name) != thief.key.thumbprint


def test_released_node_is_for_the_pool_that_it_is_in(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)
    guarded = PoolEnrolment.of(service.admin, f"eg{next(numbers)}", approval="manual")
    assert service.admin.put(first.hostname, {"properties": {"poolName": guarded.pool}}).status == 200
    assert act(service, first.hostname, "release").status == 200

    assert_refused(made.enrol(first.wiped()), 409, "NodeNameTaken")
    assert_refused(made.enrol(first), 409, "MachineCloned")
    again = first.wiped()
    waits = guarded.enrol(again)
    assert waits.status == 202
    guarded.act("approve", {"fingerprint": waits.json["fingerprint"]})
    assert guarded.enrol(again).json["config"]["node"]["name"] == first.hostname


def test_earlier_key_ends_with_the_takeover(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)
    assert act(service, first.hostname, "release").status == 200
    new = first.wiped()
    assert made.enrol(new).status == 200

    assert rotate_by(service, first.key, first.hostname, HeldKey()).status == 403
    assert [made.enrol(new).status for _ in range(3)] == [200, 200, 200]  # its answers were lost
    assert get(service, new, first.hostname).status == 200
    again = made.enrol(new)
    assert_refused(again, 409, "MachineCloned")
    assert again.error["message"].endswith(f"is alive on the machine {new.identity}.")


def test_earlier_key_does_not_displace_a_replacement(service: Running, made: PoolEnrolment) -> None:
    first = joined(service, made)
    url = act(service, first.hostname, "regenerateToken", replaceMachine=True).json["configUrl"]
    other = Machine(service.admin, first.hostname, TWO)
    assert other.fetch(url).status == 200

    assert_refused(rotate_by(service, first.key, first.hostname, HeldKey()), 409, "Conflict")
    assert other.get().status == 200


def test_machine_is_only_what_was_approved(service: Running) -> None:
    made = PoolEnrolment.of(service.admin, f"ef{next(numbers)}", approval="manual", maxUses=9)
    victim = made.machine("victim")
    made.act("approve", {"fingerprint": made.enrol(victim).json["fingerprint"]})
    assert made.enrol(victim).status == 200
    join(service, victim, victim.hostname)
    assert act(service, victim.hostname, "release").status == 200
    evil = made.machine("harmless")
    shown = made.enrol(evil).json["fingerprint"]
    changed = (replace(evil, system_uuid=victim.system_uuid), replace(evil, hostname=f"{made.pool}-payments"))
    for each in changed:
        made.act("approve", {"fingerprint": shown})
        assert made.enrol(each).status == 202
        [waiting] = [machine for machine in made.machines if machine["state"] == "Waiting"]
        assert waiting["facts"]["hostname"] == each.hostname
    assert made.properties["uses"] == 1


def test_waiting_machines_do_not_hide_a_clone(service: Running, made: PoolEnrolment) -> None:
    manual = PoolEnrolment.of(service.admin, f"ew{next(numbers)}", approval="manual")
    victim = made.machine("a")
    for number in range(101):
        assert manual.enrol(EnrollingMachine(f"x{number}", system_uuid=victim.system_uuid)).status == 202
    assert made.enrol(victim).status == 200

    assert_refused(made.enrol(replace(victim.wiped(), hostname=f"{made.pool}-b")), 409, "MachineCloned")


def refuse_names(service: Running, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The cluster has Nodes of other origin with these names."""
    mint = service.clusters.mint

    async def refuse(key: str, node: str, expires: float) -> Any:
        if node in names:
            raise ClusterError("node-name-taken", f"The cluster already has a Node {node}.", "Choose another name.")
        return await mint(key, node, expires)

    monkeypatch.setattr(service.clusters, "mint", refuse)


def test_number_of_another_node_of_the_cluster_is_skipped(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = f"skip{next(numbers)}"
    made = PoolEnrolment.of(service.admin, f"en{next(numbers)}", nodeName=f"{rule}-{{number:02}}")
    refuse_names(service, monkeypatch, f"{rule}-01")

    assert made.enrol(made.machine("a")).json["config"]["node"]["name"] == f"{rule}-02"
    assert made.properties["uses"] == 1


def test_name_of_another_node_of_the_cluster_takes_no_use(
    service: Running, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = made.machine("a")
    refuse_names(service, monkeypatch, machine.hostname)
    assert_refused(made.enrol(machine), 409, "NodeNameTaken")
    assert (made.properties["uses"], made.machines) == (0, [])
    monkeypatch.undo()
    assert made.enrol(machine.wiped()).status == 200


def test_invalid_template_takes_no_use(service: Running) -> None:
    pool = f"ex{next(numbers)}"
    template = {"kubernetesAuth": {"method": "exec"}, "azureAuth": {"method": "managedIdentity"}}
    assert service.admin.pool("PUT", pool, body={"properties": {"template": template}}).status == 201
    made = PoolEnrolment.of(service.admin, pool)
    for _ in range(3):
        assert made.enrol(made.machine("a")).status == 400
    assert (made.properties["uses"], made.machines) == (0, [])


def test_name_of_a_living_node_without_a_record_is_taken(service: Running) -> None:
    """The provider was restored from a backup, and does not know the node."""
    rule = f"rest{next(numbers)}"
    made = PoolEnrolment.of(service.admin, f"er{next(numbers)}", nodeName=f"{rule}-{{number:02}}")
    living = MachineIdentity("a" * 32, "old", "10.0.0.77", "Ubuntu")
    service.clusters.machines[f"{rule}-01"] = NodeMachine(living, ready=True)

    assert made.enrol(made.machine("a")).json["config"]["node"]["name"] == f"{rule}-02"
    assert made.properties["uses"] == 1


def test_numbers_are_found_behind_many_nodes(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enroller, "NAME_ATTEMPTS", 3)
    rule = f"many{next(numbers)}-{{number}}"
    made = PoolEnrolment.of(service.admin, f"em{next(numbers)}", maxUses=9, nodeName=rule)
    for each in range(8):
        assert made.enrol(made.machine(str(each))).status == 200
    other = PoolEnrolment.of(service.admin, made.pool, nodeName=rule)
    machine = made.machine("late")
    assert [other.enrol(machine).status for _ in range(3)] == [429, 429, 200]


def test_machine_is_not_enrolled_if_the_url_is_revoked_meanwhile(
    service: Running, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mint = service.service.context.store, service.clusters.mint

    async def slow(key: str, node: str, expires: float) -> Any:
        found = await store.enrolment(PLANT.key, made.id)
        assert found
        await store.put_enrolment(replace(found, revoked=time.time()))
        return await mint(key, node, expires)

    monkeypatch.setattr(service.clusters, "mint", slow)
    machine = made.machine("a")
    assert_refused(made.enrol(machine), 409, "EnrolmentRevoked")
    assert service.admin.get(machine.hostname).status == 404
