"""RFC 3339 timestamps, formatted in UTC as ARM and Kubernetes write them, and parsed."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def format_utc(timestamp: float | None = None) -> str:
    """Formats a unix time, now by default, to the second: 2026-01-02T03:04:05Z."""
    seconds = int(time.time() if timestamp is None else timestamp)
    return _without_offset(datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds"))


def format_utc_milliseconds(timestamp: float) -> str:
    """For the agent's log. Milliseconds are cut off, never rounded up into the next second."""
    return f"{format_utc(timestamp)[:-1]}.{int(timestamp % 1 * 1000):03d}Z"


def format_utc_microseconds(timestamp: float) -> str:
    """For systemData and the audit."""
    return _without_offset(datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="microseconds"))


def parse_utc(text: str) -> datetime:
    """Parses what `format_utc` writes; raises ValueError for any other form."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def parse_timestamp(text: str) -> datetime:
    """Parses any ISO 8601 time that Python knows, and Z as its zone, which Python 3.10 does not."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _without_offset(text: str) -> str:
    """`isoformat` is several times as fast as `strftime`, and says +00:00 where ARM says Z."""
    return f"{text[:-6]}Z"
