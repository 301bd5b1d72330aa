"""Tests of the changes of a configuration: their cost, and the reasons for which one is not applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components.artifact_urls import version_key
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.jobs.update.admission import compare_configs
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.jobs.update.harness import NOON

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings


@pytest.mark.parametrize(
    ("kubelet", "server", "words"),
    [
        ("1.34.4", "v1.34.2", ""),
        ("1.34.4", "v1.35.0", ""),
        ("1.34.4", "v1.37.1", ""),
        ("1.34.4", "v1.34.4-eks-1234", ""),
        ("1.33.13", "v1.36.3", ""),
        ("1.32.13", "v1.36.3", "4 minor versions older than the API server"),
        ("1.37.0", "v1.36.3", "Kubelet 1.37.0 is newer than the API server (v1.36.3)"),
        ("1.35.0", "v1.34.9", "Kubelet 1.35.0 is newer than the API server (v1.34.9)"),
        ("1.33.1", "v1.37.0", "4 minor versions older than the API server"),
    ],
)
def test_version_skew_between_kubelet_and_api_server_is_refused(kubelet: str, server: str, words: str) -> None:
    verdict = admission.check_version_skew(config_of({"kubernetes.version": kubelet}), server)
    assert (verdict is None) is (not words)
    if verdict:
        assert words in verdict.message
        assert (verdict.result, verdict.reason) == (JobStatus.REFUSED, "SkewViolation")


def test_downgrade_is_refused_unless_allowed() -> None:
    older: Settings = {"kubernetes.version": "1.33.1"}
    refused = admission.check_downgrade(compare_configs(config_of(), config_of(older)), config_of(older))
    assert refused
    assert "kubernetes 1.34.4 -> 1.33.1" in refused.message
    allowed = config_of({**older, "updatePolicy.allowDowngrade": True})
    assert admission.check_downgrade(compare_configs(config_of(), allowed), allowed) is None


@pytest.mark.parametrize(
    ("values", "name", "refused"),
    [
        ({}, "edge-1", False),
        ({}, "edge-2", True),
        ({"azure.targetCluster.resourceId": CLUSTER_ID}, "edge-1", False),
        ({"azure.targetCluster.resourceId": CLUSTER_ID.upper()}, "edge-1", False),
        ({"azure.targetCluster.resourceId": CLUSTER_ID.replace("cluster-1", "cluster-2")}, "edge-1", True),
    ],
    ids=str,
)
def test_config_for_another_node_or_cluster_is_refused(values: Settings, name: str, refused: bool) -> None:
    here = config_of({"azure.targetCluster.resourceId": CLUSTER_ID})
    verdict = admission.check_same_node(here, config_of(values), "edge-1", name)
    assert (verdict is not None) is refused


def test_only_disruptive_changes_wait_for_the_maintenance_window() -> None:
    policy: Settings = {
        "updatePolicy.maintenanceWindow": {"start": "02:00", "timeZone": "Europe/Berlin", "days": ["Saturday"]}
    }
    upgrade = config_of({**policy, "runc.version": "1.6.0"})
    setting = config_of({**policy, "node.maxPods": 5, "npd.version": "1.35.0"})
    verdict = admission.check_maintenance_window(compare_configs(config_of(), upgrade), upgrade, NOON)
    assert verdict
    assert "It opens on Saturday 2025-03-08 at 02:00 (Europe/Berlin)" in verdict.message
    assert "runc 1.5.2 -> 1.6.0" in verdict.message
    assert admission.check_maintenance_window(compare_configs(config_of(), setting), setting, NOON) is None


@pytest.mark.parametrize(
    ("left_out", "word"),
    [("kubernetes.version", "kubernetes.version"), ("node.kubelet.serverURL", "serverURL")],
)
def test_incomplete_config_is_refused(left_out: str, word: str) -> None:
    verdict = admission.check_complete(config_of(without=[left_out]))
    assert verdict
    assert word in verdict.message
    assert admission.check_complete(config_of(without=["azure.bootstrapToken.token"])) is None


@pytest.mark.parametrize(
    ("values", "words", "disturbs", "drains"),
    [
        ({}, [], False, False),
        ({"node.labels": {"a": "b"}, "node.maxPods": 5}, [], False, False),
        ({"kubernetes.version": "1.35.4"}, ["kubernetes 1.34.4 -> 1.35.4"], True, True),
        ({"containerd.version": "2.5.0"}, ["containerd 2.4.2 -> 2.5.0"], True, True),
        ({"runc.version": "1.6.0"}, ["runc 1.5.2 -> 1.6.0"], True, True),
        ({"cni.version": "1.10.0"}, ["cni 1.9.1 -> 1.10.0"], True, False),
        ({"npd.version": "1.35.0"}, ["npd 1.34.0 -> 1.35.0"], False, False),
        ({"npd.enabled": False}, ["npd 1.34.0 -> none"], False, False),
        ({"runc.sha256": {"runc.amd64": "0" * 64}}, ["runc 1.5.2 -> 1.5.2"], True, True),
        ({"runc.version": "1.6.0", "updatePolicy.drain": False}, ["runc 1.5.2 -> 1.6.0"], True, False),
    ],
    ids=str,
)
def test_config_diff_lists_upgrades_and_whether_they_disrupt_or_drain(
    values: Settings, words: list[str], disturbs: bool, drains: bool
) -> None:
    changes = compare_configs(config_of(), config_of(values))
    assert [str(one) for one in changes.upgrades] == words
    assert (changes.disrupts_pods, changes.needs_drain, changes.downgrades) == (disturbs, drains, ())


def test_downgrade_of_any_component_is_detected() -> None:
    older = compare_configs(config_of(), config_of({"kubernetes.version": "1.35.0", "runc.version": "1.4.0"}))
    assert [one.component for one in older.downgrades] == ["runc"]


def test_disabling_npd_is_not_a_downgrade() -> None:
    without = config_of({"npd.enabled": False})
    assert compare_configs(config_of(), without).downgrades == compare_configs(without, config_of()).downgrades == ()


@pytest.mark.parametrize(
    ("values", "moves"),
    [
        ({}, False),
        ({"node.maxPods": 5}, False),
        ({"node.kubelet.serverURL": "https://elsewhere.example:443"}, True),
        ({"proxy.https": "http://proxy.example:3128"}, True),
    ],
    ids=str,
)
def test_changed_api_server_endpoint_is_detected(values: Settings, moves: bool) -> None:
    assert compare_configs(config_of(), config_of(values)).endpoint_changed is moves


def test_versions_are_ordered_semantically() -> None:
    mixed = ["2.0.0", "2.0.0-rc.10", "1.10.0", "2.0.1", "2.0.0-beta.2", "1.9.9", "2.0.0-rc.1"]
    ascending = ["1.9.9", "1.10.0", "2.0.0-beta.2", "2.0.0-rc.1", "2.0.0-rc.10", "2.0.0", "2.0.1"]
    assert sorted(mixed, key=version_key) == ascending
    assert version_key("1.34.4+build.7") == version_key("1.34.4")
