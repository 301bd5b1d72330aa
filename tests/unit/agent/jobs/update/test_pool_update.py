"""Tests of updates on a node of an AKS pool: in place, after the deletion of the Node, and rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.job_records.update_journal import FAILURE
from aks_flex_node.host.actions import RestartUnit
from tests.unit.agent.builders import Ready
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.jobs.update.fakes import pod, version_on
from tests.unit.agent.jobs.update.harness import Scene

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.host.actions import Action
    from tests.hosts.recorded import RecordedHost

POOL: Settings = {
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "azure.targetAgentPoolName": "edge",
    "azure.managedIdentity": {},
    "azure.bootstrapToken": None,
}
UPGRADE = {**POOL, "kubernetes.version": "1.34.4"}


def pool_node(**settings: object) -> Scene:
    scene = Scene({**POOL, **settings})
    registers_at_start(scene)
    return scene


def registers_at_start(scene: Scene) -> None:
    """Lets the kubelet register a missing Node when it starts, as the real one does."""
    apply = scene.host.apply

    def applied(action: Action) -> None:
        apply(action)
        if action.started_unit == "kubelet.service":
            scene.cluster.missing = False

    scene.host.apply = applied  # type: ignore[method-assign]


def linked_version(host: RecordedHost) -> str:
    return version_on(host, "kubelet")


@pytest.mark.parametrize(
    ("change", "pending"),
    [
        ({"kubernetes.version": "1.34.4"}, "kubernetes 1.33.13 -> 1.34.4"),
        ({"node.maxPods": 50}, "restart of kubelet"),
    ],
    ids=["version", "kubelet setting"],
)
def test_disturbing_change_is_staged_and_waits_for_the_node(change: Settings, pending: str) -> None:
    scene = pool_node().wants({**POOL, **change, "node.labels": {"site": "b"}})
    scene.cluster.pods = [pod()]
    staged: list[str] = []

    class Recording(Ready):
        def finish(self, program: ProgramTree, seconds: float) -> None:
            staged.append(program.component)
            super().finish(program, seconds)

    scene.workshop = Recording
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.DEFERRED, "WaitingForNodeDeletion")
    assert pending in outcome.message
    assert scene.restarted == []
    assert (linked_version(scene.host), len(scene.cluster.pods), scene.under_way) == ("1.33.13", 1, False)
    assert scene.cluster.node["metadata"]["labels"]["site"] == "b"  # labels are applied at once
    assert ("kubernetes" in staged) == ("kubernetes.version" in change)


def test_labels_and_taints_are_applied_in_place() -> None:
    taints = [{"key": "edge", "value": "1", "effect": "NoSchedule"}]
    scene = pool_node().wants({**POOL, "node.labels": {"site": "b"}, "node.taints": taints})
    scene.succeeds()
    assert (scene.restarted, scene.current, scene.waits) == ([], "2", False)
    assert "edge=1:NoSchedule" in (scene.host.read("/etc/default/kubelet-node") or b"").decode()


def test_immediate_trigger_upgrades_with_a_drain_of_the_agent() -> None:
    scene = pool_node(**{"aks.upgradeTrigger": "immediate"}).wants({**UPGRADE, "aks.upgradeTrigger": "immediate"})
    scene.cluster.pods = [pod()]
    scene.succeeds()
    assert (linked_version(scene.host), scene.cluster.pods) == ("1.34.4", [])


def test_upgrade_after_the_deletion_needs_no_node() -> None:
    scene = pool_node().wants(UPGRADE)
    scene.cluster.missing = True
    outcome = scene.run(node_released=True)
    assert (outcome.result, outcome.version) == (JobStatus.DONE, "2"), outcome
    assert (scene.node.version, scene.cluster.missing) == ("v1.34.4", False)
    assert not [path for method, path in scene.cluster.asked if path.endswith("/eviction")]


@pytest.mark.parametrize(("released", "result"), [("2", JobStatus.DONE), ("1", JobStatus.DEFERRED)])
def test_node_deleted_during_the_staging_allows_its_own_version(released: str, result: JobStatus) -> None:
    scene = pool_node().wants(UPGRADE)

    class Staging(Ready):
        def finish(self, program: ProgramTree, seconds: float) -> None:
            super().finish(program, seconds)
            scene.cluster.missing = True
            update_journal.write_release(scene.host, released)

    scene.workshop = Staging
    assert scene.run().result == result
    assert linked_version(scene.host) == ("1.34.4" if result is JobStatus.DONE else "1.33.13")


def test_upgrade_drains_a_node_that_came_back_meanwhile() -> None:
    scene = pool_node().wants(UPGRADE)
    scene.cluster.pods = [pod()]
    scene.succeeds(node_released=True)
    assert scene.cluster.pods == []


def test_broken_version_is_rolled_back_with_its_cause_on_the_node() -> None:
    scene = pool_node().wants(UPGRADE)
    scene.cluster.missing, scene.cluster.broken = True, frozenset(["1.34.4"])
    outcome = scene.run(node_released=True)
    assert outcome.result == JobStatus.ROLLED_BACK
    assert (scene.node.version, scene.cluster.missing, scene.current) == ("v1.33.13", False, "1")
    [condition], [event] = scene.cluster.conditions, scene.cluster.events
    assert (condition["type"], condition["status"]) == ("FlexNodeUpgradeFailed", "True")
    assert "configuration 2 was rolled back" in condition["message"] == event["message"]
    assert scene.run(node_released=True).result == JobStatus.FAILED  # the same eTag is not tried again
    assert linked_version(scene.host) == "1.33.13"
    scene.wants(UPGRADE, "3").cluster.broken = frozenset()
    scene.succeeds(node_released=True)
    assert scene.cluster.conditions[0]["status"] == "False"


def test_node_deleted_during_the_health_check_is_no_fault_of_the_version() -> None:
    scene = pool_node().wants(UPGRADE)
    deletions = [True]

    def delete_once() -> None:
        if linked_version(scene.host) == "1.34.4" and deletions:
            deletions.pop()
            scene.cluster.missing = True

    scene.cluster.probed = delete_once
    scene.succeeds(node_released=True)
    assert scene.host.done.count(RestartUnit("kubelet.service")) >= 1
    assert scene.node.version == "v1.34.4"


def test_newest_machine_stays_pending_when_it_changes_during_an_update() -> None:
    scene = pool_node().wants(UPGRADE)
    scene.cluster.missing = True

    def change_again() -> None:
        scene.wants({**UPGRADE, "node.maxPods": 50}, "3")

    scene.cluster.probed = change_again
    scene.succeeds(node_released=True)
    assert (scene.current, scene.document("/var/lib/aks-flex-node/next-config.json")["configVersion"]) == ("2", "3")


@pytest.mark.parametrize(("deletions", "result"), [(1, JobStatus.DONE), (3, JobStatus.DONE), (99, JobStatus.FAILED)])
def test_node_deleted_during_the_health_check_is_restored(deletions: int, result: JobStatus) -> None:
    scene = Scene().wants({"kubernetes.version": "1.34.4"})
    registers_at_start(scene)
    left = [deletions]

    def delete() -> None:
        """Deletes the Node whenever the kubelet has registered it."""
        if left[0] and not scene.cluster.missing and linked_version(scene.host) == "1.34.4":
            left[0] -= 1
            scene.cluster.missing = True

    scene.cluster.probed = delete
    outcome = scene.run()
    assert (outcome.result, linked_version(scene.host)) == (result, "1.34.4"), outcome
    assert not FAILURE.read(scene.host), "the version is not the cause"
    if result is not JobStatus.DONE:
        assert "was deleted from the cluster" in outcome.message
        left[0], scene.cluster.missing = 0, False
        scene.succeeds()
