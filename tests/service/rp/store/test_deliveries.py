from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.service.rp.store.builders import delivery

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store


async def test_delivery_is_fetched_until_it_expires_and_fetches_are_counted(store: Store) -> None:
    assert await store.fetch_delivery("hash", 1.0) is None
    await store.put_delivery(delivery())
    assert await store.fetch_delivery("hash", 1999.9) == delivery(fetched=1)
    assert await store.fetch_delivery("hash", 1999.9) == delivery(fetched=2)
    assert await store.fetch_delivery("hash", 2000.0) is None


async def test_concurrent_fetches_of_delivery_are_all_counted(store: Store) -> None:
    await store.put_delivery(delivery())
    found = await asyncio.gather(*(store.fetch_delivery("hash", 1.0) for _ in range(20)))
    assert sorted(one.fetched for one in found if one) == list(range(1, 21))


async def test_new_delivery_replaces_previous_one_of_same_node(store: Store) -> None:
    await store.put_delivery(delivery("old"))
    await store.fetch_delivery("old", 1.0)
    await store.put_delivery(delivery("other", "edge-2"))
    await store.put_delivery(delivery("new"))
    assert await store.fetch_delivery("old", 1.0) is None
    assert await store.fetch_delivery("new", 1.0) == delivery("new", fetched=1)
    assert await store.fetch_delivery("other", 1.0)


async def test_revoking_deliveries_affects_only_the_given_node(store: Store) -> None:
    await store.put_delivery(delivery("one"))
    await store.put_delivery(delivery("two", "edge-2"))
    assert await store.revoke_deliveries("/c", "edge-1") == 1
    assert await store.revoke_deliveries("/c", "edge-1") == 0
    assert await store.fetch_delivery("one", 1.0) is None
    assert await store.fetch_delivery("two", 1.0)


async def test_sweep_deletes_only_expired_deliveries(store: Store) -> None:
    for number in range(4):
        await store.put_delivery(replace(delivery(f"h{number}", f"n{number}"), expires=100.0 + number))
    assert await store.sweep(101.0) == 2
    assert await store.sweep(101.0) == 0
    assert await store.fetch_delivery("h2", 1.0)
