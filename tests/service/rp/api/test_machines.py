"""One machine for one node: a second one is refused, unless the node is moved on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import KEY_HEADER
from aks_flex_rp.clusters.node_controller import NodeMachine
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

ONE = MachineIdentity("1" * 32, "edge-one", "10.0.0.1", "Ubuntu 22.04")
TWO = MachineIdentity("2" * 32, "edge-two", "10.0.0.2", "Ubuntu 22.04")
KEYS = {ONE.id: HeldKey(), TWO.id: HeldKey()}


def header(machine: MachineIdentity) -> dict[str, str]:
    return {MACHINE_HEADER: machine.to_header()}


class NodeOnMachines:
    """A node and the machines that want to be it."""

    def __init__(self, service: Running, name: str, body: dict[str, Any] | None = None) -> None:
        self.service, self.name, self.admin = service, name, service.admin
        self.url = self.admin.put(name, body or token(), url=True).properties["configUrl"]

    def fetch(self, machine: MachineIdentity, url: str = "") -> Answer:
        path = (url or self.url).partition("#")[0].removeprefix(self.admin.connection.url)
        proof = KEYS[machine.id].url_proof(url or self.url)
        return self.admin.connection.ask("GET", path, {**header(machine), KEY_HEADER: proof})

    def observe(self, machine: MachineIdentity) -> None:
        """The cluster reports the Node on this machine, Ready."""
        heard = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2100-01-01T00:00:00Z"}
        seen = {**heard, "kubeletVersion": "v1.34.4", "machine": machine}
        self.service.clusters.machines[self.name] = NodeMachine(machine, ready=True)
        self.service.call(self.service.service.join_tracker.on_node_observed(PLANT.key, self.name, seen))

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get(self.name).properties["status"]
        return found

    def regenerate(self, body: dict[str, Any] | None = None) -> Answer:
        return self.admin.ask("POST", self.admin.path(self.name, "regenerateToken"), body)

    def events(self, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.audit(self.name, what=what).json["value"]
        return found


@pytest.fixture
def node(service: Running, name: str) -> NodeOnMachines:
    return NodeOnMachines(service, name)


def assert_on_another_machine(answer: Answer, other: MachineIdentity, name: str) -> None:
    assert (answer.status, answer.json["error"]["code"]) == (409, "NodeOnAnotherMachine")
    message = answer.json["error"]["message"]
    assert other.host_name in message
    assert other.address in message
    assert f"aks-flex-rp node join-command --name {name} --replace" in message


def test_node_shows_the_machine_that_joined(node: NodeOnMachines) -> None:
    assert node.fetch(ONE).status == 200
    assert node.status["machine"]["hostName"] == "edge-one"

    node.observe(ONE)

    assert {key: node.status["machine"][key] for key in ("id", "hostName", "address", "os")} == {
        "id": ONE.id,
        "hostName": "edge-one",
        "address": "10.0.0.1",
        "os": "Ubuntu 22.04",
    }


def reused(node: NodeOnMachines) -> list[tuple[str, str]]:
    found = [each for each in node.status["conditions"] if each["type"] == "ConfigUrlReused"]
    return [(each["status"], each["reason"]) for each in found]


def test_flood_of_second_client_is_recorded_once(node: NodeOnMachines) -> None:
    """Attack: the bearer of a leaked URL asks again and again."""
    node.fetch(ONE)
    assert reused(node) == []

    assert {node.fetch(TWO).status for _ in range(20)} == {409}

    assert len(node.events("configUrl.reused")) == 1
    assert reused(node) == [("True", "SecondClient")]
    new = node.regenerate({"replaceMachine": True}).json["configUrl"]
    assert reused(node) == []
    assert node.fetch(TWO, new).status == 200


def test_new_url_of_a_living_node_works_only_on_its_machine(node: NodeOnMachines) -> None:
    node.fetch(ONE)
    node.observe(ONE)

    answer = node.regenerate()

    assert answer.json["machine"]["hostName"] == "edge-one"
    url = answer.json["configUrl"]
    assert_on_another_machine(node.fetch(TWO, url), ONE, node.name)
    assert node.fetch(ONE, url).status == 200


def test_replacement_moves_node_to_another_machine(node: NodeOnMachines) -> None:
    node.fetch(ONE)
    node.observe(ONE)

    answer = node.regenerate({"replaceMachine": True})
    assert "machine" not in answer.json
    assert node.fetch(TWO, answer.json["configUrl"]).status == 200
    node.observe(TWO)

    assert node.status["machine"]["hostName"] == "edge-two"
    assert node.service.clusters.marked[node.name] == TWO.id
    [moved] = node.events("machine.changed")
    assert (moved["detail"]["before"]["hostName"], moved["detail"]["machine"]["hostName"]) == ("edge-one", "edge-two")
    [asked] = node.events("regenerateToken")
    assert asked["detail"]["replaceMachine"] is True


def test_dead_machine_is_replaced_without_option(node: NodeOnMachines) -> None:
    node.fetch(ONE)
    node.observe(ONE)
    node.service.clusters.machines[node.name] = NodeMachine(ONE, ready=False)

    assert node.fetch(TWO, node.regenerate().json["configUrl"]).status == 200


def test_two_machines_of_one_node_are_shown_as_conflict(node: NodeOnMachines) -> None:
    node.fetch(ONE)
    for machine in (ONE, TWO, ONE, TWO):
        node.observe(machine)

    [conflict] = [each for each in node.status["conditions"] if each["type"] == "MachineConflict"]

    assert (conflict["status"], conflict["reason"]) == ("True", "TwoMachines")
    assert "edge-two (10.0.0.2, ID 22222222)" in conflict["message"]
    assert len(node.events("machine.conflict")) == 1
    assert node.service.clusters.marked[node.name] == ONE.id
    assert node.status["machine"]["hostName"] == "edge-one"


def test_reports_and_polls_of_second_machine_are_refused(service: Running, name: str, tenant: Tenant) -> None:
    node = NodeOnMachines(service, name, principal())
    own = service.admin.as_somebody(tenant.application(callers.NODE))
    path, report = own.path(name), own.path(name, "reportStatus")
    etag = service.admin.get(name).headers["etag"]
    polled = {"If-None-Match": etag}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert own.ask("POST", report, ready, headers=header(ONE)).status == 200
    node.observe(ONE)
    assert own.ask("GET", path, headers={**polled, **header(ONE)}).status == 304

    assert_on_another_machine(own.ask("GET", path, headers={**polled, **header(TWO)}), ONE, name)
    assert_on_another_machine(own.ask("POST", report, ready, headers=header(TWO)), ONE, name)
    assert [each["type"] for each in node.status["conditions"]].count("MachineConflict") == 1
    assert len(node.events("machine.conflict")) == 1

    assert node.fetch(TWO, node.regenerate({"replaceMachine": True}).json["configUrl"]).status == 200
    assert own.ask("POST", report, ready, headers=header(TWO)).status == 200
    etag = service.admin.get(name).headers["etag"]
    answer = own.ask("GET", path, headers={"If-None-Match": etag, **header(ONE)})
    assert (answer.status, answer.json["error"]["code"]) == (409, "NodeReplaced")
    assert "edge-two" in answer.json["error"]["message"]


def test_node_itself_may_not_replace_its_machine(service: Running, name: str, tenant: Tenant) -> None:
    node = NodeOnMachines(service, name, principal())
    own = service.admin.as_somebody(tenant.application(callers.NODE))
    node.observe(ONE)

    refused = own.ask("POST", own.path(name, "regenerateToken"), {"replaceMachine": True})

    assert (refused.status, refused.json["error"]["code"]) == (403, "AuthorizationFailed")
    assert own.ask("POST", own.path(name, "regenerateToken"), {}, headers=header(ONE)).status == 200


def test_silent_machine_keeps_its_node(service: Running, name: str, tenant: Tenant) -> None:
    node = NodeOnMachines(service, name, principal())
    own = service.admin.as_somebody(tenant.application(callers.NODE))
    node.observe(ONE)
    service.clusters.machines[name] = NodeMachine(ONE, ready=False)
    service.admin.put(name, principal())  # ends the attempt: no join command is valid

    assert_on_another_machine(own.ask("GET", own.path(name), headers=header(TWO)), ONE, name)


def test_unreadable_cluster_does_not_free_a_node(node: NodeOnMachines) -> None:
    node.fetch(ONE)
    node.observe(ONE)
    url = node.regenerate().json["configUrl"]

    node.service.clusters.away = True
    try:
        assert_on_another_machine(node.fetch(TWO, url), ONE, node.name)
    finally:
        node.service.clusters.away = False


def test_client_without_machine_gets_no_url_of_a_living_node(node: NodeOnMachines, admin: Api) -> None:
    """Attack: the bearer of a leaked URL omits the header, and so escapes the check of the machine."""
    node.fetch(ONE)
    node.observe(ONE)
    url = node.regenerate().json["configUrl"]

    for _ in range(2):
        assert_on_another_machine(admin.fetch(url), ONE, node.name)
    assert node.events("machine.refused")[0]["outcome"] == "denied"
    assert node.fetch(ONE, url).status == 200
    assert admin.fetch(node.regenerate({"replaceMachine": True}).json["configUrl"]).status == 200


def test_client_without_machine_gets_the_url_of_a_dead_node(node: NodeOnMachines, admin: Api) -> None:
    node.fetch(ONE)
    node.observe(ONE)
    node.service.clusters.machines[node.name] = NodeMachine(ONE, ready=False)

    assert admin.fetch(node.regenerate().json["configUrl"]).status == 200
