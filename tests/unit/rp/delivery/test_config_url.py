"""Tests of the built-in delivery: one URL for each node, whose secret is not in the store."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pytest

from aks_flex_node.api import config_urls
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.delivery.config_url import BuiltInDelivery, FetchedBundle, delivery_id
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import record_authenticator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

Outcome = TypeVar("Outcome")

CLUSTER, NODE = "/subscriptions/1/cluster", "edge-1"
BUNDLE = b'{"config": {"token": "canary-of-a-token"}}'
LATER = 2_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rp.db"


def during(file: Path, work: Callable[[SqliteStore, BuiltInDelivery], Awaitable[Outcome]]) -> Outcome:
    """Returns the result of a function that runs with a started store."""

    async def run() -> Outcome:
        store = SqliteStore(file, record_authenticator())
        await store.start()
        try:
            sealer = Sealer([b"k" * 32], "a test")
            return await work(store, BuiltInDelivery(store, sealer, "https://rp.example:8443", lambda: "ab" * 32))
        finally:
            await store.stop()

    return asyncio.run(run())


def secret_of(url: str) -> str:
    return config_urls.parse(url).address.rpartition("/")[2]


def test_config_url_leads_to_bundle_and_contains_ca_pin(file: Path) -> None:
    async def work(_: SqliteStore, delivery: BuiltInDelivery) -> tuple[str, FetchedBundle | None]:
        url = await delivery.put(CLUSTER, NODE, BUNDLE, LATER)
        return url, await delivery.fetch(secret_of(url), 1_000.0)

    url, found = during(file, work)
    assert found == (CLUSTER, NODE, BUNDLE, LATER)
    assert config_urls.parse(url).pin == "ab" * 32
    assert len(secret_of(url)) >= 43  # 32 random bytes


def test_expired_revoked_or_guessed_config_url_returns_nothing(file: Path) -> None:
    async def work(_: SqliteStore, delivery: BuiltInDelivery) -> list[object]:
        secret = secret_of(await delivery.put(CLUSTER, NODE, BUNDLE, LATER))
        guesses = [secret[:-1], secret + "=", "", "\udcff", delivery_id(secret)]
        answers: list[object] = [await delivery.fetch(guess, 1_000.0) for guess in guesses]
        answers.append(await delivery.fetch(secret, LATER))
        revoked = [await delivery.revoke(CLUSTER, NODE), await delivery.revoke(CLUSTER, NODE)]
        return [*answers, await delivery.fetch(secret, 1_000.0), revoked]

    assert during(file, work) == [None] * 7 + [[True, False]]


def test_bundle_moved_to_another_node_is_not_opened(file: Path) -> None:
    async def put(_: SqliteStore, delivery: BuiltInDelivery) -> str:
        await delivery.put(CLUSTER, NODE, BUNDLE, LATER)
        return secret_of(await delivery.put(CLUSTER, "edge-2", b"{}", LATER))

    secret = during(file, put)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE deliveries SET bundle = (SELECT bundle FROM deliveries WHERE node = 'edge-1')")
    assert during(file, lambda _, delivery: delivery.fetch(secret, 1_000.0)) is None
