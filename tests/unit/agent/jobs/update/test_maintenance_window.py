"""Tests of maintenance windows: time zones, midnight and DST changes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api import maintenance_window
from aks_flex_node.errors import MachineError
from tests.unit.agent.config.builders import node_config

if TYPE_CHECKING:
    from aks_flex_node.settings.models import MaintenanceWindow


def window(start: str | None, minutes: int = 60, zone: str = "UTC", days: tuple[str, ...] = ()) -> MaintenanceWindow:
    values = {"start": start, "durationMinutes": minutes, "timeZone": zone, "days": days}
    return node_config({"updatePolicy": {"maintenanceWindow": values}}).update_policy.maintenance_window


def opens(which: MaintenanceWindow, moment: str) -> str:
    """Returns when a window opens next after this time in UTC; empty when it is open."""
    found = maintenance_window.next_opening(which, datetime.fromisoformat(moment).replace(tzinfo=timezone.utc))
    return f"{found:%Y-%m-%d %H:%M %z}" if found else ""


@pytest.mark.parametrize(
    ("which", "moment", "expected"),
    [
        (window(None), "2025-03-05 12:00", ""),
        (window("02:00"), "2025-03-05 01:59", "2025-03-05 02:00 +0000"),
        (window("02:00"), "2025-03-05 02:00", ""),
        (window("02:00"), "2025-03-05 02:59", ""),
        (window("02:00"), "2025-03-05 03:00", "2025-03-06 02:00 +0000"),
        (window("23:00", 240), "2025-03-06 02:59", ""),
        (window("23:00", 240), "2025-03-06 03:00", "2025-03-06 23:00 +0000"),
        (window("00:00", 1440), "2025-03-06 23:59", ""),
        (window("22:00", 240, days=("Saturday",)), "2025-03-09 01:00", ""),  # Sunday, in Saturday's window
        (window("22:00", 240, days=("Sunday",)), "2025-03-09 01:00", "2025-03-09 22:00 +0000"),
        (window("02:00", days=("Wednesday",)), "2025-03-05 03:00", "2025-03-12 02:00 +0000"),
        (window("02:00", zone="Europe/Berlin"), "2025-01-15 01:00", ""),
        (window("02:00", zone="Europe/Berlin"), "2025-07-15 00:30", ""),
        (window("02:00", zone="America/Los_Angeles", days=("Monday",)), "2025-07-15 09:30", "2025-07-21 02:00 -0700"),
    ],
    ids=str,
)
def test_maintenance_window_is_open_or_gives_its_opening_time(
    which: MaintenanceWindow, moment: str, expected: str
) -> None:
    assert opens(which, moment) == expected


def test_maintenance_window_in_a_skipped_dst_hour_still_opens() -> None:
    """On 30 March 2025, Berlin's clocks go from 02:00 to 03:00, which is 01:00 UTC."""
    skipped = window("02:30", 30, "Europe/Berlin")
    assert opens(skipped, "2025-03-30 00:59") != ""
    assert opens(skipped, "2025-03-30 01:45") == ""


def test_maintenance_window_over_a_repeated_dst_hour_keeps_its_length() -> None:
    """On 26 October 2025, Berlin's clocks go from 03:00 to 02:00, which is 01:00 UTC."""
    twice = window("02:30", 60, "Europe/Berlin")
    assert opens(twice, "2025-10-26 00:30") == ""
    assert opens(twice, "2025-10-26 01:29") == ""
    assert opens(twice, "2025-10-26 01:30").startswith("2025-10-27 02:30")


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../etc/passwd", "Europe", ""])
def test_unknown_time_zone_is_reported(name: str) -> None:
    with pytest.raises(MachineError) as caught:
        maintenance_window.parse_time_zone(name)
    assert caught.value.name == "time-zone-unknown"
    assert "tzdata" in caught.value.hint
