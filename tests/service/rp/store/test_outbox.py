from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.model import Conflict
from aks_flex_rp.store.outbox import OutboxMessage
from tests.service.rp.store.builders import event, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store

NOW = 1000.0


def message(id: str, node: str = "edge-1", hook: str = "hook", at: float = NOW) -> OutboxMessage:  # noqa: A002
    return OutboxMessage(id, hook, "/c", node, at, f'{{"id": "{id}", "text": "käse"}}')


async def add_messages(store: Store, *messages: OutboxMessage) -> None:
    """Adds messages with an unrelated change of a node."""
    found = await store.node("/c", "teller")
    version = found.version + 1 if found else 1
    await store.put_node(node("teller", version), found.etag if found else None, [event()], messages)


async def due(store: Store, now: float = NOW, hook: str = "hook", limit: int = 10, lease: float = 30.0) -> list[str]:
    return [each.id for each in await store.due_messages(hook, now, limit, lease)]


async def waiting(store: Store) -> dict[str, int]:
    return {each.hook: each.messages for each in await store.pending_messages()}


async def test_message_is_read_back_unchanged_with_attempt_count(store: Store) -> None:
    await add_messages(store, message("a"))
    assert await store.due_messages("hook", NOW, 10, 30) == (replace(message("a"), attempts=1),)
    assert await store.due_messages("hook", NOW + 31, 10, 30) == (replace(message("a"), attempts=2),)


async def test_messages_are_stored_only_if_their_write_succeeds(store: Store) -> None:
    await store.put_node(node(), None, (), [message("created")])
    with pytest.raises(Conflict):
        await store.put_node(node(version=2), "other", (), [message("never")])
    await store.delete_node("/c", "edge-1", "edge-1-1", (), [message("deleted")])
    assert await store.delete_node("/c", "edge-1", None, (), [message("never again")]) is False
    assert await store.report("/c", "edge-1", {}, NOW, [message("nor this")]) is False
    assert await ids(store) == ["created", "deleted"]


async def ids(store: Store) -> list[str]:
    """Returns the IDs of all pending messages of the hook, in the order of delivery."""
    found = []
    while messages := await store.due_messages("hook", NOW, 10, 30):
        for each in messages:
            found.append(each.id)
            await store.message_sent(each)
    return found


async def test_claimed_message_is_not_given_to_other_senders(replicas: tuple[Store, Store]) -> None:
    store, other = replicas
    await add_messages(store, *(message(str(number), f"edge-{number}") for number in range(40)))
    both = await asyncio.gather(*(due(each, limit=10) for each in (store, other, store, other)))
    left = await due(store, limit=40)  # concurrent readers may get fewer messages than requested
    assert sorted(int(each) for some in (*both, left) for each in some) == list(range(40))
    assert await due(other) == []


async def test_pending_messages_show_count_age_and_last_failure(store: Store) -> None:
    assert await store.pending_messages() == ()
    await add_messages(store, message("a", at=NOW - 5), message("b", "edge-2"))
    await store.message_failed(message("a"), NOW + 5, "The receiver responded with 500.")
    (found,) = await store.pending_messages()
    assert (found.messages, found.oldest, found.failure) == (2, NOW - 5, "The receiver responded with 500.")


async def test_report_with_outdated_previous_status_is_a_conflict(store: Store) -> None:
    await store.put_node(node(status={"a": 1, "b": [1.5, "ä"]}), None)
    before = {"a": 1, "b": [1.5, "ä"]}
    assert await store.report("/c", "edge-1", {"a": 2}, NOW, [message("first")], before)
    with pytest.raises(Conflict):
        await store.report("/c", "edge-1", {"a": 3}, NOW, [message("second")], before)
    assert await store.report("/c", "edge-1", {"a": 4}, NOW, [message("third")])
    assert await store.report("/c", "edge-2", {"a": 4}, NOW, [message("fourth")], {}) is False
    assert await ids(store) == ["first", "third"]
