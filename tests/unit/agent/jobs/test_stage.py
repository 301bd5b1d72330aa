"""Tests of the staging job: the checks of an update, downloads, and no other change of the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent import staging_config
from aks_flex_node.agent.job_records.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.stage import StageJob
from aks_flex_node.agent.paths import STAGING_CONFIG
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.reconcile.program_stager import ProgramStager, tree_name
from aks_flex_node.errors import ArtifactError, DiskFullError
from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile
from tests.unit.agent.builders import DATA
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.jobs.update.harness import OFFLINE, Scene, bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.errors import FlexError
    from aks_flex_node.settings.models import NodeConfig

FOLDER = f"{DATA}/artifacts/next"
UPGRADE: Settings = {"kubernetes.version": "1.34.4", "runc.version": "1.6.0"}


class AheadStager(ProgramStager):
    """Builds programs ahead on the recorded host, or fails."""

    def __init__(self, scene: StagingScene) -> None:
        self.scene = scene

    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        self.scene.prepared = [f"{program.component} {program.version}" for program in programs]

    def finish(self, program: ProgramTree, seconds: float) -> None:
        assert seconds > 0
        if self.scene.fault and program.component == "kubernetes":
            raise self.scene.fault
        for folder in (FOLDER, f"{FOLDER}/{tree_name(program)}"):
            self.scene.host.apply(MakeDirectory(folder))

    def close(self) -> None:
        self.scene.closed = True


class StagingScene(Scene):
    """A node with a next configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []
        self.discarded: list[list[str]] = []
        self.closed = False
        self.fault: FlexError | None = None

    def is_to_stage(self, values: Settings, revision: int = 5) -> StagingScene:
        document = {"poolRevision": revision, "config": json.loads(bundle(values))["config"]}
        self.host.apply(WriteFile(STAGING_CONFIG, json.dumps(document).encode(), 0o600))
        return self

    def stage(self) -> JobResult:
        self.host.done.clear()
        return StageJob(self.bench(), lambda _: AheadStager(self), self._discard).run()

    def _discard(self, _config: NodeConfig, keep: Sequence[str]) -> list[str]:
        self.discarded.append(sorted(keep))
        return ["opt-old"]

    @property
    def status(self) -> staging_config.StagingStatus:
        return staging_config.read_status(self.host, self.config)

    @property
    def changes(self) -> list[str]:
        """The paths that the job has changed outside the staged programs."""
        paths = [str(action.subject) for action in self.host.done]
        return [path for path in paths if not path.startswith(FOLDER)]


@pytest.fixture
def scene() -> StagingScene:
    return StagingScene().is_to_stage(UPGRADE)


def test_staging_downloads_what_is_missing_and_changes_nothing_else(scene: StagingScene) -> None:
    outcome = scene.stage()
    assert (outcome.result, outcome.version) == (JobStatus.DONE, scene.status.identity)
    assert outcome.message == "Pool revision 5 is staged: runc 1.6.0, kubernetes 1.34.4."
    assert scene.prepared == ["runc 1.6.0", "kubernetes 1.34.4", "kubernetes 1.34.4"]  # kubelet; kubectl and kubeadm
    assert scene.status.staged_revision == 5
    assert scene.changes == []
    assert scene.restarted == []
    assert scene.closed
    assert scene.current == "1"
    assert len(scene.discarded[0]) == 3


def test_config_without_new_programs_is_staged_at_once(scene: StagingScene) -> None:
    scene.is_to_stage({"node.maxPods": 50})
    assert scene.stage().message == "Pool revision 5 is staged: all its programs are installed."
    assert (scene.prepared, scene.status.staged_revision) == ([], 5)


def test_staging_is_repeatable_and_another_config_is_not_staged(scene: StagingScene) -> None:
    scene.stage()
    first = scene.status
    scene.stage()
    assert scene.status == first
    scene.is_to_stage({**UPGRADE, "runc.version": "1.6.1"})
    assert not scene.status.is_complete


def test_staged_tree_that_vanished_is_noticed(scene: StagingScene) -> None:
    scene.stage()
    staged = staging_config.record_file(FOLDER).read(scene.host)
    assert staged
    scene.host.apply(Remove(f"{FOLDER}/{staged.trees[0]}"))
    assert scene.status.staged_revision == 0
    assert scene.status.is_due


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (ArtifactError("artifact-unreachable", "No mirror.", retryable=True), "artifact-unreachable"),
        (ArtifactError("artifact-digest-mismatch", "Another file."), "artifact-digest-mismatch"),
        (DiskFullError("disk-full", "Not enough disk space."), "disk-full"),
    ],
)
def test_failed_download_is_retried_and_stages_nothing(scene: StagingScene, fault: FlexError, reason: str) -> None:
    scene.fault = fault
    outcome = scene.stage()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, reason, True)
    assert outcome.version == scene.status.identity
    assert scene.status.staged_revision == 0
    assert scene.changes == []
    scene.fault = None
    assert scene.stage().is_done


REFUSED: list[tuple[Settings, JobStatus, str]] = [
    ({"kubernetes.version": "1.32.0"}, JobStatus.REFUSED, "DowngradeRefused"),
    ({"kubernetes.version": "1.99.0"}, JobStatus.REFUSED, "SkewViolation"),
    ({"paths.installDir": "/opt/elsewhere"}, JobStatus.REFUSED, "config-invalid"),
    ({"node.name": "edge-2"}, JobStatus.REFUSED, "NodeMismatch"),
    ({"updatePolicy.paused": True}, JobStatus.DEFERRED, "Paused"),
]


@pytest.mark.parametrize(("values", "result", "reason"), REFUSED)
def test_config_that_an_update_would_refuse_is_not_downloaded(
    scene: StagingScene, values: Settings, result: JobStatus, reason: str
) -> None:
    outcome = scene.is_to_stage({**UPGRADE, **values}).stage()
    assert (outcome.result, outcome.reason) == (result, reason)
    assert scene.prepared == []
    assert scene.changes == []


def test_policy_of_the_machine_applies_to_staging(scene: StagingScene) -> None:
    scene.host.apply(WriteFile(POLICY_FILE, b"artifactHosts: [mirror.example]\n", 0o644))
    outcome = scene.is_to_stage({**UPGRADE, "artifacts.baseURL": "https://elsewhere.example"}).stage()
    assert (outcome.result, outcome.reason) == (JobStatus.REFUSED, "RefusedByPolicy")
    assert scene.prepared == []


def test_staging_does_not_wait_for_the_maintenance_window(scene: StagingScene) -> None:
    window = {"updatePolicy.maintenanceWindow.start": "03:00", "updatePolicy.maintenanceWindow.durationMinutes": 60}
    assert scene.is_to_stage({**UPGRADE, **window}).stage().is_done


@pytest.mark.parametrize(
    "changes",
    [
        {"artifacts": {"checksumsFile": "/tmp/evil"}},  # noqa: S108 - only this machine may set it
        {"artifacts": {"baseURL": "http://mirror.example"}},
        {"kubernetes": {"version": "1.34.4", "urlTemplate": "http://mirror.example/%s/%s/%s"}},
        {"node": "nothing"},
    ],
)
def test_invalid_or_local_settings_are_refused(scene: StagingScene, changes: dict[str, Any]) -> None:
    document = scene.document(STAGING_CONFIG)
    document["config"] = {**document["config"], **changes}
    scene.host.apply(WriteFile(STAGING_CONFIG, json.dumps(document).encode(), 0o600))
    outcome = scene.stage()
    assert (outcome.result, outcome.retryable) == (JobStatus.REFUSED, False)
    assert scene.prepared == []


def test_unreachable_api_server_only_delays_staging(scene: StagingScene) -> None:
    scene.cluster.away = OFFLINE
    scene.reachable = lambda _: False
    outcome = scene.stage()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "api-server-unreachable", True)


def test_programs_of_the_pending_update_are_kept(scene: StagingScene) -> None:
    scene.stage()
    pending = set(scene.discarded[0])
    scene.wants(UPGRADE)
    scene.is_to_stage({**UPGRADE, "runc.version": "1.6.1"}, 6).stage()
    assert pending < set(scene.discarded[1])


def test_without_next_config_staging_only_removes(scene: StagingScene) -> None:
    scene.stage()
    scene.host.apply(Remove(STAGING_CONFIG))
    assert scene.status.pending == staging_config.LEFTOVERS
    outcome = scene.stage()
    assert (outcome.result, outcome.version) == (JobStatus.DONE, staging_config.LEFTOVERS)
    assert scene.discarded[-1] == []
    assert scene.changes == []


AGENT: Settings = {
    "continuousMonitoring": True,
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "azure.servicePrincipal.clientId": "11111111-2222-3333-4444-555555555555",
    "azure.servicePrincipal.clientSecret": "a-secret",
    "azure.servicePrincipal.tenantId": "tenant-1",
    "agent.version": "9.9.9",
}


@pytest.mark.parametrize("has_service", [True, False])
def test_new_version_of_the_agent_is_staged_if_it_has_a_service(scene: StagingScene, has_service: bool) -> None:
    ledger = scene.engine(scene.config).ledger
    if has_service:
        ledger.owned("service").paths["/etc/systemd/system/aks-flex-node.service"] = {"original": None}
        ledger.save()
    assert scene.is_to_stage(AGENT).stage().is_done
    assert scene.prepared == (["agent 9.9.9"] if has_service else [])
