"""Tests of the data that a killed writer leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.service.rp.store.builders import node
from tests.service.rp.store.writer_process import WRITERS

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import Place

ACKNOWLEDGED = 300  # in each round, before the kill


def write_until_killed(place: Place) -> dict[str, int]:
    """Returns the last acknowledged version of each node."""
    words = (sys.executable, "-m", "tests.service.rp.store.writer_process", place.kind, place.address)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(ACKNOWLEDGED)]
        process.kill()
        lines += process.stdout.readlines()
    return {key: int(version) for key, version in (line.split() for line in lines if line.endswith("\n"))}


async def check(store: Store, acknowledged: dict[str, int]) -> None:
    for key, version in acknowledged.items():
        found = await store.node("/c", key)
        assert found
        assert found.version in {version, version + 1}, "one more may have been written without a word"
        assert found == node(key, found.version)
        events = await store.audit(resource=f"/c/{key}", limit=100_000)
        assert [one.what for one in events] == [str(number) for number in range(found.version, 0, -1)]


async def test_acknowledged_writes_survive_kill_and_are_never_partial(place: Place) -> None:
    for _ in range(3):
        acknowledged = write_until_killed(place)
        assert len(acknowledged) == WRITERS
        store = place()
        await store.start()
        await check(store, acknowledged)
        await store.stop()
