"""A configuration that waits is taken on, or is not, and why; on a machine that is only written down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent import stored_config
from aks_flex_node.agent.cluster.nodes import cordon_for_update
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.job_result import JobKind, JobStatus
from aks_flex_node.agent.job_records.update_journal import UpdateStage
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ArtifactError, ClusterError
from aks_flex_node.host.actions import MakeLink, PlaceTree, Remove, WriteFile
from tests.unit.agent.builders import DATA, Ready
from tests.unit.agent.jobs.update.fakes import names, pod, version_on
from tests.unit.agent.jobs.update.harness import Scene, bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.reconcile.resources import ProgramTree

UPGRADE: dict[str, object] = {"kubernetes.version": "1.34.4"}
SETTING: dict[str, object] = {"node.maxPods": 50}
AWAY = ClusterError("api-server-unreachable", "It cannot be reached.", retryable=True)


class Broken(Ready):
    """A mirror that is away."""

    def prepare(self, programs: Sequence[ProgramTree]) -> None: ...

    def finish(self, program: ProgramTree, seconds: float) -> None:  # noqa: ARG002
        raise ArtifactError("artifact-unreachable", f"{program.component} cannot be fetched.")


def test_where_nothing_waits_nothing_is_done() -> None:
    scene = Scene()
    outcome = scene.run()
    assert (outcome.kind, outcome.result) == (JobKind.UPDATE, JobStatus.DONE)
    assert scene.host.done == []


def test_labels_alone_restart_nothing_and_reach_the_node() -> None:
    scene = Scene({"node.labels": {"old": "1"}}).wants({"node.labels": {"site": "b"}})
    scene.cluster.node["metadata"]["labels"] = {"old": "1"}
    scene.bench().save_state(scene.config, labels="old")
    assert scene.run().result == JobStatus.DONE
    assert scene.restarted == []
    assert scene.cluster.node["metadata"]["labels"] == {"site": "b", "kubernetes.azure.com/managed": "false"}
    assert (scene.current, scene.waits, scene.under_way) == ("2", False, False)


def test_labels_are_taken_on_though_the_node_is_not_ready() -> None:
    scene = Scene().wants({"node.labels": {"site": "b"}})
    scene.cluster.broken = frozenset(["1.33.13"])
    assert scene.run().result == JobStatus.DONE


def test_a_setting_of_the_kubelet_costs_one_restart_and_no_drain() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.pods = [pod()]
    assert scene.run().result == JobStatus.DONE
    assert scene.restarted == ["kubelet.service"]
    assert names(scene.cluster.pods) == ["web"]
    assert (scene.current, scene.waits) == ("2", False)


def test_an_upgrade_drains_flips_proves_and_lets_pods_come_again() -> None:
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


def test_everything_is_there_before_anything_is_touched() -> None:
    scene = Scene().wants({**UPGRADE, "runc.version": "1.6.0"})
    scene.run()
    begin = next(at for at, one in enumerate(scene.host.done) if isinstance(one, MakeLink | PlaceTree))
    staged = {one.path for one in scene.host.done if isinstance(one, WriteFile) and "flex-new" in one.path}
    assert staged
    assert staged <= {one.path for one in scene.host.done[:begin] if isinstance(one, WriteFile)}


def test_where_drains_are_not_wanted_pods_stay() -> None:
    scene = Scene().wants({**UPGRADE, "updatePolicy.drain": False})
    scene.cluster.pods = [pod()]
    assert scene.run().result == JobStatus.DONE
    assert names(scene.cluster.pods) == ["web"]


def test_a_node_that_somebody_else_cordoned_stays_cordoned() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.node["spec"]["unschedulable"] = True
    assert scene.run().result == JobStatus.DONE
    assert scene.cluster.cordoned


def test_pods_that_do_not_go_in_time_keep_the_update_from_beginning() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.pods = [pod()]
    scene.cluster.budget = "The disruption budget web needs 1 healthy pods and has 1 currently"
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "DrainTimedOut", True)
    assert "default/web: The disruption budget web needs 1" in outcome.message
    assert not scene.cluster.cordoned
    assert (scene.restarted, scene.current, scene.waits, scene.under_way) == ([], "1", True, False)


def test_when_something_cannot_be_fetched_nothing_is_touched() -> None:
    scene = Scene().wants(UPGRADE)
    scene.workshop = Broken
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "artifact-unreachable", True)
    assert ("PATCH", "/api/v1/nodes/edge-1") not in scene.cluster.asked
    assert version_on(scene.host, "kubelet") == "1.33.13"
    assert (scene.waits, scene.under_way, scene.failed) == (True, False, {})


def test_a_version_that_does_not_work_is_undone_and_told_with_its_cause() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    outcome = scene.run()
    assert (outcome.result, outcome.version, outcome.retryable) == (JobStatus.ROLLED_BACK, "2", False)
    assert "words of the kubelet" in outcome.message
    assert version_on(scene.host, "kubelet") == "1.33.13"
    assert scene.restarted == ["kubelet.service", "kubelet.service"]
    assert not scene.cluster.cordoned
    assert (scene.current, scene.waits, scene.under_way) == ("1", True, False)
    assert (scene.failed["configVersion"], scene.failed["reason"]) == ("2", "node-not-ready")


def test_a_version_that_failed_is_not_tried_again_until_the_configuration_changes() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    scene.run()
    scene.cluster.broken = frozenset()
    again = scene.run()
    assert (again.result, again.reason, again.retryable) == (JobStatus.FAILED, "node-not-ready", False)
    assert scene.restarted == []
    assert scene.wants(UPGRADE, "3").run().result == JobStatus.DONE
    assert scene.failed == {}


def test_going_back_to_what_is_in_effect_ends_a_failure() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4"])
    scene.run()
    assert scene.wants({}, "3").run().result == JobStatus.DONE
    assert (scene.restarted, scene.current, scene.failed) == ([], "3", {})


def test_when_even_the_way_back_is_not_proven_the_node_stays_cordoned_until_it_is() -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.broken = frozenset(["1.34.4", "1.33.13"])
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "RollbackFailed", True)
    assert (scene.cluster.cordoned, scene.under_way) == (True, True)
    scene.cluster.broken = frozenset(["1.34.4"])
    assert scene.run().result == JobStatus.ROLLED_BACK
    assert (scene.cluster.cordoned, scene.under_way, scene.failed["configVersion"]) == (False, False, "2")


def test_pods_that_ran_and_do_not_run_again_are_a_failure() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.pods = [pod("web"), pod("job", ready=False)]

    def probed() -> None:
        scene.cluster.pods = [pod("web", ready="maxPods: 50" not in scene.kubelet_settings)]

    scene.cluster.probed = probed
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "pods-not-running")
    assert "default/web" in outcome.message


def test_an_api_server_that_is_away_while_the_change_is_proven_is_no_failure_of_it() -> None:
    scene = Scene().wants(UPGRADE)

    def probed() -> None:
        scene.cluster.away = AWAY

    scene.cluster.probed = probed
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "api-server-unreachable", True)
    assert version_on(scene.host, "kubelet") == "1.34.4"
    assert (scene.current, scene.under_way, scene.failed) == ("1", True, {})
    scene.cluster.probed, scene.cluster.away = (lambda: None), None
    assert scene.run().result == JobStatus.DONE
    assert (scene.restarted, scene.current, scene.cluster.cordoned) == ([], "2", False)


def test_a_kubelet_that_fails_while_the_api_server_is_away_is_undone_all_the_same() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.unhealthy = lambda: "maxPods: 50" in scene.kubelet_settings

    def probed() -> None:
        scene.cluster.away = AWAY if scene.cluster.unhealthy() else None

    scene.cluster.probed = probed
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "node-not-registered")
    assert "The kubelet is not healthy" in outcome.message


def test_an_api_server_that_is_away_before_leaves_everything_as_it_is() -> None:
    scene = Scene().wants(SETTING)
    scene.cluster.away = AWAY
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "api-server-unreachable", True)
    assert scene.restarted == []


def test_another_way_to_the_api_server_that_leads_nowhere_is_undone() -> None:
    scene = Scene().wants({"node.kubelet.serverURL": "https://elsewhere.example:443"})
    scene.reachable = lambda config: config.node.kubelet.server_url == "https://cluster.example:443"
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "api-server-unreachable")


def test_an_api_server_that_has_moved_is_followed() -> None:
    scene = Scene().wants({"node.kubelet.serverURL": "https://elsewhere.example:443"})
    scene.reachable = lambda config: config.node.kubelet.server_url == "https://elsewhere.example:443"
    assert scene.run().result == JobStatus.DONE
    assert scene.current == "2"


@pytest.mark.parametrize(
    ("values", "result", "reason"),
    [
        ({**UPGRADE, "updatePolicy.paused": True}, "waits", "Paused"),
        ({"kubernetes.version": "1.32.1"}, "refused", "DowngradeRefused"),
        ({"kubernetes.version": "1.35.4"}, "refused", "SkewViolation"),
        ({**UPGRADE, "updatePolicy.maintenanceWindow.start": "13:00"}, "waits", "MaintenanceWindowClosed"),
        ({**UPGRADE, "node.name": "other"}, "refused", "NodeMismatch"),
        ({"node.maxPods": "many"}, "refused", "config-invalid"),
    ],
    ids=str,
)
def test_what_is_not_taken_on_leaves_the_machine_as_it_is(
    values: dict[str, object], result: str, reason: str
) -> None:
    scene = Scene().wants(values)
    outcome = scene.run()
    assert (outcome.result.value, outcome.reason) == (result, reason)
    assert [one for one in scene.host.done if "state.json" not in str(one)] == []
    assert (scene.current, scene.waits) == ("1", True)


def test_labels_do_not_wait_for_the_window() -> None:
    values = {**UPGRADE, "updatePolicy.maintenanceWindow.start": "13:00", "node.labels": {"site": "b"}}
    scene = Scene().wants(values)
    assert scene.run().reason == "MaintenanceWindowClosed"
    assert scene.node.labels == (("kubernetes.azure.com/managed", "false"), ("site", "b"))


def test_a_newer_configuration_that_comes_meanwhile_goes_on_waiting() -> None:
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
def test_a_change_that_was_cut_off_and_overtaken_ends_with_one_of_the_two(
    values: dict[str, object], version: str
) -> None:
    scene = Scene().wants(SETTING)
    half_way(scene)
    scene.wants(values, "3").run()
    assert (scene.current, scene.under_way) == (version, False)
    assert f"maxPods: {60 if version == '3' else 110}" in scene.kubelet_settings


def half_way(scene: Scene) -> None:
    """The change is made, and the process is killed before the proof."""

    def probed() -> None:
        raise KeyboardInterrupt

    scene.cluster.probed = probed
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    scene.cluster.probed = lambda: None
    assert scene.under_way


def test_a_change_that_was_cut_off_is_taken_back_when_it_is_withdrawn() -> None:
    scene = Scene().wants(SETTING)
    half_way(scene)
    scene.host.apply(Remove(NEXT_CONFIG))
    outcome = scene.run()
    assert (outcome.result, outcome.retryable) == (JobStatus.FAILED, True)
    assert (scene.current, scene.under_way, scene.failed) == ("1", False, {})
    assert "maxPods: 110" in scene.kubelet_settings


def test_a_node_that_only_waits_to_be_uncordoned_is_uncordoned() -> None:
    scene = Scene().wants(UPGRADE)
    scene.run()
    scene.cluster.node["metadata"]["annotations"]["flex.aks.azure.com/cordoned"] = "x"
    scene.cluster.node["spec"]["unschedulable"] = True
    update_journal.write_journal(
        scene.host, update_journal.UpdateJournal(identity_of(scene), "2", UpdateStage.APPLYING)
    )
    assert scene.run().result == JobStatus.DONE
    assert (scene.cluster.cordoned, scene.under_way, scene.restarted) == (False, False, [])


def identity_of(scene: Scene) -> str:
    found = stored_config.read_stored(scene.host, CURRENT_CONFIG, {})
    assert found
    return found.identity


def test_secrets_are_in_no_journal() -> None:
    scene = Scene().wants(SETTING)
    half_way(scene)
    assert "abcdef.0123456789abcdef" not in (scene.host.read(UPDATE_JOURNAL) or b"").decode()


def test_paths_that_the_node_was_not_made_with_are_refused() -> None:
    scene = Scene().wants({"paths.dataDir": "/srv/flex"})
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.REFUSED, "PathsChanged")
    assert (scene.current, scene.restarted) == ("1", [])


@pytest.mark.parametrize("stage", UpdateStage)
def test_a_configuration_that_a_person_brings_ends_an_update_that_was_stuck(stage: UpdateStage) -> None:
    scene = Scene().wants(UPGRADE)
    scene.cluster.pods = [pod()]
    cordon_for_update(cast("ApiClient", scene.cluster), scene.node.name)
    before = update_journal.NodeBaseline("v1.33.13", "containerd://1.7.29")
    update_journal.write_journal(
        scene.host, update_journal.UpdateJournal("2 x", "2", stage, ("kubelet.service",), before)
    )

    update_journal.supersede_journal(scene.host)
    brought = parse_bundle(bundle(UPGRADE, "3"), "test")
    config_store.save_fetched(scene.host, brought, config_urls.parse("https://rp.example/configs/a"))
    assert scene.run().result == JobStatus.DONE
    assert (scene.current, scene.waits, scene.under_way) == ("3", False, False)
    assert not scene.cluster.cordoned


def test_a_machine_whose_state_is_lost_is_known_by_its_name_and_takes_what_waits() -> None:
    scene = Scene().wants(SETTING)
    scene.host.apply(Remove(f"{DATA}/state.json"))
    assert scene.run().result == JobStatus.DONE
    assert scene.bench().node_state(scene.config).node == scene.node.name


def test_a_node_that_is_still_cordoned_does_not_wait_as_long_as_what_is_refused() -> None:
    scene = Scene().wants({"kubernetes.version": "1.32.1"})
    cordon_for_update(cast("ApiClient", scene.cluster), scene.node.name)
    update_journal.write_journal(scene.host, update_journal.UpdateJournal("2 x", "2"))
    scene.cluster.away = AWAY
    outcome = scene.run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, AWAY.name, True)
    scene.cluster.away = None
    assert scene.run().reason == "DowngradeRefused"
    assert not scene.cluster.cordoned
