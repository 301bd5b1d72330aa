"""Fixtures: a started daemon, which is stopped after the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.agent.daemon.harness import Life, begun

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def life() -> Iterator[Life]:
    one = begun(Life())
    yield one
    one.host.goes_on.set()
    one.controller.shut_down()
