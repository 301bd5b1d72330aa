"""Tests of the informer: it misses no event, independent of the API server's behavior."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.informer import Informer, run_periodically
from aks_flex_rp.clusters.node_controller import NODES, NodeController
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import FakeApi


class Script:
    """Returns predefined lists and watch events, and records the requested versions."""

    def __init__(self, api: FakeApi, *watches: list[dict[str, Any]]) -> None:
        self.asked: list[str] = []
        self._watches = iter(watches)
        self._api = api
        api.answers[f"GET {NODES}"] = self

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.params.get("watch") != "true":
            self.asked.append("list")
            metadata = {"resourceVersion": "10"}
            return httpx2.Response(200, json={"items": list(self._api.objects.values()), "metadata": metadata})
        self.asked.append(request.url.params["resourceVersion"])
        lines = "".join(json.dumps(event) + "\n" for event in next(self._watches))
        return httpx2.Response(200, content=lines.encode())


class Seen:
    def __init__(self) -> None:
        self.what: list[str] = []
        self.ill = False

    async def listed(self, items: list[dict[str, Any]]) -> None:
        self.what.append(f"{len(items)} listed")

    async def changed(self, kind: str, item: dict[str, Any]) -> None:
        if self.ill:
            raise ConnectionError("the store is away")
        self.what.append(f"{kind} {item['metadata']['name']}")


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}}}


GONE = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}


async def test_informer_lists_once_and_resumes_from_last_version() -> None:
    api, seen = FakeApi(), Seen()
    script = Script(api, [event("ADDED", "a", 11), event("BOOKMARK", "", 20)], [event("DELETED", "a", 21)])
    async with api.client() as client:
        following = Informer(client, NODES, seen)
        await following.once()
        await following.once()

    assert seen.what == ["0 listed", "ADDED a", "DELETED a"]
    assert script.asked == ["list", "10", "20"]


async def test_informer_lists_again_after_missed_events() -> None:
    api, seen = FakeApi(), Seen()
    script = Script(api, [GONE], [])
    async with api.client() as client:
        following = Informer(client, NODES, seen)
        with pytest.raises(ApiRefused):
            await following.once()
        await following.once()

    assert script.asked == ["list", "10", "list", "10"]


async def test_informer_lists_again_after_failed_event_handler() -> None:
    api, seen = FakeApi(), Seen()
    script = Script(api, [event("ADDED", "a", 11)], [])
    async with api.client() as client:
        following = Informer(client, NODES, seen)
        seen.ill = True
        with pytest.raises(ConnectionError):
            await following.once()
        await following.once()

    assert script.asked == ["list", "10", "list", "10"]


async def test_periodic_task_retries_failures_and_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0
    done = asyncio.Event()

    async def once() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ConnectionError("away")
        done.set()

    task = asyncio.create_task(run_periodically("lab: nodes", once, rest=3600))
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert tries == 4
    assert [record.message for record in caplog.records] == ["lab: nodes: failed, retrying: away"]


def node(name: str, ready: str = "True", version: str = "v1.34.4", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": "u", "resourceVersion": "1", **metadata},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"kubeletVersion": version}},
    }


async def test_node_changes_and_missed_deletions_are_reported() -> None:
    api, heard = FakeApi(), Heard()
    heard.tokens = {"edge-1": "", "edge-2": ""}
    async with api.client() as client:
        watch = NodeController("lab", client, heard)
        await watch.listed([node("edge-1"), node("cloud-1"), {"metadata": {"name": "edge-2"}}])
        await watch.changed("MODIFIED", node("edge-1"))
        await watch.changed("MODIFIED", node("edge-1", version="v1.35.0"))
        await watch.changed("DELETED", node("edge-1"))
        await watch.listed([node("cloud-1"), {"metadata": {"name": "edge-2"}}])

    assert heard.told == [
        ("observed", "edge-1", "Truev1.34.4"),
        ("observed", "edge-1", "Truev1.35.0"),
        ("observed", "edge-1", "gone"),
    ]
    assert heard.absent == ["edge-1"]
