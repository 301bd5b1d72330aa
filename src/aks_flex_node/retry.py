"""Retry with exponential backoff: a limited number of attempts with jittered delays (Retrier), growing delays up to a
deadline (RetryDeadline), and unlimited delays (backoff_delays). Shared by downloads, the configuration fetch, the
Azure calls, and the resource provider's connections.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


AttemptResult = TypeVar("AttemptResult")
LONG_RUN_SECONDS = 1.0  # least delay after many attempts, each of which got further


class AttemptFailed(Exception):  # noqa: N818 - it is not yet an error: most often the next attempt works
    """A failed attempt and its cause."""

    def __init__(self, cause: str, *, retryable: bool = True, after: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.retryable = retryable
        self.after = after  # the Retry-After of the server, in seconds


@frozen
class RetryBackoff:
    """Delays between attempts, in seconds."""

    first_delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 20.0
    max_retry_after: float = 60.0  # upper limit for the server's Retry-After

    def delay(self, failures: int, after: float | None = None) -> float:
        """Returns the delay before the next attempt, with jitter so that machines do not retry simultaneously."""
        if after is not None:
            return min(after, self.max_retry_after) + random.uniform(0, self.first_delay)  # noqa: S311 - no secret
        limit = min(self.max_delay, self.first_delay * self.factor ** (failures - 1))
        return random.uniform(limit / 2, limit)  # noqa: S311 - no secret


@frozen
class Retrier:
    attempts: int
    backoff: RetryBackoff = RetryBackoff()
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, attempt: Callable[[], AttemptResult], reached: Callable[[], int] = lambda: 0) -> AttemptResult:
        """Calls `attempt` until it succeeds. Attempts that progress further than all earlier ones reset the failure
        count. In the long run, there is at most one attempt a second.
        """
        failures, furthest, total = 0, reached(), 0
        while True:
            self.raise_if_stopped()
            try:
                return attempt()
            except AttemptFailed as fault:
                self.raise_if_stopped()
                failures, total = 1 if reached() > furthest else failures + 1, total + 1
                furthest = max(furthest, reached())
                if not fault.retryable or failures >= self.attempts:
                    raise
                delay = self.backoff.delay(failures, fault.after)
                self.stopped.wait(delay if total < self.attempts else max(delay, LONG_RUN_SECONDS))

    def raise_if_stopped(self) -> None:
        if self.stopped.is_set():
            raise stopped_error()


def stopped_error() -> ArtifactError:
    return ArtifactError(
        "download-cancelled",
        "The download was cancelled.",
        "Run the same command again. It resumes from the data that was already downloaded.",
        retryable=True,
    )


@dataclass
class RetryDeadline:
    """A total time limit in seconds with growing delays between attempts."""

    seconds: float
    first_delay: float = 1.0
    max_delay: float = 15.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _begun: float = field(init=False)
    _pause: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun, self._pause = self.now(), self.first_delay

    @property
    def waited(self) -> float:
        return self.now() - self._begun

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.waited)

    def pause(self) -> bool:
        """Sleeps, each time longer. Returns False immediately when the time limit is reached."""
        left = self.left
        if not left:
            return False
        self.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, self.max_delay)
        return True


def backoff_delays(first_delay: float = 0.05, max_delay: float = 2.0) -> Iterator[float]:
    """Yields the delay in seconds before each further attempt, with jitter and without a limit on attempts."""
    pause = first_delay
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - no secret
        pause = min(pause * 2, max_delay)
