"""Builders of nodes, events and clusters with only the values that matter to each test."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from aks_flex_rp.crypto.encryption import key_id
from aks_flex_rp.crypto.record_codes import RecordCodes
from aks_flex_rp.raw_database import PostgresDatabase, SqliteDatabase
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome, Cluster, Delivery, Node
from aks_flex_rp.store.record_authenticator import RecordAuthenticator
from aks_flex_rp.store.sqlite import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aks_flex_rp.raw_database import Database, Row
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.changes import StoreChange
    from tests.service.rp.store.conftest import Place

StoreType = TypeVar("StoreType", bound="Store")
KEY = b"k" * 32


def record_authenticator(key: bytes = KEY, **more: Any) -> RecordAuthenticator:
    """Returns what authenticates the rows of a store in tests, with the same key every time."""
    return RecordAuthenticator(RecordCodes({key_id(key).hex(): key}), **more)


def write_keys(state: Path) -> None:
    """Gives the service of a state directory the key of `record_authenticator`."""
    file = state / "keys"
    file.touch(0o600)
    file.write_bytes(base64.urlsafe_b64encode(KEY) + b"\n")


@asynccontextmanager
async def started(store: StoreType) -> AsyncIterator[StoreType]:
    """Runs a store for the block."""
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


SOON = 30.0  # an upper limit for what takes milliseconds


def cluster(key: str = "/c", version: int = 1, **more: Any) -> Cluster:
    return Cluster(key, key.upper(), {"version": "1.34.4"}, b"\x00secret\xff", version, **more)


def node(key: str = "edge-1", version: int = 1, **more: Any) -> Node:
    """Returns a node whose etag contains its version, so that the next write knows the expected etag."""
    document = {"version": version, "text": "käse \x00 \U0001f9c0", "list": [1, 2.5, None, True]}
    made = Node("/c", key, key.title(), version, f"{key}-{version}", document, document, b"\x00\xff", created=12.5)
    return replace(made, **more)


def event(what: str = "write", resource: str = "/c/edge-1", **more: Any) -> AuditEvent:
    return replace(
        AuditEvent(
            1000.5,
            "somebody",
            AuditAction(what),
            resource,
            "10.0.0.1",
            "request-1",
            AuditOutcome.OK,
            {"before": {"a": 1}},
        ),
        **more,
    )


def delivery(id: str = "hash", node: str = "edge-1", **more: Any) -> Delivery:  # noqa: A002
    return replace(Delivery(id, "/c", node, 2000.0, b"\x00bundle\xff"), **more)


async def no_more(changes: AsyncIterator[StoreChange]) -> None:
    """Takes all changes until none follow."""
    while True:
        try:
            await asyncio.wait_for(changes.__anext__(), 0.5)
        except asyncio.TimeoutError:
            return


async def comes(changes: AsyncIterator[StoreChange], expected: StoreChange) -> bool:
    """Returns whether a change comes, after others: a replica on PostgreSQL is told twice of its own writes."""

    async def find() -> bool:
        async for change in changes:
            if change == expected:
                return True
        return False

    return await asyncio.wait_for(find(), SOON)


async def next_of(changes: AsyncIterator[StoreChange]) -> StoreChange:
    return await asyncio.wait_for(changes.__anext__(), SOON)


@asynccontextmanager
async def raw(place: Place) -> AsyncIterator[Database]:
    """Opens the database as the commands for its maintenance do."""
    if place.kind == "sqlite":
        with closing(connect(f"file:{place.address}?mode=rwc")) as connection:
            yield SqliteDatabase(connection)
        return
    opened = await asyncpg.connect(place.address)
    try:
        yield PostgresDatabase(opened)
    finally:
        await opened.close()


async def write(place: Place, *statements: str) -> None:
    """Executes SQL without the store, as an administrator of the database does."""
    async with raw(place) as database:
        for statement in statements:
            await database.rows(statement)


async def read(place: Place, text: str) -> list[Row]:
    async with raw(place) as database:
        return await database.rows(text)
