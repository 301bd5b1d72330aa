"""A wave whose nodes have downloaded ahead needs no mirror when it starts."""

from __future__ import annotations

from aks_flex_lab.mirror.fault_rules import StatusFault
from tests.agents import flex
from tests.e2e.test_rollouts import VERSIONS, Fleet, fleet  # noqa: F401 - a fixture
from tests.wait import until


def test_wave_succeeds_with_the_mirror_cut_when_it_starts(fleet: Fleet) -> None:  # noqa: F811 - the fixture
    newer = {"versions": {**VERSIONS, "kubernetes": "1.36.3"}}
    fleet.start(
        "staged", newer, gates=[{"name": "cut", "approval": {}}], maxUnavailable="100%", stageTimeoutSeconds=600
    )
    until(lambda: fleet.shown("staged")["state"] == "Gates", "the first wave is done")

    def is_staged() -> bool:
        return all(node.status.get("stagedPoolRevision") for node in fleet.nodes[1:])

    until(is_staged, "the nodes of the next wave have all they need")
    fleet.lab.mirror.add("*", StatusFault(503))
    try:
        fleet.enrolments.ask("POST", "rollouts", "staged", "approve", body={})
        until(lambda: fleet.shown("staged")["wave"] == 2, "the second wave begins")
        until(lambda: fleet.shown("staged")["state"] == "Gates", "the second wave is done")
    finally:
        fleet.lab.mirror.reset()
    fleet.enrolments.ask("POST", "rollouts", "staged", "approve", body={})
    fleet.ends("staged", "Succeeded")
    for node in fleet.nodes:
        assert node.node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
        assert flex(node.machine, "verify", check=False).ok
