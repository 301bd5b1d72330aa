"""RFC 3339 timestamps, formatted in UTC as ARM and Kubernetes write them, and parsed."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def format_utc(timestamp: float | None = None) -> str:
    """Formats a Unix time (default: now) with a precision of seconds: 2026-01-02T03:04:05Z."""
    seconds = int(time.time() if timestamp is None else timestamp)
    return _without_offset(datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds"))


def format_utc_milliseconds(timestamp: float) -> str:
    """Formats a Unix time for the agent's log. Milliseconds are truncated, never rounded up into the next second."""
    return f"{format_utc(timestamp)[:-1]}.{int(timestamp % 1 * 1000):03d}Z"


def format_utc_microseconds(timestamp: float) -> str:
    """Formats a Unix time for systemData and the audit log."""
    return _without_offset(datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="microseconds"))


def parse_utc(text: str) -> datetime:
    """Parses the format of `format_utc`. Raises ValueError for any other format."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def parse_timestamp(text: str) -> datetime:
    """Parses any ISO 8601 time that Python supports, and the suffix Z, which Python 3.10 does not support."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _without_offset(text: str) -> str:
    """Replaces the offset +00:00 with Z. `isoformat` is several times faster than `strftime`."""
    return f"{text[:-6]}Z"
