"""Timestamps in the formats that ARM uses: UTC, to the second or to the microsecond."""

from __future__ import annotations

from datetime import datetime, timezone


def format_seconds(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_microseconds(moment: float) -> str:
    """With microseconds, for systemData and the audit."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
