"""Tests of the rate limit: burst and rate of each caller are independent."""

from __future__ import annotations

import pytest

from aks_flex_rp.auth.auth_settings import LimitSettings
from aks_flex_rp.auth.rate_limit import RateLimiter

SETTINGS = LimitSettings(reads_per_second=2, read_burst=4, writes_per_second=1, write_burst=1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_limiter_allows_burst_then_enforces_rate() -> None:
    clock = Clock()
    limits = RateLimiter(SETTINGS, clock)
    assert [limits.acquire("a", "read") for _ in range(4)] == [0.0] * 4
    assert limits.acquire("a", "read") == pytest.approx(0.5)
    clock.now += 0.25
    assert limits.acquire("a", "read") == pytest.approx(0.25)
    clock.now += 0.25
    assert limits.acquire("a", "read") == 0.0
    assert limits.acquire("a", "read") > 0


def test_caller_that_waits_as_long_as_required_is_admitted() -> None:
    clock = Clock()
    limits = RateLimiter(SETTINGS, clock)
    for _ in range(100):
        wait = limits.acquire("a", "write")
        clock.now += wait
        assert wait == 0.0 or limits.acquire("a", "write") == 0.0


def test_rate_limiter_separates_callers_and_request_kinds() -> None:
    limits = RateLimiter(SETTINGS, Clock())
    assert limits.acquire("a", "write") == 0.0
    assert limits.acquire("a", "write") > 0
    assert limits.acquire("a", "read") == 0.0
    assert limits.acquire("b", "write") == 0.0


def test_rate_limit_bucket_refills_only_up_to_burst() -> None:
    clock = Clock()
    limits = RateLimiter(SETTINGS, clock)
    limits.acquire("a", "read")
    clock.now += 1000
    assert [limits.acquire("a", "read") > 0 for _ in range(5)] == [False, False, False, False, True]


def test_rate_limit_of_busy_caller_survives_many_other_callers() -> None:
    limits = RateLimiter(SETTINGS, Clock(), generation=10)
    limits.acquire("a", "write")
    for number in range(1000):
        limits.acquire(str(number), "write")
        assert limits.acquire("a", "write") > 0


def test_rate_limiter_memory_is_bounded() -> None:
    limits = RateLimiter(SETTINGS, Clock(), generation=10)
    for number in range(1000):
        limits.acquire(str(number), "read")
    assert len(limits._current) + len(limits._previous) <= 20
