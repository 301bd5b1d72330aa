"""Polls the config source in a separate thread, with jitter between polls and backoff after failures."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING

from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, PollResult, ProviderState
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


MIN_WAKE_SECONDS = 2.0  # between two polls, however often the poller is woken
WATCHDOG_SECONDS = 1800.0  # longer than the sum of all time limits of one poll


@dataclass
class Poller:
    poll: Callable[[str, int], PollResult]  # of the source: with the known configVersion, and seconds to wait
    backoff: PollBackoff
    wait: Callable[[], int]  # seconds of the long poll
    version: Callable[[], str]  # the newest known configVersion
    handle: Callable[[PollResult], PollResult]  # processes a result; returns the state after it
    on_failure: Callable[[PollResult], None]  # called when processing failed
    clock: Callable[[], float] = time.monotonic
    _overdue_at: float = float("inf")  # when the current poll counts as stuck
    _last: PollResult = PollResult(ProviderState.STARTING)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _woken: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Stops polling; does not wait for a poll in progress."""
        self._stopped.set()
        self._woken.set()

    def wake(self) -> None:
        """Polls soon instead of after the interval, but neither during the backoff after a failure, nor before the
        time that the source asked for.
        """
        self._woken.set()

    @property
    def is_stuck(self) -> bool:
        """Whether a poll exceeds all time limits, for example because a server sends its response very slowly."""
        return self.clock() > self._overdue_at

    def _run(self) -> None:
        while not self._stopped.is_set():
            seconds = self.poll_once()
            # After a failure, the backoff is kept: a source that is away or refuses is not asked more often.
            least = (
                min(seconds, max(MIN_WAKE_SECONDS, self._last.retry_after or 0.0)) if self._last.is_ok else seconds
            )
            if not self._stopped.wait(least):
                self._woken.wait(seconds - least)
                self._woken.clear()

    def poll_once(self) -> float:
        """Polls once; returns the seconds until the next poll."""
        begun = self.clock()
        self._overdue_at = begun + WATCHDOG_SECONDS
        # The first poll, and the first after a failure, return immediately, so that the state is known.
        first = not self._last.is_ok
        wait, took = 0 if first else self.wait(), 0.0
        try:
            response = self.poll(self.version(), wait)
            took = self.clock() - begun
            result = response if self._stopped.is_set() else self.handle(response)
        except Exception as error:  # no response may stop the polling
            # The text of another exception may contain secrets, so only its type is reported.
            message = f"The response of the config source could not be processed ({type(error).__name__})."
            result = PollResult(
                ProviderState.AGENT_FAILING, error.message if isinstance(error, FlexError) else message
            )
            self.on_failure(result)
        self._last = result
        delay = self.backoff.next_delay(result, took, wait)
        if first and result.is_ok and self.wait():
            delay = 0.0  # start long polling
        self._overdue_at = self.clock() + delay + WATCHDOG_SECONDS
        return delay


MAX_DELAY_SECONDS = 300.0  # maximum backoff while the provider is unavailable
MIN_HELD_SECONDS = 2.0  # minimum duration of a long poll
HELD_FRACTION = 4  # and at least this fraction of `wait`; a faster response means that the provider is overloaded


@dataclass
class PollBackoff:
    interval: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    _failures: int = 0
    _was_new: bool = False  # the last response was a change that was not waited for

    def next_delay(self, result: PollResult, took: float, wait: float) -> float:
        """Returns the seconds until the next poll, after one that took `took` seconds of at most `wait`."""
        if result.is_ok:
            self._failures = 0
            # A long poll is repeated immediately, because changes are delivered through it.
            held = wait > 0 and took >= max(MIN_HELD_SECONDS, wait / HELD_FRACTION)
            # But a source that always sends something new is not asked all the time.
            repeats = held or (result.is_news and wait > 0 and not self._was_new)
            self._was_new = result.is_news and not held
            return self.rng.uniform(0.0, 0.5) if repeats else self._jittered()
        if result.state in LEAVING_STATES:
            self._failures = 0
            return self._jittered()
        self._failures += 1
        delay = min(MAX_DELAY_SECONDS, self._jittered() * float(2 ** min(self._failures - 1, 10)))
        # Retry-After is limited, and jittered so that nodes do not return at the same time.
        requested = (
            min(result.retry_after, 3600.0) + self.rng.uniform(0.0, self.interval / 3) if result.retry_after else 0.0
        )
        return max(delay, requested)

    def _jittered(self) -> float:
        return self.interval + self.rng.uniform(-1.0, 1.0) * self.interval / 3
