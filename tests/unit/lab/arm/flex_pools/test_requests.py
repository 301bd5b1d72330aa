"""Tests of the bodies of requests for flex node pools and Machines."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.flex_pools.requests import check_etag, max_unavailable, read_machine, read_pool

POOL_ID = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c/agentPools/edge"
CONTROL_PLANE = "1.36.3"


def pool(**properties: Any) -> Any:
    return read_pool({"properties": {"type": "FlexNodes", **properties}}, POOL_ID, CONTROL_PLANE, None)


def machine(known: Any = None, **kubernetes: Any) -> Any:
    body = {"properties": {"kubernetes": kubernetes}}
    return read_machine(body, f"{POOL_ID}/machines/edge-1", CONTROL_PLANE, known, pool())


@pytest.mark.parametrize(
    ("text", "machines", "count"), [(None, 5, 1), ("2", 5, 2), ("50%", 5, 3), ("1%", 5, 1), ("100%", 4, 4)]
)
def test_percentage_of_unavailable_machines_is_rounded_up(text: str | None, machines: int, count: int) -> None:
    assert max_unavailable(pool(upgradeSettings={"maxUnavailable": text}), machines) == count


@pytest.mark.parametrize(
    ("kubernetes", "word"),
    [
        ({"orchestratorVersion": "1.37.0"}, "1.37.0"),
        ({"orchestratorVersion": "latest"}, "orchestratorVersion"),
        ({"maxPods": "30"}, "maxPods"),
        ({"maxPods": 9}, "maxPods"),
        ({"nodeTaints": ["a=b"]}, "nodeTaints"),
        ({"nodeLabels": {"a": 1}}, "nodeLabels"),
        ({"kubeletConfig": {"imageGcHighThreshold": "90"}}, "imageGcHighThreshold"),
        ({"kubeletConfig": {"unknown": 1}}, "unknown"),
        ({"workloadRuntime": "OCIContainer"}, "workloadRuntime"),
    ],
)
def test_setting_that_a_machine_cannot_have_is_refused(kubernetes: dict[str, Any], word: str) -> None:
    with pytest.raises(LabArmError, match=word) as refused:
        machine(**kubernetes)
    assert refused.value.status == 400


def test_equal_settings_keep_the_etag() -> None:
    first = machine(nodeLabels={"a": "1"}, kubeletConfig={"imageGcHighThreshold": 90})
    again = machine(first, nodeLabels={"a": "1", "kubernetes.azure.com/managed": "false"}, kubeletConfig=None)
    assert again == first
    assert machine(first, kubeletConfig={"imageGcHighThreshold": 80}).etag != first.etag


def test_minor_version_means_the_patch_version_of_the_control_plane() -> None:
    assert machine(orchestratorVersion="1.36").settings.orchestrator_version == CONTROL_PLANE


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "etag", "is_refused"),
    [
        ("", "", "x", False),
        ('"x"', "", "x", False),
        ("y", "", "x", True),
        ("*", "", "x", False),
        ("*", "", "", True),
        ("", "*", "x", True),
        ("", "*", "", False),
        ("", "y", "x", False),
    ],
)
def test_etag_conditions_follow_http(if_match: str, if_none_match: str, etag: str, is_refused: bool) -> None:
    with pytest.raises(LabArmError, match="eTag") if is_refused else nullcontext():
        check_etag({"if-match": if_match, "if-none-match": if_none_match}, etag)
