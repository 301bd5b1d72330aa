"""Tests of PUTs that change nothing and of avoided store reads, on a real store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.crypto.encryption import open_sealer_keys
from aks_flex_rp.delivery.config_url import BuiltInDelivery
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, facts
from tests.service.rp.store.builders import record_authenticator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aks_flex_rp.nodes.commands import WriteResult
    from aks_flex_rp.store.model import LastKnownNode

CLUSTER = ClusterInfo(PLANT, facts("b2xk"))
REQUEST = RequestContext(Caller("me", "me", CallerKind.USER), "1")
BODY: dict[str, Any] = {"properties": {"nodeConfig": {"labels": {"site": "rome"}}}}


class CountingStore(SqliteStore):
    """Counts the lookups of deleted nodes."""

    lookups = 0

    async def last_known_node(self, cluster: str, key: str) -> LastKnownNode:
        self.lookups += 1
        return await super().last_known_node(cluster, key)


class Site:
    def __init__(self, store: CountingStore, directory: Path) -> None:
        sealer = open_sealer_keys(directory / "keys", {})
        self.store, self.clusters = store, FakeClusters.of([CLUSTER])
        delivery = BuiltInDelivery(store, sealer, "https://rp.example")
        self.now = 1000.0
        self.commands = NodeCommands(NodeContext(store, sealer, delivery, self.clusters, now=lambda: self.now))

    async def put(self, *, url: bool = False, body: dict[str, Any] | None = None) -> WriteResult:
        return await self.commands.put(CLUSTER, "edge", body or BODY, Preconditions(), REQUEST, url=url)

    async def changes(self) -> list[dict[str, Any]]:
        """Returns the changes of each write, latest first."""
        return [event.detail["changed"] for event in await self.store.audit() if "changed" in event.detail]


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    store = CountingStore(directory / "flex.db", record_authenticator())
    await store.start()
    try:
        yield Site(store, directory)
    finally:
        await store.stop()


def test_a_put_with_the_same_body_is_a_new_version_that_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            first, second = await here.put(), await here.put()

            assert (first.created, second.created) == (True, False)
            assert second.node.version == first.node.version + 1, "also within the same second"
            assert second.node.properties == first.node.properties
            assert second.node.created == first.node.created
            assert (await here.changes())[0] == {}

    asyncio.run(story())


def test_a_put_without_a_url_ends_the_earlier_url_and_its_token(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            first = await here.put(url=True)
            assert first.url
            assert list(here.clusters.tokens) == [first.node.join.token]

            second = await here.put()

            assert second.url is None
            assert here.clusters.tokens == {}
            assert (second.node.join.token, second.node.join.url_expires) == (None, None)

    asyncio.run(story())


def test_a_put_with_a_url_replaces_the_token_of_the_one_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            first, second = await here.put(url=True), await here.put(url=True)

            assert first.url
            assert second.url
            assert first.url.url != second.url.url
            assert list(here.clusters.tokens) == [second.node.join.token]

    asyncio.run(story())


def test_only_a_first_write_with_a_url_looks_for_a_deleted_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            await here.put()
            await here.put(url=True)
            assert here.store.lookups == 0, "the node itself has the version"

            await here.commands.delete(CLUSTER, "edge", Preconditions(), REQUEST)
            await here.put(url=True)
            assert here.store.lookups == 1

    asyncio.run(story())


def test_a_node_made_again_in_the_same_second_gets_a_higher_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with site(tmp_path) as here:
            first = await here.put()
            await here.commands.delete(CLUSTER, "edge", Preconditions(), REQUEST)

            again = await here.put()

            assert (again.created, here.store.lookups) == (True, 1), (
                "the store refused it once, and then it was looked for"
            )
            assert again.node.version > first.node.version

    asyncio.run(story())
