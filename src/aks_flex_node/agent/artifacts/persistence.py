"""Trying again: how often, after what time, and when to give up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

Outcome = TypeVar("Outcome")


class Interrupted(Exception):  # noqa: N818 - it is not yet an error: most often the next attempt works
    """An attempt that failed, with its cause in plain words."""

    def __init__(self, cause: str, *, again: bool = True, after: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.again = again
        self.after = after  # seconds that the server asked us to wait


@dataclass(frozen=True)
class Pace:
    """The waits between attempts, in seconds."""

    first: float = 0.5
    factor: float = 2.0
    longest: float = 20.0
    longest_asked: float = 60.0  # what a server may ask for at most

    def delay(self, failures: int, after: float | None = None) -> float:
        """Back-off with jitter, so that a site's machines do not come back all at once."""
        if after is not None:
            return min(after, self.longest_asked) + random.uniform(0, self.first)  # noqa: S311 - no secret
        limit = min(self.longest, self.first * self.factor ** (failures - 1))
        return random.uniform(limit / 2, limit)  # noqa: S311 - no secret


@dataclass(frozen=True)
class Persistence:
    attempts: int
    pace: Pace
    stopped: threading.Event

    def pursue(self, attempt: Callable[[], Outcome], reached: Callable[[], int] = lambda: 0) -> Outcome:
        """Try until it works. Attempts that get further than any before do not count as failures in a row."""
        failures, furthest = 0, reached()
        while True:
            self.check()
            try:
                return attempt()
            except Interrupted as fault:
                self.check()
                failures = 1 if reached() > furthest else failures + 1
                furthest = max(furthest, reached())
                if not fault.again or failures >= self.attempts:
                    raise
                self.stopped.wait(self.pace.delay(failures, fault.after))

    def check(self) -> None:
        if self.stopped.is_set():
            raise stopped_error()


def stopped_error() -> ArtifactError:
    return ArtifactError(
        "fetching-stopped",
        "Fetching was stopped before it was complete.",
        "Start again: what was fetched so far is kept.",
        again=True,
    )
