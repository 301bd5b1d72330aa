"""Rate limits per caller: token buckets, one for reads and one for writes."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.auth.auth_settings import LimitSettings

RateKind = Literal["read", "write"]
Bucket = tuple[Hashable, RateKind]  # who, and for what
MAX_BUCKETS = 100_000  # per generation


class RateLimiter:
    """Token buckets in two generations: unused buckets are dropped, and are full again when next used."""

    def __init__(
        self,
        settings: LimitSettings,
        clock: Callable[[], float] = time.monotonic,
        generation: int = MAX_BUCKETS,
    ) -> None:
        self._rates = {
            "read": (settings.reads_per_second, float(settings.read_burst)),
            "write": (settings.writes_per_second, float(settings.write_burst)),
        }
        self._clock = clock
        self._generation = generation
        self._current: dict[Bucket, tuple[float, float]] = {}  # (tokens, time of the last update)
        self._previous: dict[Bucket, tuple[float, float]] = {}

    def wait(self, caller_id: Hashable, kind: RateKind) -> float:
        """Returns the seconds until a token can be taken, or 0, and takes none."""
        rate, burst = self._rates[kind]
        key = (caller_id, kind)
        found = self._current.get(key) or self._previous.get(key)
        if found is None:
            return 0.0
        tokens = min(burst, found[0] + (self._clock() - found[1]) * rate)
        return max(0.0, (1.0 - tokens) / rate)

    def acquire(self, caller_id: Hashable, kind: RateKind) -> float:
        """Takes a token. Returns 0, or the seconds to wait before the next try."""
        rate, burst = self._rates[kind]
        key, now = (caller_id, kind), self._clock()
        found = self._current.get(key)
        if found is None:
            found = self._previous.get(key, (burst, now))
            if len(self._current) >= self._generation:
                self._previous, self._current = self._current, {}
        tokens = min(burst, found[0] + (now - found[1]) * rate)
        if tokens < 1.0:
            self._current[key] = (tokens, now)
            return (1.0 - tokens) / rate
        self._current[key] = (tokens - 1.0, now)
        return 0.0
