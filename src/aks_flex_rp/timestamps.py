"""Timestamps in the formats that ARM uses: UTC, to the second or to the microsecond."""

from __future__ import annotations

from datetime import datetime, timezone


def format_seconds(timestamp: float) -> str:
    return _without_offset(datetime.fromtimestamp(int(timestamp), timezone.utc).isoformat(timespec="seconds"))


def format_microseconds(timestamp: float) -> str:
    """With microseconds, for systemData and the audit."""
    return _without_offset(datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="microseconds"))


def _without_offset(text: str) -> str:
    """`isoformat` is several times as fast as `strftime`, and says +00:00 where ARM says Z."""
    return f"{text[:-6]}Z"
