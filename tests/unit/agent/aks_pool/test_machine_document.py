from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node.agent.aks_pool.machine_document import (
    MachineSettings,
    differs,
    machine_body,
    node_settings,
    parse_machine,
    with_machine_settings,
)
from aks_flex_node.errors import FlexError
from tests.unit.agent.config.builders import node_config


def machine(**profile: Any) -> dict[str, Any]:
    return {
        "id": "/subscriptions/s/…/machines/m1",
        "name": "m1",
        "type": "Microsoft.ContainerService/managedClusters/agentPools/machines",
        "properties": {
            "eTag": "6f1b",
            "provisioningState": "Succeeded",
            "status": {"vmState": "Running", "driftAction": "Synced"},
            "tags": {"owner": "edge"},
            "kubernetes": {
                "orchestratorVersion": "1.34.2",
                "currentOrchestratorVersion": "1.34.1",
                "nodeName": "n1",
                "maxPods": 50,
                "nodeLabels": {"site": "a"},
                "nodeTaints": ["edge=yes:NoSchedule"],
                **profile,
            },
        },
    }


def test_machine_is_parsed_with_settings_and_status() -> None:
    found = parse_machine(machine())
    assert found.settings == MachineSettings("1.34.2", 50, {"site": "a"}, ("edge=yes:NoSchedule",), {})
    assert (found.name, found.etag, found.node_name, found.vm_state) == ("m1", "6f1b", "n1", "Running")
    assert (found.provisioning_state, found.tags) == ("Succeeded", {"owner": "edge"})


@pytest.mark.parametrize(
    ("desired", "current", "expected"),
    [("1.34", "1.34.7", "1.34.7"), ("1.34", "1.33.9", "1.34"), ("v1.34.2", "1.34.1", "1.34.2"), (None, "1.34.1", "")],
)
def test_version_without_patch_is_completed(desired: str | None, current: str, expected: str) -> None:
    document = machine(orchestratorVersion=desired, currentOrchestratorVersion=current)
    assert parse_machine(document).settings.version == expected


@pytest.mark.parametrize(
    ("known", "desired", "expected"),
    [
        ("1.34.2", "1.34", "1.34.2"),
        ("1.34.2", "1.35", "1.35"),
        ("1.34.2", "1.34.7", "1.34.7"),
        ("1.3.2", "1.34", "1.34"),
    ],
)
def test_node_keeps_its_patch_version_of_a_minor_version(known: str, desired: str, expected: str) -> None:
    changed = with_machine_settings({"kubernetes": {"version": known}}, MachineSettings(desired))
    assert changed["kubernetes"] == {"version": expected}
    unresolved = parse_machine(machine(orchestratorVersion=desired, currentOrchestratorVersion=""))
    wanted = replace(parse_machine(machine()).settings, version=known)
    assert differs(wanted, unresolved) == (expected != known)


def test_labels_that_a_node_cannot_set_are_not_adopted() -> None:
    labels = {"site": "a", "node-role.kubernetes.io/edge": ""}
    changed = with_machine_settings({}, MachineSettings(labels=labels), complete=False)
    assert changed["node"]["labels"] == {"site": "a"}


@pytest.mark.parametrize(
    "document",
    [{}, {"name": "m1"}, {"name": "m1", "properties": []}, machine(nodeLabels=["a"]), machine(maxPods="many")],
)
def test_response_that_is_not_a_machine_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(FlexError) as caught:
        parse_machine(document)
    assert caught.value.name == "machine-document-invalid"


def test_put_keeps_kubelet_settings_and_tags_of_a_machine() -> None:
    known = parse_machine(machine(kubeletConfig={"podMaxPids": 100}))
    assert machine_body(MachineSettings("1.34.3", 30, {}, ()), known) == {
        "properties": {
            "kubernetes": {
                "orchestratorVersion": "1.34.3",
                "maxPods": 30,
                "nodeLabels": {},
                "nodeTaints": [],
                "kubeletConfig": {"podMaxPids": 100},
            },
            "tags": {"owner": "edge"},
        }
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"nodeTaints": ["edge=yes:NoSchedule", "a=:NoExecute"]}, True),
        ({"nodeLabels": None}, True),
        ({"maxPods": 51}, True),
        ({"orchestratorVersion": "1.34.3"}, True),
        ({"currentOrchestratorVersion": "1.30.0", "nodeName": "n2"}, False),
        ({"nodeLabels": {"site": "a", "kubernetes.azure.com/managed": "false"}}, False),
    ],
)
def test_machine_differs_only_by_its_settings(changes: dict[str, Any], expected: bool) -> None:
    config = node_config(
        {
            "kubernetes": {"version": "1.34.2"},
            "node": {"maxPods": 50, "labels": {"site": "a"}, "taints": ["edge=yes:NoSchedule"]},
        }
    )
    assert differs(node_settings(config), parse_machine(machine(**changes))) is expected


BEFORE = {
    "kubernetes": {"version": "1.34.1", "urlTemplate": "https://mirror.example/%s/%s/%s"},
    "node": {
        "name": "n1",
        "maxPods": 110,
        "labels": {"old": "x"},
        "taints": ["a:NoSchedule"],
        "kubelet": {"verbosity": 4},
    },
    "proxy": {"https": "http://proxy.example:3128"},
}


def test_machine_settings_replace_those_of_the_document() -> None:
    after = with_machine_settings(BEFORE, parse_machine(machine()).settings)
    assert after["kubernetes"] == {"version": "1.34.2", "urlTemplate": "https://mirror.example/%s/%s/%s"}
    assert after["node"] == {
        "name": "n1",
        "maxPods": 50,
        "labels": {"site": "a"},
        "taints": ["edge=yes:NoSchedule"],
        "kubelet": {"verbosity": 4},
    }
    assert after["proxy"] == BEFORE["proxy"]
    assert BEFORE["node"]["labels"] == {"old": "x"}  # type: ignore[index]


@pytest.mark.parametrize(("complete", "labels", "taints"), [(True, {}, []), (False, {"old": "x"}, ["a:NoSchedule"])])
def test_machine_without_labels_removes_them_only_after_the_join(
    complete: bool, labels: dict[str, str], taints: list[str]
) -> None:
    settings = parse_machine(machine(nodeLabels=None, nodeTaints=None, maxPods=None)).settings
    node = with_machine_settings(BEFORE, settings, complete=complete)["node"]
    assert (node["labels"], node["taints"], node["maxPods"]) == (labels, taints, 110)


def test_kubelet_settings_of_a_machine_become_valid_settings() -> None:
    kubelet = {
        "imageGcHighThreshold": 90,
        "imageGcLowThreshold": 70,
        "podMaxPids": 200,
        "kubeReserved": {"cpuMillicores": 200, "memoryMB": 800},
        "hardEvictionThreshold": {"memoryAvailable": "500Mi"},
        "softEvictionThreshold": {"nodeFsAvailable": "15%"},
        "softEvictionGracePeriod": {"nodeFsAvailable": "2m"},
        "containerLogMaxSizeMB": 20,
        "seccompDefault": "RuntimeDefault",
        "cpuCfsQuota": False,
        "topologyManagerPolicy": None,
    }
    found = with_machine_settings(BEFORE, parse_machine(machine(kubeletConfig=kubelet)).settings)
    config = node_config(found).node.kubelet
    assert (config.image_gc_high_threshold, config.image_gc_low_threshold, config.pod_pids_limit) == (90, 70, 200)
    assert config.kube_reserved == {"cpu": "200m", "memory": "800Mi"}
    assert config.eviction_hard["memory.available"] == "500Mi"
    assert config.extra_config == {
        "evictionSoft": {"nodefs.available": "15%"},
        "evictionSoftGracePeriod": {"nodefs.available": "2m"},
        "containerLogMaxSize": "20Mi",
        "cpuCFSQuota": False,
    }


@pytest.mark.parametrize("profile", ["Unconfined", {}, []])
def test_other_seccomp_profile_is_a_setting_that_the_node_refuses(profile: object) -> None:
    settings = parse_machine(machine(kubeletConfig={"seccompDefault": profile})).settings
    kubelet = with_machine_settings(BEFORE, settings)["node"]["kubelet"]
    assert kubelet["extraConfig"]["seccompDefault"] is False


def test_labels_of_aks_itself_are_kept_and_not_registered() -> None:
    before = {"node": {"labels": {"kubernetes.azure.com/nodepool-type": "FlexNodes", "old": "x"}}}
    settings = parse_machine(machine(nodeLabels={"site": "b", "kubernetes.azure.com/managed": "false"})).settings
    config = node_config(with_machine_settings(before, settings))
    assert config.node.labels == {
        "kubernetes.azure.com/nodepool-type": "FlexNodes",
        "kubernetes.azure.com/managed": "false",
        "site": "b",
    }
    assert node_settings(config).labels == {"site": "b"}
