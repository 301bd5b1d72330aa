"""Follows the remedies of updates, on a node with a cluster that a test changes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from aks_flex_node.agent import program_inventory
from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.recovery import CredentialRecovery
from aks_flex_node.agent.jobs.update import health_check
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import RestartUnit, Run
from aks_flex_node.host.host import CommandResult
from tests.remedies.catalogue import advice, command
from tests.unit.agent.builders import Ready, install
from tests.unit.agent.daemon.fakes import WELL, FakeProvider
from tests.unit.agent.jobs.update.fakes import pod
from tests.unit.agent.jobs.update.harness import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.cluster.readiness import NodeReadiness
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.host.actions import Action
    from tests.service.rp.cli.cli_harness import Person

UPGRADE: dict[str, object] = {"kubernetes.version": "1.34.4"}
RUNC: dict[str, object] = {"runc.version": "1.6.0"}
NUMBERS = itertools.count(1)


def change_resource(provider: Person, error: str) -> dict[str, object]:
    """Runs the command of the remedy that changes the resource; returns the setting that it changes."""
    name = f"updated-{next(NUMBERS)}"
    provider.does("node", "create", "--name", name)
    show = ("node", "show", "--name", name, "--json")
    before = provider.does(*show).json["properties"]
    program, *words = command(error, "aks-flex-rp node update", NAME=name)
    assert program == "aks-flex-rp"
    provider.does(*words)
    after = provider.does(*show).json["properties"]
    assert after["configVersion"] != before["configVersion"]
    return {"node.labels": after["nodeConfig"]["labels"]}


class Mirror(Ready):
    """A mirror whose programs contain their version; that of Kubernetes can be wrong."""

    wrong: ClassVar[dict[str, str]] = {}

    def finish(self, program: ProgramTree, seconds: float) -> None:
        assert seconds > 0
        version = self.wrong.get(program.version, program.version)
        wanted = [file.path for each in program.artifacts for file in each.files if not file.is_prefix]
        install(self.host, program, dict.fromkeys(wanted or ["bin/program"], version.encode()))


@pytest.mark.remedy("kubelet-version-mismatch")
def test_corrected_artifact_is_installed_after_a_change(provider: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene().wants(UPGRADE)
    scene.workshop = Mirror
    shown = scene.cluster.shown

    def running() -> dict[str, Any]:
        """The Node reports what the program contains, not its directory."""
        document, link = shown(), scene.host.stat("/usr/local/bin/kubelet")
        content = (scene.host.read(link.target) or b"").decode() if link else ""
        document["status"]["nodeInfo"]["kubeletVersion"] = f"v{content.replace('program', '1.33.13')}"
        return document

    scene.cluster.shown = running  # type: ignore[method-assign]
    monkeypatch.setitem(Mirror.wrong, "1.34.4", "1.34.1")
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "kubelet-version-mismatch")

    advice("kubelet-version-mismatch", "Correct the artifact on the mirror")
    monkeypatch.delitem(Mirror.wrong, "1.34.4")
    clean = command("kubelet-version-mismatch", "sudo aks-flex-node artifacts clean")
    assert clean[1:] == ["aks-flex-node", "artifacts", "clean", "--old"]
    assert program_inventory.remove_unused(scene.engine(scene.config))  # what the command does
    changed = change_resource(provider, "kubelet-version-mismatch")
    assert scene.wants(UPGRADE | changed, "3").run().result is JobStatus.DONE


@pytest.mark.remedy("pods-not-running")
def test_corrected_pods_run_after_a_change(provider: Person) -> None:
    scene = Scene().wants({"node.maxPods": 50})
    scene.cluster.pods, defective = [pod("web")], [True]

    def probed() -> None:
        scene.cluster.pods = [pod("web", ready=not defective or '"maxPods": 50' not in scene.kubelet_settings)]

    scene.cluster.probed = probed
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "pods-not-running")

    advice("pods-not-running", "Correct the cause that the events of the pods show.")
    defective.clear()
    changed = {"node.maxPods": 50} | change_resource(provider, "pods-not-running")
    assert scene.wants(changed, "3").run().result is JobStatus.DONE


@pytest.fixture
def with_runtime() -> Callable[[Scene, list[str]], None]:
    """Returns a function that lets a node start containers, except with these versions of runc."""

    def add(scene: Scene, defective: list[str]) -> None:
        known, apply = scene.host.query, scene.host.apply

        def query(*argv: str, seconds: float = 10.0) -> CommandResult:
            if argv[0].endswith("/ctr") and "images" in argv:
                return CommandResult(0, f"{scene.config.containerd.pause_image}\n")
            return known(*argv, seconds=seconds)

        def do(action: Action) -> None:
            if not (isinstance(action, Run) and health_check.CONTAINER_NAME in action.argv):
                return apply(action)
            entry = scene.host.stat("/usr/local/sbin/runc")
            if entry and any(f"/{version}/" in entry.target for version in defective):
                raise MachineError("action-failed", "runc: exec format error")
            return None

        scene.host.query = query  # type: ignore[method-assign]
        scene.host.apply = do  # type: ignore[method-assign]

    return add


@pytest.mark.remedy("container-start-failed")
def test_runtime_starts_containers_with_another_version_or_after_a_change(
    provider: Person, with_runtime: Callable[[Scene, list[str]], None]
) -> None:
    scene, defective = Scene().wants(RUNC), ["1.6.0"]
    with_runtime(scene, defective)
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "container-start-failed")

    advice("container-start-failed", "Select another version of containerd or runc in the configuration")
    assert scene.wants({"runc.version": "1.6.1"}, "3").run().result is JobStatus.DONE
    assert scene.wants({"runc.version": "1.6.0", "updatePolicy.allowDowngrade": True}, "4").run().result is (
        JobStatus.ROLLED_BACK
    )
    advice("container-start-failed", "correct the cause that the runtime reports")
    defective.clear()
    changed = change_resource(provider, "container-start-failed")
    again = {"runc.version": "1.6.0", "updatePolicy.allowDowngrade": True} | changed
    assert scene.wants(again, "5").run().result is JobStatus.DONE


@pytest.mark.remedy("api-server-forbidden")
def test_update_continues_when_the_api_server_accepts_the_node_again() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.away = ApiStatusError(403, "Forbidden", 'User "system:node:edge-1" cannot get nodes')
    outcome = scene.run()
    assert (outcome.reason, outcome.retryable) == ("api-server-forbidden", True)

    advice("api-server-forbidden", "Wait, because the daemon retries automatically.")
    scene.cluster.away = None
    assert scene.run().result is JobStatus.DONE


class Registering:
    """A cluster in which the kubelet registers its Node when it starts."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def wait_registered(self) -> ClusterNode:
        assert RestartUnit("kubelet.service") in self.scene.host.done
        self.scene.cluster.missing = False
        return self.scene.node

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        seen(self.scene.node)
        return self.scene.node


@pytest.mark.remedy("node-not-registered")
def test_update_continues_when_the_daemon_has_registered_the_node() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.missing = True
    outcome = scene.run()
    assert (outcome.reason, outcome.retryable) == ("node-not-registered", True)

    advice("node-not-registered", "the daemon creates it again automatically and then continues the update")
    engine, lost = scene.engine(scene.config), replace(WELL, node=None, node_missing=True)
    proof = cast("NodeReadiness", Registering(scene))
    assert CredentialRecovery(engine, FakeProvider().real, proof, lambda: lost).run().result is JobStatus.DONE
    assert scene.run().result is JobStatus.DONE
