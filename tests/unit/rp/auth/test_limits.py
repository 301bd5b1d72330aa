"""One caller gets its burst and its rate, whatever others do."""

from __future__ import annotations

import pytest

from aks_flex_node.rp.auth.limits import Limits
from aks_flex_node.rp.auth.settings import LimitSettings

SETTINGS = LimitSettings(reads_per_second=2, read_burst=4, writes_per_second=1, write_burst=1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_through_and_then_the_rate_holds() -> None:
    clock = Clock()
    limits = Limits(SETTINGS, clock)
    assert [limits.take("a", "read") for _ in range(4)] == [0.0] * 4
    assert limits.take("a", "read") == pytest.approx(0.5)
    clock.now += 0.25
    assert limits.take("a", "read") == pytest.approx(0.25)
    clock.now += 0.25
    assert limits.take("a", "read") == 0.0
    assert limits.take("a", "read") > 0


def test_whoever_waits_as_told_goes_on() -> None:
    clock = Clock()
    limits = Limits(SETTINGS, clock)
    for _ in range(100):
        wait = limits.take("a", "write")
        clock.now += wait
        assert wait == 0.0 or limits.take("a", "write") == 0.0


def test_callers_and_kinds_have_buckets_of_their_own() -> None:
    limits = Limits(SETTINGS, Clock())
    assert limits.take("a", "write") == 0.0
    assert limits.take("a", "write") > 0
    assert limits.take("a", "read") == 0.0
    assert limits.take("b", "write") == 0.0


def test_rest_fills_a_bucket_no_further_than_its_burst() -> None:
    clock = Clock()
    limits = Limits(SETTINGS, clock)
    limits.take("a", "read")
    clock.now += 1000
    assert [limits.take("a", "read") > 0 for _ in range(5)] == [False, False, False, False, True]


def test_a_busy_caller_is_not_forgotten_when_many_others_come() -> None:
    limits = Limits(SETTINGS, Clock(), generation=10)
    limits.take("a", "write")
    for number in range(1000):
        limits.take(str(number), "write")
        assert limits.take("a", "write") > 0


def test_memory_is_bounded() -> None:
    limits = Limits(SETTINGS, Clock(), generation=10)
    for number in range(1000):
        limits.take(str(number), "read")
    assert len(limits._current) + len(limits._previous) <= 20
