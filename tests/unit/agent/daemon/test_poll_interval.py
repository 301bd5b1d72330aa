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
DELETED = PollResult(ProviderState.DELETED)
INTERVAL = 30.0


def backoff(seed: int = 1) -> PollBackoff:
    return PollBackoff(INTERVAL, random.Random(seed))  # noqa: S311 - a jitter is no secret


def delay(result: PollResult, took: float = 0.01, wait: int = 50, seed: int = 1) -> float:
    return backoff(seed).next_delay(result, took, wait)


def throttled(retry_after: float, state: ProviderState = ProviderState.THROTTLED) -> PollResult:
    return PollResult(state, retry_after=retry_after)


def test_short_poll_interval_is_thirty_seconds_with_jitter() -> None:
    delays = [delay(SAME, seed=seed) for seed in range(500)]
    assert all(20 <= each <= 40 for each in delays)
    assert min(delays) < 22
    assert max(delays) > 38


@pytest.mark.parametrize(
    ("result", "took", "wait", "shortest", "longest"),
    [
        (SAME, 50.0, 50, 0, 0.5),  # held
        (SAME, 25.0, 50, 0, 0.5),  # held for half of the time
        (SAME, 3.0, 0, 20, 40),  # slow, but not held
        (SAME, 59.0, 0, 20, 40),
        (SAME, 3.0, 50, 20, 40),
        (SAME, 1.0, 2, 20, 40),
        (DELETED, 0.01, 50, 20, 40),
        (NEWS, 0.01, 50, 0, 0.5),
        (NEWS, 0.1, 0, 20, 40),  # a source without long polls
        (throttled(120.0), 0.01, 50, 120, 130),
        (throttled(120.0, ProviderState.FAILING), 0.01, 50, 120, 130),
        (throttled(1e9), 0.01, 50, 20, 3610),
    ],
)
def test_delay_depends_on_the_result_and_on_how_long_it_was_held(
    result: PollResult, took: float, wait: int, shortest: float, longest: float
) -> None:
    assert shortest <= delay(result, took, wait) <= longest


def test_unreachable_provider_is_polled_with_capped_backoff() -> None:
    one = backoff()
    delays = [one.next_delay(AWAY, 0.01, 50) for _ in range(40)]
    assert 20 <= delays[0] <= 40
    assert 40 <= delays[1] <= 80
    assert max(delays) == MAX_DELAY_SECONDS
    assert one.next_delay(SAME, 0.01, 50) <= 40


def test_backoff_delays_of_many_nodes_are_spread() -> None:
    assert len({round(delay(AWAY, seed=seed), 3) for seed in range(100)}) > 90


@pytest.mark.parametrize("days", [-1, 1, -4000, 4000])
def test_poll_delay_is_bounded_when_the_clock_is_wrong(days: int) -> None:
    """Only a date in Retry-After depends on the wall clock."""
    date = formatdate(time.time() + days * 86400, usegmt=True)
    body = b'{"error": {"code": "TooManyRequests", "message": "Slowly."}}'
    assert 20 <= delay(classify(429, {"Retry-After": date}, body)) <= 3610
