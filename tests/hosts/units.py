"""Tests of units for all hosts that can run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.host.actions import (
    DisableUnit,
    EnableUnit,
    ReloadUnits,
    Remove,
    RestartUnit,
    StartUnit,
    StopUnit,
    WriteFile,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.fixtures import Stand

import pytest

NAME = "flex-host-test.service"
FILE = f"/etc/systemd/system/{NAME}"
TEXT = "[Service]\nExecStart=/bin/sleep 1000\nTimeoutStopSec=5\n[Install]\nWantedBy=multi-user.target\n"


class WithUnit:
    @pytest.fixture(autouse=True)
    def _unit(self, stand: Stand) -> Iterator[None]:
        stand.twice(WriteFile(FILE, TEXT.encode()), ReloadUnits())
        yield
        stand.twice(StopUnit(NAME), DisableUnit(NAME), Remove(FILE), ReloadUnits())


class EnabledUnits(WithUnit):
    def test_unit_is_enabled_and_disabled(self, stand: Stand) -> None:
        stand.twice(EnableUnit(NAME))
        assert stand.host.unit(NAME).enabled

        stand.twice(DisableUnit(NAME))
        assert not stand.host.unit(NAME).enabled


class RunningUnits(WithUnit):
    def test_unit_is_started_restarted_and_stopped(self, stand: Stand) -> None:
        stand.twice(StartUnit(NAME))
        assert stand.host.unit(NAME).running
        assert stand.host.unit(NAME).exists

        stand.twice(RestartUnit(NAME))
        assert stand.host.unit(NAME).active == "active"

        stand.twice(StopUnit(NAME))
        assert (stand.host.unit(NAME).running, stand.host.unit(NAME).active) == (False, "inactive")
