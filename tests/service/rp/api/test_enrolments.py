"""Enrolments over HTTP: limits, approval, names, clones, re-imaging, revocation, and attacks on them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.enrolments import parse_facts
from aks_flex_node.api.machine_identity import MACHINE_HEADER
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, fingerprint
from aks_flex_rp.clusters.node_controller import NodeMachine
from aks_flex_rp.nodes import enrolment_operations
from aks_flex_rp.nodes.machine_provisioner import MachineRequest
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

    Enrol = Callable[..., PoolEnrolment]

numbers = count(1)


@pytest.fixture
def enrolment(service: Running) -> Enrol:
    pool = f"en{next(numbers)}"
    return lambda **body: PoolEnrolment.of(service.admin, pool, **body)


def join(service: Running, machine: EnrollingMachine, node: str) -> None:
    """Lets the cluster report the Node of an enrolled machine as Ready."""
    seen: dict[str, Any] = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2100-01-01T00:00:00Z"}
    seen |= {"kubeletVersion": "v1.34.4", "machine": machine.identity}
    service.clusters.machines[node] = NodeMachine(machine.identity, ready=True)
    service.call(service.service.join_tracker.on_node_observed(PLANT.key, node, seen))


def test_machines_enrol_with_one_url(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    for name in ("a", "b"):
        machine = made.machine(name)
        answer = made.enrol(machine)
        assert answer.status == 200, answer
        assert answer.headers[AUDIENCE_HEADER.lower()] == "aks-flex-rp:of-plant"
        node = service.admin.get(machine.hostname)
        assert answer.json["config"]["node"]["name"] == machine.hostname
        assert answer.json["config"]["azure"]["bootstrapToken"]["token"]
        assert node.properties["poolName"] == made.pool
        assert node.properties["status"]["nodeKey"]["thumbprint"] == machine.key.thumbprint
        assert node.properties["status"]["joinState"] == "ConfigFetched"
    assert (made.properties["uses"], made.properties["state"]) == (2, "Exhausted")
    assert [each["detail"]["use"] for each in made.events("machine.enrolled")] == [2, 1]
    assert {each["nodeName"] for each in made.machines} == {f"{made.pool}-a", f"{made.pool}-b"}


def test_enrolled_machine_polls_by_its_key(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    assertion = machine.key.assertion(PLANT.node(machine.hostname), "aks-flex-rp:of-plant")
    api = service.admin.as_somebody(f"Bearer {assertion}")
    assert api.get(machine.hostname, **{MACHINE_HEADER: machine.identity.to_header()}).status == 200


def test_url_is_shown_once(enrolment: Enrol) -> None:
    made = enrolment()
    shown = made.admin.pool("GET", made.pool, "enrolments")
    assert [each["name"] for each in shown.json["value"]] == [made.id]
    assert "/enrolments/" in made.url
    assert "enrolmentUrl" not in shown.text
    assert made.url.rpartition("/")[2] not in str(made.properties)


def test_machine_that_comes_back_takes_no_second_use(enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    first, second = made.enrol(machine), made.enrol(machine)
    assert (first.status, second.status) == (200, 200)
    assert first.json["config"]["node"]["name"] == second.json["config"]["node"]["name"]
    assert first.json["config"]["azure"]["bootstrapToken"] != second.json["config"]["azure"]["bootstrapToken"]
    assert made.properties["uses"] == 1


def test_use_beyond_the_limit_is_refused(enrolment: Enrol) -> None:
    made = enrolment(maxUses=1)
    assert made.enrol(made.machine("a")).status == 200
    assert_refused(made.enrol(made.machine("b")), 409, "EnrolmentExhausted")
    [event] = made.events("enrolment.refused")
    assert event["outcome"] == "denied"
    assert event["detail"]["reason"] == "EnrolmentExhausted"
    assert event["detail"]["facts"]["hostname"] == f"{made.pool}-b"
    assert event["source"] == "127.0.0.1"


def in_parallel(made: PoolEnrolment, machines: list[EnrollingMachine]) -> list[Answer]:
    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(made.enrol, machines))


def test_parallel_clients_never_exceed_the_limit(enrolment: Enrol) -> None:
    made = enrolment(maxUses=3, nodeName="par-{number:03}")
    answers = in_parallel(made, [made.machine(str(each)) for each in range(20)])
    names = [each.json["config"]["node"]["name"] for each in answers if each.status == 200]
    assert len(names) == len(set(names)) == 3
    assert [each.json["error"]["code"] for each in answers if each.status != 200] == ["EnrolmentExhausted"] * 17
    assert made.properties["uses"] == 3


def test_same_key_in_parallel_takes_one_use(enrolment: Enrol) -> None:
    made = enrolment(maxUses=5, nodeName="same-{number}")
    answers = in_parallel(made, [made.machine("a", key=HeldKey(), system_uuid="", id="a" * 32)] * 4)
    names = {each.json["config"]["node"]["name"] for each in answers if each.status == 200}
    assert len(names) == 1
    assert made.properties["uses"] == 1


def test_revoked_enrolment_refuses_new_machines_only(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    assert made.act("revoke").json["properties"]["state"] == "Revoked"
    assert_refused(made.enrol(made.machine("b")), 409, "EnrolmentRevoked")
    assert service.admin.get(machine.hostname).status == 200
    assert made.enrol(machine).status == 200  # its node exists, and it may retry the join
    assert made.act("revoke").status == 200


def test_expired_enrolment_is_refused(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    context = service.service.context
    found = service.call(context.store.enrolment(PLANT.key, made.id))
    assert found
    service.call(context.store.put_enrolment(replace(found, expires=1.0)))
    assert_refused(made.enrol(made.machine("a")), 409, "EnrolmentExpired")
    assert made.properties["state"] == "Expired"


def test_unknown_url_is_not_found(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    wrong = replace(made, url=made.url.partition("/enrolments/")[0] + "/enrolments/x")
    assert_refused(wrong.enrol(made.machine("a")), 404, "EnrolmentNotFound")
    answer = service.admin.fetch(wrong.url)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("proof", ["", "x.y.z", 7, None])
def test_machine_without_a_proof_is_refused(enrolment: Enrol, proof: Any) -> None:
    made = enrolment()
    assert made.enrol(made.machine("a"), proof=proof).status == 400
    assert made.properties["uses"] == 0


def test_proof_for_another_url_is_refused(enrolment: Enrol) -> None:
    made, other = enrolment(), enrolment()
    machine = made.machine("a")
    assert_refused(made.enrol(machine, proof=machine.key.url_proof(other.url)), 400, "InvalidNodeKey")


# Names


def test_nodes_are_numbered_and_taken_numbers_are_skipped(service: Running, enrolment: Enrol) -> None:
    made = enrolment(maxUses=3, nodeName="num-{number:04}")
    service.admin.put("num-0002")
    names = [made.enrol(made.machine(str(each))).json["config"]["node"]["name"] for each in range(3)]
    assert names == ["num-0001", "num-0003", "num-0004"]


def test_node_is_named_by_serial_number(enrolment: Enrol) -> None:
    made = enrolment(nodeName="edge-{serial}")
    answer = made.enrol(made.machine("a", serial="AB 12/3"))
    assert answer.json["config"]["node"]["name"] == "edge-ab-12-3"


@pytest.mark.parametrize("serial", ["", "To Be Filled By O.E.M.", "0000", "é"])
def test_serial_number_of_many_machines_makes_no_name(enrolment: Enrol, serial: str) -> None:
    made = enrolment(nodeName="edge-{serial}")
    assert_refused(made.enrol(made.machine("a", serial=serial)), 409, "NodeNameInvalid")
    assert made.properties["uses"] == 0


def test_name_of_another_node_is_refused_without_a_use(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    service.admin.put(machine.hostname)
    assert_refused(made.enrol(machine), 409, "NodeNameTaken")
    assert made.properties["uses"] == 0
    assert_refused(made.enrol(replace(machine, key=HeldKey(), system_uuid="")), 409, "NodeNameTaken")
    service.admin.delete(machine.hostname)
    assert made.enrol(machine).status == 200


def test_two_machines_with_one_host_name_never_share_a_node(enrolment: Enrol) -> None:
    made = enrolment(maxUses=4)
    answers = in_parallel(made, [made.machine("same") for _ in range(4)])
    assert sorted(each.status for each in answers) == [200, 409, 409, 409]
    assert made.properties["uses"] == 1


def claim(service: Running, made: PoolEnrolment, machine: EnrollingMachine) -> str:
    """Takes a use for the machine, as a provider that stops before it creates the node. Returns the node's name."""
    found = service.call(service.service.context.store.enrolment(PLANT.key, made.id))
    assert found
    facts = parse_facts(machine.facts)
    asking = MachineRequest(machine.key.thumbprint, facts, machine.identity, "127.0.0.1", "r")
    return service.call(service.service.enroller._claim(found, asking)).node


@pytest.mark.parametrize("rule", ["{hostname}", "again-{number}"])
def test_interrupted_claim_is_continued(service: Running, enrolment: Enrol, rule: str) -> None:
    made = enrolment(nodeName=rule)
    machine = made.machine("a")
    name = claim(service, made, machine)
    assert service.admin.get(name).status == 404
    assert made.enrol(machine).json["config"]["node"]["name"] == name
    assert made.properties["uses"] == 1


def test_name_taken_after_the_claim_gives_the_use_back(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    service.admin.put(claim(service, made, machine))
    assert_refused(made.enrol(machine), 409, "NodeNameTaken")
    assert (made.properties["uses"], made.machines) == (0, [])
    assert len(made.events("machine.notEnrolled")) == 1


def test_number_taken_after_the_claim_is_replaced(service: Running, enrolment: Enrol) -> None:
    made = enrolment(nodeName="taken-{number}")
    machine = made.machine("a")
    service.admin.put(claim(service, made, machine))
    assert made.enrol(machine).json["config"]["node"]["name"] == "taken-2"
    assert made.properties["uses"] == 1


def test_enrolment_revoked_after_the_claim_creates_no_node(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    name = claim(service, made, machine)
    made.act("revoke")
    assert_refused(made.enrol(machine), 409, "EnrolmentRevoked")
    assert service.admin.get(name).status == 404
    assert (made.properties["uses"], made.machines) == (0, [])


def test_deleted_node_frees_its_name(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    service.admin.delete(machine.hostname)
    assert made.machines == []
    assert made.enrol(machine.wiped()).status == 200
    assert made.properties["uses"] == 2


# Approval


def test_machine_waits_for_approval_by_fingerprint(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    machine = made.machine("a")
    shown = fingerprint(machine.key.thumbprint)
    for _ in range(2):
        answer = made.enrol(machine)
        assert (answer.status, answer.json["fingerprint"]) == (202, shown)
    assert (made.properties["uses"], made.properties["waiting"]) == (0, 1)
    assert [(each["fingerprint"], each["state"]) for each in made.machines] == [(shown, "Waiting")]
    assert made.act("approve", {"fingerprint": shown.upper()}).json["state"] == "Approved"
    assert made.enrol(machine).status == 200
    assert (made.properties["uses"], made.properties["waiting"]) == (1, 0)
    [approved] = made.events("machine.approved")
    assert approved["detail"]["fingerprint"] == shown
    assert_refused(made.act("reject", {"fingerprint": shown}), 409, "MachineEnrolled")


def test_rejected_machine_is_refused_until_it_is_approved(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    machine = made.machine("a")
    shown = {"fingerprint": made.enrol(machine).json["fingerprint"]}
    assert made.act("reject", shown).json["state"] == "Rejected"
    assert_refused(made.enrol(machine), 409, "MachineRejected")
    made.act("approve", shown)
    assert made.enrol(machine).status == 200


def test_approval_of_an_unknown_fingerprint_is_not_found(enrolment: Enrol) -> None:
    made = enrolment(approval="manual")
    assert_refused(made.act("approve", {"fingerprint": "0000-0000"}), 404, "MachineNotFound")
    assert_refused(made.act("approve", {}), 400, "InvalidRequestContent")


def test_approved_machine_needs_a_free_use(enrolment: Enrol) -> None:
    made = enrolment(approval="manual", maxUses=1)
    machines = [made.machine(name) for name in ("a", "b")]
    for each in machines:
        made.act("approve", {"fingerprint": made.enrol(each).json["fingerprint"]})
    assert made.enrol(machines[0]).status == 200
    assert_refused(made.enrol(machines[1]), 409, "EnrolmentExhausted")


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        ({"serialNumber": "sn 1"}, {"serialNumber": "SN  1"}),
        (
            {"systemUuid": "8F1C0B2E-1111-4222-8333-444455556666"},
            {"systemUuid": "8f1c0b2e-1111-4222-8333-444455556666"},
        ),
        ({"macAddress": "AA-BB-CC-DD-EE-01"}, {"macAddresses": ["aa:bb:cc:dd:ee:00", "aa:bb:cc:dd:ee:01"]}),
    ],
)
def test_allow_list_admits_listed_machines_only(
    enrolment: Enrol, entry: dict[str, str], facts: dict[str, Any]
) -> None:
    made = enrolment(approval="allowList", allow=[{"serialNumber": "other"}, entry])
    assert made.enrol(made.machine("a", more=facts)).status == 200
    assert_refused(made.enrol(made.machine("b")), 409, "NotOnAllowList")


# Clones and re-imaging


def test_second_key_of_a_system_is_a_clone(enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    clone = replace(made.machine("b"), system_uuid=machine.system_uuid.upper())
    assert_refused(made.enrol(clone), 409, "MachineCloned")
    assert made.properties["uses"] == 1


@pytest.mark.parametrize(
    "system", ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "Not Settable"]
)
def test_placeholder_uuids_are_no_clones(enrolment: Enrol, system: str) -> None:
    made = enrolment()
    answers = [made.enrol(made.machine(name, system_uuid=system)) for name in ("a", "b")]
    assert [each.status for each in answers] == [200, 200]


def test_copied_disk_on_another_machine_is_refused(enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    for copy in (replace(machine, system_uuid=made.machine("b").system_uuid), replace(machine, id="b" * 32)):
        assert_refused(made.enrol(copy), 409, "MachineCloned")


def test_copied_disk_of_a_living_node_is_refused(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    machine = made.machine("a")
    made.enrol(machine)
    join(service, machine, machine.hostname)
    assert_refused(made.enrol(machine), 409, "MachineCloned")


def test_released_node_is_taken_over_by_the_new_key(service: Running, enrolment: Enrol) -> None:
    made = enrolment(maxUses=1)
    machine = made.machine("a")
    made.enrol(machine)
    join(service, machine, machine.hostname)
    wiped = machine.wiped()
    assert_refused(made.enrol(wiped), 409, "MachineCloned")
    released = service.admin.ask("POST", service.admin.path(machine.hostname, "release"))
    assert released.json["state"] == "Released"
    answer = made.enrol(wiped)
    assert answer.status == 200, answer
    assert answer.json["config"]["node"]["name"] == machine.hostname
    assert made.properties["uses"] == 1
    assert [(each["state"], each["fingerprint"]) for each in made.machines] == [
        ("Enrolled", fingerprint(wiped.key.thumbprint))
    ]
    assert_refused(made.enrol(machine.wiped()), 409, "MachineCloned")
    assertion = wiped.key.assertion(PLANT.node(machine.hostname), "aks-flex-rp:of-plant")
    api = service.admin.as_somebody(f"Bearer {assertion}")
    assert api.get(machine.hostname, **{MACHINE_HEADER: wiped.identity.to_header()}).status == 200


def test_released_node_is_taken_over_by_another_enrolment(service: Running, enrolment: Enrol) -> None:
    first, second = enrolment(), enrolment(approval="manual")
    machine = first.machine("a")
    first.enrol(machine)
    service.admin.ask("POST", service.admin.path(machine.hostname, "release"))
    wiped = machine.wiped()
    second.act("approve", {"fingerprint": second.enrol(wiped).json["fingerprint"]})
    answer = second.enrol(wiped)
    assert answer.json["config"]["node"]["name"] == machine.hostname
    assert (first.machines, len(second.machines)) == ([], 1)


def test_node_of_another_origin_cannot_be_released(service: Running) -> None:
    service.admin.put("not-enrolled")
    answer = service.admin.ask("POST", service.admin.path("not-enrolled", "release"))
    assert_refused(answer, 409, "NodeNotEnrolled")
    assert service.admin.ask("POST", service.admin.path("not-there-at-all", "release")).status == 404


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
def test_invalid_facts_are_refused(enrolment: Enrol, facts: dict[str, Any]) -> None:
    made = enrolment()
    assert_refused(made.enrol(made.machine("a", more=facts)), 400, "InvalidRequestContent")


def test_oversized_requests_are_refused(enrolment: Enrol) -> None:
    made = enrolment()
    assert_refused(made.enrol(made.machine("a"), unknown="x" * (17 << 10)), 413, "RequestEntityTooLarge")


def test_control_characters_of_facts_are_removed(enrolment: Enrol) -> None:
    made = enrolment(nodeName="ctl-{number}", approval="manual")
    made.enrol(made.machine("a", more={"os": "a\x1b[31mb\u202ec", "hostname": "<script>"}))
    assert made.machines[0]["facts"]["os"] == "a[31mbc"
    assert made.machines[0]["facts"]["hostname"] == "<script>"


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
def test_invalid_enrolments_are_refused(
    service: Running, enrolment: Enrol, body: dict[str, Any], target: str
) -> None:
    made = enrolment()
    sent = {"maxUses": 1, "expires": made.properties["expires"], **body}
    answer = service.admin.pool("POST", made.pool, "enrolments", body=sent)
    assert_refused(answer, 400, "InvalidRequestContent")
    assert answer.json["error"]["target"] == target


def test_machines_are_listed_in_pages(enrolment: Enrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_operations, "AT_ONCE", 2)
    made = enrolment(maxUses=5)
    for number in range(5):
        assert made.enrol(made.machine(f"page-{number}")).status == 200

    found: list[str] = []
    sizes: list[int] = []
    after = ""
    while not sizes or after:
        page = made.act("listMachines", {"after": after} if after else None).json
        found += [each["nodeName"] for each in page["value"]]
        sizes.append(len(page["value"]))
        after = page.get("after", "")

    assert sizes == [2, 2, 1]
    assert sorted(found) == [f"{made.pool}-page-{number}" for number in range(5)]
    assert_refused(made.act("listMachines", {"after": "no key"}), 400, "InvalidRequestContent")


def test_machine_without_a_node_is_found_among_many(enrolment: Enrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_operations, "AT_ONCE", 2)
    made = enrolment(maxUses=5, approval="manual")
    shown = [made.enrol(made.machine(f"many-{number}")).json["fingerprint"] for number in range(5)]

    assert sorted(each["fingerprint"] for each in made.machines) == sorted(shown)
    for each in shown:
        assert made.act("approve", {"fingerprint": each}).json["state"] == "Approved"


def test_enrolments_end_with_their_pool(service: Running, enrolment: Enrol) -> None:
    made = enrolment()
    assert service.admin.pool("DELETE", made.pool).status == 200
    assert len(made.events("enrolment.revoked")) == 1
    assert_refused(made.enrol(made.machine("a")), 404, "EnrolmentNotFound")
    assert_refused(service.admin.pool("GET", made.pool, "enrolments"), 404, "PoolNotFound")


def test_reader_sees_enrolments_and_changes_none(service: Running, tenant: Tenant, enrolment: Enrol) -> None:
    made = enrolment()
    reader = replace(made, admin=service.admin.as_somebody(tenant.application(callers.READER)))
    assert reader.properties["uses"] == 0
    assert reader.act("revoke").status == 403
    assert reader.admin.pool("POST", made.pool, "enrolments", body={}).status == 403
