"""Tests of the update job: a pending configuration is applied or rejected with a reason, on a recorded host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.nodes import cordon_for_update
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.job_result import JobKind, JobStatus
from aks_flex_node.agent.job_records.update_journal import UpdateStage
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ArtifactError, ClusterError, MachineError
from aks_flex_node.host.actions import MakeLink, PlaceTree, Remove, RestartUnit, WriteFile
from tests.client_certificates import client_pem
from tests.unit.agent.builders import DATA, Ready
from tests.unit.agent.jobs.update.fakes import names, pod, version_on
from tests.unit.agent.jobs.update.harness import Scene, bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from tests.unit.agent.config.builders import Settings

UPGRADE: Settings = {"kubernetes.version": "1.34.4"}
SETTING: Settings = {"node.maxPods": 50}
AWAY = ClusterError("api-server-unreachable", "It cannot be reached.", retryable=True)


class Broken(Ready):
    """A program stager whose mirror is unavailable."""

    def prepare(self, programs: Sequence[ProgramTree]) -> None: ...

    def finish(self, program: ProgramTree, seconds: float) -> None:  # noqa: ARG002
        raise ArtifactError("artifact-unreachable", f"{program.component} cannot be fetched.")


def test_update_without_a_pending_config_does_nothing() -> None:
    scene = Scene()
    outcome = scene.run()
    assert (outcome.kind, outcome.result) == (JobKind.UPDATE, JobStatus.DONE)
    assert scene.host.done == []


def test_label_update_restarts_nothing_and_labels_a_node_that_is_not_ready() -> None:
    scene = Scene({"node.labels": {"old": "1"}}).wants({"node.labels": {"site": "b"}})
    scene.cluster.broken = frozenset(["1.33.13"])
    scene.cluster.node["metadata"]["labels"] = {"old": "1"}
    scene.bench().save_state(scene.config, labels="old")
    scene.succeeds()
    assert scene.restarted == []
    assert scene.cluster.node["metadata"]["labels"] == {"site": "b", "kubernetes.azure.com/managed": "false"}
    assert (scene.current, scene.waits, scene.under_way) == ("2", False, False)


def test_kubelet_setting_update_restarts_the_kubelet_without_a_drain() -> None:
    scene = joined_with_certificate().wants(SETTING)
    scene.cluster.pods = [pod()]
    scene.succeeds()
    assert scene.host.stat(DATED), "its certificate stays"
    assert scene.restarted == ["kubelet.service"]
    assert names(scene.cluster.pods) == ["web"]
    assert (scene.current, scene.waits) == ("2", False)


def test_upgrade_drains_switches_verifies_and_uncordons() -> None:
    scene = Scene().wants({**UPGRADE, "containerd.version": "2.5.0", "runc.version": "1.6.0"})
    scene.cluster.pods = [pod(), pod("agent", "DaemonSet")]
    outcome = scene.run()
    assert (outcome.result, outcome.version) == (JobStatus.DONE, "2")
    assert (scene.node.version, scene.node.runtime) == ("v1.34.4", "containerd://2.5.0")
    assert names(scene.cluster.pods) == ["agent"]
    assert not scene.cluster.cordoned
    assert scene.restarted == ["containerd.service", "kubelet.service"]
    assert (scene.current, scene.waits, scene.under_way) == ("2", False, False)
    assert '"maxPods"' not in json.dumps(scene.document("/var/lib/aks-flex-node/applied-config.json"))


def test_update_stages_all_artifacts_before_changing_anything() -> None:
    scene = Scene().wants({**UPGRADE, "runc.version": "1.6.0"})
    scene.run()
    begin = next(at for at, one in enumerate(scene.host.done) if isinstance(one, MakeLink | PlaceTree))
    staged = {one.path for one in scene.host.done if isinstance(one, WriteFile) and "flex-new" in one.path}
    assert staged
    assert staged <= {one.path for one in scene.host.done[:begin] if isinstance(one, WriteFile)}


def test_update_keeps_a_foreign_cordon() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.node["spec"]["unschedulable"] = True
    scene.succeeds()
    assert scene.cluster.cordoned


def test_update_fails_without_changes_when_the_drain_times_out() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.pods = [pod()]
    scene.cluster.budget = "The disruption budget web needs 1 healthy pods and has 1 currently"
    outcome = scene.fails("DrainTimedOut")
    assert "default/web: The disruption budget web needs 1" in outcome.message
    assert not scene.cluster.cordoned
    assert (scene.restarted, scene.current, scene.waits, scene.under_way) == ([], "1", True, False)


def test_update_fails_without_changes_when_an_artifact_is_unavailable() -> None:
    scene = Scene().wants(UPGRADE)
    scene.workshop = Broken
    scene.fails("artifact-unreachable")
    assert ("PATCH", "/api/v1/nodes/edge-1") not in scene.cluster.asked
    assert version_on(scene.host, "kubelet") == "1.33.13"
    assert (scene.waits, scene.under_way, scene.failed) == (True, False, {})


def test_failed_upgrade_is_rolled_back_and_reports_the_cause() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    outcome = scene.run()
    assert (outcome.result, outcome.version, outcome.retryable) == (JobStatus.ROLLED_BACK, "2", False)
    assert "words of the kubelet" in outcome.message
    assert version_on(scene.host, "kubelet") == "1.33.13"
    assert scene.restarted == ["kubelet.service", "kubelet.service"]
    assert not scene.cluster.cordoned
    assert (scene.current, scene.waits, scene.under_way) == ("1", True, False)
    assert (scene.failed["version"], scene.failed["reason"]) == ("2", "node-not-ready")


def test_failed_version_is_not_retried_until_the_config_changes() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    scene.run()
    scene.cluster.broken = frozenset()
    again = scene.run()
    assert (again.result, again.reason, again.retryable) == (JobStatus.FAILED, "node-not-ready", False)
    assert scene.restarted == []
    scene.wants(UPGRADE, "3").succeeds()
    assert scene.failed == {}


def test_returning_to_the_current_config_clears_the_failure() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    scene.run()
    scene.wants({}, "3").succeeds()
    assert (scene.restarted, scene.current, scene.failed) == ([], "3", {})


def test_failed_rollback_keeps_the_node_cordoned_until_it_succeeds() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4", "1.33.13"])
    scene.fails("RollbackFailed")
    assert (scene.cluster.cordoned, scene.under_way) == (True, True)
    scene.cluster.broken = frozenset(["1.34.4"])
    assert scene.run().result == JobStatus.ROLLED_BACK
    assert (scene.cluster.cordoned, scene.under_way, scene.failed["version"]) == (False, False, "2")


def test_pods_that_do_not_run_after_an_update_cause_a_rollback() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.pods = [pod("web"), pod("job", ready=False)]

    def probed() -> None:
        scene.cluster.pods = [pod("web", ready='"maxPods": 50' not in scene.kubelet_settings)]

    scene.cluster.probed = probed
    outcome = scene.rolls_back("pods-not-running")
    assert "default/web" in outcome.message


def test_unreachable_api_server_during_health_check_causes_no_rollback() -> None:
    scene = Scene().wants(UPGRADE)

    def probed() -> None:
        scene.cluster.away = AWAY

    scene.cluster.probed = probed
    scene.fails("api-server-unreachable")
    assert version_on(scene.host, "kubelet") == "1.34.4"
    assert (scene.current, scene.under_way, scene.failed) == ("1", True, {})
    scene.cluster.probed, scene.cluster.away = (lambda: None), None
    scene.succeeds()
    assert (scene.restarted, scene.current, scene.cluster.cordoned) == ([], "2", False)


def test_unhealthy_kubelet_is_rolled_back_when_api_server_is_unreachable() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.unhealthy = lambda: '"maxPods": 50' in scene.kubelet_settings

    def probed() -> None:
        scene.cluster.away = AWAY if scene.cluster.unhealthy() else None

    scene.cluster.probed = probed
    outcome = scene.rolls_back("node-not-registered")
    assert "The kubelet is not healthy" in outcome.message


def test_update_with_unreachable_api_server_restarts_nothing() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.away = AWAY
    scene.fails("api-server-unreachable")
    assert scene.restarted == []


def test_unreachable_new_api_server_url_is_rolled_back() -> None:
    scene = Scene().wants({"node.kubelet.serverURL": "https://elsewhere.example:443"})
    scene.reachable = lambda config: config.node.kubelet.server_url == "https://cluster.example:443"
    scene.rolls_back("api-server-unreachable")


def test_update_switches_to_a_reachable_new_api_server_url() -> None:
    scene = Scene().wants({"node.kubelet.serverURL": "https://elsewhere.example:443"})
    scene.reachable = lambda config: config.node.kubelet.server_url == "https://elsewhere.example:443"
    scene.succeeds()
    assert scene.current == "2"


@pytest.mark.parametrize(
    ("values", "result", "reason"),
    [
        ({**UPGRADE, "updatePolicy.paused": True}, "deferred", "Paused"),
        ({"kubernetes.version": "1.32.1"}, "refused", "DowngradeRefused"),
        ({"kubernetes.version": "1.35.4"}, "refused", "SkewViolation"),
        ({**UPGRADE, "updatePolicy.maintenanceWindow.start": "13:00"}, "deferred", "MaintenanceWindowClosed"),
        ({**UPGRADE, "node.name": "other"}, "refused", "NodeMismatch"),
        ({"paths.dataDir": "/srv/flex"}, "refused", "PathsChanged"),
        ({"node.maxPods": "many"}, "refused", "config-invalid"),
    ],
    ids=str,
)
def test_refused_or_deferred_update_changes_nothing(values: Settings, result: str, reason: str) -> None:
    scene = Scene().wants(values)
    outcome = scene.run()
    assert (outcome.result.value, outcome.reason) == (result, reason)
    assert [one for one in scene.host.done if "state.json" not in str(one)] == []
    assert (scene.current, scene.waits) == ("1", True)


def test_labels_are_updated_outside_the_maintenance_window() -> None:
    values = {**UPGRADE, "updatePolicy.maintenanceWindow.start": "13:00", "node.labels": {"site": "b"}}
    scene = Scene().wants(values)
    assert scene.run().reason == "MaintenanceWindowClosed"
    assert scene.node.labels == (("kubernetes.azure.com/managed", "false"), ("site", "b"))


def test_newer_config_received_during_an_update_remains_pending() -> None:
    scene = Scene().wants(SETTING)
    newer = bundle({"node.maxPods": 60}, "3")
    scene.cluster.probed = lambda: scene.host.apply(WriteFile(NEXT_CONFIG, newer, 0o600))
    assert scene.run().version == "2"
    assert scene.current == "2"
    assert scene.host.read(NEXT_CONFIG) == newer
    assert scene.run().version == "3"


@pytest.mark.parametrize(
    ("values", "version"), [({"node.maxPods": 60}, "3"), ({"node.maxPods": 60, "updatePolicy.paused": True}, "1")]
)
def test_superseded_interrupted_update_ends_with_one_complete_config(values: Settings, version: str) -> None:
    scene = Scene().wants(SETTING)
    kill_before_health_check(scene)
    scene.wants(values, "3").run()
    assert (scene.current, scene.under_way) == (version, False)
    assert f'"maxPods": {60 if version == "3" else 110}' in scene.kubelet_settings


def kill_before_health_check(scene: Scene) -> None:
    """Applies the change, and kills the process before the health check."""

    def probed() -> None:
        raise KeyboardInterrupt

    scene.cluster.probed = probed
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    scene.cluster.probed = lambda: None
    assert scene.under_way
    assert "abcdef.0123456789abcdef" not in (scene.host.read(UPDATE_JOURNAL) or b"").decode(), "no secrets"


def test_withdrawn_interrupted_update_is_rolled_back() -> None:
    scene = Scene().wants(SETTING)
    kill_before_health_check(scene)
    scene.host.apply(Remove(NEXT_CONFIG))
    outcome = scene.run()
    assert (outcome.result, outcome.retryable) == (JobStatus.FAILED, True)
    assert (scene.current, scene.under_way, scene.failed) == ("1", False, {})
    assert '"maxPods": 110' in scene.kubelet_settings


def test_unreadable_update_journal_is_set_aside() -> None:
    scene = Scene().wants(SETTING)
    scene.host.apply(WriteFile(UPDATE_JOURNAL, b"\xff not a journal", 0o600))
    scene.succeeds()
    assert (scene.current, scene.under_way) == ("2", False)
    scene.host.apply(WriteFile(UPDATE_JOURNAL, b"\xff not a journal", 0o600))
    scene.succeeds()  # also without a pending configuration
    assert not scene.under_way


@pytest.mark.parametrize("stage", UpdateStage)
def test_manually_fetched_config_replaces_a_stuck_update(stage: UpdateStage) -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.pods = [pod()]
    cordon_for_update(cast("ApiClient", scene.cluster), scene.node.name)
    before = update_journal.NodeBaseline("v1.33.13", "containerd://1.7.29")
    update_journal.JOURNAL.write(
        scene.host, update_journal.UpdateJournal("2 x", "2", stage, ("kubelet.service",), before)
    )

    update_journal.supersede_journal(scene.host)
    brought = parse_bundle(bundle(UPGRADE, "3"), "test")
    config_store.save_fetched(scene.host, brought, config_urls.parse("https://rp.example/configs/a"))
    scene.succeeds()
    assert (scene.current, scene.waits, scene.under_way) == ("3", False, False)
    assert not scene.cluster.cordoned


def test_update_works_when_the_node_state_file_is_lost() -> None:
    scene = Scene().wants(SETTING)
    scene.host.apply(Remove(f"{DATA}/state.json"))
    scene.succeeds()
    assert scene.bench().node_state(scene.config).node == scene.node.name


def test_refused_update_on_a_cordoned_node_is_retried_until_uncordoned() -> None:
    scene = Scene().wants({"kubernetes.version": "1.32.1"})
    cordon_for_update(cast("ApiClient", scene.cluster), scene.node.name)
    update_journal.JOURNAL.write(scene.host, update_journal.UpdateJournal("2 x", "2"))
    scene.cluster.away = AWAY
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, AWAY.name, True)
    scene.cluster.away = None
    assert scene.run().reason == "DowngradeRefused"
    assert not scene.cluster.cordoned


EXEC: Settings = {
    "node.kubelet.auth": "exec",
    "azure.servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": "s"},
}
PKI = "/var/lib/kubelet/pki"
CURRENT_CERTIFICATE, DATED = f"{PKI}/kubelet-client-current.pem", f"{PKI}/kubelet-client-2026-01-02-03-04-05.pem"


def joined_with_certificate() -> Scene:
    scene = Scene()
    scene.host.apply(WriteFile(DATED, client_pem().encode(), 0o600))
    scene.host.apply(MakeLink(CURRENT_CERTIFICATE, DATED))
    for name in ("kubelet.crt", "kubelet.key"):  # of the server
        scene.host.apply(WriteFile(f"{PKI}/{name}", client_pem().encode(), 0o600))
    return scene


def test_update_to_exec_removes_client_certificates_after_the_health_check() -> None:
    scene = joined_with_certificate().wants(EXEC)
    scene.succeeds()
    assert scene.host.list_dir(PKI) == ("kubelet.crt", "kubelet.key")
    removals = [number for number, one in enumerate(scene.host.done) if isinstance(one, Remove) and PKI in one.path]
    commit = next(n for n, one in enumerate(scene.host.done) if getattr(one, "path", "") == CURRENT_CONFIG)
    assert min(removals) > commit  # until then, a rollback needs them


def test_failed_update_to_exec_keeps_the_client_certificates() -> None:
    scene = joined_with_certificate().wants(EXEC)
    scene.cluster.unhealthy = lambda: b"exec" in (scene.host.read("/var/lib/kubelet/kubeconfig") or b"")
    assert scene.run().result is JobStatus.ROLLED_BACK
    assert scene.host.stat(CURRENT_CERTIFICATE)
    assert scene.host.stat(DATED)


def test_interrupted_update_to_exec_removes_client_certificates_later() -> None:
    scene = joined_with_certificate().wants(EXEC)
    scene.host.refuses = lambda action: action == Remove(DATED)
    assert scene.run().retryable
    scene.host.refuses = None
    scene.succeeds()
    assert scene.host.stat(DATED) is None


def test_shutdown_during_a_restart_is_no_fault_of_the_version() -> None:
    scene = Scene().wants(SETTING)
    apply = scene.host.apply

    def shuts_down(action: Any) -> None:
        if isinstance(action, RestartUnit):
            scene.host.apply = apply  # type: ignore[method-assign]
            raise MachineError("action-failed", "Connection reset by peer.", retryable=True)
        apply(action)

    scene.host.apply = shuts_down  # type: ignore[method-assign]
    outcome = scene.run()
    assert (outcome.result, outcome.retryable, scene.failed) == (JobStatus.FAILED, True, {})
    scene.succeeds()
    assert scene.current == "2"
