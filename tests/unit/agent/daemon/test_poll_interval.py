"""Tests of the poll interval."""

from __future__ import annotations

import random
import time
from email.utils import formatdate

import pytest

from aks_flex_node.agent.daemon.poller import MAX_DELAY_SECONDS, PollBackoff
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState, classify

SAME = PollResult(ProviderState.CONNECTED)
NEWS = PollResult(ProviderState.CONNECTED, changed=True, version="2")
AWAY = PollResult(ProviderState.UNREACHABLE)


def pace(seed: int = 1) -> PollBackoff:
    return PollBackoff(30.0, random.Random(seed))  # noqa: S311 - a jitter is no secret


def test_short_poll_interval_is_thirty_seconds_with_jitter() -> None:
    delays = [pace(seed).next_delay(SAME, 0.01, 50) for seed in range(500)]
    assert all(20 <= delay <= 40 for delay in delays)
    assert min(delays) < 22
    assert max(delays) > 38


def test_held_long_poll_is_repeated_immediately() -> None:
    assert pace().next_delay(SAME, 50.0, 50) <= 0.5


@pytest.mark.parametrize(("took", "wait"), [(3.0, 0), (59.0, 0), (3.0, 50), (1.0, 2)])
def test_slow_response_does_not_count_as_a_held_long_poll(took: float, wait: int) -> None:
    assert pace().next_delay(SAME, took, wait) >= 20


def test_long_poll_held_for_half_the_time_is_repeated_immediately() -> None:
    assert pace().next_delay(SAME, 25.0, 50) <= 0.5


def test_new_config_is_polled_again_immediately() -> None:
    assert pace().next_delay(NEWS, 0.01, 50) <= 0.5


def test_unreachable_provider_is_polled_with_capped_backoff() -> None:
    one = pace()
    delays = [one.next_delay(AWAY, 0.01, 50) for _ in range(40)]
    assert 20 <= delays[0] <= 40
    assert 40 <= delays[1] <= 80
    assert max(delays) == MAX_DELAY_SECONDS
    assert one.next_delay(SAME, 0.01, 50) <= 40


def test_backoff_delays_of_many_nodes_are_spread() -> None:
    delays = {round(pace(seed).next_delay(AWAY, 0.01, 50), 3) for seed in range(100)}
    assert len(delays) > 90


@pytest.mark.parametrize("standing", [ProviderState.THROTTLED, ProviderState.FAILING])
def test_poll_delay_honors_retry_after(standing: ProviderState) -> None:
    assert 120 <= pace().next_delay(PollResult(standing, retry_after=120.0), 0.01, 50) <= 130


def test_poll_delay_caps_retry_after_at_one_hour() -> None:
    assert pace().next_delay(PollResult(ProviderState.THROTTLED, retry_after=1e9), 0.01, 50) <= 3610


@pytest.mark.parametrize("days", [-1, 1, -4000, 4000])
def test_poll_delay_is_bounded_when_the_clock_is_wrong(days: int) -> None:
    """Only a date in Retry-After depends on the wall clock."""
    date = formatdate(time.time() + days * 86400, usegmt=True)
    body = b'{"error": {"code": "TooManyRequests", "message": "Slowly."}}'
    delay = pace().next_delay(classify(429, {"Retry-After": date}, body), 0.01, 50)
    assert 20 <= delay <= 3610


def test_deleted_resource_is_polled_again_after_one_interval() -> None:
    one = pace()
    assert all(20 <= one.next_delay(PollResult(ProviderState.DELETED), 0.01, 50) <= 40 for _ in range(10))
