"""When the provider is asked again."""

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


def test_a_provider_that_does_not_hold_is_asked_every_thirty_seconds_give_or_take_ten() -> None:
    delays = [pace(seed).next_delay(SAME, 0.01, 50) for seed in range(500)]
    assert all(20 <= delay <= 40 for delay in delays)
    assert min(delays) < 22
    assert max(delays) > 38


def test_a_provider_that_holds_is_asked_again_at_once() -> None:
    assert pace().next_delay(SAME, 50.0, 50) <= 0.5


@pytest.mark.parametrize(("took", "wait"), [(3.0, 0), (59.0, 0), (3.0, 50), (1.0, 2)])
def test_one_that_only_takes_its_time_has_enough_to_do(took: float, wait: int) -> None:
    assert pace().next_delay(SAME, took, wait) >= 20


def test_one_that_holds_for_less_than_it_was_asked_holds() -> None:
    assert pace().next_delay(SAME, 25.0, 50) <= 0.5


def test_after_news_there_may_be_more() -> None:
    assert pace().next_delay(NEWS, 0.01, 50) <= 0.5


def test_a_provider_that_is_away_is_asked_less_and_less_often_but_never_forgotten() -> None:
    one = pace()
    delays = [one.next_delay(AWAY, 0.01, 50) for _ in range(40)]
    assert 20 <= delays[0] <= 40
    assert 40 <= delays[1] <= 80
    assert max(delays) == MAX_DELAY_SECONDS
    assert one.next_delay(SAME, 0.01, 50) <= 40


def test_many_nodes_do_not_come_back_at_once() -> None:
    delays = {round(pace(seed).next_delay(AWAY, 0.01, 50), 3) for seed in range(100)}
    assert len(delays) > 90


@pytest.mark.parametrize("standing", [ProviderState.THROTTLED, ProviderState.FAILING])
def test_whoever_asks_for_patience_gets_it(standing: ProviderState) -> None:
    assert 120 <= pace().next_delay(PollResult(standing, retry_after=120.0), 0.01, 50) <= 130


def test_but_not_for_ever() -> None:
    assert pace().next_delay(PollResult(ProviderState.THROTTLED, retry_after=1e9), 0.01, 50) <= 3610


@pytest.mark.parametrize("days", [-1, 1, -4000, 4000])
def test_a_clock_that_was_set_neither_stops_the_questions_nor_makes_a_burst_of_them(days: int) -> None:
    """Of all that a provider says, only a date for the next question goes by the time of day."""
    date = formatdate(time.time() + days * 86400, usegmt=True)
    body = b'{"error": {"code": "TooManyRequests", "message": "Slowly."}}'
    delay = pace().next_delay(classify(429, {"Retry-After": date}, body), 0.01, 50)
    assert 20 <= delay <= 3610


def test_a_deleted_resource_is_looked_for_again_after_one_interval() -> None:
    one = pace()
    assert all(20 <= one.next_delay(PollResult(ProviderState.DELETED), 0.01, 50) <= 40 for _ in range(10))
