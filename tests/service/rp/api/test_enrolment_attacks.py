"""Attacks on enrolments: takeovers that no operator meant, names that are not free, revoked keys, and floods."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.errors import ClusterError
from aks_flex_rp.api import routes
from aks_flex_rp.bounded_memory import Throttle
from aks_flex_rp.clusters.node_controller import NodeMachine
from aks_flex_rp.counted_events import WINDOW_SECONDS
from aks_flex_rp.nodes import enroller
from aks_flex_rp.nodes.enroller import Enroller
from tests.node_key_client import HeldKey
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import TWO, Machine, observe
from tests.service.rp.api.test_enrolments import claim, expire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

    Enrol = Callable[..., PoolEnrolment]


@pytest.fixture
def made(enrolment: Enrol) -> PoolEnrolment:
    return enrolment(maxUses=5)


@pytest.fixture
def first(service: Running, made: PoolEnrolment) -> EnrollingMachine:
    """Returns a machine that has enrolled and joined."""
    return made.joined(service)


@pytest.fixture
def guarded(admin: Api, name: str) -> PoolEnrolment:
    """Returns an enrolment of another pool, whose machines wait for approval."""
    return PoolEnrolment.of(admin, f"g{name.replace('-', '')}", approval="manual", maxUses=9)


@pytest.fixture
def released(admin: Api, first: EnrollingMachine) -> EnrollingMachine:
    """Returns a machine whose node was released."""
    assert admin.act(first.hostname, "release").status == 200
    return first


def fetch_as_other(admin: Api, node: str) -> Machine:
    """Lets another machine fetch the configuration of the node, which was to be replaced."""
    other = Machine(admin, node, TWO)
    assert other.fetch(admin.new_url(node, replaceMachine=True)).status == 200
    return other


def move(admin: Api, node: str) -> Machine:
    """Gives the node to another machine, which is alive."""
    other = fetch_as_other(admin, node)
    assert other.get().status == 200
    return other


def node_key(admin: Api, node: str) -> Any:
    return admin.status(node)["nodeKey"]


# Takeovers


def test_node_that_moved_is_not_released_to_its_first_machine(
    admin: Api, made: PoolEnrolment, first: EnrollingMachine
) -> None:
    other = move(admin, first.hostname)
    refused = admin.act(first.hostname, "release")
    refused.assert_refused(409, "NodeNotEnrolled")
    assert "given to another machine" in refused.error["message"]
    for each in (first.wiped(), first):
        made.refuses(each, "MachineCloned")
    assert other.get().status == 200


@pytest.mark.parametrize("wiped", [True, False])
def test_release_ends_when_the_node_gets_another_key(
    admin: Api, made: PoolEnrolment, released: EnrollingMachine, wiped: bool
) -> None:
    """The node was released and then given to another machine, which lives. The release is not for that one."""
    other = move(admin, released.hostname)

    thief = released.wiped() if wiped else released
    made.refuses(thief, "MachineCloned" if wiped else "NodeKeyRevoked")

    assert node_key(admin, released.hostname)["thumbprint"] == other.key.thumbprint
    assert other.get().status == 200
    assert thief.as_node(admin).get().status != 200


def test_revocation_ends_an_earlier_release(admin: Api, made: PoolEnrolment, released: EnrollingMachine) -> None:
    """The machine was to be re-imaged, and is stolen before. Its node must not come back with another key."""
    assert admin.act(released.hostname, "revokeKey").status == 200
    wiped = released.wiped()
    made.refuses(wiped, "MachineCloned")
    assert node_key(admin, released.hostname)["state"] == "Revoked"
    assert admin.act(released.hostname, "release").status == 200, "an operator decides again"
    assert made.enrol(wiped).status == 200
    assert wiped.as_node(admin).get().status == 200


def test_release_does_not_come_back_after_a_revocation(
    admin: Api, made: PoolEnrolment, first: EnrollingMachine
) -> None:
    name = first.hostname
    for action in ("revokeKey", "release"):
        assert admin.act(name, action).status == 200
    move(admin, name)
    assert admin.act(name, "revokeKey").status == 200

    thief = first.wiped()
    made.refuses(thief, "MachineCloned")
    assert node_key(admin, name).get("thumbprint") != thief.key.thumbprint


@pytest.mark.parametrize("state", ["takeover", "claim"])
def test_key_revoked_during_an_enrolment_is_not_bound(
    service: Running, made: PoolEnrolment, first: EnrollingMachine, state: str
) -> None:
    """The revocation comes between the decision of the enrolment and the write of the node."""
    node, machine = first.hostname, first
    if state == "takeover":
        service.admin.act(node, "release")
        machine = first.wiped()
        claim(service, made, machine)  # the provider stops before it writes the node
    else:
        service.clusters.machines.pop(node)
    commands = service.service.enroller.commands

    class Revoking:
        """Revokes the key just before the node is written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(commands, name)

        async def regenerate(self, *values: Any, **named: Any) -> Any:
            store, now = commands.context.store, commands.context.now()
            found = await store.node(PLANT.key, node)
            assert found
            await store.put_node(replace(found, join=found.join.key_revoked(now, "")), found.etag)
            return await commands.regenerate(*values, **named)

    found = service.call(commands.context.store.enrolment(PLANT.key, made.id))
    assert found
    with pytest.raises(Exception, match=r"revoked|not released"):
        service.call(Enroller(Revoking()).enrol(found, machine.request))  # type: ignore[arg-type]
    assert node_key(service.admin, node)["state"] == "Revoked"


def test_url_of_another_pool_takes_no_released_node(
    service: Running, made: PoolEnrolment, guarded: PoolEnrolment
) -> None:
    """The system UUID is no secret, and the other pool admits machines without an approval."""
    machine = guarded.machine("a")
    assert guarded.enrol(machine).status == 202
    guarded.approve(machine)
    node = guarded.node_of(machine)
    observe(service, node, machine.identity)
    service.admin.act(node, "release")

    thief = machine.wiped()

    made.refuses(thief, "NodeNameTaken")
    elsewhere = f"{made.pool}-b"
    assert made.node_of(replace(thief, hostname=elsewhere)) == elsewhere
    assert node_key(service.admin, node)["thumbprint"] == machine.key.thumbprint


def test_released_node_is_for_the_pool_that_it_is_in(
    admin: Api, made: PoolEnrolment, guarded: PoolEnrolment, first: EnrollingMachine
) -> None:
    assert admin.put(first.hostname, {"properties": {"poolName": guarded.pool}}).status == 200
    assert admin.act(first.hostname, "release").status == 200

    made.refuses(first.wiped(), "NodeNameTaken")
    made.refuses(first, "MachineCloned")
    again = first.wiped()
    assert guarded.enrol(again).status == 202
    guarded.approve(again)
    assert guarded.node_of(again) == first.hostname


def test_revoked_enrolment_takes_no_released_node(
    service: Running, made: PoolEnrolment, released: EnrollingMachine
) -> None:
    wiped = released.wiped()
    claim(service, made, wiped)
    made.act("revoke")
    assert [made.enrol(each).status for each in (released, wiped)] == [409, 409]
    assert node_key(service.admin, released.hostname)["thumbprint"] == released.key.thumbprint


def test_copy_of_a_released_disk_on_another_system_is_refused(
    made: PoolEnrolment, released: EnrollingMachine
) -> None:
    made.refuses(replace(released, system_uuid=made.machine("b").system_uuid), "MachineCloned")
    assert made.enrol(released).status == 200


def test_earlier_key_ends_with_the_takeover(admin: Api, made: PoolEnrolment, released: EnrollingMachine) -> None:
    new = released.wiped()
    assert made.enrol(new).status == 200

    assert released.as_node(admin).rotate(HeldKey()).status == 403
    assert [made.enrol(new).status for _ in range(3)] == [200, 200, 200]  # its answers were lost
    assert new.as_node(admin).get().status == 200
    again = made.refuses(new, "MachineCloned")
    assert again.error["message"].endswith(f"is alive on the machine {new.identity}.")


def test_earlier_key_does_not_displace_a_replacement(admin: Api, first: EnrollingMachine) -> None:
    other = fetch_as_other(admin, first.hostname)

    first.as_node(admin).rotate(HeldKey()).assert_refused(409, "Conflict")
    assert other.get().status == 200


def test_machine_is_only_what_was_approved(service: Running, guarded: PoolEnrolment) -> None:
    victim, evil = guarded.machine("victim"), guarded.machine("harmless")
    guarded.enrol(victim)
    guarded.approve(victim)
    observe(service, guarded.node_of(victim), victim.identity)
    assert service.admin.act(victim.hostname, "release").status == 200
    guarded.enrol(evil)
    changed = (replace(evil, system_uuid=victim.system_uuid), replace(evil, hostname=f"{guarded.pool}-payments"))
    for each in changed:
        guarded.approve(evil)
        assert guarded.enrol(each).status == 202
        [waiting] = [machine for machine in guarded.machines if machine["state"] == "Waiting"]
        assert waiting["facts"]["hostname"] == each.hostname
    assert guarded.uses == 1


def test_waiting_machines_do_not_hide_a_clone(made: PoolEnrolment, guarded: PoolEnrolment) -> None:
    victim = made.machine("a")
    for number in range(101):
        assert guarded.enrol(EnrollingMachine(f"x{number}", system_uuid=victim.system_uuid)).status == 202
    assert made.enrol(victim).status == 200

    made.refuses(replace(victim.wiped(), hostname=f"{made.pool}-b"), "MachineCloned")


def rotated(admin: Api, machine: EnrollingMachine, name: str) -> EnrollingMachine:
    """Replaces the key of a joined machine, and uses the new one."""
    new = replace(machine, key=HeldKey())
    assert machine.as_node(admin, name).rotate(new.key).status == 200
    assert new.as_node(admin, name).get().status == 200
    return new


@pytest.mark.parametrize("rule", ["{hostname}", "turn-{number:03}"])
def test_replaced_key_gets_no_second_node_from_its_use(service: Running, enrolment: Enrol, rule: str) -> None:
    made = enrolment(maxUses=1, nodeName=rule)
    first = made.machine("a")
    name = made.node_of(first)
    first = replace(first, hostname=name)
    observe(service, name, first.identity)

    rotated(service.admin, first, name)

    made.refuses(first, "MachineCloned")
    made.refuses(replace(first, hostname=f"{made.pool}-b", system_uuid=""), "EnrolmentExhausted")
    move(service.admin, name)
    made.refuses(first, "MachineCloned")
    assert made.uses == 1


def test_use_of_an_enrolment_follows_the_key(admin: Api, made: PoolEnrolment, first: EnrollingMachine) -> None:
    name = first.hostname
    second = rotated(admin, rotated(admin, first, name), name)

    assert [each["fingerprint"] for each in made.machines] == [fingerprint(second.key.thumbprint)]
    assert made.enrol(second).status == 409  # it is alive
    assert admin.act(name, "release").status == 200
    assert (made.node_of(first.wiped()), made.uses) == (name, 1)


def test_machine_without_a_system_uuid_cannot_be_released(admin: Api, made: PoolEnrolment) -> None:
    machine = made.enrolled("no-uuid", system_uuid="")

    refused = admin.act(machine.hostname, "release")

    refused.assert_refused(409, "NodeNotEnrolled")
    assert "--replace" in refused.error["message"]


@pytest.mark.parametrize("ended", ["revoked", "expired"])
def test_no_machine_is_approved_after_the_end(service: Running, guarded: PoolEnrolment, ended: str) -> None:
    machine = guarded.machine("late")
    shown = guarded.enrol(machine).json["fingerprint"]
    if ended == "revoked":
        assert guarded.act("revoke").status == 200
    else:
        expire(service, guarded)
    guarded.approve(machine).assert_refused(409, "EnrolmentEnded")
    assert guarded.act("reject", {"fingerprint": shown}).status == 200


# Names


@pytest.mark.parametrize("rule", ["{hostname}", "{name}-{number}"])
def test_name_given_by_two_replicas_at_once_is_given_once(
    service: Running, enrolment: Enrol, name: str, rule: str
) -> None:
    """Both give the same name through two enrolments: the other one is first, after this one looked."""
    one, other = (enrolment(nodeName=rule.replace("{name}", name)) for _ in range(2))
    winner, loser = EnrollingMachine(name), EnrollingMachine(name)
    look = service.service.enroller._name
    taken: list[str] = []

    async def late(found: Any, machine_request: Any) -> tuple[str, int]:
        result = await look(found, machine_request)
        if found.key == other.id and not taken:
            earlier = await service.store.enrolment(PLANT.key, one.id)
            assert earlier
            taken.append((await service.service.enroller._claim(earlier, winner.request)).node)
        return result

    object.__setattr__(service.service.enroller, "_name", late)
    try:
        answer = other.enrol(loser)
    finally:
        object.__delattr__(service.service.enroller, "_name")
    if "{number}" in rule:
        assert answer.json["config"]["node"]["name"] == f"{name}-2"
        assert other.uses == 1
    else:
        answer.assert_refused(409, "NodeNameTaken")
        assert (other.uses, other.machines) == (0, [])


def refuse_names(service: Running, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The cluster has Nodes of other origin with these names."""
    mint = service.clusters.mint

    async def refuse(key: str, node: str, expires: float) -> Any:
        if node in names:
            raise ClusterError("node-name-taken", f"The cluster already has a Node {node}.", "Choose another name.")
        return await mint(key, node, expires)

    monkeypatch.setattr(service.clusters, "mint", refuse)


@pytest.mark.parametrize("origin", ["another Node of the cluster", "a node without a record"])
def test_number_of_a_node_that_the_provider_does_not_know_is_skipped(
    service: Running, enrolment: Enrol, name: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster has a Node of other origin, or the provider was restored from a backup without the node."""
    made = enrolment(nodeName=f"{name}-{{number:02}}")
    if origin == "another Node of the cluster":
        refuse_names(service, monkeypatch, f"{name}-01")
    else:
        living = MachineIdentity("a" * 32, "old", "10.0.0.77", "Ubuntu")
        service.clusters.machines[f"{name}-01"] = NodeMachine(living, ready=True)

    assert (made.node_of(made.machine("a")), made.uses) == (f"{name}-02", 1)


def test_name_of_another_node_of_the_cluster_takes_no_use(
    service: Running, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = made.machine("a")
    refuse_names(service, monkeypatch, machine.hostname)
    made.refuses(machine, "NodeNameTaken")
    assert (made.uses, made.machines) == (0, [])
    monkeypatch.undo()
    assert made.enrol(machine.wiped()).status == 200


def test_numbers_are_found_behind_many_nodes(enrolment: Enrol, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enroller, "NAME_ATTEMPTS", 3)
    rule = f"{name}-{{number}}"
    made = enrolment(maxUses=9, nodeName=rule)
    for each in range(8):
        made.enrolled(str(each))
    other, machine = enrolment(nodeName=rule), made.machine("late")
    assert [other.enrol(machine).status for _ in range(3)] == [429, 429, 200]


def test_invalid_template_takes_no_use(admin: Api, made: PoolEnrolment) -> None:
    template = {"kubernetesAuth": {"method": "exec"}, "azureAuth": {"method": "managedIdentity"}}
    assert admin.put_pool(made.pool, template).status == 200
    assert [made.enrol(made.machine("a")).status for _ in range(3)] == [400] * 3
    assert (made.uses, made.machines) == (0, [])


def test_machine_is_not_enrolled_if_the_url_is_revoked_meanwhile(
    service: Running, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mint = service.store, service.clusters.mint

    async def slow(key: str, node: str, expires: float) -> Any:
        found = await store.enrolment(PLANT.key, made.id)
        assert found
        await store.put_enrolment(replace(found, revoked=time.time()))
        return await mint(key, node, expires)

    monkeypatch.setattr(service.clusters, "mint", slow)
    machine = made.machine("a")
    made.refuses(machine, "EnrolmentRevoked")
    assert service.admin.get(machine.hostname).status == 404


# Floods and failures that a holder of the URL reports


def test_refused_machines_do_not_fill_the_audit_log(service: Running, made: PoolEnrolment) -> None:
    """A machine with a revoked URL asks again and again, with another key each time."""
    taken = made.enrolled("a")
    made.refuses(made.machine("b", system_uuid=taken.system_uuid), "MachineCloned")
    made.act("revoke")
    assert {made.enrol(made.machine(f"c{each}")).status for each in range(20)} == {409}
    reasons = [each["detail"]["reason"] for each in made.events("enrolment.refused")]
    assert reasons == ["EnrolmentRevoked", "MachineCloned"]

    later = time.time() + WINDOW_SECONDS
    service.call(service.service.enroller.refusals.flush(service.store, later))

    counted = made.events("enrolment.refused")[0]
    assert (counted["detail"]["failures"], counted["detail"]["reason"]) == (19, "EnrolmentRevoked")
    assert (counted["outcome"], counted["source"]) == ("denied", "127.0.0.1")


def fail(made: PoolEnrolment, machine: EnrollingMachine, text: str) -> Answer:
    return made.enrol(machine, joinFailure=text)


def test_revoked_key_reports_no_failure_of_the_node(admin: Api, made: PoolEnrolment) -> None:
    """The machine was cut off. Another one fetched the configuration of the node since."""
    machine = made.enrolled("a")
    assert admin.act(machine.hostname, "revokeKey").status == 200
    fetch_as_other(admin, machine.hostname)

    fail(made, machine, "Run this.").assert_refused(404, "MachineNotFound")

    assert admin.status(machine.hostname)["joinState"] == "ConfigFetched"


def test_text_of_a_failed_join_has_no_control_characters(admin: Api, made: PoolEnrolment) -> None:
    machine = made.enrolled("a")
    assert fail(made, machine, "Preflight:\n\x1b[31mdisk\u202e\x00\ud800 full").status == 200
    status = admin.status(machine.hostname)
    assert (status["joinState"], status["joinFailure"]) == ("Failed", "Preflight:\n[31mdisk full")


def test_failed_joins_of_a_node_are_recorded_once_a_minute(
    admin: Api, made: PoolEnrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, other = made.enrolled("a"), made.enrolled("b")
    answers = [fail(made, machine, f"failure {each}") for each in range(10)]
    assert [each.status for each in answers] == [200] + [429] * 9
    assert 0 < int(answers[-1].headers["retry-after"]) <= routes.FAILURE_SECONDS
    assert len(admin.events(machine.hostname, "join.failed")) == 1
    assert fail(made, other, "of another node").status == 200

    monkeypatch.setattr(Throttle, "wait", lambda *_: 0.0)
    assert fail(made, machine, "a minute later").status == 200
    assert admin.status(machine.hostname)["joinFailure"] == "a minute later"


def test_revoked_key_names_the_enrolment_that_is_still_open(admin: Api, made: PoolEnrolment) -> None:
    """A machine without a system UUID becomes another node with the URL and another key."""
    first, second = made.enrolled("a", system_uuid=""), made.enrolled("b")
    revoked = admin.act(first.hostname, "revokeKey").json
    assert (revoked["poolName"], revoked["enrolmentName"]) == (made.pool, made.id)
    back = replace(first.wiped(), hostname=f"{made.pool}-back")
    assert made.enrol(back).status == 200

    made.act("revoke")
    assert "enrolmentName" not in admin.act(second.hostname, "revokeKey").json
    made.refuses(back.wiped(), "EnrolmentRevoked")
