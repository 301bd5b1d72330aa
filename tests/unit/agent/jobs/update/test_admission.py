"""Tests of the reasons for which a configuration is not applied."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.jobs.update.admission import compare_configs
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.jobs.update.harness import NOON


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
