"""Tests of silent nodes, on a real store with a simulated clock."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.notify.node_events import EventPublisher
from aks_flex_rp.notify.notification_settings import WebhookSettings
from aks_flex_rp.notify.notifier import StaleNodeMonitor
from aks_flex_rp.store.model import StoreUnavailable
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import node, record_authenticator, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

AFTER = 120.0
HOOK = WebhookSettings(url="https://hooks.example.com", secret_file=Path("secret"))
NOTICES = EventPublisher((HOOK,))
LOST, RESTORED = ("Edge-1", "heartbeat.lost"), ("Edge-1", "heartbeat.restored")


class Watch:
    """A store with one managed node, and the monitor of a service with a simulated clock."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.now = store, 10_000.0
        self.restart()

    def restart(self) -> None:
        self.monitor = StaleNodeMonitor(self.store, NOTICES, AFTER, lambda: self.now)

    async def add(self, key: str, version: int = 1, *, monitored: bool = True) -> None:
        written = node(key, version, properties={"continuousMonitoring": monitored})
        await self.store.put_node(written, f"{key}-{version - 1}" if version > 1 else None)

    async def hear(self, *keys: str, ago: float = 0.0) -> None:
        await self.store.seen([("/c", key, self.now - ago) for key in keys or ("edge-1",)])

    async def advance(self, seconds: float) -> None:
        """Advances the clock in the steps of a running service."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 15.0, until)
            await self.monitor.once()

    async def messages(self) -> list[tuple[str, str]]:
        """Removes and returns the pending messages in order."""
        found = []
        while messages := await self.store.due_messages(HOOK.key, 1e12, 100, 1.0):
            for each in messages:
                event = json.loads(each.body)
                kind = event["type"].removeprefix("com.aks-flex-node.node.").removesuffix(".v1")
                found.append((event["subject"], kind))
                await self.store.message_sent(each)
        return found


@pytest.fixture
def watch(tmp_path: Path) -> AbstractAsyncContextManager[Watch]:
    @asynccontextmanager
    async def watching() -> AsyncIterator[Watch]:
        async with started(SqliteStore(tmp_path / "store.db", record_authenticator())) as store:
            await (watch := Watch(store)).add("edge-1")
            yield watch

    return watching()


async def test_silent_node_is_notified_once_and_again_once_when_heard(watch: Watch) -> None:
    await watch.add("edge-2")
    await watch.hear("edge-1", "edge-2")
    await watch.advance(AFTER / 2)
    await watch.hear("edge-2")
    await watch.advance(AFTER / 2 + 1)
    for _ in range(3):
        await watch.monitor.once()
    assert await watch.messages() == [LOST]
    await watch.hear()
    for _ in range(3):
        await watch.monitor.once()
    assert await watch.messages() == [RESTORED]


async def test_no_node_is_silent_before_service_has_listened_long_enough(watch: Watch) -> None:
    await watch.hear(ago=3600)
    await watch.advance(AFTER - 1)
    assert await watch.messages() == []
    await watch.advance(2)
    assert await watch.messages() == [LOST]


async def test_restarted_service_notifies_recovered_node_immediately(watch: Watch) -> None:
    await watch.hear()
    await watch.advance(AFTER + 1)
    await watch.hear()
    watch.restart()
    await watch.monitor.once()
    assert await watch.messages() == [LOST, RESTORED]


async def test_store_outage_does_not_count_as_silence(watch: Watch) -> None:
    await watch.hear()
    await watch.advance(AFTER - 1)
    watch.now += 2
    await watch.store.stop()
    with pytest.raises(StoreUnavailable):
        await watch.monitor.once()
    await watch.store.start()
    await watch.monitor.once()
    assert await watch.messages() == []
    await watch.advance(AFTER)
    assert await watch.messages() == [LOST]


async def test_node_no_longer_monitored_is_not_notified_as_heard(watch: Watch) -> None:
    await watch.hear()
    await watch.advance(AFTER + 1)
    await watch.add("edge-1", 2, monitored=False)
    await watch.monitor.once()
    assert await watch.messages() == [LOST]


async def test_many_nodes_can_become_silent_at_once(watch: Watch) -> None:
    names = [f"edge-{number}" for number in range(2, 1200)]
    await asyncio.gather(*map(watch.add, names))
    await watch.hear(*names)
    await watch.advance(AFTER + 1)
    assert sorted(await watch.messages()) == sorted((name.title(), LOST[1]) for name in names)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_clock_jump_does_not_make_node_silent(watch: Watch, jump: float) -> None:
    await watch.hear(ago=2 * 3600)
    await watch.advance(AFTER / 2)
    watch.now += jump
    await watch.advance(AFTER - 1)
    assert await watch.messages() == []
    await watch.advance(16)
    assert await watch.messages() == [LOST]
