"""Tests of failed sign-ins in the audit log."""

from __future__ import annotations

import asyncio

from aks_flex_rp.counted_events import MAX_SITES, OTHER_SITES, WINDOW_SECONDS, CountedEvents
from aks_flex_rp.store.model import AuditAction, AuditEvent


class FakeStore:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    async def record(self, *events: AuditEvent) -> None:
        self.events += events


class Scene:
    def __init__(self) -> None:
        self.now, self.store = 1000.0, FakeStore()
        self.failures = CountedEvents()

    def fail(self, *sources: str) -> None:
        for source in sources:
            event = AuditEvent(self.now, "somebody", AuditAction.SIGN_IN, "/", source, "request")
            asyncio.run(self.failures.record(self.store, event))

    def flush(self) -> None:
        asyncio.run(self.failures.flush(self.store, self.now))

    @property
    def audited(self) -> list[tuple[str, object]]:
        return [(each.source, each.detail.get("failures")) for each in self.store.events]


def test_guesses_of_one_client_do_not_fill_the_audit_log() -> None:
    """Attack: thousands of wrong keys push the events of operators out of sight."""
    scene = Scene()
    scene.fail(*["203.0.113.7"] * 1000)
    assert scene.audited == [("203.0.113.7", None)]

    scene.now += WINDOW_SECONDS
    scene.flush()
    assert scene.audited == [("203.0.113.7", None), ("203.0.113.7", 999)]
    scene.flush()
    assert len(scene.audited) == 2


def test_guesses_of_many_addresses_do_not_fill_the_audit_log() -> None:
    scene = Scene()
    scene.fail(*(f"2001:db8::{number:x}" for number in range(1000)))
    assert len(scene.audited) == 1, "a /64 is one client"

    scene.fail(*(f"198.51.{number // 250}.{number % 250}" for number in range(2000)))
    assert len(scene.audited) == MAX_SITES + 1
    assert scene.audited[-1] == (OTHER_SITES, None)


def test_single_failures_are_audited_one_by_one() -> None:
    scene = Scene()
    scene.fail("203.0.113.7", "203.0.113.8")
    scene.now += WINDOW_SECONDS
    scene.fail("203.0.113.7")

    assert scene.audited == [("203.0.113.7", None), ("203.0.113.8", None), ("203.0.113.7", None)]
