"""When changes that disturb pods may begin. Pure: the moment is given."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aks_flex_node.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import MaintenanceWindow

LOOK_AHEAD_DAYS = 9  # a week, and what a zone that skips a day may cost


def opens(window: MaintenanceWindow, now: datetime) -> datetime | None:
    """When it opens next, on the clock of its zone; None when it is open."""
    if window.start is None:
        return None
    length = timedelta(minutes=window.duration_minutes)
    for begin in _openings(window, now):
        moment = begin.astimezone(timezone.utc)  # what lies between two times of day is not always what it seems
        if now < moment:
            return begin
        if now < moment + length:
            return None
    raise AssertionError("A window opens at least once a week.")


def _openings(window: MaintenanceWindow, now: datetime) -> Iterator[datetime]:
    """All times at which it opens, from the last one that can still be open."""
    zone = zone_of(window.time_zone)
    start = time.fromisoformat(window.start or "00:00")
    today = now.astimezone(zone).date()
    for ahead in range(-2, LOOK_AHEAD_DAYS):
        day = today + timedelta(days=ahead)
        if not window.days or day.strftime("%A") in window.days:
            yield datetime.combine(day, start, zone)


def zone_of(name: str) -> tzinfo:
    if name.upper() in {"UTC", "GMT", "ETC/UTC"}:
        return timezone.utc  # which even a machine knows that has no table of zones
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise MachineError(
            "time-zone-unknown",
            f"This machine does not know the time zone {name} of the maintenance window, so it cannot tell when it "
            "is open.",
            "Install the package tzdata, or give the window in UTC.",
            again=True,
        ) from None
