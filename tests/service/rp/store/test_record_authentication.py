"""Attacks of a database administrator: rows that were changed, swapped, added or rolled back, on both databases."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp import key_rotation, record_review
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.raw_database import SqliteDatabase
from aks_flex_rp.store.model import (
    RecordRefused,
    RecordUnverifiable,
    UserSession,
)
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from aks_flex_rp.store.record_authenticator import RecordAuthenticator
from aks_flex_rp.store.sqlite import SqliteStore, connect
from tests.service.rp.store.builders import cluster, node, record_authenticator, write
from tests.service.rp.store.test_fleet import everywhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.rows import Row
    from tests.service.rp.store.conftest import Place, SqlitePlace


COLUMNS = "name, version, etag, properties, config, secrets, system_data, join_state, node_identity, created"
COLUMNS += ", revision, code, gone"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(place: Place, records: RecordAuthenticator) -> Store:
    if place.kind == "sqlite":
        return SqliteStore(place.address, records)
    return PostgresStore(parse_address(place.address, {}), records)


async def refusal(store: Store, key: str = "edge-1") -> str:
    with pytest.raises(RecordRefused) as caught:
        await store.node("/c", key)
    return caught.value.why


@pytest.mark.parametrize(
    "change",
    [
        'config = \'{"kubernetes":{"url":"https://evil"}}\'',
        "properties = '{}'",
        "secrets = CAST('' AS blob)",
        "node_identity = 'attacker'",
        'join_state = \'{"state":"Joined"}\'',
        "version = version + 1",
        "etag = 'other'",
        "name = 'Other'",
        "system_data = '{\"a\":1}'",
        "revision = revision + 1, code = code || ''",
        "code = ''",
    ],
)
async def test_changed_node_is_refused_and_alarmed(store: Store, place: Place, change: str) -> None:
    for key in ("edge-1", "edge-2"):
        await store.put_node(node(key), None)
    await write(place, f"UPDATE nodes SET {change} WHERE key = 'edge-1'")  # noqa: S608 - the attack

    assert await refusal(store)
    await refusal(store)
    page = await store.nodes("/c")
    assert [each.key for each in page.nodes] == ["edge-2"], "others are not affected"
    assert [(each.name, each.error.reason) for each in page.refused] == [("edge-1", "RecordChanged")]
    assert await store.node("/c", "edge-2")
    with pytest.raises(RecordRefused):
        await store.last_known_node("/c", "edge-1")
    [event] = await store.audit(what="record.refused")
    assert (event.resource, event.outcome) == ("/c/edge-1", "denied")
    for _ in range(2):
        trouble = {each.key: each.trouble for each in await store.fleet(await everywhere(store), 1.0)}
        assert trouble == {"edge-1": ("RecordRefused",), "edge-2": ()}
        await store.repair_fleet()


WRONG_TYPES = [
    "secrets = 'text'",
    "secrets = 7",
    "created = 'text'",
    "config = x'00ff'",
    "config = CAST(x'ff' AS TEXT)",
    "revision = 'text'",
    "revision = 1.5",
    "version = x'00'",
    "code = x'00'",
    "code = CAST(x'ff' AS TEXT)",
]


@pytest.mark.parametrize("change", WRONG_TYPES)
async def test_row_with_a_wrong_type_does_not_hide_others(
    sqlite_store: SqliteStore, sqlite: SqlitePlace, change: str
) -> None:
    """Attack: SQLite stores any type in a column, and a row that cannot be parsed breaks the list of the fleet."""
    for key in ("edge-1", "edge-2", "edge-3"):
        await sqlite_store.put_node(node(key), None)
    await write(sqlite, f"UPDATE nodes SET {change} WHERE key = 'edge-2'")  # noqa: S608 - the attack

    assert await refusal(sqlite_store, "edge-2")
    assert [each.key for each in (await sqlite_store.nodes("/c")).nodes] == ["edge-1", "edge-3"]
    await sqlite_store.repair_fleet()
    with pytest.raises(RecordRefused):
        await sqlite_store.last_known_node("/c", "edge-2")
    assert await sqlite_store.delete_node("/c", "edge-2", None)
    known = await sqlite_store.last_known_node("/c", "edge-2")
    await sqlite_store.put_node(node("edge-2", version=known.version + 1), None)
    assert await sqlite_store.node("/c", "edge-2")


async def test_row_with_a_key_that_is_no_text_ends_no_list(sqlite_store: SqliteStore, sqlite: SqlitePlace) -> None:
    for key in ("edge-1", "edge-2", "edge-3"):
        await sqlite_store.put_node(node(key), None)
    await write(sqlite, "UPDATE nodes SET key = x'ff' WHERE key = 'edge-3'")
    first = await sqlite_store.nodes("/c", limit=1)
    assert ([each.key for each in first.nodes], first.after) == (["edge-1"], "edge-1")
    second = await sqlite_store.nodes("/c", "edge-1", limit=2)
    assert [each.key for each in second.nodes] == ["edge-2"]
    assert second.after is None


@pytest.mark.parametrize("change", ["status = 7", "status = 'text'", "status = '[]'"])
async def test_node_with_a_damaged_report_is_shown_without_it(
    sqlite_store: SqliteStore, sqlite: SqlitePlace, change: str
) -> None:
    await sqlite_store.put_node(node(), None)
    await write(sqlite, f"UPDATE nodes SET {change}", "UPDATE fleet SET last_seen = 'text'")  # noqa: S608
    found = await sqlite_store.node("/c", "edge-1")
    assert found
    assert (found.status, found.last_seen) == ({}, 0.0)


@pytest.mark.parametrize("change", ["connection = 7", "facts = x'00'", "version = 'text'", "code = x'00'"])
async def test_cluster_with_a_wrong_type_does_not_hide_others(
    sqlite_store: SqliteStore, sqlite: SqlitePlace, change: str
) -> None:
    await sqlite_store.put_cluster(cluster(), None)
    await sqlite_store.put_cluster(cluster("/d"), None)
    await write(sqlite, f"UPDATE clusters SET {change} WHERE key = '/c'")  # noqa: S608 - the attack
    with pytest.raises(RecordRefused):
        await sqlite_store.cluster("/c")
    assert [each.key for each in await sqlite_store.clusters()] == ["/d"]


async def test_swapped_rows_are_refused(store: Store, place: Place) -> None:
    await store.put_node(node("edge-1"), None)
    await store.put_node(node("edge-2", config={"other": True}), None)
    assignments = ", ".join(f"{each.strip()} = o.{each.strip()}" for each in COLUMNS.split(","))
    await write(
        place,
        "CREATE TABLE copy AS SELECT * FROM nodes",
        f"UPDATE nodes SET {assignments} FROM copy AS o WHERE nodes.key = 'edge-1' AND o.key = 'edge-2'",  # noqa: S608
    )

    assert "does not match" in await refusal(store)


async def test_rolled_back_row_is_refused(store: Store, place: Place) -> None:
    await store.put_node(node(), None)
    await write(place, "CREATE TABLE copy AS SELECT * FROM nodes")
    await store.put_node(node(version=2), "edge-1-1")
    assert await store.node("/c", "edge-1")
    assignments = ", ".join(f"{each.strip()} = o.{each.strip()}" for each in COLUMNS.split(","))
    await write(place, f"UPDATE nodes SET {assignments} FROM copy AS o WHERE nodes.key = o.key")  # noqa: S608

    assert "older" in await refusal(store)


class SlowReader(SqliteStore):
    """A store in which something happens between a read and the verification of its rows."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def _read(self, text: str, *values: object) -> Sequence[Row]:
        found = await super()._read(text, *values)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile()
        return found


@pytest.fixture
def slow(sqlite: SqlitePlace) -> SlowReader:
    return SlowReader(sqlite.address, record_authenticator())


async def test_reader_that_was_overtaken_gets_the_newer_record(slow: SlowReader) -> None:
    """The newer row is verified, so the older one must not be returned, which may be one that was rolled back."""

    async def replace_both() -> None:
        await slow.put_node(node(version=2, identity="new"), "edge-1-1")
        await slow.put_cluster(cluster(version=2), 1)
        assert await slow.node("/c", "edge-1")
        assert await slow.cluster("/c")

    await slow.start()
    await slow.put_node(node(identity="old"), None)
    await slow.put_cluster(cluster(), None)
    slow.meanwhile = replace_both
    found = await slow.node("/c", "edge-1")
    assert found
    assert (found.version, found.identity) == (2, "new")

    slow.meanwhile = lambda: recreate(slow, 3)
    known = await slow.last_known_node("/c", "edge-1")
    assert (known.version, known.identity) == (3, "newer")

    async def replace_cluster() -> None:
        await slow.put_cluster(cluster(version=3), 2)
        assert await slow.cluster("/c")

    slow.meanwhile = replace_cluster
    read = await slow.cluster("/c")
    assert read
    assert read.version == 3
    await slow.stop()


async def test_node_that_is_deleted_while_it_is_read_raises_no_alarm(slow: SlowReader) -> None:
    async def delete() -> None:
        await slow.delete_node("/c", "edge-1", None)
        assert (await slow.last_known_node("/c", "edge-1")).version

    await slow.start()
    await slow.put_node(node(), None)
    slow.meanwhile = delete
    assert await slow.node("/c", "edge-1") is None
    assert await slow.audit(what="record.refused") == ()
    await slow.stop()


async def recreate(store: Store, version: int) -> None:
    await store.delete_node("/c", "edge-1", None)
    await store.put_node(node(version=version, identity="newer"), None)
    assert await store.node("/c", "edge-1")


async def test_node_cannot_be_deleted_in_the_database(store: Store, place: Place) -> None:
    """Attack: a managed node unbootstraps when its resource is deleted."""
    await store.put_node(node(identity="me"), None)
    await write(place, "UPDATE nodes SET gone = 1 WHERE key = 'edge-1'")

    with pytest.raises(RecordRefused):
        await store.last_known_node("/c", "edge-1")


async def test_identity_of_deleted_node_cannot_be_changed(store: Store, place: Place) -> None:
    await store.put_node(node(identity="me"), None)
    await store.delete_node("/c", "edge-1", None)
    assert (await store.last_known_node("/c", "edge-1")).identity == "me"
    await write(place, "UPDATE nodes SET node_identity = 'attacker' WHERE key = 'edge-1'")

    with pytest.raises(RecordRefused):
        await store.last_known_node("/c", "edge-1")


@pytest.mark.parametrize("revision", ["1", "9223372036854775807"])
async def test_deletion_signs_nothing_of_a_refused_node(place: Place, revision: str) -> None:
    """Attack: the identity of an attacker becomes that of the deleted node, or its name can never be used again."""
    clock = Clock()
    store = opened(place, record_authenticator(clock=clock))
    await store.start()
    await store.put_node(node(identity="me"), None)
    await store.put_node(node(identity="me", version=2), "edge-1-1")
    assert await store.node("/c", "edge-1")
    values = f"node_identity = 'attacker', version = 9223372036854775807, revision = {revision}"
    await write(place, f"UPDATE nodes SET {values}")  # noqa: S608 - the attack

    assert await store.delete_node("/c", "edge-1", None)
    known = await store.last_known_node("/c", "edge-1")
    assert (known.version, known.identity) == (int(clock.now), "")
    await store.put_node(node(version=known.version + 1), None)
    assert await store.node("/c", "edge-1")
    await store.stop()


@pytest.mark.parametrize("change", ["facts = '{}'", "connection = CAST('x' AS blob)", "id = '/OTHER'", "version = 9"])
async def test_changed_cluster_is_refused(store: Store, place: Place, change: str) -> None:
    await store.put_cluster(cluster(), None)
    await store.put_cluster(cluster("/d"), None)
    await write(place, f"UPDATE clusters SET {change} WHERE key = '/c'")  # noqa: S608 - the attack

    with pytest.raises(RecordRefused):
        await store.cluster("/c")
    assert [each.key for each in await store.clusters()] == ["/d"]


async def test_session_that_someone_added_is_refused(store: Store, place: Place) -> None:
    await store.put_session(UserSession("mine", {"id": "me"}, "proof", 2e9, 1.0))
    assert await store.session("mine", 1.0)
    await write(
        place,
        "INSERT INTO sessions (id, caller, proof, expires, used, checked, refresh, code)"
        " VALUES ('theirs', '{\"id\":\"owner\"}', 'proof', 2000000000, 1, 0, '', '')",
        "UPDATE sessions SET caller = '{\"id\":\"owner\"}' WHERE id = 'mine'",
    )

    assert await store.session("theirs", 1.0) is None
    assert await store.session("mine", 1.0) is None


@pytest.mark.parametrize("change", ["checked = 1900000000", "refresh = 'other'", "expires = 3000000000"])
async def test_session_check_cannot_be_postponed(store: Store, place: Place, change: str) -> None:
    await store.put_session(UserSession("mine", {"id": "me"}, "proof", 2e9, 1.0, 1.0, "sealed"))
    await write(place, f"UPDATE sessions SET {change} WHERE id = 'mine'")  # noqa: S608 - the attack
    assert await store.session("mine", 1.0) is None


async def test_confirmed_session_is_authentic_until_it_ends(store: Store) -> None:
    session = UserSession("mine", {"id": "me"}, "proof", 2e9, 1.0, 1.0, "sealed")
    await store.put_session(session)
    confirmed = replace(session, caller={"id": "me", "ids": []}, checked=2.0, refresh="next")
    assert await store.confirm_session(confirmed)
    assert await store.session("mine", 1.0) == confirmed
    await store.end_session("mine")
    assert not await store.confirm_session(confirmed)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE identity_owners SET node = 'edge-2'",
        "UPDATE identity_owners SET node = 'edge-2', code = ''",
        "INSERT INTO identity_owners (identity, cluster, node, node_identity, code)"
        " VALUES ('other', '/c', 'edge-2', 'me', '')",
    ],
)
async def test_owner_of_an_identity_cannot_be_changed(store: Store, place: Place, change: str) -> None:
    """Attack: another node with the same identity becomes the one that may act with it."""
    assert await store.own_identity("me", "/c", "edge-1", "me")
    await write(place, change)
    assert await store.owned_identities("/c", "edge-2", "me") == frozenset()
    forged = "other" if "INSERT" in change else "me"
    assert await store.identity_owner(forged) is None
    assert len(await store.audit(what="record.refused")) == 1
    assert await store.own_identity(forged, "/c", "edge-1", "me"), "the next sign-in decides"
    assert await store.identity_owner(forged) == ("/c", "edge-1")
    assert await store.own_identity(forged, "/c", "edge-3", "me", ("/c", "edge-1"))
    assert await store.owned_identities("/c", "edge-3", "me") >= {forged}


async def test_owner_of_an_identity_is_signed_with_the_new_key(sqlite: SqlitePlace) -> None:
    old, new = b"k" * 32, b"n" * 32
    store = opened(sqlite, record_authenticator(old))
    await store.start()
    assert await store.own_identity("me", "/c", "edge-1", "me")
    await store.stop()
    with closing(connect(f"file:{sqlite.address}")) as connection:
        rotation = await key_rotation.reseal(SqliteDatabase(connection), Sealer([new, old], "the test"))
    assert rotation.resealed["owners of identities"] == 1
    store = opened(sqlite, RecordAuthenticator(Sealer([new], "the test").codes))
    await store.start()
    assert await store.identity_owner("me") == ("/c", "edge-1")
    await store.stop()


async def test_node_is_created_again_after_its_row_was_deleted(store: Store, place: Place) -> None:
    """A service remembers the revision of the deleted row, and must not take the new one for an older copy."""
    await store.put_node(node(), None)
    await store.put_node(node(version=2), "edge-1-1")
    assert await store.node("/c", "edge-1")
    await write(place, "DELETE FROM nodes")
    assert (await store.last_known_node("/c", "edge-1")).version == 0
    await store.repair_fleet()
    [event] = await store.audit(what="record.refused")
    assert event.detail == {"reason": "its row was deleted"}
    await store.put_node(node(version=3), None)
    assert await store.node("/c", "edge-1")


async def test_row_with_an_unknown_key_is_not_called_an_attack(place: Place) -> None:
    outcomes: list[str] = []
    other = opened(place, record_authenticator(b"o" * 32))
    await other.start()
    await other.put_node(node(), None)
    await other.stop()
    store = opened(place, record_authenticator(count=outcomes.append))
    await store.start()
    with pytest.raises(RecordUnverifiable, match="cannot be verified with the keys present"):
        await store.node("/c", "edge-1")
    assert (await store.nodes("/c")).nodes == ()
    assert await store.audit(what="record.refused") == ()
    await store.stop()
    assert set(outcomes) == {"unverifiable"}


async def test_replaced_node_keeps_its_code_after_a_report(store: Store) -> None:
    await store.put_node(node(), None)
    await store.report("/c", "edge-1", {"conditions": []}, 5.0)
    found = await store.node("/c", "edge-1")
    assert found
    await store.put_node(replace(found, version=2, etag="x"), found.etag)
    assert await store.node("/c", "edge-1")


NULL_ALLOWED = {
    "sqlite": (
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_schema SET sql = replace(sql, 'gone INTEGER NOT NULL', 'gone INTEGER') WHERE name = 'nodes'",
    ),
    "postgres": ("ALTER TABLE nodes ALTER COLUMN gone DROP NOT NULL",),
}


async def mark(place: Place, value: str) -> None:
    if value == "NULL":
        await write(place, *NULL_ALLOWED[place.kind])
    await write(place, f"UPDATE nodes SET gone = {value} WHERE key = 'edge-1'")  # noqa: S608 - the attack


async def assert_refused(store: Store) -> None:
    with pytest.raises(RecordRefused, match="neither 0 nor 1"):
        await store.node("/c", "edge-1")
    with pytest.raises(RecordRefused, match="neither 0 nor 1"):
        await store.last_known_node("/c", "edge-1")


@pytest.mark.parametrize("value", ["NULL", "2", "-1"])
async def test_invalid_deletion_mark_is_refused_and_alarmed(place: Place, value: str) -> None:
    """Attack: the row is neither a node nor a deleted one in SQL, but authentic, so the node is told to leave."""
    before = place()
    await before.start()
    await before.put_node(node(identity="me"), None)
    await before.stop()
    await mark(place, value)
    store = place()
    await store.start()
    try:
        await assert_refused(store)
        await store.repair_fleet()
        assert (await store.fleet(await everywhere(store), 1.0))[0].trouble == ("RecordRefused",), "still in lists"
        assert len(await store.audit(what="record.refused")) == 1
        assert await asyncio.wait_for(store.delete_node("/c", "edge-1", None), 10), "does not wait for ever"
        known = await store.last_known_node("/c", "edge-1")
        assert known.deleted
        await store.put_node(node(version=known.version + 1), None)
        assert await store.node("/c", "edge-1")
    finally:
        await store.stop()


@pytest.mark.parametrize("value", ["''", "x''", "'text'", "x'01'", "0.5"])
async def test_deletion_mark_of_another_type_is_refused(sqlite: SqlitePlace, value: str) -> None:
    """Attack: SQLite stores any type in a column."""
    store = sqlite()
    await store.start()
    try:
        await store.put_node(node(identity="me"), None)
        await mark(sqlite, value)
        await assert_refused(store)
    finally:
        await store.stop()


async def test_review_shows_an_invalid_deletion_mark(sqlite_store: SqliteStore, sqlite: SqlitePlace) -> None:
    await sqlite_store.put_node(node(), None)
    await mark(sqlite, "''")
    codes = record_authenticator().codes
    with closing(connect(f"file:{sqlite.address}")) as connection:
        database = SqliteDatabase(connection)
        [found] = [each async for each in record_review.refused_records(database, codes)]
        assert (found.name, found.state) == ("edge-1", "wrong")
        with pytest.raises(ConfigError, match="neither 0 nor 1"):
            await record_review.accept(database, codes, "edge-1", found.digest, 1e9)
