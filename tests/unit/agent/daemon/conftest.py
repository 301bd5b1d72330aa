"""Fixtures: started daemons, which are stopped after the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.agent.daemon.harness import Life, begun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.agent.daemon.harness import StartDaemon


@pytest.fixture
def start_daemon() -> Iterator[StartDaemon]:
    """Starts the daemon of a given life, or of one with these settings."""
    started: list[Life] = []

    def start(life: Life | None = None, **settings: Any) -> Life:
        started.append(life or Life(**settings))
        return begun(started[-1])

    yield start
    for life in started:
        life.host.goes_on.set()
        life.controller.shut_down()


@pytest.fixture
def life(start_daemon: StartDaemon) -> Life:
    return start_daemon()
