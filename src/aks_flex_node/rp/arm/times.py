"""Moments as ARM writes them."""

from __future__ import annotations

from datetime import datetime, timezone


def iso(moment: float) -> str:
    return datetime.fromtimestamp(int(moment), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact(moment: float) -> str:
    """With microseconds, for systemData and the audit."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
