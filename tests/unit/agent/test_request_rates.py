"""Tests that no client asks more often than once a second in the long run, whatever the server answers. A fake clock
counts the requests of an hour.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.cluster.node_watch import NodeWatch
from aks_flex_node.agent.daemon.poller import PollBackoff
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.retry import AttemptFailed, Retrier, RetryBackoff, backoff_delays

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600.0


def requests_in_an_hour(delays: Iterator[float]) -> int:
    passed, count = 0.0, 0
    while passed < HOUR and count < 2 * HOUR:
        passed, count = passed + next(delays), count + 1
    return count


CHANGING = PollResult(ProviderState.CONNECTED, changed=True, version="2")
FAILING = [state for state in ProviderState if state is not ProviderState.CONNECTED]


@pytest.mark.parametrize(
    "result",
    [CHANGING, *(PollResult(state, retry_after=after) for state in FAILING for after in (None, 0.0, 0.001))],
    ids=str,
)
def test_failing_or_changing_polls_are_at_most_one_a_second(result: PollResult) -> None:
    backoff = PollBackoff(5.0)
    assert requests_in_an_hour(backoff.next_delay(result, 0.0, 60) for _ in iter(int, 1)) < HOUR


def test_unlimited_retries_are_at_most_one_a_second() -> None:
    assert requests_in_an_hour(backoff_delays()) < HOUR


def test_node_watch_asks_at_most_once_a_second() -> None:
    def open_api() -> Any:
        raise OSError("the network is gone")

    watch = NodeWatch(open_api, "edge-1", lambda _: None)
    assert requests_in_an_hour(watch.watch_once() for _ in iter(int, 1)) < HOUR


class Pauses(threading.Event):
    """Counts the time that a retrier waits for, and stops it after an hour."""

    passed = 0.0
    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.passed, self.count = self.passed + (timeout or 0.0), self.count + 1
        if self.passed > HOUR or self.count > 2 * HOUR:
            self.set()
        return self.is_set()


def test_download_that_gains_one_byte_each_time_asks_once_a_second() -> None:
    """Each attempt that gets further counts as the first failure."""
    pauses, done = Pauses(), [0]

    def attempt() -> None:
        done[0] += 1
        raise AttemptFailed("the connection was interrupted")

    with pytest.raises(Exception, match="cancelled"):
        Retrier(5, RetryBackoff(), pauses).run(attempt, lambda: done[0])
    assert pauses.count <= HOUR + 5
