"""Which operation a path names."""

from __future__ import annotations

import pytest

from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.arm.ids import cluster_id
from aks_flex_node.rp.serving.doors import Target, action_name, target

CLUSTER = (
    "/subscriptions/12345678-1234-1234-1234-123456789abc/resourceGroups/Edge"
    "/providers/Microsoft.ContainerService/managedClusters/Plant"
)
LIST = f"{CLUSTER}/flexNodeConfig"


def named(path: str) -> Target:
    return target(path)


def test_paths_match_in_any_case_and_come_back_as_written() -> None:
    found = named(f"{LIST}/Edge-1/RegenerateToken".upper())

    assert found.action == "regenerateToken"
    assert found.node == "EDGE-1"
    assert found.cluster.key == CLUSTER.lower()
    assert found.id.endswith("/flexNodeConfig/EDGE-1")


@pytest.mark.parametrize("path", [LIST, f"{LIST}/"])
def test_a_list_has_no_node(path: str) -> None:
    assert (named(path).node, named(path).action) == ("", None)


def test_a_slash_at_the_end_does_not_matter() -> None:
    assert named(f"{LIST}/edge-1/") == named(f"{LIST}/edge-1")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        CLUSTER,
        f"{CLUSTER}/flexNodeConfigs",
        f"{LIST}/a/b",
        f"{LIST}/a/reportStatus/more",
        f"/x{LIST}",
        LIST.replace("1234-", "", 1),
        LIST.replace("ContainerService", "Compute"),
        "/configs/secret",
    ],
)
def test_what_is_not_ours_is_not_here(path: str) -> None:
    with pytest.raises(ArmError) as caught:
        named(path)
    assert (caught.value.status, caught.value.code) == (404, "InvalidResourceType")


@pytest.mark.parametrize("name", ["-a", "a-", "a_b", "a..b", "x" * 64, "ä", "a b", "%00"])
def test_names_are_those_of_nodes(name: str) -> None:
    with pytest.raises(ArmError) as caught:
        named(f"{LIST}/{name}")
    assert caught.value.code == "InvalidResourceName"


@pytest.mark.parametrize("text", ["", "Plant", f"{CLUSTER}/more", CLUSTER + "-", CLUSTER.replace("/Edge", "/Edge.")])
def test_ids_of_clusters_are_checked(text: str) -> None:
    assert cluster_id(text) is None


def test_operations_have_azures_names() -> None:
    assert action_name("list") == action_name("read")
    assert action_name("write").endswith("/flexNodeConfig/write")
    assert action_name("reportStatus").endswith("/flexNodeConfig/reportStatus/action")
