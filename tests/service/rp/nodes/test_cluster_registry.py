"""Tests of the cluster registry: it reflects what other replicas write to the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.errors import ClusterError
from aks_flex_rp.cluster_registry import ClusterRegistry, connection_seal_context
from aks_flex_rp.clusters import connections
from aks_flex_rp.clusters.exec_nodes import BINDING_PREFIX
from aks_flex_rp.clusters.holder import HOLDER_FACT
from aks_flex_rp.clusters.prerequisites import BINDINGS
from aks_flex_rp.crypto.encryption import open_sealer_keys
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from aks_flex_rp.store.model import Cluster, Node
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api.fake_clusters import PLANT, facts
from tests.service.rp.store.builders import record_authenticator
from tests.unit.rp.clusters.fakes import FakeApi, refusal

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from aks_flex_rp.clusters.controller import ClusterController
    from aks_flex_rp.crypto.encryption import Sealer


class Watch:
    def __init__(self, server: str, seen: list[str], api: FakeApi | None = None) -> None:
        self._server, self._seen = server, seen
        self.client = (api or FakeApi()).client()

    def node_changed(self, name: str | None) -> None:
        self._seen.append(f"look at {name or 'all'}")

    async def start(self) -> None:
        self._seen.append(f"start {self._server}")

    async def stop(self) -> None:
        self._seen.append(f"stop {self._server}")


def cluster(sealer: Sealer, server: str, version: int) -> Cluster:
    way = connections.to_bytes(connections.DirectConnection(server, "PEM"))
    sealed = sealer.seal(way, connection_seal_context(PLANT.key))
    return Cluster(PLANT.key, str(PLANT), {**facts("Q0E=").to_document(), HOLDER_FACT: "of-plant"}, sealed, version)


def test_cluster_controller_restarts_on_connection_change_and_stops_at_end(tmp_path: Path) -> None:
    sealer = open_sealer_keys(tmp_path / "keys", {})
    seen: list[str] = []

    def watch(_: Cluster, way: connections.ClusterConnection) -> ClusterController:
        assert isinstance(way, connections.DirectConnection)
        return cast("ClusterController", Watch(way.server, seen))

    async def story() -> None:
        store = SqliteStore(tmp_path / "flex.db", record_authenticator())
        await store.start()
        connected = ClusterRegistry(store, sealer, watch, lambda _: None)
        await connected.start()
        try:
            assert await connected.find(PLANT.key) is None
            with pytest.raises(ClusterError, match="not connected"):
                await connected.mint(PLANT.key, "edge-1", 0.0)

            first = cluster(sealer, "https://one", 1)
            await store.put_cluster(first, None)
            found = await connected.find(PLANT.key)
            assert found
            assert (found.id, found.facts.version) == (PLANT, "1.34.4")

            await store.put_cluster(replace(first, version=2, facts={**first.facts, "followVersion": True}), 1)
            await connected._sync()
            assert seen == ["start https://one"]  # the cluster's data changed, not its connection
            found = await connected.find(PLANT.key)
            assert found
            assert found.follow_version

            await store.put_cluster(cluster(sealer, "https://two", 3), 2)
            await connected._sync()
            await store.delete_cluster(PLANT.key)
            await connected._sync()
            assert not await connected.is_there(PLANT.key)
        finally:
            await connected.stop()
            await store.stop()

    asyncio.run(story())
    assert seen == ["start https://one", "stop https://one", "start https://two", "stop https://two"]


def test_node_write_notifies_controller_of_its_cluster(tmp_path: Path) -> None:
    sealer = open_sealer_keys(tmp_path / "keys", {})
    seen: list[str] = []

    async def until(what: str) -> None:
        while what not in seen:
            await asyncio.sleep(0.01)

    async def story() -> None:
        store = SqliteStore(tmp_path / "flex.db", record_authenticator())
        await store.start()
        await store.put_cluster(cluster(sealer, "https://one", 1), None)
        connected = ClusterRegistry(
            store, sealer, lambda *_: cast("ClusterController", Watch("https://one", seen)), lambda _: None
        )
        await connected.start()
        try:
            await store.put_node(Node(PLANT.key, "edge-1", "Edge-1", 1, '"1"', {}, {}), None)
            await asyncio.wait_for(until("look at edge-1"), 10)
            await store.delete_node(PLANT.key, "edge-1", None)
        finally:
            await connected.stop()
            await store.stop()

    asyncio.run(story())


def refused_with(status: int, _: object) -> httpx2.Response:
    return refusal(status, "No", "may not bind")


def test_failed_access_grant_reports_whether_retry_helps(tmp_path: Path) -> None:
    sealer, api = open_sealer_keys(tmp_path / "keys", {}), FakeApi()
    access = ClusterAccess("11111111-2222-3333-4444-555555555555", AccessMethod.EXEC)
    binding = f"{BINDINGS}/{BINDING_PREFIX}edge-1"

    async def story() -> None:
        store = SqliteStore(tmp_path / "flex.db", record_authenticator())
        await store.start()
        await store.put_cluster(cluster(sealer, "https://one", 1), None)
        connected = ClusterRegistry(
            store, sealer, lambda *_: cast("ClusterController", Watch("https://one", [], api)), lambda _: None
        )
        await connected.start()
        try:
            for status, again in ((403, False), (503, True)):
                api.answers[f"PATCH {binding}"] = partial(refused_with, status)
                with pytest.raises(ClusterError, match="may not bind") as refused:
                    await connected.grant(PLANT.key, "edge-1", access)
                assert (refused.value.name, refused.value.retryable) == ("cluster-forbidden", again)
            api.answers.clear()
            await connected.grant(PLANT.key, "edge-1", access)
            api.answers[f"DELETE {binding}"] = lambda _: refusal(503, "No")
            assert not await connected.withdraw(PLANT.key, "edge-1")
            api.answers.clear()
            assert await connected.withdraw(PLANT.key, "edge-1")
            assert await connected.withdraw(PLANT.key, "edge-1")  # already removed
        finally:
            await connected.stop()
            await store.stop()

    asyncio.run(story())
