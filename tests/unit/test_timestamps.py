from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from aks_flex_node.timestamps import (
    format_utc,
    format_utc_microseconds,
    format_utc_milliseconds,
    parse_timestamp,
    parse_utc,
)

MOMENT = 1767323045.9996  # 2026-01-02T03:04:05.9996Z


def test_format_utc_truncates_fractional_seconds() -> None:
    assert format_utc(MOMENT) == "2026-01-02T03:04:05Z"


def test_format_utc_defaults_to_current_time() -> None:
    before = int(time.time())

    assert before <= parse_utc(format_utc()).timestamp() <= time.time()


def test_format_utc_accepts_epoch_zero() -> None:
    assert format_utc(0) == "1970-01-01T00:00:00Z"


def test_format_utc_supports_milliseconds_and_microseconds() -> None:
    assert format_utc_milliseconds(MOMENT) == "2026-01-02T03:04:05.999Z"
    assert format_utc_microseconds(MOMENT) == "2026-01-02T03:04:05.999600Z"


def test_formatted_timestamp_is_parsed_back() -> None:
    assert parse_utc(format_utc(MOMENT)) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05+00:00", "2026-01-02", ""])
def test_parse_utc_refuses_other_formats(text: str) -> None:
    with pytest.raises(ValueError, match="time data"):
        parse_utc(text)


@pytest.mark.parametrize(
    "text", ["2026-01-02T03:04:05.250Z", "2026-01-02T03:04:05.250000Z", "2026-01-02T05:04:05.250+02:00"]
)
def test_parse_timestamp_accepts_fractions_and_offsets(text: str) -> None:
    assert parse_timestamp(text).timestamp() == 1767323045.25
