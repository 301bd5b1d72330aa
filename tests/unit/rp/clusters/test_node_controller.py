"""What the provider reads of a Node."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import pytest

from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.clusters.controller import ClusterController
from aks_flex_rp.clusters.facts import DNS
from aks_flex_rp.clusters.node_controller import NODES, LostNodeCollector, readiness, reported_fields
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import DIRECT, FakeApi

ANNOTATIONS = {
    "flex.aks.azure.com/applied-config-version": "7",
    "flex.aks.azure.com/last-config-applied": "2026-01-02T03:04:05Z",
}


def node(annotations: dict[str, str] | None) -> dict[str, Any]:
    return {
        "metadata": {"name": "edge-1", "annotations": annotations},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        },
    }


def test_readiness_contains_the_config_that_the_node_applied() -> None:
    found = readiness(node(ANNOTATIONS))
    assert (found["appliedConfigVersion"], found["lastConfigApplied"]) == ("7", "2026-01-02T03:04:05Z")
    assert readiness(node(None))["appliedConfigVersion"] == ""


def test_newly_applied_config_is_reported_although_the_node_stays_ready() -> None:
    assert reported_fields(readiness(node(ANNOTATIONS))) != reported_fields(readiness(node({})))


HOUR = 3600.0
EDGE = f"{NODES}/edge-1"


def ago(seconds: float) -> str:
    return format_utc(time.time() - seconds)


class Scene:
    def __init__(self) -> None:
        self.api, self.heard = FakeApi(), Heard()
        self.heard.deletions["edge-1"] = time.time() - 2 * HOUR
        self.lost = LostNodeCollector("lab", self.api.client(), self.heard, HOUR)

    def sees(self, status: str = "Unknown", since: float = 2 * HOUR, **metadata: Any) -> None:
        condition = {"type": "Ready", "status": status, "lastTransitionTime": ago(since)}
        document = {"metadata": {"labels": MANAGED_LABEL, **metadata}, "status": {"conditions": [condition]}}
        self.lost.observe(self.api.put(EDGE, document))

    @property
    def is_there(self) -> bool:
        return EDGE in self.api.objects


@pytest.mark.parametrize("status", ["Unknown", "False"])
async def test_lost_node_is_deleted_from_cluster_and_reported(status: str) -> None:
    scene = Scene()
    scene.sees(status)
    await scene.lost.clean_up()

    assert not scene.is_there
    assert scene.heard.told == [("removed", "edge-1")]


async def test_lost_node_without_conditions_is_deleted() -> None:
    scene = Scene()
    scene.lost.observe(scene.api.put(EDGE, {"metadata": {"labels": MANAGED_LABEL}}))
    await scene.lost.clean_up()

    assert not scene.is_there


@pytest.mark.parametrize(
    "words",
    [
        {"status": "True"},
        {"since": HOUR - 60},
        {"creationTimestamp": ago(HOUR)},
        {"labels": {}},
    ],
    ids=("it is Ready", "it was Ready a while ago", "it came after the deletion", "it is no flex node"),
)
async def test_node_is_kept_if_recently_ready_recreated_or_foreign(words: dict[str, Any]) -> None:
    scene = Scene()
    scene.sees(**words)
    await scene.lost.clean_up()

    assert scene.is_there
    assert scene.heard.told == []


async def test_node_is_kept_unless_its_resource_was_deleted_long_enough_ago() -> None:
    scene = Scene()
    scene.sees()
    scene.heard.tokens["edge-1"] = ""
    await scene.lost.clean_up()
    del scene.heard.tokens["edge-1"]
    scene.heard.deletions["edge-1"] = time.time() - HOUR + 60
    await scene.lost.clean_up()
    scene.heard.deletions.clear()
    await scene.lost.clean_up()

    assert scene.is_there


async def test_node_that_becomes_ready_before_deletion_is_kept() -> None:
    scene = Scene()
    scene.sees()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    stale = scene.api.objects[EDGE]

    def found(_: httpx2.Request) -> httpx2.Response:
        scene.api.put(EDGE, {"metadata": {"labels": MANAGED_LABEL}, **ready})
        return httpx2.Response(200, json=stale)

    scene.api.answers[f"GET {EDGE}"] = found
    await scene.lost.clean_up()

    assert scene.is_there
    assert scene.heard.told == []


async def test_ready_or_deleted_nodes_require_no_cluster_requests() -> None:
    scene = Scene()
    scene.sees()
    scene.sees("True")
    await scene.lost.clean_up()
    scene.sees()
    scene.lost.gone("edge-1")
    await scene.lost.clean_up()

    assert scene.api.calls == []


async def test_cluster_facts_are_reported_on_refresh_and_retried_after_failure() -> None:
    api, heard = FakeApi(), Heard()
    api.put("/version", {"gitVersion": "v1.34.4"})
    api.put(DNS, {"spec": {"clusterIP": "10.0.0.10"}})
    api.put("/apis/admissionregistration.k8s.io/v1", {})
    watch = ClusterController("lab", DIRECT, heard)
    watch.client = api.client()
    heard.deaf = True
    with pytest.raises(ConnectionError):
        await watch.refresh()
    heard.deaf = False
    for _ in range(2):
        await watch.refresh()
    await watch.stop()

    assert [facts.dns_service_ip for facts in heard.facts] == ["10.0.0.10", "10.0.0.10"]
    assert await watch.facts() == heard.facts[0]
