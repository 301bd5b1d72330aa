"""Tests of the cluster registry: it reflects what replicas write to the store, and asks connected clusters."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.azure.arm import arm_unreachable_error
from aks_flex_node.errors import ClusterError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.cluster_registry import ClusterRegistry, connection_seal_context
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.admission_policies import BINDING_PREFIX
from aks_flex_rp.clusters.connections import DirectConnection, to_bytes
from aks_flex_rp.clusters.controller import ClusterController
from aks_flex_rp.clusters.holder import HOLDER_FACT
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.clusters.prerequisites import BINDINGS
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from aks_flex_rp.store.model import Cluster, Node
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api.fake_clusters import PLANT, facts
from tests.service.rp.store.builders import record_authenticator, started
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import DIRECT, FakeApi, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.connections import ClusterConnection

SEALER = Sealer([b"k" * 32], "a test")
KEY = PLANT.key
BINDING = f"{BINDINGS}/{BINDING_PREFIX}edge-1"


class UnwatchedController(ClusterController):
    """A connection to a cluster in memory, without a watch."""

    def __init__(self, client: KubeClient, server: str, seen: list[str]) -> None:
        super().__init__(KEY, DIRECT, Heard())
        self.client, self._server, self._seen = client, server, seen

    def node_changed(self, name: str | None) -> None:
        self._seen.append(f"look at {name or 'all'}")

    async def start(self) -> None:
        self._seen.append(f"start {self._server}")

    async def stop(self) -> None:
        self._seen.append(f"stop {self._server}")


class Replica:
    """A registry, its store, and what its controllers were told."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.api, self.seen = store, FakeApi(), list[str]()
        self.client = self.api.client()
        self.clusters = ClusterRegistry(store, SEALER, self.controller, lambda _: None)

    def controller(self, _: Cluster, connection: ClusterConnection) -> ClusterController:
        assert isinstance(connection, DirectConnection)
        return UnwatchedController(self.client, connection.server, self.seen)

    async def add(
        self,
        server: str = "https://one",
        version: int = 1,
        of: ClusterId = PLANT,
        *,
        by: Sealer = SEALER,
    ) -> None:
        sealed = by.seal(to_bytes(DirectConnection(server, "PEM")), connection_seal_context(of.key))
        document = {**facts("Q0E=").to_document(), HOLDER_FACT: "of-plant"}
        await self.store.put_cluster(Cluster(of.key, str(of), document, sealed, version), version - 1 or None)
        await self.clusters.find(of.key)  # connects a cluster that it does not have


@pytest.fixture
def replica(tmp_path: Path) -> AbstractAsyncContextManager[Replica]:
    @asynccontextmanager
    async def running() -> AsyncIterator[Replica]:
        async with started(SqliteStore(tmp_path / "rp.db", record_authenticator())) as store:
            replica = Replica(store)
            await replica.clusters.start()
            yield replica
            await replica.clusters.stop()

    return running()


async def test_cluster_controller_restarts_on_connection_change_and_stops_at_end(replica: Replica) -> None:
    clusters = replica.clusters
    assert await clusters.find(KEY) is None
    with pytest.raises(ClusterError, match="not connected"):
        await clusters.mint(KEY, "edge-1", 0.0)

    await replica.add()
    found = await clusters.find(KEY)
    assert found
    assert (found.id, found.facts.version) == (PLANT, "1.34.4")

    first = await replica.store.cluster(KEY)
    assert first
    await replica.store.put_cluster(replace(first, version=2, facts={**first.facts, "followVersion": True}), 1)
    await clusters._sync()
    assert replica.seen == ["start https://one"]  # the cluster's data changed, not its connection
    found = await clusters.find(KEY)
    assert found
    assert found.follow_version

    await replica.add("https://two", 3)
    await clusters._sync()
    await replica.store.delete_cluster(KEY)
    await clusters._sync()
    assert not await clusters.is_there(KEY)
    assert replica.seen == ["start https://one", "stop https://one", "start https://two", "stop https://two"]


async def test_node_write_notifies_controller_of_its_cluster(replica: Replica) -> None:
    await replica.add()
    await replica.store.put_node(Node(KEY, "edge-1", "Edge-1", 1, '"1"', {}, {}), None)
    for _ in range(1000):
        if "look at edge-1" in replica.seen:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(replica.seen)


async def test_failed_access_grant_reports_whether_retry_helps(replica: Replica) -> None:
    await replica.add()
    access, answers = ClusterAccess("11111111-2222-3333-4444-555555555555", AccessMethod.EXEC), replica.api.answers
    for refused, again in ((refusal(403, "No", "may not bind"), False), (refusal(503, "No", "may not bind"), True)):
        answers[f"PATCH {BINDING}"] = lambda _, answer=refused: answer  # type: ignore[misc]
        with pytest.raises(ClusterError, match="may not bind") as caught:
            await replica.clusters.grant(KEY, "edge-1", access)
        assert (caught.value.name, caught.value.retryable) == ("cluster-forbidden", again)
    answers.clear()
    await replica.clusters.grant(KEY, "edge-1", access)
    answers[f"DELETE {BINDING}"] = lambda _: refusal(503, "No")
    assert not await replica.clusters.withdraw(KEY, "edge-1")
    answers.clear()
    assert await replica.clusters.withdraw(KEY, "edge-1")
    assert await replica.clusters.withdraw(KEY, "edge-1")  # already removed


async def test_bootstrap_token_is_not_created_for_name_of_foreign_node(replica: Replica) -> None:
    await replica.add()
    replica.api.put(f"{NODES}/cloud-1", {})
    replica.api.put(f"{NODES}/edge-1", {"metadata": {"labels": {"kubernetes.azure.com/managed": "false"}}})
    with pytest.raises(ClusterError) as caught:
        await replica.clusters.mint(KEY, "cloud-1", time.time())
    for name in ("edge-1", "edge-2"):
        await replica.clusters.mint(KEY, name, time.time())

    assert (caught.value.name, caught.value.retryable) == ("node-name-taken", False)
    assert "a Node cloud-1 that is not a flex node" in caught.value.message
    assert len([path for path in replica.api.objects if path.startswith(bootstrap_tokens.SECRETS)]) == 2


@pytest.mark.parametrize(("status", "again"), [(403, False), (429, True), (500, True), (503, True)])
async def test_token_creation_error_is_retriable_depending_on_status(
    replica: Replica, status: int, again: bool
) -> None:
    await replica.add()
    replica.api.answers[f"POST {bootstrap_tokens.SECRETS}"] = lambda _: refusal(status, "No")
    with pytest.raises(ClusterError) as caught:
        await replica.clusters.mint(KEY, "edge-1", time.time())

    assert (caught.value.name, caught.value.retryable) == ("cluster-forbidden", again)


class NoAzure:
    """A cluster connected through Azure, while Azure is unavailable."""

    renewable = True

    async def connection(self) -> DirectConnection:
        raise arm_unreachable_error("https://azure.example", "it is away")

    async def managed_cluster(self) -> dict[str, Any] | None:
        return None


async def test_failed_token_revocation_when_azure_is_down_is_not_an_error(replica: Replica) -> None:
    replica.client = replica.api.client(NoAzure())
    await replica.add()
    assert not await replica.clusters.revoke(KEY, "abcdef")


async def test_cluster_that_cannot_be_watched_is_logged_once(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [ClusterId(PLANT.subscription, "edge", f"plant-{number}") for number in range(3)]
    for each in ids:  # each request reads the store, and tries all clusters again
        await replica.add(of=each, by=Sealer([b"x" * 32], "a lost key"))

    logged = [record.getMessage() for record in caplog.records]
    watches = [text.split()[4].rstrip(":") for text in logged if text.startswith("Cannot watch the cluster")]
    assert watches == [*map(str, ids)]
