"""Fixtures: roll-outs on both stores, and a program that runs them in processes which end at any write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.rollouts.crash_runs import CrashRuns
from tests.service.rp.rollouts.rollout_world import created_fleet
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.service.rp.rollouts.rollout_world import Fleet
    from tests.service.rp.store.servers import PostgresServer

STORES = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=STORES)
def database(request: pytest.FixtureRequest) -> str | None:
    """Returns the address of an empty database; None means a SQLite file."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def crash_runs(database: str | None, tmp_path: Path) -> Iterator[CrashRuns]:
    with CrashRuns(tmp_path / "state", database) as runs:
        yield runs


@pytest.fixture
def fleet(database: str | None, tmp_path: Path) -> AbstractAsyncContextManager[Fleet]:
    return created_fleet(tmp_path / "state", database)
