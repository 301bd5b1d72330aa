"""Tests of the configuration of nodes after their cluster has changed, on a real store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.cluster_registry import cluster_info
from aks_flex_rp.crypto.encryption import open_sealer_keys
from aks_flex_rp.delivery.config_url import BuiltInDelivery
from aks_flex_rp.nodes.cluster_sync import SYNC_PENDING, ClusterSync
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.context import NodeContext, RequestContext
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.store.model import Cluster
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, facts
from tests.service.rp.store.builders import record_authenticator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aks_flex_rp.store.model import Node

REQUEST = RequestContext(Caller("me", "me", CallerKind.USER), "1")
BEFORE = facts("b2xk", "1.33.1")
OID = "11111111-2222-3333-4444-555555555555"


class Site:
    """A cluster with two nodes: one with a version, the other without."""

    def __init__(self, store: SqliteStore, room: Path) -> None:
        sealer = open_sealer_keys(room / "keys", {})
        self.store = store
        self.clusters = FakeClusters.of([])
        delivery = BuiltInDelivery(store, sealer, "https://rp.example")
        self.shop = NodeContext(store, sealer, delivery, self.clusters)

    async def prepare(self, *, follow_version: bool) -> None:
        document = {**BEFORE.to_document(), "followVersion": follow_version}
        cluster = Cluster(PLANT.key, str(PLANT), document, b"")
        await self.store.put_cluster(cluster, None)
        self.clusters.known[PLANT.key] = cluster_info(cluster)
        for name, versions in (("given", {"kubernetes": "1.33.1"}), ("free", {})):
            body: dict[str, Any] = {"properties": {"versions": versions}}
            await NodeCommands(self.shop).put(
                self.clusters.known[PLANT.key], name, body, Preconditions(), REQUEST, url=False
            )

    async def node(self, name: str) -> Node:
        node = await self.store.node(PLANT.key, name)
        assert node
        return node

    async def versions(self) -> dict[str, str]:
        return {name: (await self.node(name)).config["kubernetes"]["version"] for name in ("given", "free")}


@asynccontextmanager
async def site(room: Path, *, follow_version: bool = False) -> AsyncIterator[Site]:
    store = SqliteStore(room / "flex.db", record_authenticator())
    await store.start()
    try:
        made = Site(store, room)
        await made.prepare(follow_version=follow_version)
        yield made
    finally:
        await store.stop()


def test_new_cluster_ca_creates_new_config_version_of_every_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            before = [await here.node(name) for name in ("given", "free")]

            await ClusterSync(here.shop).sync(PLANT.key, replace(BEFORE, ca_cert_data="bmV3"))

            after = [await here.node(name) for name in ("given", "free")]
            assert [node.config["node"]["kubelet"]["caCertData"] for node in after] == ["bmV3", "bmV3"]
            assert all(
                new.version > old.version and new.etag != old.etag for old, new in zip(before, after, strict=True)
            )
            [event] = await here.store.audit(what="cluster.changed")
            assert event.detail == {"ca_cert_data": ["b2xk", "bmV3"]}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("follow", "expected"),
    [(False, {"given": "1.33.1", "free": "1.33.1"}), (True, {"given": "1.33.1", "free": "1.34.4"})],
)
def test_new_cluster_version_is_applied_only_to_unpinned_nodes_if_enabled(
    tmp_path: Path, follow: bool, expected: dict[str, str]
) -> None:
    async def story() -> None:
        async with site(tmp_path, follow_version=follow) as here:
            await ClusterSync(here.shop).sync(PLANT.key, replace(BEFORE, version="1.34.4"))

            assert await here.versions() == expected

    asyncio.run(story())


def test_interrupted_cluster_sync_is_completed_by_next_run(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            after = replace(BEFORE, ca_cert_data="bmV3")
            cluster = await here.store.cluster(PLANT.key)
            assert cluster
            half = {**cluster.facts, **after.to_document(), SYNC_PENDING: True}
            await here.store.put_cluster(replace(cluster, facts=half, version=2), 1)

            await ClusterSync(here.shop).sync(PLANT.key, after)
            assert (await here.node("free")).config["node"]["kubelet"]["caCertData"] == "bmV3"
            await ClusterSync(here.shop).sync(PLANT.key, after)  # finds nothing to do and records its completion
            cluster = await here.store.cluster(PLANT.key)
            assert cluster
            assert cluster.facts[SYNC_PENDING] is False

    asyncio.run(story())


WAYS = AgentEndpoints("https://flex.example", "Q0E=")
MONITORED = {
    "continuousMonitoring": True,
    "azureAuth": {
        "method": "managedIdentity",
        "managedIdentity": {"clientId": "11111111-2222-3333-4444-555555555555"},
    },
}


async def monitored(here: Site) -> None:
    """Creates a monitored node with a service that has no configured endpoints."""
    cluster = here.clusters.known[PLANT.key]
    await NodeCommands(here.shop).put(
        cluster, "stays", {"properties": MONITORED}, Preconditions(), REQUEST, url=False
    )


def test_changed_provider_endpoints_update_only_managed_nodes(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            await monitored(here)
            before = {name: (await here.node(name)).version for name in ("stays", "free")}

            replica = ClusterSync(replace(here.shop, endpoints=WAYS))
            for _ in range(3):
                await replica.sync(PLANT.key, BEFORE)

            stays = await here.node("stays")
            assert stays.config["provider"] == {"url": "https://flex.example", "caCertData": "Q0E="}
            assert stays.version > before["stays"]
            assert (await here.node("free")).version == before["free"]
            assert await here.store.audit(what="cluster.changed") == ()
            assert len(await here.store.audit(what="update")) == 1

    asyncio.run(story())


def test_replicas_with_different_endpoints_do_not_rewrite_nodes_forever(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            await monitored(here)
            old, new = (
                ClusterSync(replace(here.shop, endpoints=ways))
                for ways in (WAYS, replace(WAYS, url="https://new.example"))
            )
            for replica in (old, new, old, new, old, new):
                await replica.sync(PLANT.key, BEFORE)

            assert (await here.node("stays")).config["provider"]["url"] == "https://new.example"
            assert len(await here.store.audit(what="update")) == 2
            noted = await here.store.cluster(PLANT.key)
            assert noted
            assert cluster_info(noted).endpoints == replace(WAYS, url="https://new.example")  # also for later writes

    asyncio.run(story())


def test_cluster_sync_keeps_allow_downgrade(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            cluster = here.clusters.known[PLANT.key]
            await NodeCommands(here.shop).put(
                cluster, "free", {}, Preconditions(allow_downgrade=True), REQUEST, url=False
            )

            await ClusterSync(here.shop).sync(PLANT.key, replace(BEFORE, ca_cert_data="bmV3"))

            assert (await here.node("free")).config["updatePolicy"] == {"allowDowngrade": True}

    asyncio.run(story())
