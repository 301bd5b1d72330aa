"""Tests of the built-in delivery: one URL for each node, whose secret is not in the store."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api import config_urls
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.delivery.config_url import BuiltInDelivery, delivery_id
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import record_authenticator, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

CLUSTER, NODE = "/subscriptions/1/cluster", "edge-1"
BUNDLE = b'{"config": {"token": "canary-of-a-token"}}'
LATER = 2_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rp.db"


@pytest.fixture
def delivery(file: Path) -> AbstractAsyncContextManager[BuiltInDelivery]:
    @asynccontextmanager
    async def running() -> AsyncIterator[BuiltInDelivery]:
        async with started(SqliteStore(file, record_authenticator())) as store:
            yield BuiltInDelivery(store, Sealer([b"k" * 32], "a test"), "https://rp.example:8443", lambda: "ab" * 32)

    return running()


def secret_of(url: str) -> str:
    return config_urls.parse(url).address.rpartition("/")[2]


async def test_config_url_leads_to_bundle_and_contains_ca_pin(delivery: BuiltInDelivery) -> None:
    url = await delivery.put(CLUSTER, NODE, BUNDLE, LATER)

    assert await delivery.fetch(secret_of(url), 1_000.0) == (CLUSTER, NODE, BUNDLE, LATER)
    assert config_urls.parse(url).pin == "ab" * 32
    assert len(secret_of(url)) >= 43  # 32 random bytes


async def test_expired_revoked_or_guessed_config_url_returns_nothing(delivery: BuiltInDelivery) -> None:
    secret = secret_of(await delivery.put(CLUSTER, NODE, BUNDLE, LATER))
    for guess in (secret[:-1], secret + "=", "", "\udcff", delivery_id(secret)):
        assert await delivery.fetch(guess, 1_000.0) is None
    assert await delivery.fetch(secret, LATER) is None
    assert [await delivery.revoke(CLUSTER, NODE), await delivery.revoke(CLUSTER, NODE)] == [True, False]
    assert await delivery.fetch(secret, 1_000.0) is None


async def test_bundle_moved_to_another_node_is_not_opened(delivery: BuiltInDelivery, file: Path) -> None:
    await delivery.put(CLUSTER, NODE, BUNDLE, LATER)
    secret = secret_of(await delivery.put(CLUSTER, "edge-2", b"{}", LATER))
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE deliveries SET bundle = (SELECT bundle FROM deliveries WHERE node = 'edge-1')")
    assert await delivery.fetch(secret, 1_000.0) is None
