from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.model import Conflict
from tests.service.rp.store.builders import event, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import AuditEvent


def plain(events: tuple[AuditEvent, ...]) -> list[AuditEvent]:
    return [replace(one, sequence=0) for one in events]


async def test_recorded_event_is_read_back_unchanged_with_sequence_number(store: Store) -> None:
    await store.record()
    await store.record(event(detail={"text": "\x00 ä"}))
    (found,) = await store.audit()
    assert found.sequence > 0
    assert replace(found, sequence=0) == event(detail={"text": "\x00 ä"})


async def test_audit_returns_newest_events_first_in_pages(store: Store) -> None:
    await store.record(*(event(str(number)) for number in range(5)))
    await store.record(event("5"), event("6"))
    first = await store.audit(limit=3)
    second = await store.audit(limit=3, before=first[-1].sequence)
    third = await store.audit(limit=3, before=second[-1].sequence)
    assert [[one.what for one in page] for page in (first, second, third)] == [
        ["6", "5", "4"],
        ["3", "2", "1"],
        ["0"],
    ]
    assert await store.audit(before=third[-1].sequence) == ()
    assert len(await store.audit(before=2**70, limit=2**70)) == 7


async def test_audit_filters_apply_separately_and_combined(store: Store) -> None:
    await store.record(
        event("write", "/C/Edge-1", who="ann"),
        event("write", "/c/edge-1/x", who="bob"),
        event("delete", "/c/edge-10", who="ann"),
        event("delete", "/c0", who="ann"),
    )
    assert [one.resource for one in await store.audit(caller="ann")] == ["/c0", "/c/edge-10", "/C/Edge-1"]
    assert [one.resource for one in await store.audit(what="delete")] == ["/c0", "/c/edge-10"]
    assert [one.who for one in await store.audit(resource="/c/EDGE-1")] == ["bob", "ann"]
    assert len(await store.audit(resource="/c")) == 3
    assert [one.resource for one in await store.audit(resource="/c", caller="ann", what="delete")] == ["/c/edge-10"]
    assert await store.audit(caller="nobody") == ()


async def test_audit_events_are_stored_only_if_their_write_succeeds(store: Store) -> None:
    await store.put_node(node(), None, [event("first"), event("second")])
    with pytest.raises(Conflict):
        await store.put_node(node(version=2), "other", [event("third")])
    await store.put_node(node(version=2), "edge-1-1", [event("fourth")])
    assert plain(await store.audit()) == [event("fourth"), event("second"), event("first")]
