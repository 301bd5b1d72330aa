"""Damaged ledgers: the reader detects the damage, or can use the ledger completely."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.ledger import Ledger, OwnedResources
from aks_flex_node.agent.reconcile.resources import Directory, File, Service, Spec, Symlink
from aks_flex_node.host.actions import WriteFile
from tests.fuzz.mutations import damaged, json_values
from tests.unit.agent.builders import empty_host, engine_on

if TYPE_CHECKING:
    from tests.hosts.recorded import RecordedHost

FILE = File("/etc/thing/file", b"content")
SPEC = Spec(
    (Directory("/etc/thing"), FILE, Symlink("/etc/link", "/there"), Service("thing.service", (FILE.path,), "print"))
)
THING = Component("thing", "the thing", lambda _config, _machine: SPEC)


def written() -> tuple[RecordedHost, tuple[str, ...]]:
    """Returns a machine with one of our components over an earlier file."""
    host = empty_host()
    host.apply(WriteFile("/etc/link", b"it was a file once"))
    engine = engine_on(host)
    engine.apply(THING)
    return host, engine.ledger.paths


HOST, PLACES = written()
SOUND = HOST.read(PLACES[0]) or b""


def remove_with_ledger(content: bytes) -> list[str]:
    """Removes everything with a ledger whose copies both have this content; returns the problems."""
    host, places = written()
    for place in places:
        host.apply(WriteFile(place, content))
    told: list[str] = []
    engine = engine_on(host)
    for name in list(engine.ledger.components):
        engine.remove(Component(name, name, lambda _config, _machine: SPEC), told.append)
    return told


def test_valid_ledger_allows_removal_of_all_resources() -> None:
    assert remove_with_ledger(SOUND) == []


@given(damaged(SOUND))
def test_damaged_ledger_copy_does_not_hide_intact_copy(content: bytes) -> None:
    host, places = written()
    host.apply(WriteFile(places[0], content))

    ledger = Ledger(host, places)

    if ledger.damaged:
        assert ledger.damaged == places[:1]
        assert ledger.components == Ledger(HOST, PLACES[:1]).components


@given(damaged(SOUND, most=2))
def test_removal_with_two_damaged_ledger_copies_does_not_crash(content: bytes) -> None:
    remove_with_ledger(content)


@given(st.sampled_from(("paths", "sysctls", "modules", "swaps", "services")), st.text(max_size=8), json_values())
def test_removal_with_arbitrary_ledger_record_does_not_crash(kind: str, name: str, record: Any) -> None:
    components = {"thing": {kind: {f"/{name}": record}}}
    remove_with_ledger(ledger_with(json.dumps(components)))


def ledger_with(components: str) -> bytes:
    return f'{{"format": 1, "revision": 1, "found": {{}}, "components": {components}}}'.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        ledger_with('{"thing": {"paths": 5}}'),
        ledger_with('{"thing": {"paths": {"/a": 5}}}'),
        ledger_with('{"thing": {"paths": {"/a": {"original": {"kind": "file"}}}}}'),
        ledger_with('{"thing": {"paths": {"/a/../../etc": {"original": null}}}}'),
        ledger_with('{"thing": {"sysctls": {"a": {"original": 5}}}}'),
        b'{"format": 1, "revision": 1, "components": {}, "found": {"pods": 5}}',
    ],
)
def test_json_that_is_not_a_ledger_is_reported_as_damaged(content: bytes) -> None:
    host, places = written()
    host.apply(WriteFile(places[0], content))

    ledger = Ledger(host, places)

    assert ledger.damaged == places[:1]
    assert ledger.components["thing"] != OwnedResources()
