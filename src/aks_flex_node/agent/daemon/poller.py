"""Long-polls the provider in a thread of its own, with jitter between polls and backoff after failures."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable


WATCHDOG_SECONDS = 1800.0  # seconds: everything that one question may lead to has a bound, and they add up to less


class Pollable(Protocol):
    def poll(self, version: str, wait: int) -> PollResult: ...


@dataclass
class Poller:
    provider: Pollable
    backoff: PollBackoff
    wait: Callable[[], int]  # how long an answer may be held
    version: Callable[[], str]  # the newest that is known
    handle: Callable[[PollResult], PollResult]  # what to do with an answer; how it stands after that
    on_failure: Callable[[PollResult], None]  # told when that could not be done
    clock: Callable[[], float] = time.monotonic
    _overdue_at: float = float("inf")  # when it is to be heard of again
    _last_ok: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._stopped.set()

    @property
    def is_stuck(self) -> bool:
        """Whether it hangs where nothing should: a server may send its answer one byte a minute."""
        return self.clock() > self._overdue_at

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(self.poll_once())

    def poll_once(self) -> float:
        """Ask once; seconds until the next time."""
        begun = self.clock()
        self._overdue_at = begun + WATCHDOG_SECONDS
        # The first answer is not held, nor is the first after a trouble: how it stands is known at once.
        first = not self._last_ok
        wait, took = 0 if first else self.wait(), 0.0
        try:
            answer = self.provider.poll(self.version(), wait)
            took = self.clock() - begun
            verdict = answer if self._stopped.is_set() else self.handle(answer)
        except FlexError as error:
            verdict = self._handle_failure(error.message)
        except Exception as error:  # whatever an answer does to us, the next question is asked
            # What it says may hold anything, so only its kind is told.
            verdict = self._handle_failure(f"An answer could not be dealt with ({type(error).__name__}).")
        self._last_ok = verdict.is_ok
        delay = self.backoff.next_delay(verdict, took, wait)
        if first and verdict.is_ok and self.wait():
            delay = 0.0  # and from now on answers may be held
        self._overdue_at = self.clock() + delay + WATCHDOG_SECONDS
        return delay

    def _handle_failure(self, message: str) -> PollResult:
        result = PollResult(ProviderState.AGENT_FAILING, message)
        self.on_failure(result)
        return result


MAX_DELAY_SECONDS = 300.0  # seconds between two questions, however long the provider has been away
MIN_HELD_SECONDS = 2.0  # seconds after which an answer may have been held
HELD_FRACTION = 4  # and the part of the time we are ready to wait: else it is a provider with too much to do


@dataclass
class PollBackoff:
    interval: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    _failures: int = 0

    def next_delay(self, result: PollResult, took: float, wait: float) -> float:
        """Seconds until the next question, after one that took so long and might have been held for `wait`."""
        if result.is_ok:
            self._failures = 0
            # A provider that holds questions is asked again at once: that is how it tells us of news.
            held = wait > 0 and took >= max(MIN_HELD_SECONDS, wait / HELD_FRACTION)
            return self.rng.uniform(0.0, 0.5) if result.changed or held else self._jittered()
        if result.state is ProviderState.DELETED:
            self._failures = 0
            return self._jittered()
        self._failures += 1
        delay = min(MAX_DELAY_SECONDS, self._jittered() * float(2 ** min(self._failures - 1, 10)))
        # Whoever asks for patience gets it, within reason, and a little more, so that not all come back at once.
        asked = (
            min(result.retry_after, 3600.0) + self.rng.uniform(0.0, self.interval / 3) if result.retry_after else 0.0
        )
        return max(delay, asked)

    def _jittered(self) -> float:
        return self.interval + self.rng.uniform(-1.0, 1.0) * self.interval / 3
