"""Writes nodes endlessly and prints each acknowledged write, for crash tests.

python -m tests.service.rp.store.writer_process sqlite|postgres ADDRESS
"""

from __future__ import annotations

import asyncio
import os
import sys

from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import event, node, record_authenticator

WRITERS = 10


async def write(store: SqliteStore | PostgresStore, key: str) -> None:
    """Continues after the last version of an earlier process."""
    found = await store.node("/c", key)
    version, expected = (found.version, found.etag) if found else (0, None)
    while True:
        version += 1
        await store.put_node(node(key, version), expected, [event(str(version), f"/c/{key}")])
        os.write(1, f"{key} {version}\n".encode())
        expected = f"{key}-{version}"


async def main(kind: str, address: str) -> None:
    store = (
        SqliteStore(address, record_authenticator())
        if kind == "sqlite"
        else PostgresStore(parse_address(address, {}), record_authenticator())
    )
    await store.start()
    await asyncio.gather(*(write(store, f"edge-{number}") for number in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
