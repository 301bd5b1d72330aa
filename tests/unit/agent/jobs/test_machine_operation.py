"""Tests of MachineOperations: reboot, update of the agent and reset, on request of the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.cluster.machine_operations import OPERATIONS_PATH, find_operations
from aks_flex_node.agent.job_records.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.machine_operation import BOOT_ID, OperationJob
from aks_flex_node.agent.paths import CURRENT_CONFIG, OPERATION_RECORD
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.host.actions import Run, WriteFile
from tests.hosts.recorded import RecordedHost

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient


def request(kind: str, name: str = "op-1", machine: str = "edge-1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": name}
    spec = {"machineRef": machine, "operationKind": kind, "parameters": more.pop("parameters", {})}
    return {"metadata": metadata, "spec": spec, "status": more}


@dataclass
class Operations:
    """An API server with MachineOperations."""

    items: list[dict[str, Any]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)  # methods
    written: list[dict[str, Any]] = field(default_factory=list)

    def get(self, path: str) -> Any:
        assert path == OPERATIONS_PATH
        if "GET" in self.refuses:
            raise ApiStatusError(403, "Forbidden", "no")
        return {"kind": "MachineOperationList", "items": self.items}

    def request(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        assert (method, content_type) == ("PATCH", "application/merge-patch+json")
        assert path.endswith("/op-1/status")
        if method in self.refuses:
            raise ApiStatusError(403, "Forbidden", "no")
        self.written.append(body)
        self.items[0]["status"].update(body["status"])

    @property
    def phases(self) -> list[str]:
        return [body["status"]["phase"] for body in self.written]


class Scene:
    def __init__(self, *items: dict[str, Any]) -> None:
        self.cluster = Operations(list(items))
        current = json.dumps({"config": {"agent": {"logLevel": "debug"}}, "configVersion": "e-1"})
        self.host = RecordedHost({CURRENT_CONFIG: current, BOOT_ID: "boot-1\n"})
        self.update_due = False
        self.version = "1.0.0"

    def run(self) -> JobResult | None:
        api = cast("ApiClient", self.cluster)
        (operation,) = find_operations(api, ["edge-1"])
        job = OperationJob(self.host, api, ProgressReporter(), lambda: self.update_due, self.version)
        return job.run(operation)

    @property
    def reboots(self) -> int:
        return sum(isinstance(each, Run) and "reboot" in each.argv for each in self.host.done)


def test_only_unfinished_operations_for_this_machine_are_found() -> None:
    items = [
        request("NodeReboot", "b"),
        request("AgentReset", "a"),
        request("NodeReboot", "other", "edge-2"),
        request("NodeReboot", "done", phase="Complete"),
        request("HostReboot", "for the cloud"),
    ]
    found = find_operations(cast("ApiClient", Operations(items)), ["EDGE-1"])
    assert [one.name for one in found] == ["a", "b"]


def test_cluster_without_permission_or_resource_has_no_operations() -> None:
    assert find_operations(cast("ApiClient", Operations(refuses={"GET"})), ["edge-1"]) == []


def test_reboot_is_finished_after_the_next_boot() -> None:
    scene = Scene(request("NodeReboot"))
    outcome = scene.run()
    assert outcome
    assert (outcome.result, scene.reboots, scene.cluster.phases) == (JobStatus.DEFERRED, 1, ["InProgress"])
    assert scene.cluster.written[0]["metadata"] == {"uid": "uid-op-1", "resourceVersion": "7"}
    scene.host.apply(WriteFile(BOOT_ID, b"boot-2\n", 0o444))
    assert scene.run()
    assert (scene.reboots, scene.cluster.phases) == (1, ["InProgress", "Complete"])
    assert scene.host.stat(OPERATION_RECORD) is None


def test_operation_whose_start_cannot_be_written_is_not_carried_out() -> None:
    scene = Scene(request("NodeReboot"))
    scene.cluster.refuses = {"PATCH"}
    outcome = scene.run()
    assert outcome
    assert (outcome.result, outcome.reason, scene.reboots) == (JobStatus.FAILED, "OperationNotWritable", 0)


@pytest.mark.parametrize(("version", "phase"), [("2.0.0", "Complete"), ("1.0.0", "Failed")])
def test_agent_upgrade_ends_with_the_version_that_runs(version: str, phase: str) -> None:
    scene = Scene(request("AgentUpgrade", parameters={"version": "v2.0.0"}))
    scene.update_due = True
    assert scene.run()
    settings = json.loads(scene.host.read(CURRENT_CONFIG) or b"")["config"]["agent"]
    assert settings == {"logLevel": "debug", "version": "2.0.0"}
    assert scene.run()
    assert scene.cluster.phases == ["InProgress"]  # not decided before the update was tried
    scene.update_due, scene.version = False, version
    assert scene.run()
    assert scene.cluster.phases == ["InProgress", phase]


def test_agent_upgrade_of_another_agent_is_refused() -> None:
    scene = Scene(request("AgentUpgrade", parameters={"downloadURL": "https://agent.example/agent"}))
    assert scene.run()
    assert scene.cluster.written[0]["status"]["conditions"][0]["reason"] == "UnsupportedOperation"
    assert scene.cluster.phases == ["Failed"]


def test_reset_is_reported_before_the_node_leaves() -> None:
    scene = Scene(request("AgentReset"))
    assert scene.run() is None  # the caller unbootstraps the machine
    assert scene.cluster.phases == ["InProgress", "Complete"]
