"""Roll-outs on real machines: bad revisions touch one wave and come back; a staged wave needs no mirror."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.baseline.join import web_pod
from aks_flex_lab.broken_release import broken_containerd
from aks_flex_lab.mirror.fault_rules import StatusFault
from tests.agents import flex, install_agent
from tests.enrolled_node import EnrolledNode, Enrolments
from tests.lab_machines import temporary_machine
from tests.providers import Provider
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab

NAMES = ("wave-1", "wave-2", "wave-3")
VERSIONS = {"kubernetes": "1.35.4"}
ROLLOUT_SECONDS = 1200
PLAN = {
    "waves": ["1", "100%"],
    "maxUnavailable": "1",
    "soakSeconds": 5,
    # Long enough for a busy machine: a node that fails says so before.
    "nodeTimeoutSeconds": ROLLOUT_SECONDS,
    "stageTimeoutSeconds": ROLLOUT_SECONDS,
}
BROKEN_CONTAINERD = "2.99.99"


@dataclass(frozen=True)
class Fleet:
    lab: Lab
    nodes: tuple[EnrolledNode, ...]
    enrolments: Enrolments

    def start(self, name: str, template: dict[str, Any], **plan: Any) -> None:
        self.enrolments.put_pool(**template)
        self.enrolments.ask("PUT", "rollouts", name, body={"properties": {**PLAN, **plan}})

    def shown(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.enrolments.ask("GET", "rollouts", name)["properties"]
        return found

    def ends(self, name: str, state: str) -> dict[str, Any]:
        try:
            until(lambda: bool(self.shown(name).get("endedAt")), f"the roll-out {name} ends", ROLLOUT_SECONDS)
        except AssertionError as error:
            raise AssertionError(self.shown(name)) from error
        found = self.shown(name)
        assert found["state"] == state, (found["reason"], self.causes(name))
        return found

    def causes(self, name: str) -> list[str]:
        nodes = self.enrolments.ask("POST", "rollouts", name, "listNodes")["value"]
        return [f"{each['name']}: {each['state']}: {each['cause']}" for each in nodes if "cause" in each]

    def versions(self) -> list[str]:
        return [str(node.provider.get(node.name)["configVersion"]) for node in self.nodes]

    def is_whole(self) -> bool:
        ready = self.lab.cluster.get("daemonset", "waves")["status"].get("numberReady")
        return ready == len(self.nodes) and all(node.is_whole() for node in self.nodes)


def web_server() -> dict[str, Any]:
    """Returns a DaemonSet with a pod on each of the nodes, which stays when a node is drained."""
    spec = web_pod(NAMES[0])["spec"]
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(NAMES)}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    }
    del spec["nodeSelector"]
    template = {"metadata": {"labels": {"app": "waves"}}, "spec": {**spec, "affinity": {"nodeAffinity": affinity}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "waves", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "waves"}}, "template": template},
    }


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Yields three nodes of a pool, each with a pod."""
    with ExitStack() as stack:
        machines = [stack.enter_context(temporary_machine(lab, name)) for name in NAMES]
        enrolments = Enrolments(Provider(lab), "waves")
        enrolments.put_pool(versions=VERSIONS)
        nodes = tuple(EnrolledNode(lab, machine, enrolments) for machine in machines)

        def join(node: EnrolledNode) -> None:
            install_agent(node.machine)
            node.join()

        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(join, nodes))
        for node in nodes:
            until(node.is_whole, f"{node.name} is Ready")
        lab.cluster.apply(web_server())
        found = Fleet(lab, nodes, enrolments)
        until(found.is_whole, "the pods answer")
        yield found
        lab.mirror.reset()
        lab.cluster.run("delete", "daemonset", "waves", "--ignore-not-found", "--wait=false")
        enrolments.delete()


@pytest.fixture(scope="module")
def bad_containerd(lab: Lab) -> Iterator[str]:
    with broken_containerd(lab, BROKEN_CONTAINERD) as version:
        yield version


BAD: dict[str, dict[str, Any]] = {
    "containerd": {"versions": {**VERSIONS, "containerd": BROKEN_CONTAINERD}},
    "kubelet": {"versions": VERSIONS, "nodeConfig": {"kubelet": {"extraConfig": {"featureGates": {"NoGate": True}}}}},
    "kernel": {
        "versions": VERSIONS,
        "nodeConfig": {"kubelet": {"extraConfig": {"memorySwap": {"swapBehavior": "All"}}}},
    },
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.promise] if what == "kubelet" else []) for what in BAD]
)
def test_bad_revision_touches_one_node_and_comes_back(fleet: Fleet, bad_containerd: str, what: str) -> None:
    before = fleet.versions()
    fleet.start(f"bad-{what}", BAD[what])
    found = fleet.ends(f"bad-{what}", "Reversed")
    first, *others = fleet.versions()
    assert others == before[1:]
    assert first != before[0]
    assert found["reason"].startswith("wave-1: "), found["reason"]
    barred = fleet.enrolments.ask("GET")["properties"]["barredRevisions"]
    assert barred[-1]["rollout"] == f"bad-{what}"
    until(fleet.is_whole, "all nodes are Ready and all pods answer")


def test_wave_succeeds_with_the_mirror_cut_when_it_starts(fleet: Fleet) -> None:
    newer = {"versions": {**VERSIONS, "kubernetes": "1.36.3"}}
    fleet.start("staged", newer, gates=[{"name": "cut", "approval": {}}], maxUnavailable="100%")
    until(lambda: fleet.shown("staged")["state"] == "Gates", "the first wave is done", ROLLOUT_SECONDS)

    def is_staged() -> bool:
        return all(node.status.get("stagedPoolRevision") for node in fleet.nodes[1:])

    until(is_staged, "the nodes of the next wave have all they need", ROLLOUT_SECONDS)
    fleet.lab.mirror.add("*", StatusFault(503))
    try:
        fleet.enrolments.ask("POST", "rollouts", "staged", "approve", body={})
        until(lambda: fleet.shown("staged")["wave"] == 2, "the second wave begins")
        until(lambda: fleet.shown("staged")["state"] == "Gates", "the second wave is done", ROLLOUT_SECONDS)
    finally:
        fleet.lab.mirror.reset()
    fleet.enrolments.ask("POST", "rollouts", "staged", "approve", body={})
    fleet.ends("staged", "Succeeded")
    for node in fleet.nodes:
        assert node.node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
        assert flex(node.machine, "verify", check=False).ok
