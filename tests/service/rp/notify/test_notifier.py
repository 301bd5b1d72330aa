"""Tests of delivery from the outbox to receivers, on both stores."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.notify.node_events import EventPublisher, NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind, WebhookSettings
from aks_flex_rp.notify.notifier import OutboxCleaner, RetryPolicy, WebhookSender
from aks_flex_rp.notify.webhook_client import MAX_CONCURRENT
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.ports import free_port
from tests.service.rp.notify.receivers import Received, receiving
from tests.service.rp.store.builders import node, record_authenticator, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from aks_flex_rp.store.base import Store
    from tests.service.rp.notify.receivers import Receiver
    from tests.service.rp.store.servers import PostgresServer

QUICK = RetryPolicy(first=0.05, refused_first=0.05, lease=0.5)


@dataclass
class Office:
    """A store and the notifier that sends its messages."""

    place: Callable[[], Store]
    store: Store
    secret_file: Path
    counts: Counter[str] = field(default_factory=Counter)

    def count(self, how: str, number: int) -> None:
        self.counts[how] += number

    def hook(self, url: str) -> WebhookSettings:
        return WebhookSettings(url=url, secret_file=self.secret_file)

    def sender(self, url: str, pace: RetryPolicy = QUICK, store: Store | None = None) -> WebhookSender:
        return WebhookSender(self.hook(url), store or self.store, self.count, pace)

    async def queue_messages(self, *names: str, urls: tuple[str, ...]) -> None:
        """Queues one message for each node that it has joined, in this order."""
        notices = EventPublisher(tuple(map(self.hook, urls)))
        for number, name in enumerate(names):
            found = await self.store.node("/c", name)
            version = found.version + 1 if found else 1
            messages = notices.messages_about(
                "/c", name, [NodeEvent(NodeEventKind.JOINED, {"number": number})], time.time()
            )
            await self.store.put_node(node(name, version), found.etag if found else None, (), messages)


@pytest.fixture(params=["sqlite", "postgres"])
def office(request: pytest.FixtureRequest, tmp_path: Path, secret_file: Path) -> AbstractAsyncContextManager[Office]:
    server: PostgresServer | None = request.getfixturevalue("server") if request.param == "postgres" else None
    address = server.new_database() if server else ""

    def place() -> Store:
        if not address:
            return SqliteStore(tmp_path / "store.db", record_authenticator())
        return PostgresStore(parse_address(address, {}), record_authenticator(), connections=5)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Office]:
        async with started(place()) as store:
            yield Office(place, store, secret_file)

    return opened()


async def until_empty(office: Office, *senders: WebhookSender) -> None:
    while await office.store.pending_messages():
        await asyncio.gather(*(each.once() for each in senders))
        await asyncio.sleep(0.02)


def numbers(received: list[Received]) -> list[int]:
    return [each.event["data"]["number"] for each in received]


async def test_pending_messages_are_sent_once_across_replicas(office: Office, receiver: Receiver) -> None:
    async with started(office.place()) as other:
        await office.queue_messages(*(f"edge-{number}" for number in range(60)), urls=(receiver.url,))
        await until_empty(
            office,
            office.sender(receiver.url, RetryPolicy()),
            office.sender(receiver.url, RetryPolicy(), other),
        )
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 60
    assert len(receiver.received) == 60
    assert office.counts == {"sent": 60}


async def test_failed_message_is_retried_with_same_id_in_order_of_node(office: Office, receiver: Receiver) -> None:
    statuses = iter([500, 503, 429, 408])
    receiver.answer = lambda _: next(statuses, 200)

    await office.queue_messages(*["edge-1"] * 4, urls=(receiver.url,))
    await until_empty(office, office.sender(receiver.url))
    assert numbers(receiver.received) == [0, 0, 0, 0, 0, 1, 2, 3]
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 4
    assert office.counts == {"failed": 4, "sent": 4}


async def test_refused_message_does_not_block_others_and_is_retried(office: Office, receiver: Receiver) -> None:
    refusing = True
    receiver.answer = lambda got: 400 if refusing and got.event["data"]["number"] == 0 else 200

    await office.queue_messages(*["edge-1"] * 3, urls=(receiver.url,))
    sender = office.sender(receiver.url)
    while office.counts["sent"] < 2:
        await sender.once()
        await asyncio.sleep(0.02)
    refusing = False
    await until_empty(office, sender)
    sent = numbers(receiver.received)
    assert sent[0] == 0
    assert sent[-1] == 0
    assert [each for each in sent if each] == [1, 2]


async def test_unreachable_receiver_gets_all_messages_when_it_recovers(office: Office) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook/secret-path"

    got: list[Received] = []
    await office.queue_messages(*(f"edge-{number % 20}" for number in range(40)), urls=(url,))
    sender = office.sender(url, RetryPolicy(first=3.0))
    await sender.once()
    assert office.counts == {"failed": MAX_CONCURRENT}
    await sender.once()  # immediately, which is too early
    assert office.counts == {"failed": MAX_CONCURRENT}
    with receiving(port=port) as receiver:
        await until_empty(office, sender)
    got.extend(receiver.received)
    assert len(got) == 40
    for number in range(20):
        assert numbers([each for each in got if each.event["subject"] == f"edge-{number}"]) == [number, number + 20]


async def test_hanging_receiver_does_not_block_other_receivers(office: Office, receiver: Receiver) -> None:
    with receiving() as hanging:
        hanging.hold.clear()
        await office.queue_messages("edge-1", "edge-2", urls=(hanging.url, receiver.url))
        stuck = asyncio.create_task(office.sender(hanging.url).once())
        quick = office.sender(receiver.url)
        while len(receiver.received) < 2:
            await quick.once()
            await asyncio.sleep(0.02)
        assert not stuck.done()
        hanging.hold.set()
        await stuck
        assert await office.store.pending_messages() == ()


async def test_receiver_answering_410_gets_no_more_messages(office: Office, receiver: Receiver) -> None:
    receiver.answer = lambda _: 410

    await office.queue_messages(*["edge-1"] * 3, urls=(receiver.url,))
    sender = office.sender(receiver.url)
    await sender.once()
    assert await office.store.pending_messages() == ()
    await office.queue_messages("edge-2", urls=(receiver.url,))
    await sender.once()
    assert await office.store.pending_messages() == ()
    assert len(receiver.received) == 1
    assert office.counts == {"gone": 1, "dropped": 4}


async def test_message_claimed_by_killed_replica_is_sent_by_another(office: Office, receiver: Receiver) -> None:
    await office.queue_messages("edge-1", urls=(receiver.url,))
    (taken,) = await office.store.due_messages(office.hook(receiver.url).key, time.time(), 8, 0.3)
    sender = office.sender(receiver.url)
    await sender.once()
    assert receiver.received == []
    await until_empty(office, sender)
    assert receiver.received[0].headers["webhook-id"] == taken.id


async def test_outbox_is_bounded_and_drops_messages_older_than_a_day(office: Office, receiver: Receiver) -> None:
    hook = office.hook(receiver.url)
    await office.queue_messages(*(f"edge-{number}" for number in range(10)), urls=(receiver.url,))
    old = EventPublisher((hook,)).messages_about("/c", "old", [NodeEvent(NodeEventKind.JOINED)], time.time() - 86401)
    await office.store.put_node(node("old"), None, (), old)
    await OutboxCleaner(office.store, (hook,), 3, office.count).once()
    await until_empty(office, office.sender(receiver.url))
    assert sorted(numbers(receiver.received)) == [7, 8, 9]
    assert office.counts == {"expired": 1, "dropped": 7, "sent": 3}
