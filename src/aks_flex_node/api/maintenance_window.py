"""When a maintenance window opens. Pure; used by the agent, and by roll-outs of the provider."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LOOK_AHEAD_DAYS = 9  # a week, plus a margin for time zones that skip a day


class Window(Protocol):
    @property
    def start(self) -> str | None: ...

    @property
    def days(self) -> Collection[str]: ...

    @property
    def duration_minutes(self) -> int: ...

    @property
    def time_zone(self) -> str: ...


def next_opening(window: Window, now: datetime) -> datetime | None:
    """Returns the next opening time of the window in its time zone, or None when it is open."""
    if window.start is None:
        return None
    length = timedelta(minutes=window.duration_minutes)
    for begin in _openings(window, now):
        moment = begin.astimezone(timezone.utc)  # compare in UTC, because of daylight saving time
        if now < moment:
            return begin
        if now < moment + length:
            return None
    raise AssertionError("A window opens at least once a week.")


def _openings(window: Window, now: datetime) -> Iterator[datetime]:
    """Yields all opening times, starting with the last one that can still be open."""
    zone = parse_time_zone(window.time_zone)
    start = time.fromisoformat(window.start or "00:00")
    today = now.astimezone(zone).date()
    for ahead in range(-2, LOOK_AHEAD_DAYS):
        day = today + timedelta(days=ahead)
        if not window.days or day.strftime("%A") in window.days:
            yield datetime.combine(day, start, zone)


def parse_time_zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "GMT", "ETC/UTC"}:
        return timezone.utc  # works without tzdata
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - large, and few nodes have a time zone

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise MachineError(
            "time-zone-unknown",
            f"The time zone {name} of the maintenance window is unknown on this machine.",
            "Install the package tzdata, or set the window in UTC.",
            retryable=True,
        ) from None
