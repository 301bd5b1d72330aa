"""Exponential backoff with jitter: the delays between retries."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = 0.05
LONGEST = 2.0


def backoff_delays() -> Iterator[float]:
    """Seconds, without an end."""
    pause = FIRST
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - no secret
        pause = min(pause * 2, LONGEST)
