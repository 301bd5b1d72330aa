"""Tests of MachineOperations: reboot, update of the agent and reset, on request of the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.cluster.machine_operations import (
    MAX_LISTED,
    OPERATIONS_PATH,
    OperationRecord,
    find_operations,
    read_record,
)
from aks_flex_node.agent.job_records.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.machine_operation import OperationJob
from aks_flex_node.agent.managed_node import BOOT_ID
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.host.actions import Run, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient
    from tests.unit.agent.config.builders import Settings


def request(kind: str, name: str = "op-1", machine: str = "edge-1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": name}
    spec = {"machineRef": machine, "operationKind": kind, "parameters": more.pop("parameters", {})}
    return {"metadata": metadata, "spec": spec, "status": more}


@dataclass
class Operations:
    """An API server with MachineOperations."""

    items: list[dict[str, Any]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)  # methods
    refuses_after: int = 1000  # writes
    written: list[dict[str, Any]] = field(default_factory=list)

    def get(self, path: str) -> Any:
        assert path == f"{OPERATIONS_PATH}?limit={MAX_LISTED}"
        if "GET" in self.refuses:
            raise ApiStatusError(403, "Forbidden", "no")
        return {"kind": "MachineOperationList", "items": self.items}

    def request(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        assert (method, content_type) == ("PATCH", "application/merge-patch+json")
        assert path.endswith("/op-1/status")
        if method in self.refuses or len(self.written) >= self.refuses_after:
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
        self.settings: Settings = {}
        self.version = "1.0.0"

    def run(self) -> JobResult | None:
        api = cast("ApiClient", self.cluster)
        record = read_record(self.host)
        operation = record.select(find_operations(api, "edge-1", record.uid), "")
        job = OperationJob(
            self.host, api, config_of(self.settings), ProgressReporter(), lambda: self.update_due, self.version
        )
        return job.run(operation) if operation else None

    def outcome(self) -> JobResult:
        """Runs an operation that is not left to the caller."""
        outcome = self.run()
        assert outcome
        return outcome

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
    found = find_operations(cast("ApiClient", Operations(items)), "EDGE-1")
    assert [one.name for one in found] == ["a", "b"]


def test_cluster_without_permission_or_resource_has_no_operations() -> None:
    assert find_operations(cast("ApiClient", Operations(refuses={"GET"})), "edge-1") == []


def test_reboot_is_finished_after_the_next_boot() -> None:
    scene = Scene(request("NodeReboot"))
    outcome = scene.outcome()
    assert (outcome.result, scene.reboots, scene.cluster.phases) == (JobStatus.DEFERRED, 1, ["InProgress"])
    assert scene.cluster.written[0]["metadata"] == {"uid": "uid-op-1", "resourceVersion": "7"}
    scene.host.apply(WriteFile(BOOT_ID, b"boot-2\n", 0o444))
    assert scene.run()
    assert (scene.reboots, scene.cluster.phases) == (1, ["InProgress", "Complete"])
    assert read_record(scene.host) == OperationRecord(executed=("uid-op-1",))


def test_operation_whose_start_cannot_be_written_is_not_carried_out() -> None:
    scene = Scene(request("NodeReboot"))
    scene.cluster.refuses = {"PATCH"}
    outcome = scene.outcome()
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


def test_finished_operation_never_runs_again() -> None:
    scene = Scene(request("NodeReboot"))
    assert scene.run()
    scene.host.apply(WriteFile(BOOT_ID, b"boot-2\n", 0o444))
    scene.cluster.refuses = {"PATCH"}
    for _ in range(3):
        outcome = scene.outcome()
        assert (outcome.result, scene.reboots) == (JobStatus.DEFERRED, 1), "only the result is written again"
    scene.cluster.refuses = set()
    assert scene.run()
    assert scene.cluster.phases == ["InProgress", "Complete"]

    scene.cluster.items[0]["status"] = {"phase": "Pending"}  # every node may be allowed to write the status
    assert scene.run() is None
    assert scene.reboots == 1


def test_operation_that_another_agent_started_is_ignored() -> None:
    scene = Scene(request("AgentReset", phase="InProgress"))
    assert scene.run() is None
    assert scene.cluster.written == []


def test_operation_from_before_the_join_is_ignored() -> None:
    scene = Scene(request("NodeReboot", "2026-01-01T00:00:00Z"))
    found = find_operations(cast("ApiClient", scene.cluster), "edge-1")
    assert OperationRecord().select(found, "2026-01-02T00:00:00Z") is None
    assert OperationRecord().select(found, "2025-12-31T00:00:00Z") == found[0]


@pytest.mark.parametrize(
    "spec", ["text", None, [], {"machineRef": "edge-1", "operationKind": "NodeReboot", "parameters": []}]
)
def test_unreadable_operation_is_ignored(spec: object) -> None:
    cluster = Operations([{"metadata": {}, "spec": spec}, {}, "nonsense"])  # type: ignore[list-item]
    assert find_operations(cast("ApiClient", cluster), "edge-1") == []


@pytest.mark.parametrize(
    ("kind", "parameters", "settings"),
    [
        ("AgentUpgrade", {"version": "latest"}, {}),
        ("AgentUpgrade", {"version": "0.9.0"}, {}),
        ("AgentUpgrade", {"downloadURL": "https://agent.example/agent"}, {}),
        ("AgentReset", {}, {"agent.unbootstrapOnDelete": False}),
    ],
)
def test_operation_that_the_machine_does_not_allow_is_refused(
    kind: str, parameters: dict[str, str], settings: Settings
) -> None:
    scene = Scene(request(kind, parameters=parameters))
    scene.settings = settings
    before = scene.host.read(CURRENT_CONFIG)
    scene.outcome()  # so the machine is not reset
    assert scene.cluster.phases == ["Failed"]
    assert scene.host.read(CURRENT_CONFIG) == before


def test_reset_is_reported_before_the_node_leaves_and_continued() -> None:
    scene = Scene(request("AgentReset"))
    assert scene.run() is None  # the caller unbootstraps the machine
    assert scene.cluster.phases == ["InProgress", "Complete"]
    assert scene.run() is None  # after a crash before the machine was reset
    assert scene.cluster.phases == ["InProgress", "Complete", "Complete"]


def test_reboot_waits_for_the_maintenance_window() -> None:
    scene = Scene(request("NodeReboot"))
    closed = datetime.now(timezone.utc) + timedelta(hours=6)
    scene.settings = {"updatePolicy.maintenanceWindow": {"start": f"{closed:%H:%M}", "durationMinutes": 60}}
    outcome = scene.outcome()
    assert (outcome.result, scene.reboots, scene.cluster.written) == (JobStatus.DEFERRED, 0, [])


def test_reset_waits_until_its_result_can_be_written() -> None:
    scene = Scene(request("AgentReset"))
    scene.cluster.refuses_after = 1
    assert scene.outcome().result is JobStatus.DEFERRED


def test_agent_upgrade_also_changes_the_pending_configuration() -> None:
    scene = Scene(request("AgentUpgrade", parameters={"version": "2.0.0"}))
    scene.host.apply(WriteFile(NEXT_CONFIG, json.dumps({"config": {}, "configVersion": "e-2"}).encode(), 0o600))
    scene.run()
    document = json.loads(scene.host.read(NEXT_CONFIG) or b"")
    assert document == {"config": {"agent": {"version": "2.0.0"}}, "configVersion": "e-2"}
