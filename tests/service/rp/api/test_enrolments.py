"""Enrolments over HTTP: limits, approval, names, clones, re-imaging, revocation, and the resource."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_keys import AUDIENCE_HEADER, fingerprint
from aks_flex_rp.nodes import enrolment_operations
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

    Enrol = Callable[..., PoolEnrolment]


def test_machines_enrol_with_one_url(admin: Api, made: PoolEnrolment) -> None:
    for name in ("a", "b"):
        machine = made.machine(name)
        answer = made.enrol(machine)
        assert answer.status == 200, answer
        assert answer.headers[AUDIENCE_HEADER.lower()] == AUDIENCE
        assert answer.json["config"]["node"]["name"] == machine.hostname
        assert answer.json["config"]["azure"]["bootstrapToken"]["token"]
        assert admin.get(machine.hostname).properties["poolName"] == made.pool
        status = admin.status(machine.hostname)
        assert (status["nodeKey"]["thumbprint"], status["joinState"]) == (machine.key.thumbprint, "ConfigFetched")
        assert machine.as_node(admin).get().status == 200
    assert (made.uses, made.properties["state"]) == (2, "Exhausted")
    assert [each["detail"]["use"] for each in made.events("machine.enrolled")] == [2, 1]
    assert {each["nodeName"] for each in made.machines} == {f"{made.pool}-a", f"{made.pool}-b"}


def test_url_is_shown_once(made: PoolEnrolment) -> None:
    shown = made.admin.pool("GET", made.pool, "enrolments")
    assert [each["name"] for each in shown.json["value"]] == [made.id]
    assert "/enrolments/" in made.url
    assert "enrolmentUrl" not in shown.text
    assert made.url.rpartition("/")[2] not in str(made.properties)


def test_machine_that_comes_back_takes_no_second_use(made: PoolEnrolment) -> None:
    machine = made.machine("a")
    first, second = (made.enrol(machine).json["config"] for _ in range(2))
    assert first["node"]["name"] == second["node"]["name"]
    assert first["azure"]["bootstrapToken"] != second["azure"]["bootstrapToken"]
    assert made.uses == 1


def test_use_beyond_the_limit_is_refused(enrolment: Enrol) -> None:
    made = enrolment(maxUses=1)
    made.enrolled("a")
    made.refuses(made.machine("b"), "EnrolmentExhausted")
    [event] = made.events("enrolment.refused")
    assert (event["outcome"], event["source"]) == ("denied", "127.0.0.1")
    assert event["detail"]["reason"] == "EnrolmentExhausted"
    assert event["detail"]["facts"]["hostname"] == f"{made.pool}-b"


def in_parallel(made: PoolEnrolment, machines: list[EnrollingMachine]) -> list[Answer]:
    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(made.enrol, machines))


def names_of(answers: list[Answer]) -> list[str]:
    return [each.json["config"]["node"]["name"] for each in answers if each.status == 200]


def test_parallel_clients_never_exceed_the_limit(enrolment: Enrol) -> None:
    made = enrolment(maxUses=3, nodeName="par-{number:03}")
    answers = in_parallel(made, [made.machine(str(each)) for each in range(20)])
    names = names_of(answers)
    assert len(names) == len(set(names)) == 3
    assert [each.error["code"] for each in answers if each.status != 200] == ["EnrolmentExhausted"] * 17
    assert made.uses == 3


def test_same_key_in_parallel_takes_one_use(enrolment: Enrol) -> None:
    made = enrolment(maxUses=5, nodeName="same-{number}")
    answers = in_parallel(made, [made.machine("a", key=HeldKey(), system_uuid="", id="a" * 32)] * 4)
    assert (len(set(names_of(answers))), made.uses) == (1, 1)


def test_revoked_enrolment_refuses_new_machines_only(made: PoolEnrolment) -> None:
    machine = made.enrolled("a")
    assert made.act("revoke").properties["state"] == "Revoked"
    made.refuses(made.machine("b"), "EnrolmentRevoked")
    assert made.enrol(machine).status == 200  # its node exists, and it may retry the join
    assert made.act("revoke").status == 200


def expire(service: Running, made: PoolEnrolment) -> None:
    store = service.store
    found = service.call(store.enrolment(PLANT.key, made.id))
    assert found
    service.call(store.put_enrolment(replace(found, expires=1.0)))


def test_expired_enrolment_is_refused(service: Running, made: PoolEnrolment) -> None:
    expire(service, made)
    made.refuses(made.machine("a"), "EnrolmentExpired")
    assert made.properties["state"] == "Expired"


def test_unknown_url_is_not_found(admin: Api, made: PoolEnrolment) -> None:
    wrong = replace(made, url=made.url.partition("/enrolments/")[0] + "/enrolments/x")
    wrong.refuses(made.machine("a"), "EnrolmentNotFound", 404)
    answer = admin.fetch(wrong.url)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("proof", ["", "x.y.z", 7, None])
def test_machine_without_a_proof_is_refused(made: PoolEnrolment, proof: Any) -> None:
    assert made.enrol(made.machine("a"), proof=proof).status == 400
    assert made.uses == 0


def test_proof_for_another_url_is_refused(enrolment: Enrol) -> None:
    made, other = enrolment(), enrolment()
    machine = made.machine("a")
    made.enrol(machine, proof=machine.key.url_proof(other.url)).assert_refused(400, "InvalidNodeKey")


# Names


def test_nodes_are_numbered_and_taken_numbers_are_skipped(admin: Api, enrolment: Enrol) -> None:
    made = enrolment(maxUses=3, nodeName="num-{number:04}")
    admin.put("num-0002")
    names = [made.node_of(made.machine(str(each))) for each in range(3)]
    assert names == ["num-0001", "num-0003", "num-0004"]


def test_node_is_named_by_serial_number(enrolment: Enrol) -> None:
    made = enrolment(nodeName="edge-{serial}")
    assert made.node_of(made.machine("a", serial="AB 12/3")) == "edge-ab-12-3"


@pytest.mark.parametrize("serial", ["", "To Be Filled By O.E.M.", "0000", "é"])
def test_serial_number_of_many_machines_makes_no_name(enrolment: Enrol, serial: str) -> None:
    made = enrolment(nodeName="edge-{serial}")
    made.refuses(made.machine("a", serial=serial), "NodeNameInvalid")
    assert made.uses == 0


def test_name_of_another_node_is_refused_without_a_use(admin: Api, made: PoolEnrolment) -> None:
    machine = made.machine("a")
    admin.put(machine.hostname)
    for each in (machine, replace(machine, key=HeldKey(), system_uuid="")):
        made.refuses(each, "NodeNameTaken")
    assert made.uses == 0
    admin.delete(machine.hostname)
    assert made.enrol(machine).status == 200


def test_two_machines_with_one_host_name_never_share_a_node(enrolment: Enrol) -> None:
    made = enrolment(maxUses=4)
    answers = in_parallel(made, [made.machine("same") for _ in range(4)])
    assert sorted(each.status for each in answers) == [200, 409, 409, 409]
    assert made.uses == 1


def claim(service: Running, made: PoolEnrolment, machine: EnrollingMachine) -> str:
    """Takes a use for the machine, as a provider that stops before it creates the node. Returns the node's name."""
    found = service.call(service.store.enrolment(PLANT.key, made.id))
    assert found
    return service.call(service.service.enroller._claim(found, machine.request)).node


@pytest.mark.parametrize("rule", ["{hostname}", "again-{number}"])
def test_interrupted_claim_is_continued(service: Running, enrolment: Enrol, rule: str) -> None:
    made = enrolment(nodeName=rule)
    machine = made.machine("a")
    name = claim(service, made, machine)
    assert service.admin.get(name).status == 404
    assert (made.node_of(machine), made.uses) == (name, 1)


def test_name_taken_after_the_claim_gives_the_use_back(service: Running, made: PoolEnrolment) -> None:
    machine = made.machine("a")
    service.admin.put(claim(service, made, machine))
    made.refuses(machine, "NodeNameTaken")
    assert (made.uses, made.machines) == (0, [])
    assert len(made.events("machine.notEnrolled")) == 1


def test_number_taken_after_the_claim_is_replaced(service: Running, enrolment: Enrol) -> None:
    made = enrolment(nodeName="taken-{number}")
    machine = made.machine("a")
    service.admin.put(claim(service, made, machine))
    assert (made.node_of(machine), made.uses) == ("taken-2", 1)


def test_enrolment_revoked_after_the_claim_creates_no_node(service: Running, made: PoolEnrolment) -> None:
    machine = made.machine("a")
    name = claim(service, made, machine)
    made.act("revoke")
    made.refuses(machine, "EnrolmentRevoked")
    assert service.admin.get(name).status == 404
    assert (made.uses, made.machines) == (0, [])


def test_deleted_node_frees_its_name(admin: Api, made: PoolEnrolment) -> None:
    machine = made.enrolled("a")
    admin.delete(machine.hostname)
    assert made.machines == []
    assert made.enrol(machine.wiped()).status == 200
    assert made.uses == 2


# Approval


def test_machine_waits_for_approval_by_fingerprint(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    machine = made.machine("a")
    shown = fingerprint(machine.key.thumbprint)
    for _ in range(2):
        answer = made.enrol(machine)
        assert (answer.status, answer.json["fingerprint"]) == (202, shown)
    assert (made.uses, made.properties["waiting"]) == (0, 1)
    assert [(each["fingerprint"], each["state"]) for each in made.machines] == [(shown, "Waiting")]
    assert made.act("approve", {"fingerprint": shown.upper()}).json["state"] == "Approved"
    assert made.enrol(machine).status == 200
    assert (made.uses, made.properties["waiting"]) == (1, 0)
    [approved] = made.events("machine.approved")
    assert approved["detail"]["fingerprint"] == shown
    made.act("reject", {"fingerprint": shown}).assert_refused(409, "MachineEnrolled")


def test_rejected_machine_is_refused_until_it_is_approved(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    machine = made.machine("a")
    shown = made.enrol(machine).json["fingerprint"]
    assert made.act("reject", {"fingerprint": shown}).json["state"] == "Rejected"
    made.refuses(machine, "MachineRejected")
    made.approve(machine)
    assert made.enrol(machine).status == 200


def test_approval_of_an_unknown_fingerprint_is_not_found(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    made.act("approve", {"fingerprint": "0000-0000"}).assert_refused(404, "MachineNotFound")
    made.act("approve", {}).assert_refused(400, "InvalidRequestContent")


def test_approved_machine_needs_a_free_use(enrolment: Enrol) -> None:
    made = enrolment(approval="manual", maxUses=1)
    machines = [made.machine(name) for name in ("a", "b")]
    for each in machines:
        assert made.enrol(each).status == 202
        made.approve(each)
    assert made.enrol(machines[0]).status == 200
    made.refuses(machines[1], "EnrolmentExhausted")


UUID = "8F1C0B2E-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        ({"serialNumber": "sn 1"}, {"serialNumber": "SN  1"}),
        ({"systemUuid": UUID}, {"systemUuid": UUID.lower()}),
        ({"macAddress": "AA-BB-CC-DD-EE-01"}, {"macAddresses": ["aa:bb:cc:dd:ee:00", "aa:bb:cc:dd:ee:01"]}),
    ],
)
def test_allow_list_admits_listed_machines_only(
    enrolment: Enrol, entry: dict[str, str], facts: dict[str, Any]
) -> None:
    made = enrolment(approval="allowList", allow=[{"serialNumber": "other"}, entry])
    made.enrolled("a", more=facts)
    made.refuses(made.machine("b"), "NotOnAllowList")


# Clones and re-imaging


def test_second_key_of_a_system_is_a_clone(made: PoolEnrolment) -> None:
    machine = made.enrolled("a")
    made.refuses(made.machine("b", system_uuid=machine.system_uuid.upper()), "MachineCloned")
    assert made.uses == 1


@pytest.mark.parametrize(
    "system", ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "Not Settable"]
)
def test_placeholder_uuids_are_no_clones(made: PoolEnrolment, system: str) -> None:
    for name in ("a", "b"):
        made.enrolled(name, system_uuid=system)


@pytest.mark.parametrize("copy", [{"system_uuid": UUID}, {"id": "b" * 32}], ids=["system", "machine ID"])
def test_copied_disk_on_another_machine_is_refused(made: PoolEnrolment, copy: dict[str, Any]) -> None:
    made.refuses(replace(made.enrolled("a"), **copy), "MachineCloned")


def test_copied_disk_of_a_living_node_is_refused(service: Running, made: PoolEnrolment) -> None:
    made.refuses(made.joined(service), "MachineCloned")


def test_released_node_is_taken_over_by_the_new_key(service: Running, enrolment: Enrol) -> None:
    made = enrolment(maxUses=1)
    machine = made.joined(service)
    wiped = machine.wiped()
    made.refuses(wiped, "MachineCloned")
    assert service.admin.act(machine.hostname, "release").json["state"] == "Released"
    assert (made.node_of(wiped), made.uses) == (machine.hostname, 1)
    [shown] = made.machines
    assert (shown["state"], shown["fingerprint"]) == ("Enrolled", fingerprint(wiped.key.thumbprint))
    made.refuses(machine.wiped(), "MachineCloned")
    assert wiped.as_node(service.admin).get().status == 200


def test_released_node_is_taken_over_by_another_enrolment(admin: Api, enrolment: Enrol) -> None:
    first, second = enrolment(), enrolment(approval="manual")
    machine = first.enrolled("a")
    admin.act(machine.hostname, "release")
    wiped = machine.wiped()
    assert second.enrol(wiped).status == 202
    second.approve(wiped)
    assert second.node_of(wiped) == machine.hostname
    assert (first.machines, len(second.machines)) == ([], 1)


def test_node_of_another_origin_cannot_be_released(admin: Api, name: str) -> None:
    admin.put(name)
    admin.act(name, "release").assert_refused(409, "NodeNotEnrolled")
    assert admin.act(f"{name}-never", "release").status == 404


# Hostile requests


@pytest.mark.parametrize(
    "facts",
    [
        {"hostname": "x" * 254},
        {"hostname": 7},
        {"macAddresses": ["aa:bb:cc:dd:ee:00"] * 33},
        {"macAddresses": "aa:bb:cc:dd:ee:00"},
        {"cpus": -1},
        {"memoryBytes": 2**60},
        {"cpus": True},
    ],
)
def test_invalid_facts_are_refused(made: PoolEnrolment, facts: dict[str, Any]) -> None:
    made.refuses(made.machine("a", more=facts), "InvalidRequestContent", 400)


def test_oversized_requests_are_refused(made: PoolEnrolment) -> None:
    made.enrol(made.machine("a"), unknown="x" * (17 << 10)).assert_refused(413, "RequestEntityTooLarge")


def test_control_characters_of_facts_are_removed(enrolment: Enrol) -> None:
    made = enrolment(nodeName="ctl-{number}", approval="manual")
    made.enrol(made.machine("a", more={"os": "a\x1b[31mb\u202ec", "hostname": "<script>"}))
    facts = made.machines[0]["facts"]
    assert (facts["os"], facts["hostname"]) == ("a[31mbc", "<script>")


# The resource


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"maxUses": 0}, "maxUses"),
        ({"maxUses": None}, "maxUses"),
        ({"maxUses": True}, "maxUses"),
        ({"expires": "tomorrow"}, "expires"),
        ({"expires": "2020-01-01T00:00:00Z"}, "expires"),
        ({"approval": "perhaps"}, "approval"),
        ({"approval": "allowList"}, "allow"),
        ({"allow": [{"serialNumber": "1a"}]}, "allow"),
        (
            {"approval": "allowList", "allow": [{"serialNumber": "1a"}, {"serialNumber": "0"}]},
            "allow[1].serialNumber",
        ),
        ({"approval": "allowList", "allow": [{"name": "x"}]}, "allow[0]"),
        ({"nodeName": "edge"}, "nodeName"),
        ({"nodeName": "Edge-{number}"}, "nodeName"),
        ({"nodeName": "{user}"}, "nodeName"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_enrolments_are_refused(made: PoolEnrolment, body: dict[str, Any], target: str) -> None:
    sent = {"maxUses": 1, "expires": made.properties["expires"], **body}
    made.admin.pool("POST", made.pool, "enrolments", body=sent).assert_refused(400, "InvalidRequestContent", target)


def test_machines_are_listed_in_pages(enrolment: Enrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_operations, "AT_ONCE", 2)
    made = enrolment(maxUses=5)
    names = [made.enrolled(f"page-{number}").hostname for number in range(5)]

    pages: list[list[str]] = []
    after = ""
    while not pages or after:
        page = made.act("listMachines", {"after": after} if after else None).json
        pages.append([each["nodeName"] for each in page["value"]])
        after = page.get("after", "")

    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(chain(*pages)) == names
    made.act("listMachines", {"after": "no key"}).assert_refused(400, "InvalidRequestContent")


def test_machine_without_a_node_is_found_among_many(enrolment: Enrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_operations, "AT_ONCE", 2)
    made = enrolment(maxUses=5, approval="manual")
    machines = [made.machine(f"many-{number}") for number in range(5)]
    shown = [made.enrol(each).json["fingerprint"] for each in machines]

    assert sorted(each["fingerprint"] for each in made.machines) == sorted(shown)
    assert {made.approve(each).json["state"] for each in machines} == {"Approved"}


def test_enrolments_end_with_their_pool(admin: Api, made: PoolEnrolment) -> None:
    assert admin.pool("DELETE", made.pool).status == 200
    assert len(made.events("enrolment.revoked")) == 1
    made.refuses(made.machine("a"), "EnrolmentNotFound", 404)
    admin.pool("GET", made.pool, "enrolments").assert_refused(404, "PoolNotFound")


def test_reader_sees_enrolments_and_changes_none(admin: Api, tenant: Tenant, made: PoolEnrolment) -> None:
    reader = replace(made, admin=admin.by(tenant, callers.READER))
    assert reader.uses == 0
    assert reader.act("revoke").status == 403
    assert reader.admin.pool("POST", made.pool, "enrolments", body={}).status == 403
