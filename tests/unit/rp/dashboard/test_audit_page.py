"""Tests of the audit page: search, limits, and safe export files."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.dashboard import audit_page, audit_query
from aks_flex_rp.dashboard.audit_page import audit_row
from aks_flex_rp.dashboard.audit_query import AuditQuery, parse_query, parse_scope
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aks_flex_rp.store.base import Store

PLANT = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
NODE = PLANT.node("press-1")


@dataclass
class FakeStore:
    """A store with events, which counts queries."""

    events: list[AuditEvent]
    asked: list[int] = field(default_factory=list)

    async def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        self.asked.append(limit)
        fitting = [
            each
            for each in sorted(self.events, key=lambda each: -each.sequence)
            if each.resource.lower().startswith(resource.lower())
            and caller in {"", each.who}
            and what in {"", each.what}
            and (not before or each.sequence < before)
        ]
        return tuple(fitting[:limit])


def event(sequence: int, at: float = 0.0, who: str = "ann", outcome: str = "ok", resource: str = NODE) -> AuditEvent:
    return AuditEvent(
        at or float(sequence), who, AuditAction.UPDATE, resource, outcome=AuditOutcome(outcome), sequence=sequence
    )


def part(store: FakeStore, wanted: AuditQuery, size: int = 10, most: int = 1000) -> audit_query.AuditSlice:
    return asyncio.run(audit_query.audit_slice(cast("Store", store), wanted, size, most))


def sequences(found: audit_query.AuditSlice) -> list[int]:
    return [each.sequence for each in found.events]


@pytest.mark.parametrize(
    ("query", "resource"),
    [
        ({}, ""),
        ({"resource": NODE}, NODE),
        ({"resource": NODE.upper()}, ClusterId(PLANT.subscription.upper(), "EDGE", "PLANT").node("PRESS-1")),
        ({"resource": f"{PLANT}/flexNodeConfig"}, str(PLANT)),
        ({"resource": f"{PLANT}/"}, str(PLANT)),
        ({"cluster": PLANT.key}, PLANT.key),
        ({"cluster": PLANT.key, "node": " press-1 "}, f"{PLANT.key}/flexnodeconfig/press-1"),
        ({"resource": "/"}, "/"),
        ({"resource": "/subscriptions"}, "/subscriptions"),
        ({"cluster": "nonsense"}, ""),
    ],
)
def test_audit_scope_is_parsed_from_resource_or_cluster_and_node(query: Mapping[str, str], resource: str) -> None:
    assert parse_scope(query).resource.lower() == resource.lower()


def test_invalid_audit_query_parameters_are_ignored() -> None:
    query = {"before": "-1", "since": "yesterday", "until": "2026-13-01", "outcome": "lucky", "who": " ann "}
    assert parse_query(query, parse_scope(query)) == AuditQuery(who="ann")


def test_audit_dates_are_utc_and_end_date_is_inclusive() -> None:
    query = {"since": "1970-01-02", "until": "1970-01-02"}
    wanted = parse_query(query, parse_scope(query))
    assert (wanted.since, wanted.until) == (86400.0, 172800.0)
    assert [wanted.fits(event(1, at)) for at in (86399.0, 86400.0, 172799.0, 172800.0)] == [False, True, True, False]


def test_audit_query_matches_node_name_in_any_cluster() -> None:
    query = {"node": "PRESS-1"}
    wanted = parse_query(query, parse_scope(query))
    other = PLANT.node("compress-1")
    assert [wanted.fits(each) for each in (event(1), event(2, resource=other))] == [True, False]


def test_audit_pages_have_no_gaps_or_duplicates() -> None:
    store = FakeStore([event(number) for number in range(1, 26)])
    first = part(store, AuditQuery())
    second = part(store, AuditQuery(before=first.next))
    third = part(store, AuditQuery(before=second.next))
    assert sequences(first) + sequences(second) + sequences(third) == list(range(25, 0, -1))
    assert (third.next, third.cut) == (0, False)


def test_audit_search_is_limited_per_request_and_can_be_continued() -> None:
    rare = event(3, outcome="denied")
    store = FakeStore([rare, *(event(number) for number in range(4, 3000))])
    found = part(store, AuditQuery(outcome=AuditOutcome.DENIED), most=1000)
    assert (found.events, found.cut) == ((), True)
    assert sum(store.asked) == 1000
    again = part(store, AuditQuery(outcome=AuditOutcome.DENIED, before=found.next), most=2000)
    assert sequences(again) == [3]


def test_audit_search_stops_at_start_date() -> None:
    store = FakeStore([event(number, at=number * 100.0) for number in range(1, 5000)])
    found = part(store, AuditQuery(since=499_000.0))
    assert sequences(found) == list(range(4999, 4989, -1))
    assert len(store.asked) == 1


def test_audit_row_has_description_and_link_to_node() -> None:
    shown = [ShownCluster(PLANT, 1)]
    assert audit_row(event(1), shown).link == shown[0].node("press-1")
    assert audit_row(event(1), shown).text == "Changed"
    assert audit_row(event(1), ()).link == ""
    service = audit_row(AuditEvent(1.0, "somebody", AuditAction.SIGN_IN, "/", outcome=AuditOutcome.DENIED), shown)
    assert (service.text, service.name, service.denied) == ("Sign-in denied", "the service", True)
    assert audit_row(AuditEvent(1.0, "a", AuditAction.CLUSTER_ADDED, str(PLANT)), shown).name == PLANT.name


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("edge", "edge"),
        ("edge/rollouts/r1", "edge/rollouts/r1"),
        ("edge/enrolments/e1", "edge"),
        ("edge/rollouts/../../x", "edge"),
    ],
)
def test_audit_row_links_to_pool_or_roll_out(path: str, page: str) -> None:
    shown = (ShownCluster(PLANT, 1),)
    row = audit_row(AuditEvent(1.0, "a", AuditAction.ROLLOUT_CREATED, PLANT.pool(path)), shown)
    assert (row.text, row.name, row.link) == ("Roll-out started", path, shown[0].pool(page))
    assert parse_scope({"resource": PLANT.pool(path)}).cluster == PLANT
    assert parse_scope({"resource": PLANT.pool(path)}).resource == PLANT.pool(path)


async def _batches(*batches: list[AuditEvent]) -> AsyncIterator[list[AuditEvent]]:
    for batch in batches:
        yield batch


def written(parts: AsyncIterator[bytes]) -> str:
    async def collect() -> bytes:
        return b"".join([each async for each in parts])

    return asyncio.run(collect()).decode()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_csv_export_escapes_formulas(start: str) -> None:
    bad = f"{start}cmd|' /C calc'!A0"
    [found] = csv.DictReader(io.StringIO(written(audit_page.as_csv(_batches([event(1, who=bad)]))), newline=""))
    assert found["who"] == f"'{bad}"


def test_csv_export_contains_all_events_and_fields() -> None:
    told = AuditEvent(
        1.5, 'a "b", c', AuditAction.UPDATE, NODE, "192.0.2.1", "id", AuditOutcome.OK, {"why": "x\ny"}, 7
    )
    text = written(audit_page.as_csv(_batches([told], [event(2), event(1)])))
    first, *rest = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["who"], json.loads(first["detail"]), first["sequence"]) == ('a "b", c', {"why": "x\ny"}, "7")
    assert [each["sequence"] for each in rest] == ["2", "1"]


@pytest.mark.parametrize("batches", [(), ([],), ([event(2)], [], [event(1)])])
def test_json_export_is_one_valid_document(batches: tuple[list[AuditEvent], ...]) -> None:
    document = json.loads(written(audit_page.as_json(_batches(*batches))))
    assert [each["sequence"] for each in document["value"]] == [each.sequence for batch in batches for each in batch]
