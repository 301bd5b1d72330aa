"""Tests of the poller thread, which survives any response, and of its interval."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.daemon.poller import MAX_DELAY_SECONDS as LONGEST_PAUSE
from aks_flex_node.agent.daemon.poller import WATCHDOG_SECONDS, PollBackoff, Poller
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState, classify
from aks_flex_node.errors import MachineError
from tests.unit.agent.daemon.fakes import CONNECTED, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


NEWS = PollResult(ProviderState.CONNECTED, changed=True, version="2")


@dataclass
class Scene:
    """A provider whose responses take time on a simulated clock."""

    answer: Callable[[], PollResult] = lambda: CONNECTED
    takes: float = 0.0
    now: float = 1000.0
    version: str = "1"
    asked: list[tuple[str, int]] = field(default_factory=list)
    taken: list[PollResult] = field(default_factory=list)
    failed: list[PollResult] = field(default_factory=list)

    def poll(self, version: str, wait: int) -> PollResult:
        self.asked.append((version, wait))
        self.now += self.takes
        return self.answer()

    def take(self, verdict: PollResult) -> PollResult:
        self.taken.append(verdict)
        return verdict

    def poller(self, take: Callable[[PollResult], PollResult] | None = None, interval: float = 30.0) -> Poller:
        pace = PollBackoff(interval, random.Random(1))  # noqa: S311 - a jitter is no secret
        return Poller(
            self.poll,
            pace,
            lambda: 50,
            lambda: self.version,
            take or self.take,
            self.failed.append,
            clock=lambda: self.now,
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_first_poll_is_short_and_later_polls_are_long(scene: Scene) -> None:
    poller = scene.poller()
    poller.poll_once()
    scene.version = "2"
    poller.poll_once()
    assert scene.asked == [("1", 0), ("2", 50)]


def test_first_poll_after_a_failure_is_short(scene: Scene) -> None:
    poller = scene.poller()
    for state in (
        ProviderState.CONNECTED,
        ProviderState.UNREACHABLE,
        ProviderState.CONNECTED,
        ProviderState.CONNECTED,
    ):
        scene.answer = lambda state=state: PollResult(state)  # type: ignore[misc]
        poller.poll_once()
    assert [wait for _, wait in scene.asked] == [0, 50, 0, 50]


def test_held_poll_is_repeated_without_delay(scene: Scene) -> None:
    poller = scene.poller()
    assert poller.poll_once() == 0.0  # the first poll must not wait, the next one does
    assert poller.poll_once() >= 20  # a provider without long polls
    scene.takes = 50.0
    assert poller.poll_once() <= 0.5


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MachineError("disk-full", "The disk is full."), "The disk is full."),
        (ValueError("canary-secret"), "The response of the config source could not be processed (ValueError)."),
        (RecursionError(), "The response of the config source could not be processed (RecursionError)."),
    ],
    ids=str,
)
def test_poll_result_handler_error_is_reported_and_polling_continues(
    scene: Scene, error: Exception, said: str
) -> None:
    def fail(_: PollResult) -> PollResult:
        raise error

    poller = scene.poller(fail)
    delays = [poller.poll_once() for _ in range(12)]
    assert 20 <= delays[0] <= 40
    assert delays[-1] == LONGEST_PAUSE
    assert {(each.state, each.message) for each in scene.failed} == {(ProviderState.AGENT_FAILING, said)}


def test_poll_request_error_is_reported_without_secrets(scene: Scene) -> None:
    def fail() -> PollResult:
        raise ValueError("Invalid header value b'Bearer canary'")

    scene.answer = fail
    assert scene.poller().poll_once() >= 20
    assert "canary" not in str(scene.failed)


def test_poll_result_after_stop_is_dropped() -> None:
    scene = Scene(answer=lambda: NEWS)
    poller = scene.poller()
    poller.stop()
    poller.poll_once()
    assert scene.taken == []


def test_poller_thread_polls_repeatedly_and_ends_on_stop() -> None:
    scene = Scene(answer=lambda: NEWS)
    poller = scene.poller(interval=0.001)
    before = threading.active_count()
    poller.start()
    eventually(lambda: len(scene.taken) >= 2)
    poller.stop()
    eventually(lambda: threading.active_count() == before)


def test_poller_is_stuck_only_after_its_delay_and_the_watchdog_time() -> None:
    scene = Scene(answer=lambda: PollResult(ProviderState.THROTTLED, retry_after=3600.0))
    poller = scene.poller()
    assert not poller.is_stuck
    delay = poller.poll_once()
    scene.now += delay + WATCHDOG_SECONDS
    assert not poller.is_stuck
    scene.now += 1
    assert poller.is_stuck


def test_poller_with_a_hanging_request_is_stuck() -> None:
    scene, going = Scene(), threading.Event()

    def hang() -> PollResult:
        going.wait(10)
        return CONNECTED

    scene.answer = hang
    poller = scene.poller()
    poller.start()
    eventually(lambda: scene.asked)
    assert not poller.is_stuck
    scene.now += WATCHDOG_SECONDS + 1
    assert poller.is_stuck
    poller.stop()
    going.set()


SAME = PollResult(ProviderState.CONNECTED)
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
    assert max(delays) == LONGEST_PAUSE
    assert one.next_delay(SAME, 0.01, 50) <= 40


def test_backoff_delays_of_many_nodes_are_spread() -> None:
    assert len({round(delay(AWAY, seed=seed), 3) for seed in range(100)}) > 90


@pytest.mark.parametrize("days", [-1, 1, -4000, 4000])
def test_poll_delay_is_bounded_when_the_clock_is_wrong(days: int) -> None:
    """Only a date in Retry-After depends on the wall clock."""
    date = formatdate(time.time() + days * 86400, usegmt=True)
    body = b'{"error": {"code": "TooManyRequests", "message": "Slowly."}}'
    assert 20 <= delay(classify(429, {"Retry-After": date}, body)) <= 3610
