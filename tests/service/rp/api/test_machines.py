"""One machine for one node: a second one is refused, unless the node is moved on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_rp.clusters.node_controller import NodeMachine
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import HEARD_LATE, ONE, TWO, NodeWithKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer


@pytest.fixture
def own(service: Running, tenant: Tenant) -> Api:
    """Returns a client with the Azure identity of the node `by_identity`."""
    return service.admin.by(tenant, callers.NODE)


@pytest.fixture
def by_identity(service: Running, name: str) -> NodeWithKey:
    return NodeWithKey(service, name, principal())


@pytest.fixture(autouse=True)
def _cluster_comes_back(service: Running) -> Iterator[None]:
    yield
    service.clusters.away = False


def header(machine: MachineIdentity) -> dict[str, str]:
    return {MACHINE_HEADER: machine.header}


def assert_on_another_machine(answer: Answer, other: MachineIdentity, name: str) -> None:
    answer.assert_refused(409, "NodeOnAnotherMachine")
    for words in (other.host_name, other.address, f"aks-flex-rp node join-command --name {name} --replace"):
        assert words in answer.error["message"]


def test_node_shows_the_machine_that_joined(node: NodeWithKey) -> None:
    node.fetched()
    assert node.status["machine"]["hostName"] == "edge-one"

    node.observe(ONE)

    shown = {"id": ONE.id, "hostName": "edge-one", "address": "10.0.0.1", "os": "Ubuntu 22.04"}
    assert node.status["machine"].items() >= shown.items()


def test_flood_of_second_client_is_recorded_once(node: NodeWithKey) -> None:
    """Attack: the bearer of a leaked URL asks again and again."""
    node.fetched()
    second = node.machine(TWO)
    assert node.condition("ConfigUrlReused") is None

    assert {second.fetch(node.url).status for _ in range(20)} == {409}

    assert len(node.events("configUrl.reused")) == 1
    alarm = node.condition("ConfigUrlReused")
    assert (alarm["status"], alarm["reason"]) == ("True", "SecondClient")
    new = node.regenerate(replace=True)
    assert node.condition("ConfigUrlReused") is None
    assert second.fetch(new).status == 200


@pytest.mark.parametrize("cluster", ["Ready", "not Ready", "unreadable"])
@pytest.mark.parametrize("has_id", [True, False])
def test_new_url_works_on_another_machine_only_if_the_first_one_is_dead(
    node: NodeWithKey, admin: Api, cluster: str, has_id: bool
) -> None:
    """Attack: the bearer of a leaked URL omits the header, and so escapes the check of the machine."""
    first, other = node.joined(), node.machine(TWO)
    answer = node.admin.regenerate(node.name)
    assert answer.json["machine"]["hostName"] == "edge-one"
    url = answer.json["configUrl"]
    node.service.clusters.machines[node.name] = NodeMachine(ONE, ready=cluster == "Ready")
    node.service.clusters.away = cluster == "unreadable"

    fetched = other.fetch(url) if has_id else admin.fetch(url)

    if cluster == "not Ready":
        assert fetched.status == 200
        return
    assert_on_another_machine(fetched, ONE, node.name)
    assert node.events("machine.refused")[0]["outcome"] == "denied"
    assert first.fetch(url).status == 200
    if cluster == "Ready" and not has_id:
        assert admin.fetch(node.regenerate(replace=True)).status == 200


def test_replacement_moves_node_to_another_machine(node: NodeWithKey) -> None:
    node.joined()

    answer = node.admin.regenerate(node.name, replaceMachine=True)
    assert "machine" not in answer.json
    assert node.machine(TWO).fetch(answer.json["configUrl"]).status == 200
    node.observe(TWO)

    assert node.status["machine"]["hostName"] == "edge-two"
    assert node.service.clusters.marked[node.name] == TWO.id
    [moved] = node.events("machine.changed")
    assert (moved["detail"]["before"]["hostName"], moved["detail"]["machine"]["hostName"]) == ("edge-one", "edge-two")
    [asked] = node.events("regenerateToken")
    assert asked["detail"]["replaceMachine"] is True


def test_copy_with_the_key_is_refused_before_the_owner_is_recorded(node: NodeWithKey) -> None:
    """Attack: a copy of the disk reports between the join and the first report of the machine by the cluster."""
    first, copy = node.fetched(), node.machine(TWO)
    copy.key = first.key
    node.service.clusters.machines[node.name] = NodeMachine(ONE, ready=True)
    node.service.call(node.service.tracker.on_node_observed(PLANT.key, node.name, HEARD_LATE))

    copy.get().assert_refused(409, "NodeOnAnotherMachine")
    assert first.get().status == 200
    assert node.status["machine"]["hostName"] == "edge-one"


def test_two_machines_of_one_node_are_shown_as_conflict(node: NodeWithKey) -> None:
    node.fetched()
    for machine in (ONE, TWO, ONE, TWO):
        node.observe(machine)

    conflict = node.condition("MachineConflict")

    assert (conflict["status"], conflict["reason"]) == ("True", "TwoMachines")
    assert "edge-two (10.0.0.2, ID 22222222)" in conflict["message"]
    assert len(node.events("machine.conflict")) == 1
    assert node.service.clusters.marked[node.name] == ONE.id
    assert node.status["machine"]["hostName"] == "edge-one"


def test_reports_and_polls_of_second_machine_are_refused(by_identity: NodeWithKey, own: Api) -> None:
    node, name = by_identity, by_identity.name

    def report(machine: MachineIdentity) -> Answer:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return own.ask("POST", own.path(name, "reportStatus"), ready, headers=header(machine))

    def poll(machine: MachineIdentity) -> Answer:
        return own.get(name, if_none_match=node.admin.get(name).headers["etag"], **header(machine))

    assert report(ONE).status == 200
    node.observe(ONE)
    assert poll(ONE).status == 304

    for answer in (poll(TWO), report(TWO)):
        assert_on_another_machine(answer, ONE, name)
    assert node.condition("MachineConflict")
    assert len(node.events("machine.conflict")) == 1

    assert node.machine(TWO).fetch(node.regenerate(replace=True)).status == 200
    assert report(TWO).status == 200
    replaced = poll(ONE)
    replaced.assert_refused(409, "NodeReplaced")
    assert "edge-two" in replaced.error["message"]


def test_node_itself_may_not_replace_its_machine(by_identity: NodeWithKey, own: Api) -> None:
    by_identity.observe(ONE)

    own.regenerate(by_identity.name, replaceMachine=True).assert_refused(403, "AuthorizationFailed")

    path = own.path(by_identity.name, "regenerateToken")
    assert own.ask("POST", path, {}, headers=header(ONE)).status == 200


def test_silent_machine_keeps_its_node(by_identity: NodeWithKey, own: Api) -> None:
    name = by_identity.name
    by_identity.observe(ONE)
    by_identity.service.clusters.machines[name] = NodeMachine(ONE, ready=False)
    by_identity.admin.put(name, principal())  # ends the attempt: no join command is valid

    assert_on_another_machine(own.get(name, **header(TWO)), ONE, name)
