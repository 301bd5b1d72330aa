"""Tests of token creation and revocation in a connected cluster."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.azure.arm import arm_unreachable_error
from aks_flex_node.errors import ClusterError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.cluster_registry import ClusterRegistry, connection_seal_context
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.connections import to_bytes
from aks_flex_rp.clusters.controller import ClusterController
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.store.model import Cluster
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import record_authenticator
from tests.unit.rp.clusters.builders import Heard, in_loop
from tests.unit.rp.clusters.fakes import DIRECT, FakeApi, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.connections import DirectConnection

ID = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/plant"
KEY = ID.lower()


class UnwatchedController(ClusterController):
    """A connection to a cluster in memory, without a watch."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(KEY, DIRECT, Heard())
        self.client = client

    async def start(self) -> None: ...


class NoAzure:
    """A cluster connected through Azure, while Azure is unavailable."""

    renewable = True

    async def connection(self) -> DirectConnection:
        raise arm_unreachable_error("https://azure.example", "it is away")

    async def managed_cluster(self) -> dict[str, Any] | None:
        return None


@asynccontextmanager
async def connected(client: KubeClient, directory: Path) -> AsyncIterator[ClusterRegistry]:
    store, sealer = SqliteStore(directory / "rp.db", record_authenticator()), Sealer([b"k" * 32], "a test")
    await store.start()
    sealed = sealer.seal(to_bytes(DIRECT), connection_seal_context(KEY))
    await store.put_cluster(Cluster(KEY, ID, {}, sealed), None)
    clusters = ClusterRegistry(
        store, sealer, lambda _cluster, _connection: UnwatchedController(client), lambda _: None
    )
    await clusters.start()
    try:
        yield clusters
    finally:
        await clusters.stop()
        await store.stop()


@in_loop
async def test_bootstrap_token_is_not_created_for_name_of_foreign_node(tmp_path: Path) -> None:
    api = FakeApi()
    api.put(f"{NODES}/cloud-1", {})
    api.put(f"{NODES}/edge-1", {"metadata": {"labels": {"kubernetes.azure.com/managed": "false"}}})
    async with connected(api.client(), tmp_path) as clusters:
        with pytest.raises(ClusterError) as caught:
            await clusters.mint(KEY, "cloud-1", time.time())
        for name in ("edge-1", "edge-2"):
            await clusters.mint(KEY, name, time.time())

    assert (caught.value.name, caught.value.retryable) == ("node-name-taken", False)
    assert "a Node cloud-1 that is not a flex node" in caught.value.message
    assert len([path for path in api.objects if path.startswith(bootstrap_tokens.SECRETS)]) == 2


@pytest.mark.parametrize(("status", "again"), [(403, False), (429, True), (500, True), (503, True)])
@in_loop
async def test_token_creation_error_is_retriable_depending_on_status(
    status: int, again: bool, tmp_path: Path
) -> None:
    api = FakeApi()
    api.answers[f"POST {bootstrap_tokens.SECRETS}"] = lambda _: refusal(status, "No")
    async with connected(api.client(), tmp_path) as clusters:
        with pytest.raises(ClusterError) as caught:
            await clusters.mint(KEY, "edge-1", time.time())

    assert (caught.value.name, caught.value.retryable) == ("cluster-forbidden", again)


@in_loop
async def test_failed_token_revocation_when_azure_is_down_is_not_an_error(tmp_path: Path) -> None:
    async with connected(FakeApi().client(NoAzure()), tmp_path) as clusters:
        assert not await clusters.revoke(KEY, "abcdef")


def logged_clusters(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [text.split()[4].rstrip(":") for text in found if text.startswith("Cannot watch the cluster")]


@in_loop
async def test_cluster_that_cannot_be_watched_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, lost = SqliteStore(tmp_path / "rp.db", record_authenticator()), Sealer([b"x" * 32], "a lost key")
    await store.start()
    ids = [ClusterId("12345678-1234-1234-1234-123456789abc", "edge", f"plant-{number}") for number in range(3)]
    facts = ClusterFacts("1.34.4", "https://api", "", "10.0.0.10").to_document()
    client, present = FakeApi().client(), Sealer([b"k" * 32], "a test")
    clusters = ClusterRegistry(store, present, lambda _c, _d: UnwatchedController(client), lambda _: None)
    await clusters.start()
    for each in ids:  # the request for an unknown cluster reads the store, and tries all clusters again
        sealed = lost.seal(to_bytes(DIRECT), connection_seal_context(each.key))
        await store.put_cluster(Cluster(each.key, str(each), facts, sealed), None)
        await clusters.find(each.key)
    await clusters.stop()
    await store.stop()

    assert logged_clusters(caplog) == [*map(str, ids)]
