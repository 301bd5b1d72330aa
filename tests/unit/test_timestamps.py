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


def test_seconds_are_cut_off_and_not_rounded() -> None:
    assert format_utc(MOMENT) == "2026-01-02T03:04:05Z"


def test_without_a_time_it_is_now() -> None:
    before = int(time.time())

    assert before <= parse_utc(format_utc()).timestamp() <= time.time()


def test_the_epoch_is_a_time_too() -> None:
    assert format_utc(0) == "1970-01-01T00:00:00Z"


def test_fractions_of_a_second() -> None:
    assert format_utc_milliseconds(MOMENT) == "2026-01-02T03:04:05.999Z"
    assert format_utc_microseconds(MOMENT) == "2026-01-02T03:04:05.999600Z"


def test_what_was_formatted_is_parsed() -> None:
    assert parse_utc(format_utc(MOMENT)) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05+00:00", "2026-01-02", ""])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time data"):
        parse_utc(text)


@pytest.mark.parametrize(
    "text", ["2026-01-02T03:04:05.250Z", "2026-01-02T03:04:05.250000Z", "2026-01-02T05:04:05.250+02:00"]
)
def test_fractions_and_offsets_are_parsed(text: str) -> None:
    assert parse_timestamp(text).timestamp() == 1767323045.25
