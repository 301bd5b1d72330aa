"""What the service remembers by names that clients can make up: a cache with a limit, and a limit of frequency."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dict that forgets what was set first, or longest ago, when it is full."""

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        while len(self) >= self.max_size:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class Throttle:
    """Permits something once in a time for each name."""

    def __init__(self, seconds: float, clock: Callable[[], float], max_names: int) -> None:
        self._seconds, self._clock = seconds, clock
        self._permitted: BoundedCache[Hashable, float] = BoundedCache(max_names)

    def wait(self, name: Hashable) -> float:
        """Returns the seconds until it is permitted, or 0 if it is, which counts from now on."""
        now = self._clock()
        left = self._permitted.get(name, -math.inf) + self._seconds - now
        if left <= 0:
            self._permitted[name] = now
        return max(left, 0.0)
